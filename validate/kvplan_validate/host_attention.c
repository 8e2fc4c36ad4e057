/* Decode attention on the CPU over head-major blocks, by a small team of threads.
 *
 * One job: B sequences, KV key-value heads, G query heads to each, n tokens, head dimension D.
 *   query, out [B, KV, G, D];  keys, values [B, KV, n, D];  lse [B, KV, G] (fp32, natural log)
 * All but lse in the job's format; sums are fp32. Every (sequence, head) is cut into chunks of
 * tokens that the team takes in turn; the last one to end a row joins its chunks in order, so the
 * result does not depend on who took what.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef float v16f __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef uint16_t v16h __attribute__((vector_size(32)));

enum { FP16, BF16, FP32 };
enum { BLOCK = 64, MOST_DIM = 256, LANES = 16 };

typedef struct {
  const void *query, *keys, *values;
  void *out;
  float *lse;
  int64_t rows, group, tokens, dim, chunk; /* rows = B * KV; chunk in tokens */
  float scale;
  int32_t kind;
  /* scratch, made by host_attention_prepare */
  float *partial; /* [rows, chunks, group, dim + 2]: sums, then maximum and denominator */
  atomic_int *left; /* chunks of each row that have not ended */
} Job;

static inline __attribute__((always_inline)) v16f widen(const void *base, int64_t index, int kind) {
  v16f wide;
  if (kind == FP32) {
    memcpy(&wide, (const float *)base + index, sizeof wide);
    return wide;
  }
  const uint16_t *at = (const uint16_t *)base + index;
  if (kind == BF16) {
    v16h half;
    memcpy(&half, at, sizeof half);
    v16u bits = __builtin_convertvector(half, v16u) << 16;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
  }
#if defined(__AVX512F__)
  return (v16f)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
#elif defined(__F16C__)
  __m256 low = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
  __m256 high = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at + 8)));
  memcpy(&wide, &low, 32);
  memcpy((char *)&wide + 32, &high, 32);
  return wide;
#else
  _Float16 half[LANES];
  memcpy(half, at, sizeof half);
  for (int i = 0; i < LANES; i++) wide[i] = (float)half[i];
  return wide;
#endif
}

static void narrow(void *base, int64_t index, float value, int kind) {
  if (kind == FP32) {
    ((float *)base)[index] = value;
  } else if (kind == BF16) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t *)base)[index] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  } else {
#if defined(__F16C__)
    ((uint16_t *)base)[index] = _cvtss_sh(value, 0);
#else
    _Float16 half = (_Float16)value;
    memcpy((uint16_t *)base + index, &half, sizeof half);
#endif
  }
}

#define FOLD(a, b, low, high) (__builtin_shuffle(a, b, (v16i)low) + __builtin_shuffle(a, b, (v16i)high))

/* Lane t of the result is the sum over the lanes of part[t]. */
static inline __attribute__((always_inline)) v16f sums(v16f part[LANES]) {
  for (int t = 0; t < 8; t++)
    part[t] = FOLD(part[t], part[t + 8],
                   ((v16i){0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}),
                   ((v16i){8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31}));
  for (int t = 0; t < 4; t++)
    part[t] = FOLD(part[t], part[t + 4],
                   ((v16i){0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27}),
                   ((v16i){4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31}));
  for (int t = 0; t < 2; t++)
    part[t] = FOLD(part[t], part[t + 2],
                   ((v16i){0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29}),
                   ((v16i){2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31}));
  return FOLD(part[0], part[1],
              ((v16i){0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30}),
              ((v16i){1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31}));
}

/* exp of values at most 0; relative error below 2e-7. Source: Cephes, expf. */
static inline v16f exponential(v16f x) {
  v16f least = (v16f){} - 87.0f;
  v16i low = x < least;
  x = (v16f)(((v16i)least & low) | ((v16i)x & ~low));
  v16i k = __builtin_convertvector(x * 1.44269504088896341f - 0.5f, v16i);
  v16f n = __builtin_convertvector(k, v16f);
  v16f r = x - n * 0.693359375f + n * 2.12194440e-4f;
  v16f p = (v16f){} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  v16i power = (k + 127) << 23;
  v16f scale;
  memcpy(&scale, &power, sizeof scale);
  return p * scale;
}

typedef struct {
  float query[8][MOST_DIM] __attribute__((aligned(64)));
  float sum[8][MOST_DIM] __attribute__((aligned(64)));
  float weight[8][BLOCK] __attribute__((aligned(64)));
  float most[8], total[8];
} Work;

/* Scores of G heads, g0 first, with up to BLOCK tokens; weights and running sums follow. */
static inline __attribute__((always_inline)) void block(
    const Job *job, Work *w, int64_t token, int count, int g0, int G, int kind, int ahead) {
  const int64_t dim = job->dim;
  for (int t0 = 0; t0 < count; t0 += LANES) {
    v16f part[4][LANES];
    for (int t = 0; t < LANES; t++) {
      int64_t at = (token + (t0 + t < count ? t0 + t : count - 1)) * dim;
      if (ahead)
        for (int64_t d = 0; d < dim; d += kind == FP32 ? 16 : 32)
          __builtin_prefetch((const char *)job->values + (at + d) * (kind == FP32 ? 4 : 2));
      v16f acc[4] = {};
      for (int64_t d = 0; d < dim; d += LANES) {
        v16f key = widen(job->keys, at + d, kind);
        for (int g = 0; g < G; g++) acc[g] += key * *(v16f *)&w->query[g0 + g][d];
      }
      for (int g = 0; g < G; g++) part[g][t] = acc[g];
    }
    for (int g = 0; g < G; g++) {
      v16f score = sums(part[g]);
      for (int t = count - t0; t < LANES; t++) score[t] = -INFINITY;
      memcpy(&w->weight[g0 + g][t0], &score, sizeof score);
    }
  }
  int padded = (count + LANES - 1) / LANES * LANES;
  for (int g = g0; g < g0 + G; g++) {
    float most = w->most[g];
    for (int t = 0; t < padded; t++) most = fmaxf(most, w->weight[g][t]);
    v16f total = {};
    for (int t = 0; t < padded; t += LANES) {
      v16f weight;
      memcpy(&weight, &w->weight[g][t], sizeof weight);
      v16i real = weight > -INFINITY;
      weight = exponential(weight - most);
      weight = (v16f)((v16i)weight & real);
      total += weight;
      memcpy(&w->weight[g][t], &weight, sizeof weight);
    }
    float shrink = expf(w->most[g] - most), sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += total[lane];
    w->total[g] = w->total[g] * shrink + sum;
    w->most[g] = most;
    if (shrink != 1.0f)
      for (int64_t d = 0; d < dim; d++) w->sum[g][d] *= shrink;
  }
  int64_t d0 = 0;
  for (; d0 + 4 * LANES <= dim; d0 += 4 * LANES) {
    v16f acc[4][4];
    for (int g = 0; g < G; g++)
      for (int i = 0; i < 4; i++) acc[g][i] = *(v16f *)&w->sum[g0 + g][d0 + i * LANES];
    for (int t = 0; t < count; t++) {
      v16f value[4];
      for (int i = 0; i < 4; i++)
        value[i] = widen(job->values, (token + t) * dim + d0 + i * LANES, kind);
      for (int g = 0; g < G; g++)
        for (int i = 0; i < 4; i++) acc[g][i] += w->weight[g0 + g][t] * value[i];
    }
    for (int g = 0; g < G; g++)
      for (int i = 0; i < 4; i++) *(v16f *)&w->sum[g0 + g][d0 + i * LANES] = acc[g][i];
  }
  for (; d0 < dim; d0 += LANES)
    for (int g = 0; g < G; g++) {
      v16f acc = *(v16f *)&w->sum[g0 + g][d0];
      for (int t = 0; t < count; t++)
        acc += w->weight[g0 + g][t] * widen(job->values, (token + t) * dim + d0, kind);
      *(v16f *)&w->sum[g0 + g][d0] = acc;
    }
}

#define BLOCKS(kind)                                                                    \
  for (int g = 0; g < heads;) {                                                         \
    int ahead = g == 0;                                                                 \
    if (heads - g >= 4) block(job, w, token, count, g, 4, kind, ahead), g += 4;         \
    else if (heads - g >= 2) block(job, w, token, count, g, 2, kind, ahead), g += 2;    \
    else block(job, w, token, count, g, 1, kind, ahead), g += 1;                        \
  }

static int64_t chunks(const Job *job) { return (job->tokens + job->chunk - 1) / job->chunk; }

static void join(Job *job, int64_t row) {
  const int64_t width = job->dim + 2, count = chunks(job);
  for (int64_t g = 0; g < job->group; g++) {
    const float *first = job->partial + (row * count * job->group + g) * width;
    float most = -INFINITY, total = 0;
    float sum[MOST_DIM] = {0};
    for (int64_t c = 0; c < count; c++)
      most = fmaxf(most, first[c * job->group * width + job->dim]);
    for (int64_t c = 0; c < count; c++) {
      const float *part = first + c * job->group * width;
      float share = expf(part[job->dim] - most);
      total += share * part[job->dim + 1];
      for (int64_t d = 0; d < job->dim; d++) sum[d] += share * part[d];
    }
    const int64_t at = row * job->group + g;
    for (int64_t d = 0; d < job->dim; d++) narrow(job->out, at * job->dim + d, sum[d] / total, job->kind);
    job->lse[at] = most + logf(total);
  }
}

/* One chunk of one row, up to eight query heads at a time. */
static void attend_chunk(Job *job, int64_t number) {
  Work space, *w = &space;
  const int64_t count_all = chunks(job), row = number / count_all, c = number % count_all;
  const int64_t begin = c * job->chunk;
  const int64_t end = begin + job->chunk < job->tokens ? begin + job->chunk : job->tokens;
  const int64_t width = job->dim + 2;
  for (int64_t first = 0; first < job->group; first += 8) {
    int heads = (int)(job->group - first < 8 ? job->group - first : 8);
    for (int g = 0; g < heads; g++) {
      const int64_t from = (row * job->group + first + g) * job->dim;
      for (int64_t d = 0; d < job->dim; d += LANES) {
        v16f part = widen(job->query, from + d, job->kind) * job->scale;
        memcpy(&w->query[g][d], &part, sizeof part);
      }
      memset(w->sum[g], 0, sizeof w->sum[g]);
      w->most[g] = -INFINITY, w->total[g] = 0;
    }
    for (int64_t at = begin; at < end; at += BLOCK) {
      const int64_t token = row * job->tokens + at;
      const int count = (int)(end - at < BLOCK ? end - at : BLOCK);
      if (job->kind == FP16) {
        BLOCKS(FP16)
      } else if (job->kind == BF16) {
        BLOCKS(BF16)
      } else {
        BLOCKS(FP32)
      }
    }
    for (int g = 0; g < heads; g++) {
      float *part = job->partial + (number * job->group + first + g) * width;
      memcpy(part, w->sum[g], (size_t)job->dim * sizeof(float));
      part[job->dim] = w->most[g], part[job->dim + 1] = w->total[g];
    }
  }
  if (atomic_fetch_sub_explicit(&job->left[row], 1, memory_order_acq_rel) == 1) join(job, row);
}

/* -- the team --------------------------------------------------------------------------------- */

static struct {
  pthread_mutex_t lock, turn;
  pthread_cond_t wake;
  pthread_t *threads;
  int size, stop;
  Job *job;
  int64_t total;
  _Alignas(64) atomic_llong next;
  _Alignas(64) atomic_int active; /* threads that are at work on the job */
  _Alignas(64) atomic_int number; /* jobs so far */
} team = {.lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER};

enum { SPINS = 500 };

static void rest(void) {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

static void take_chunks(void) {
  for (;;) {
    long long number = atomic_fetch_add_explicit(&team.next, 1, memory_order_relaxed);
    if (number >= team.total) return;
    attend_chunk(team.job, number);
  }
}

static void *work(void *unused) {
  (void)unused;
  int seen = 0;
  for (;;) {
    for (int spin = 0; spin < SPINS && atomic_load(&team.number) == seen; spin++) rest();
    pthread_mutex_lock(&team.lock);
    while (atomic_load(&team.number) == seen && !team.stop) pthread_cond_wait(&team.wake, &team.lock);
    seen = atomic_load(&team.number);
    int stop = team.stop;
    if (!stop) atomic_fetch_add(&team.active, 1);
    pthread_mutex_unlock(&team.lock);
    if (stop) return NULL;
    take_chunks();
    atomic_fetch_sub(&team.active, 1);
  }
}

/* Start a team of so many threads, the caller of host_attention among them. 0 where it went well. */
int host_attention_open(int size) {
  if (team.size == size) return 0;
  if (team.size) return -1;
  team.threads = calloc((size_t)size, sizeof *team.threads);
  if (!team.threads) return -2;
  team.size = size, team.stop = 0;
  for (int i = 1; i < size; i++)
    if (pthread_create(&team.threads[i], NULL, work, NULL)) {
      team.size = i;
      return -3;
    }
  return 0;
}

void host_attention_close(void) {
  pthread_mutex_lock(&team.lock);
  team.stop = 1;
  pthread_cond_broadcast(&team.wake);
  pthread_mutex_unlock(&team.lock);
  for (int i = 1; i < team.size; i++) pthread_join(team.threads[i], NULL);
  free(team.threads);
  team.threads = NULL, team.size = 0, team.stop = 0;
}

/* Scratch of a job whose other fields are set. 0 where it went well. */
int host_attention_prepare(Job *job) {
  const int64_t count = chunks(job);
  job->partial = malloc((size_t)(job->rows * count * job->group * (job->dim + 2)) * sizeof(float));
  job->left = malloc((size_t)job->rows * sizeof *job->left);
  return job->partial && job->left ? 0 : -1;
}

void host_attention_release(Job *job) {
  free(job->partial);
  free(job->left);
  job->partial = NULL, job->left = NULL;
}

/* Run a job to its end; its type is that of a CUDA host function. */
void host_attention(void *given) {
  Job *job = given;
  pthread_mutex_lock(&team.turn);
  for (int64_t row = 0; row < job->rows; row++) atomic_init(&job->left[row], (int)chunks(job));
  pthread_mutex_lock(&team.lock);
  /* A thread that slept through the last job may still be on its way; it must not see this one. */
  while (atomic_load(&team.active)) rest();
  team.job = job, team.total = job->rows * chunks(job);
  atomic_store(&team.next, 0);
  atomic_fetch_add(&team.number, 1);
  pthread_cond_broadcast(&team.wake);
  pthread_mutex_unlock(&team.lock);
  take_chunks();
  while (atomic_load(&team.active)) rest();
  pthread_mutex_unlock(&team.turn);
}

/* -- jobs that the GPU asks for ----------------------------------------------------------------
 * The GPU writes 1 to a call's go, which it sees as its own memory, and waits until done is 1. Calls
 * come in a fixed order, over and over. No host function stands in a captured graph: with one,
 * copies of the same graph were seen to lose a tenth of their rate.
 */

typedef struct {
  atomic_uint *go, *done;
  Job *job;
} Call;

typedef struct {
  const Call *calls;
  int count;
  atomic_int stop;
  pthread_t thread;
} Server;

enum { PATIENCE = 200000, NAP_NS = 50000 };

static void *serve(void *given) {
  Server *server = given;
  for (int number = 0;; number = (number + 1) % server->count) {
    const Call *call = &server->calls[number];
    for (int spins = 0; !atomic_load_explicit(call->go, memory_order_acquire);) {
      if (atomic_load_explicit(&server->stop, memory_order_relaxed)) return NULL;
      if (++spins < PATIENCE) rest();
      else nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
    atomic_store_explicit(call->go, 0, memory_order_relaxed);
    host_attention(call->job);
    atomic_store_explicit(call->done, 1, memory_order_release);
  }
}

/* Answer calls in a thread of its own until host_attention_leave. NULL where that failed. */
Server *host_attention_serve(const Call *calls, int count) {
  Server *server = calloc(1, sizeof *server);
  if (!server) return NULL;
  server->calls = calls, server->count = count;
  if (pthread_create(&server->thread, NULL, serve, server)) {
    free(server);
    return NULL;
  }
  return server;
}

void host_attention_leave(Server *server) {
  atomic_store(&server->stop, 1);
  pthread_join(server->thread, NULL);
  free(server);
}
