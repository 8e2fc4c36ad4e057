"""The search for throughput: batch, micro-batches and their order, then the plan for them.

With costs that grow convexly with the batch, tokens per second of the fluid program rise with the
batch, then fall, whatever binds: the weights are read (or streamed) once for more sequences until
memory sends their KV over a link that has no time left. So the batch is found on the bound, which
is cheap, and only the best few are solved whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvplan import fluid, solve
from kvplan.candidates import NEAR, streaming, unit_graph
from kvplan.errors import InfeasibleError
from kvplan.infeasible import explain_infeasible, least_shortfall
from kvplan.peak import least_near, peak
from kvplan.ranks import with_workload
from kvplan.resident import everything_resident
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.units import format_bytes, format_seconds

MOST_SEARCHES = 8
"""Batches solved whole at most."""

RETRIES = 6
"""Times a batch is lowered because its plan is longer than accepted or does not fit."""


@dataclass(frozen=True, slots=True, order=True)
class Batching:
    """Sequences, the equal parts they are decoded in, and the order of these."""

    batch: int
    micro_batches: int = 1
    schedule: str = "column"


@dataclass(frozen=True, slots=True)
class Trial:
    """A batching that was tried.

    Args:
        batching: which.
        bound_s: no plan for it takes less, seconds.
        step_s: the step of the plan found for it; None where only the bound was asked for.
    """

    batching: Batching
    bound_s: float
    step_s: float | None

    @property
    def tokens_per_s(self) -> float:
        """Most tokens per second: of its plan, or of its bound where none was made."""
        return self.batching.batch / (self.bound_s if self.step_s is None else self.step_s)


@dataclass(frozen=True, slots=True)
class Throughput:
    """What the search for throughput found.

    Args:
        scenario: the scenario with the chosen workload.
        search: the plan for it.
        limit: what keeps the batch from growing: ``asked``, ``memory``, ``max_step`` or
            ``throughput``.
        why: the same in a sentence.
        bound_tokens_per_s: no plan for any batch that was tried makes more.
        trials: every batch that was tried, by batching.
    """

    scenario: Scenario
    search: solve.Search
    limit: str
    why: str
    bound_tokens_per_s: float
    trials: tuple[Trial, ...]

    @property
    def batching(self) -> Batching:
        """The chosen batch."""
        return batching_of(self.scenario)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the chosen plan."""
        return self.scenario.workload.batch / self.search.best.step_s

    @property
    def gap(self) -> float:
        """Distance from the best bound, as a share of what was found."""
        return max(self.bound_tokens_per_s / self.tokens_per_s - 1.0, 0.0)


def batching_of(scenario: Scenario) -> Batching:
    """The batching of a scenario's workload."""
    workload = scenario.workload
    return Batching(workload.batch, workload.micro_batches, workload.schedule)


def with_batching(scenario: Scenario, batching: Batching) -> Scenario:
    """The scenario with another batch, micro-batches and order."""
    changed = dataclasses.replace(scenario.workload, **dataclasses.asdict(batching))
    return with_workload(scenario, changed)


@dataclass(slots=True)
class Scan:
    """Bounds of batches, each computed once.

    The bound is that of the schedule with the least buffers, with resident and streamed weights.
    """

    scenario: Scenario
    bounds: dict[Batching, float | None] = field(default_factory=dict)

    def bound_s(self, batching: Batching) -> float | None:
        """Lower bound on the step; None where nothing fits."""
        if batching not in self.bounds:
            self.bounds[batching] = least_step_s(with_batching(self.scenario, batching))
        return self.bounds[batching]

    def score(self, batching: Batching) -> float | None:
        """Tokens per second of the bound; None where nothing fits or the step is too long."""
        bound_s = self.bound_s(batching)
        if bound_s is None or not self.scenario.objective.accepts(bound_s):
            return None
        return batching.batch / bound_s

    def best(self, micro_batches: int, schedule: str) -> Batching | None:
        """The batch whose bound makes most tokens per second; of near equals the smallest."""
        least, most = self.scenario.objective.batches
        low, high = -(-least // micro_batches), most // micro_batches
        if low > high:
            return None

        def score(size: int) -> float | None:
            return self.score(Batching(size * micro_batches, micro_batches, schedule))

        found = peak(score, low, high)
        if found is None:
            return None
        size = least_near(score, found, low, NEAR)
        return Batching(size * micro_batches, micro_batches, schedule)


def least_step_s(scenario: Scenario) -> float | None:
    """Fluid bound on the step over resident and streamed weights; None where nothing fits."""
    options = scenario.options
    axis = "token" if "token" in options.axes else options.axes[0]
    stages = max(options.stages)
    if axis == "layer":
        stages = min(stages, len(scenario.model.layers))
    found = []
    for stream in streaming(scenario):
        schedule = Schedule(
            axis=axis,
            stages=stages,
            queue_depth=min(options.queue_depths),
            boundary=options.boundary,
            mode=options.mode,
            stream_weights=stream,
        )
        relaxation = fluid.bound(
            unit_graph(scenario, schedule), scenario.classes, scenario.capacity, scenario.quality
        )
        if relaxation is not None:
            found.append(relaxation.step_s)
    return min(found, default=None)


def search(scenario: Scenario) -> Throughput:
    """Choose batch, micro-batches and their order for most tokens per second.

    Raises:
        InfeasibleError: not even the least batch fits, or none is fast enough.
    """
    scan = Scan(scenario)
    trials: dict[Batching, Trial] = {}
    best: tuple[Batching, solve.Search] | None = None
    searches = 0
    first = ranked(scenario, scan)
    others = sorted(scan.bounds, key=lambda b: -(scan.score(b) or 0.0))
    for batching in dict.fromkeys([*first, *others]):
        bound = scan.score(batching) or 0.0
        if best is not None and bound <= tokens_per_s(best) * (1 + NEAR):
            continue
        if best is not None and searches >= MOST_SEARCHES:
            break
        settled = settle(scenario, batching)
        searches += 1
        if settled is None:
            continue
        reached, found = settled
        trials[reached] = Trial(reached, found.bound_s, found.best.step_s)
        if best is None or tokens_per_s(settled) > tokens_per_s(best) * (1 + NEAR):
            best = settled
    if best is None:
        raise infeasible(scenario)
    best = climb(scan, trials, best)
    for batching, bound_s in scan.bounds.items():
        if bound_s is not None and scenario.objective.accepts(bound_s):
            trials.setdefault(batching, Trial(batching, bound_s, None))
    limit, why = reason(scenario, scan, trials, *best)
    top = max(t.batching.batch / t.bound_s for t in trials.values())
    return Throughput(
        with_batching(scenario, best[0]), best[1], limit, why,
        max(top, tokens_per_s(best)), tuple(trials[b] for b in sorted(trials)),
    )  # fmt: skip


def climb(
    scan: Scan, trials: dict[Batching, Trial], best: tuple[Batching, solve.Search]
) -> tuple[Batching, solve.Search]:
    """The best plan, or that for a few sequences more while these could make more tokens/s."""
    for _ in range(MOST_SEARCHES):
        more = next_larger(scan.scenario, best[0])
        if more is None or (scan.score(more) or 0.0) <= tokens_per_s(best) * (1 + NEAR):
            return best
        if more in trials:
            return best
        found = solve.find(with_batching(scan.scenario, more))
        if found is None:
            return best
        trials[more] = Trial(more, found.bound_s, found.best.step_s)
        accepted = scan.scenario.objective.accepts(found.best.step_s)
        if not accepted or found.best.step_s > more.batch / tokens_per_s(best):
            return best
        best = more, found
    return best


def next_larger(scenario: Scenario, batching: Batching) -> Batching | None:
    """One sequence more in each micro-batch; None beyond what was asked for."""
    batch = batching.batch + batching.micro_batches
    if batch > scenario.objective.batches[1]:
        return None
    return dataclasses.replace(batching, batch=batch)


def tokens_per_s(found: tuple[Batching, solve.Search]) -> float:
    """Tokens per second of a plan."""
    return found[0].batch / found[1].best.step_s


def ranked(scenario: Scenario, scan: Scan) -> list[Batching]:
    """Batchings worth a plan, those with the best bound first; simple ones first among equals."""
    found = list(dict.fromkeys(scanned(scenario, scan)))
    return sorted(found, key=lambda b: (-round_off(scan.score(b)), b.micro_batches, -b.batch))


def round_off(value: float | None) -> float:
    """Three digits of a value, so that near equals compare as equal."""
    return float(f"{value or 0.0:.3g}")


def scanned(scenario: Scenario, scan: Scan) -> Iterator[Batching]:
    """The best batch of every number of micro-batches, until more of them bring nothing."""
    objective = scenario.objective
    resident = largest_resident(scenario, scan)
    if resident is not None:
        yield resident
    for order in sorted(objective.schedules):  # column first
        best, idle = 0.0, 0
        for micro_batches in sorted(set(objective.micro_batches)):
            if micro_batches == 1 and order == "row" and "column" in objective.schedules:
                continue
            batching = scan.best(micro_batches, order)
            if batching is None:
                continue
            yield batching
            reached = scan.score(batching) or 0.0
            idle = idle + 1 if reached <= best * (1 + NEAR) else 0
            best = max(best, reached)
            if idle >= 2 or (order == "row" and not rows_differ(scenario)):
                break


def rows_differ(scenario: Scenario) -> bool:
    """Whether the order of micro-batches can matter: only streamed weights are loaded more often
    in rows, and rows need fewer hidden states at hand; one number of them is tried otherwise.
    """
    return any(streaming(scenario))


def largest_resident(scenario: Scenario, scan: Scan) -> Batching | None:
    """The largest batch without offload."""
    least, most = scenario.objective.batches
    if 1 not in scenario.objective.micro_batches:
        return None
    order = min(scenario.objective.schedules)

    def fits(batch: int) -> float | None:
        batching = Batching(batch, 1, order)
        found = everything_resident(with_batching(scenario, batching))
        if found is None or not scenario.objective.accepts(found.step_s):
            return None
        return float(batch)

    batch = peak(fits, least, most)
    if batch is None:
        return None
    scan.bound_s(Batching(batch, 1, order))
    return Batching(batch, 1, order)


def settle(scenario: Scenario, batching: Batching) -> tuple[Batching, solve.Search] | None:
    """The plan for a batch, or for the largest smaller one that fits and is fast enough."""
    objective = scenario.objective
    for _ in range(RETRIES):
        found = solve.find(with_batching(scenario, batching))
        if found is not None and objective.accepts(found.best.step_s):
            return batching, found
        share = 1.0 if found is None else (objective.max_step_s or 0.0) / found.best.step_s
        size = batching.batch // batching.micro_batches
        size = min(size - 1, int(size * min(share, 0.99)))
        if size * batching.micro_batches < max(objective.batches[0], 1):
            return None
        batching = dataclasses.replace(batching, batch=size * batching.micro_batches)
    return None


def reason(
    scenario: Scenario,
    scan: Scan,
    trials: dict[Batching, Trial],
    batching: Batching,
    found: solve.Search,
) -> tuple[str, str]:
    """What keeps the batch from growing, as a word and as a sentence."""
    more = next_larger(scenario, batching)
    if more is None:
        return "asked", f"{scenario.objective.batches[1]} is the most that --batch allows"
    bound_s, trial = scan.bound_s(more), trials.get(more)
    if bound_s is None:
        short = least_shortfall(with_batching(scenario, more))
        tier = max(sorted(short), key=lambda t: short[t])
        held = format_bytes(scenario.capacity[tier])
        return "memory", f"{more.batch} sequences do not fit: {held} of {tier} are full"
    limit_s = scenario.objective.max_step_s
    step_s = trial.step_s if trial and trial.step_s else bound_s
    if limit_s is not None and not scenario.objective.accepts(step_s):
        least = "" if trial and trial.step_s else "at least "
        return "max_step", (
            f"{more.batch} sequences take {least}{format_seconds(step_s)} per step, more than "
            f"the {format_seconds(limit_s)} of --max-step-latency"
        )
    return "throughput", saturated(scenario, scan, trial, batching, found)


def saturated(
    scenario: Scenario, scan: Scan, trial: Trial | None, batching: Batching, found: solve.Search
) -> str:
    """Why more sequences bring no more tokens per second."""
    resident = everything_resident(with_batching(scenario, batching)) is not None
    busy = (
        f"{batching.batch} sequences are the most that HBM holds without offload"
        if resident
        else f"{found.best.simulation.bottleneck} is the limit"
    )
    if trial is not None and trial.step_s is not None:
        return f"{busy}; {trial.batching.batch} make {trial.tokens_per_s:.4g} tokens/s"
    most = scenario.objective.batches[1] // batching.micro_batches * batching.micro_batches
    for size in (min(2 * batching.batch, most), batching.batch + batching.micro_batches):
        larger = dataclasses.replace(batching, batch=size)
        bound_s = scan.bound_s(larger)
        if bound_s is not None and scenario.objective.accepts(bound_s):
            break
    assert bound_s is not None, "one sequence more was found to fit"
    extra_s = max(bound_s - found.bound_s, 0.0) / (larger.batch - batching.batch)
    return (
        f"{busy}; each further sequence adds {format_seconds(extra_s)} to the step, so "
        f"{larger.batch} make at most {larger.batch / bound_s:.4g} tokens/s"
    )


def infeasible(scenario: Scenario) -> InfeasibleError:
    """Why no batch does."""
    objective = scenario.objective
    least, micro_batches = objective.batches[0], min(objective.micro_batches)
    least = -(-least // micro_batches) * micro_batches
    smallest = with_batching(scenario, Batching(least, micro_batches, min(objective.schedules)))
    found = solve.find(smallest)
    if found is None:
        return explain_infeasible(smallest)
    return too_long(smallest, found)


def too_long(scenario: Scenario, found: solve.Search) -> InfeasibleError:
    """A plan fits, and its step is longer than accepted."""
    limit_s = scenario.objective.max_step_s
    assert limit_s is not None, "a plan was found and refused"
    batch = scenario.workload.batch
    changes = [f"accept --max-step-latency {compact_s(found.best.step_s)}"]
    least = scenario.objective.batches[0] if scenario.objective.seeks_throughput else 1
    smaller = largest_in_time(scenario, least, batch)
    if smaller:
        changes.append(f"lower --batch to {smaller}")
    return InfeasibleError(
        "step latency",
        f"a step of {batch} sequences takes {format_seconds(found.best.step_s)}, "
        f"longer than {format_seconds(limit_s)}",
        " or ".join(changes),
    )


def largest_in_time(scenario: Scenario, least: int, batch: int) -> int:
    """The largest smaller batch with a plan that is fast enough; 0 where there is none."""
    low, high = least - 1, batch
    while high - low > 1:
        middle = (low + high) // 2
        found = solve.find(with_batching(scenario, Batching(middle)))
        if found is not None and scenario.objective.accepts(found.best.step_s):
            low = middle
        else:
            high = middle
    return low if low >= least else 0


def compact_s(seconds: float) -> str:
    """A time that can be typed and is no shorter.

    >>> compact_s(0.1234567), compact_s(12.3451)
    ('123.5ms', '12.35s')
    """
    value, unit = (seconds * 1e3, "ms") if seconds < 1 else (seconds, "s")
    digits = 1 if value >= 100 else 2
    rounded = round(value, digits)
    if rounded < value:
        rounded = round(rounded + 10**-digits, digits)
    return f"{rounded:g}{unit}"
