"""``kvplan kv-size`` and the account behind it, against what others measured or published."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from cli_runner import run
from hypothesis import given
from hypothesis import strategies as st
from model_table import ROWS, Row
from strategies import examples, layer, layers, model, unusual_layers

from kvplan.errors import InputError
from kvplan.formats import FORMATS, find_format
from kvplan.kv_size import Formats, KvSize, at
from kvplan.layer import LayerSpec
from kvplan.model_library import load_cache, load_model

MIB, GIB = 2**20, 2**30
Answer = dict[str, Any]


def ask(*options: object) -> Answer:
    """The JSON answer to some options."""
    result = run("kv-size", *map(str, options), "--json")
    assert result.code == 0, result.err
    assert result.err == ""
    found: Answer = json.loads(result.out)
    return found


def config(**keys: object) -> str:
    return json.dumps(keys)


# -- every built-in model ----------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_model_at_every_length(row: Row) -> None:
    """16-bit bytes at 4k, 32k and 128k, whole and by parts; no source counted."""
    spec, half = load_model(row.name), Formats(k=FORMATS["fp16"], v=FORMATS["fp16"])
    for tokens in (4096, 32768, 131072):
        size = KvSize(model=spec, context=tokens, formats=half, source_tokens=0)
        assert size.growing_bytes + size.window_bytes + size.fixed_bytes == size.total_bytes
        assert size.fixed_bytes == row.state_bytes * size.sequences
        if tokens in row.totals_mib:
            assert round(size.total_bytes / MIB, 2) == pytest.approx(
                row.totals_mib[tokens], abs=0.006
            )
        if spec.scales:
            assert size.total_bytes == size.sequences * tokens * row.kv_bytes_per_token
            continue
        filling = tokens < row.window
        growth = row.kv_bytes_per_token if filling else row.kv_bytes_per_token_marginal
        assert size.bytes_per_token == growth
        assert size.total_bytes == spec.kv_bytes(tokens, 2, 0)


@examples(100)
@given(st.lists(layers() | unusual_layers(), min_size=1, max_size=4), st.integers(0, 3000))
def test_the_account_is_the_layers_own(specs: list[LayerSpec], context: int) -> None:
    """What the planner holds and what kv-size says are the same bytes."""
    spec = model(specs)
    size = KvSize(model=spec, context=context, source_tokens=7)
    assert size.total_bytes == spec.kv_bytes(context, 2, 7)
    longer = at(size, context=context + 128 * 4 * 600)
    assert longer.total_bytes >= size.total_bytes
    assert sum(size.split([1] * len(specs))) == size.total_bytes


# -- real questions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "context", "expected"),
    [
        (("--layers", 32, "--kv-heads", 32, "--head-dim", 128), 1, 524288),
        (("--layers", 80, "--kv-heads", 64, "--head-dim", 128), 8192, 21474836480),
        (("--layers", 80, "--kv-heads", 8, "--head-dim", 128), 8192, 2684354560),
    ],
)
def test_heads_count_once_and_grouped_heads_divide(
    geometry: tuple[object, ...], context: int, expected: int
) -> None:
    """A capacity tool's author, and a user of Qwen-72B (llama.cpp 6032); 16-bit cache."""
    assert ask(*geometry, "--context", context)["total_bytes"] == expected


def test_head_dim_is_explicit() -> None:
    """LMCache 688 and 2248: Qwen3-4B has 128, not 2560 / 32 = 80; GLM-4.5 has no whole quotient."""
    qwen = config(
        model_type="qwen3", hidden_size=2560, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, num_hidden_layers=36,
    )  # fmt: skip
    assert ask("--model", qwen)["bytes_per_token"] == 147456
    assert ask("--model", "glm-4.5")["bytes_per_token"] == 376832
    broken = config(
        hidden_size=5120, num_attention_heads=96, num_key_value_heads=8, num_hidden_layers=92
    )
    refused = run("kv-size", "--model", broken)
    assert (refused.code, refused.out) == (2, "")
    assert "head_dim" in refused.err
    assert "53.33" in refused.err


def test_sliding_layers_are_neither_left_out_nor_uniform() -> None:
    """hf-mem 60: vLLM's log says 78,384 tokens in 5.38 GiB, charging 73,728 bytes for each."""
    totals = {
        context: ask("--model", "gpt-oss-120b", "--context", context)["total_bytes"]
        for context in (1, 128, 131072)
    }
    assert totals == {1: 73728, 128: 9437184, 131072: 4836556800}
    found = ask("--model", "gpt-oss-120b", "--context", "128k", "--pool", "5.38GiB")
    assert found["uniform"]["bytes_per_token"] == 73728
    assert found["uniform"]["tokens_in_pool"] == pytest.approx(78384, rel=1e-3)
    assert found["bytes_per_token"] == 36864
    assert found["window_bytes"] == 36864 * 128
    held = ask("--model", "gpt-oss-120b", "--context", found["tokens_in_pool"])["total_bytes"]
    assert held <= 5.38 * GIB < held + 36864


def test_a_latent_in_blocks() -> None:
    """ik_llama.cpp 259: 1166.62 MiB in the allocator's log; the RoPE part is in the same row."""
    found = ask("--layers", 61, "--latent", "512+64", "-c", "32k", "--kv-dtype", "q8_0")
    assert found["total_bytes"] == 1223294976
    assert round(found["total_bytes"] / MIB, 2) == 1166.62
    assert ask("--model", "deepseek-v3", "-c", "32k", "--kv-dtype", "q8_0")["total_bytes"] == (
        1223294976
    )


@pytest.mark.parametrize(
    ("layer_count", "context", "dtypes", "expected_mib"),
    [
        (32, 2048, "k=q8_0,v=iq4_nl", 104.0),
        (40, 6656, "f16", 1040.0),
        (40, 6656, "q8_0", 552.5),
        (40, 6656, "q4_0", 292.5),
    ],
)
def test_bytes_per_block_are_not_bytes_per_element(
    layer_count: int, context: int, dtypes: str, expected_mib: float
) -> None:
    """node-llama-cpp 608 (68 MiB of K, 36 of V), ik_llama.cpp 92, llama.cpp 21551; 8 x 128."""
    asked = ("--layers", layer_count, "--kv-heads", 8, "--head-dim", 128, "-c", context)
    assert ask(*asked, "--kv-dtype", dtypes)["total_bytes"] == expected_mib * MIB


def test_each_format_alone() -> None:
    asked = ("--model", "llama-3.1-8b", "-c", 2048)
    both = ask(*asked, "--k-dtype", "q8_0", "--v-dtype", "iq4_nl")
    assert both["total_bytes"] == 104 * MIB
    assert (both["k_dtype"], both["v_dtype"]) == ("q8_0", "iq4_nl")


def test_layers_split_over_devices() -> None:
    """llama.cpp 11200: 2788 and 1564 MiB; the split of layers is derived from them."""
    asked = ("--layers", 64, "--kv-heads", 8, "--head-dim", 128, "-c", 32768, "--kv-dtype", "q8_0")
    found = ask(*asked, "--layers-per-device", "41,23")
    assert found["total_bytes"] == 4352 * MIB
    assert [device["bytes"] for device in found["devices"]] == [2788 * MIB, 1564 * MIB]
    even = ask(*asked, "--pp", 3)["devices"]
    assert [device["layers"] for device in even] == [22, 21, 21]
    assert sum(device["bytes"] for device in even) == 4352 * MIB


def test_old_names_and_the_multi_query_flag() -> None:
    """mlxcel 927 and 957: an estimator said 0 bytes; an alias alone would say 16 times too much."""
    old = config(n_layer=24, n_embd=2048, n_head=16, multi_query=True)
    found = ask("--model", old, "--context", 8192)
    (kind,) = found["kinds"]
    assert (kind["kv_heads"], kind["head_dim_k"], found["total_bytes"]) == (1, 128, 100663296)
    for missing in ("n_layer", "n_embd", "n_head"):
        less = {k: v for k, v in json.loads(old).items() if k != missing}
        result = run("kv-size", "--model", json.dumps(less))
        assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize(
    ("keys", "heads", "dim", "per_token"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": None, "hidden_size": 2560,
          "num_hidden_layers": 32}, 32, 80, 327680),
        ({"num_attention_heads": 32, "hidden_size": 4096, "num_hidden_layers": 32},
         32, 128, 524288),
        ({"num_attention_heads": 71, "hidden_size": 4544, "num_hidden_layers": 32,
          "multi_query": True, "new_decoder_architecture": False}, 1, 64, 8192),
        ({"num_attention_heads": 128, "hidden_size": 8192, "num_hidden_layers": 60,
          "num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True}, 8, 64, 122880),
        ({"num_attention_heads": 71, "hidden_size": 4544, "num_hidden_layers": 32,
          "num_kv_heads": 71, "multi_query": True, "model_type": "falcon"}, 1, 64, 8192),
        ({"num_attention_heads": 64, "hidden_size": 4096, "num_hidden_layers": 24,
          "multi_query": False, "model_type": "falcon"}, 64, 64, 393216),
    ],
)  # fmt: skip
def test_null_absent_or_flagged_heads(
    keys: dict[str, object], heads: int, dim: int, per_token: int
) -> None:
    """SHARK 388, transformers 24523: null and absent mean multi-head; flags come before counts."""
    found = ask("--model", json.dumps(keys))
    (kind,) = found["kinds"]
    assert (kind["kv_heads"], kind["head_dim_k"]) == (heads, dim)
    assert found["bytes_per_token"] == per_token


@pytest.mark.parametrize(
    ("geometry", "ranks", "per_rank", "replication", "aggregate"),
    [
        ((48, 4, 128), 4, 24576, 1, 98304),
        ((48, 4, 128), 8, 24576, 2, 196608),
        ((80, 8, 128), 32, 40960, 4, 1310720),
        ((64, 8, 128), 4, 65536, 1, 262144),
        ((40, 10, 128), 4, 61440, 1.2, 245760),
    ],
)
def test_more_ranks_than_heads(
    geometry: tuple[int, int, int], ranks: int, per_rank: int, replication: float, aggregate: int
) -> None:
    """transformers 48307 (Qwen3-VL-30B), tenstorrent/vllm 50 (Llama-3-70B), transformers 48566
    (Qwen3-32B, whose pool was sized with all heads: 814 against 3258 blocks of 256); phi-4.
    """
    count, heads, dim = geometry
    result = run("kv-size", "--layers", str(count), "--kv-heads", str(heads), "--head-dim",
                 str(dim), "--tp", str(ranks), "--json")  # fmt: skip
    found = json.loads(result.out)
    assert found["bytes_per_token"] == per_rank
    assert found["replication"] == pytest.approx(replication)
    assert found["aggregate_bytes_per_token"] == aggregate


def test_a_pool_per_rank() -> None:
    """transformers 48566: 3258 blocks of 256 tokens of Qwen3-32B on each of four ranks."""
    found = ask("--model", "qwen3-32b", "--tp", 4, "--context", 3258 * 256 // 32, "--batch", 32)
    assert found["total_bytes"] == 54660169728
    alone = ask("--model", "qwen3-32b")["bytes_per_token"]
    assert alone / found["bytes_per_token"] == pytest.approx(4.002, rel=0.02)
    pool = ask("--model", "qwen3-32b", "--tp", 4, "--pool", 54660169728)
    assert pool["tokens_in_pool"] == 834048


def test_a_hybrid_counts_only_its_attention_layers() -> None:
    """llama.cpp fork's lane (GenerelSchwerz 31): 16 layers, K and V of 1024, q8_0."""
    asked = ("--layers", 16, "--kv-heads", 8, "--head-dim", 128, "--kv-dtype", "q8_0")
    sizes = [ask(*asked, "-c", depth)["total_bytes"] for depth in (4096, 16384, 32768)]
    assert ask(*asked)["bytes_per_token"] == 34816
    assert sizes == [142606336, 570425344, 1140850688]


def test_scalekv_table() -> None:
    """ScaleKV's table for Infinity at batch 8, MB of 2**20 bytes: K in fp32, V in bf16, guidance
    doubles the sequences, 6425 tokens are cached before the last scale.
    """
    spec = load_cache("infinity-2b")
    cached = sum(spec.scales[:-1])
    assert (cached, sum(spec.scales)) == (6425, 10521)
    found = json.loads(run("kv-size", "-m", "infinity-2b", "-c", "6425", "-b", "8", "--json").out)
    assert found["total_bytes"] == 38550 * MIB
    assert found["sequences"] == 16


@pytest.mark.parametrize(
    ("name", "per_token"),
    [("llama-3.1-8b", 131072), ("llama-3.1-405b", 516096), ("qwen2.5-72b", 327680),
     ("deepseek-v3", 70272), ("gpt2-xl", 307200)],
)  # fmt: skip
def test_published_bytes_per_token(name: str, per_token: int) -> None:
    """vLLM 10517; arXiv 2505.09343, table 1 (405B, Qwen2.5-72B, V3); llama.cpp's gpt2-xl."""
    assert ask("--model", name)["bytes_per_token"] == per_token


# -- the contract ------------------------------------------------------------------------------


def test_keys_that_other_programs_rely_on() -> None:
    found = ask("--model", "llama-3.1-8b", "--context", 4096, "--batch", 2, "--kv-dtype", "fp16",
                "--tp", 2)  # fmt: skip
    wanted = {"bytes_per_token": 65536, "total_bytes": 2 * 4096 * 65536, "window_bytes": 0,
              "fixed_bytes": 0, "kv_layers": 32, "act_over_kv": 2.0}  # fmt: skip
    assert {key: found[key] for key in wanted} == wanted


def test_models_without_a_cache_per_token() -> None:
    """A state of fixed size, not 0 and not an error; divided by ranks with its channels."""
    short, long = (ask("--model", "mamba-2.8b", "--context", n) for n in (1, 131072))
    assert short["total_bytes"] == long["total_bytes"] == short["fixed_bytes"] == 22937600
    assert (long["bytes_per_token"], long["kv_layers"], long["act_over_kv"]) == (0, 0, None)
    assert ask("--model", "mamba-2.8b", "--tp", 4)["fixed_bytes"] == 22937600 // 4
    assert ask("--model", "mamba-2.8b", "--kv-dtype", "fp8")["fixed_bytes"] == 22937600


def test_latents_are_whole_on_every_rank_and_expanded_heads_divided() -> None:
    found = ask("--model", "deepseek-v3", "--tp", 8)
    assert found["bytes_per_token"] == 70272
    assert found["replication"] == 8
    assert found["layouts"]["expanded"]["bytes_per_token"] == 4997120 // 8
    expanded = ask("--model", "deepseek-v3", "--layout", "expanded")
    assert expanded["bytes_per_token"] == 4997120
    assert "layouts" not in ask("--model", "llama-3.1-8b")


def test_cross_attention_is_fixed() -> None:
    """Whisper always has 1500 frames: 245.8 MB, more than its 448 tokens' 73.4 MB."""
    found = ask("--model", "whisper-large-v3", "--context", 448)
    assert (found["fixed_bytes"], found["growing_bytes"]) == (245760000, 73400320)
    result = run("kv-size", "--model", "t5-base", "--context", "512")
    assert result.code == 0
    assert "36864 bytes (16-bit) per token of the source; give --source-tokens" in result.err
    found = ask("--model", "t5-base", "--context", 512, "--source-tokens", 100)
    assert found["fixed_bytes"] == 3686400
    assert ask("--model", "llama-3.2-11b", "--source-tokens", 1601)["fixed_bytes"] == 32768 * 1601


def test_compressed_entries() -> None:
    found = ask("--model", "deepseek-v4-flash", "--context", "1M")
    assert (found["bytes_per_token"], found["window_bytes"]) == (6880, 5636096)
    assert found["total_bytes"] == 2**20 * 6880 + 5636096


def test_windows_given_by_hand() -> None:
    asked = ("--layers", 36, "--kv-heads", 8, "--head-dim", 64, "--window", 128)
    found = ask(*asked, "--window-layers", 18, "--context", "128k")
    assert found["total_bytes"] == 4836556800
    assert ask(*asked, "--context", "128k")["bytes_per_token"] == 0
    assert ask(*asked, "--hidden", 2880)["act_over_kv"] == 2880 / 1024
    assert ask(*asked)["act_over_kv"] is None


def test_context_beyond_the_positions_is_a_warning_in_the_answer() -> None:
    result = run("kv-size", "--model", "llama-2-7b", "--context", "8k")
    assert "8192 tokens are more than the 4096 positions" in result.err
    found = json.loads(run("kv-size", "--model", "llama-2-7b", "-c", "8k", "--json").out)
    assert found["warnings"] == [
        "8192 tokens are more than the 4096 positions of meta-llama/Llama-2-7b-hf"
    ]


def test_the_answer_comes_first() -> None:
    result = run("kv-size", "--model", "llama-3.1-8b", "--context", "128k")
    first = result.out.splitlines()[0]
    assert first == (
        "meta-llama/Meta-Llama-3.1-8B: 16.0 GiB for 131,072 tokens in fp16; one more token adds "
        "128.0 KiB."
    )


def test_a_pool_without_limit() -> None:
    found = ask("--model", "mistral-7b-v0.1", "--pool", "1GiB")
    assert found["tokens_in_pool"] is None
    assert found["uniform"]["tokens_in_pool"] == GIB // 131072


@pytest.mark.parametrize(
    ("name", "size"),
    [("fp16", 2048), ("BF16", 2048), ("f32", 4096), ("fp8_e4m3", 1024), ("int8", 1088),
     ("int4", 576), ("q8_0", 1088), ("q5_0", 704), ("q5_1", 768), ("q4_1", 640), ("iq4_nl", 576),
     ("mxfp4", 544), ("nvfp4", 576)],
)  # fmt: skip
def test_bytes_of_a_row_of_1024(name: str, size: int) -> None:
    assert find_format(name).row_bytes(1024) == size


def test_an_unknown_format_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean q8_0"):
        find_format("q8_00")


BAD: list[tuple[tuple[str, ...], str]] = [
    ((), "--model"),
    (("--model", "nonesuch"), "nonesuch"),
    (("--model", "llama-3.1-8b", "--layers", "3"), "--layers"),
    (("--model", "llama-3.1-8b", "--context", "many"), "--context"),
    (("--model", "llama-3.1-8b", "--context", "-1"), "--context"),
    (("--model", "llama-3.1-8b", "--batch", "0"), "--batch"),
    (("--model", "llama-3.1-8b", "--tp", "0"), "--tp"),
    (("--model", "llama-3.1-8b", "--tp", "2.5"), "--tp"),
    (("--model", "llama-3.1-8b", "--kv-dtype", "fp7"), "--kv-dtype"),
    (("--model", "llama-3.1-8b", "--kv-dtype", "k=fp16,k=fp8"), "--kv-dtype"),
    (("--model", "llama-3.1-8b", "--kv-dtype", "x=fp16"), "--kv-dtype"),
    (("--model", "llama-3.1-8b", "--k-dtype", ""), "--k-dtype"),
    (("--model", "llama-3.1-8b", "--layout", "wide"), "--layout"),
    (("--model", "llama-3.1-8b", "--layers-per-device", "16,15"), "--layers-per-device"),
    (("--model", "llama-3.1-8b", "--layers-per-device", "32,0"), "--layers-per-device"),
    (("--model", "llama-3.1-8b", "--layers-per-device", "a"), "--layers-per-device"),
    (("--model", "llama-3.1-8b", "--pp", "33"), "--pp"),
    (("--model", "llama-3.1-8b", "--pp", "2", "--layers-per-device", "16,16"), "--pp"),
    (("--model", "llama-3.1-8b", "--pool", "big"), "--pool"),
    (("--model", "t5-base", "--source-tokens", "-3"), "--source-tokens"),
    (("--model", "{"), "model"),
    (("--model", "[]"), "model"),
    (("--model", '{"n_layer": 2}'), "hidden_size"),
    (("--layers", "32"), "--kv-heads"),
    (("--layers", "32", "--kv-heads", "8"), "--head-dim"),
    (("--kv-heads", "8", "--head-dim", "128"), "--layers"),
    (("--layers", "2", "--latent", "512+"), "--latent"),
    (("--layers", "2", "--kv-heads", "1", "--head-dim", "8", "--window-layers", "1"), "--window"),
    (("--layers", "2", "--kv-heads", "1", "--head-dim", "8", "--window", "0"), "window"),
]


@pytest.mark.parametrize(("options", "says"), BAD)
def test_bad_input_is_one_line(options: tuple[str, ...], says: str) -> None:
    for json_too in ((), ("--json",)):
        result = run("kv-size", *options, *json_too)
        assert (result.code, result.out) == (2, ""), result.err
        assert result.err.count("\n") == 1
        assert result.err.startswith("kvplan: error: ")
        assert says in result.err


# -- what engines print --------------------------------------------------------------------


@pytest.mark.parametrize(("pool_gib", "tokens"), [(64.68, 626_949), (103.92, 1_007_303)])
def test_windows_hold_a_chunk_of_the_prompt_besides(pool_gib: float, tokens: int) -> None:
    """Gemma 4 31B on one H200, bf16 and NVFP4 weights, at 262144 tokens.

    Source: redhat-performance/configiq issue 112: "KV Cache Memory" and "KV Cache Tokens" as the
    engine printed them; memory is rounded to 0.01 GiB, 0.02 % of the smaller one.
    """
    asked = ("kv-size", "--model", "gemma-4-31b", "--context", "262144")
    found = json.loads(run(*asked, "--pool", f"{pool_gib}GiB", "--json").out)
    assert found["reserved"]["tokens"] == pytest.approx(tokens, rel=1e-4)
    assert found["uniform"]["tokens_in_pool"] < tokens < found["tokens_in_pool"]


def test_without_windows_nothing_is_set_aside() -> None:
    found = json.loads(run("kv-size", "--model", "opt-125m", "--pool", "1GiB", "--json").out)
    assert found["reserved"] is None
    assert "set aside" not in run("kv-size", "--model", "opt-125m", "--pool", "1GiB").out


def test_chunked_layers_and_whole_blocks() -> None:
    """By hand: 100 tokens, block 16, chunk 8: windows of 20 hold 27 tokens, 2 blocks and one."""
    full, window = layer(), layer(window=20)
    chunk = msgspec.structs.replace(window, chunked=True)
    each = KvSize(model=model([full]), context=1).bytes_per_token
    for one, blocks in ((full, 7), (window, 3), (chunk, 2)):
        size = KvSize(model=model([one]), context=100)
        assert size.reserved_bytes(chunk=8, block=16) == blocks * 16 * each


def test_latents_in_fp8_with_their_scales() -> None:
    """DeepSeek-V3.2: 656 bytes of a latent and 132 of an index in each layer.

    Source: sgl-project/sglang PR 11309: "#tokens: 975424, KV size: 43.67 GB" (GiB), and 54.52
    for 1462784 tokens without the index; the tokens are whole pages, the sizes rounded.
    """
    asked = ("kv-size", "--model", "deepseek-v3.2", "--kv-dtype", "fp8_ds_mla", "--json")
    found = json.loads(run(*asked, "--context", "975424").out)
    assert found["bytes_per_token"] == 61 * (656 + 132)
    assert round(found["total_bytes"] / 2**30, 2) == 43.67
    assert pytest.approx(54.52, abs=0.015) == 1462784 * 61 * 656 / 2**30


@pytest.mark.parametrize(
    "argv", [("--model", "llama-3.1-8b"), ("--model", "deepseek-v3", "--layout", "expanded")]
)
def test_a_format_of_latents_is_for_latents(argv: tuple[str, ...]) -> None:
    result = run("kv-size", *argv, "--kv-dtype", "fp8_ds_mla")
    assert result.code == 2
    assert "--kv-dtype: 'fp8_ds_mla' is not accepted" in result.err
    assert "latents of 576" in result.err
