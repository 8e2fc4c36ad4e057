"""The search: axis, stages, queue depth, paths; rounding to blocks; the certificate.

Every candidate first gets a lower bound from the fluid program, then its allocation is played on
one unit of the step graph. The best are rounded to blocks and judged on the whole graph. The
least bound over all candidates bounds every plan of the search space, so the distance between it
and the chosen plan is proven.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvplan import certificate, fluid, program
from kvplan.allocation import Allocation, rounded, stage_mixes
from kvplan.errors import InfeasibleError
from kvplan.evaluate import Evaluation, evaluate
from kvplan.model import ModelSpec
from kvplan.paths import REGISTRY, Path
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.simulate import simulate
from kvplan.step import StepGraph, Structure, build_step, group_of
from kvplan.units import format_bytes

NEAR = 1e-3
"""Steps that differ by less than this share count as equal; the simpler schedule is taken."""

GOOD_GAP = 5e-3
"""A gap above this share is worth solving the full program for."""

SLIVER = 0.08
"""Share of a stage below which the relaxed program's use of a path is not worth an operation."""

LARGE_GAP = 1e-2
"""A gap above this share is worth smaller blocks."""

GEMM_TILE = 128
"""Rows that a matrix product works on at once; blocks are kept at multiples of it."""

LEAST_BLOCK = 16
"""Tokens below which a block is not cut, the page size of serving engines."""

LARGEST_PROGRAM = 2500
"""Operations up to which the full program of a graph is solved in the search."""

POLISHED = 4
"""Candidates whose split of tokens is refined by the full program where a gap is left."""

PATTERNS = ("grouped", "alternating", "even")


@dataclass(slots=True)
class Candidate:
    """One schedule under consideration.

    Args:
        schedule: axis, stages, queue depth.
        unit: its step graph with every allowed path, of one unit where layers repeat.
        relaxation: optimum of the fluid program.
        bound_s: proven lower bound on its step.
        trial_s: step of the fractional allocation on the unit; infinite until played.
        pattern: how stages are mixed, that of the best trial.
    """

    schedule: Schedule
    unit: StepGraph
    relaxation: fluid.Fluid
    bound_s: float
    trial_s: float = float("inf")
    pattern: str | Sequence[Mapping[str, float]] = "grouped"


@dataclass(frozen=True, slots=True)
class Search:
    """What the search found.

    Args:
        best: the judged allocation.
        bound_s: lower bound over the whole search space.
        relaxation: fluid optimum of the chosen schedule, for duals.
        considered: schedules with a bound.
        judged: allocations played on the whole graph.
        block: tokens per block of the best allocation.
    """

    best: Evaluation
    bound_s: float
    relaxation: fluid.Fluid
    considered: int
    judged: int
    block: int

    @property
    def gap(self) -> float:
        """Proven distance from the optimum, as a share of the bound."""
        return max(self.best.step_s / self.bound_s - 1.0, 0.0) if self.bound_s > 0 else 0.0


def search(scenario: Scenario) -> Search:
    """Find a plan and prove how good it is.

    Raises:
        InfeasibleError: nothing fits; names the budget and the smallest change.
    """
    resident = everything_resident(scenario)
    if resident is not None:
        return resident
    candidates = bounded_candidates(scenario)
    if not candidates:
        raise explain_infeasible(scenario)
    for candidate in candidates:
        try_on_unit(scenario, candidate)
    candidates += deeper_candidates(scenario, candidates)
    best, chosen, judged = judge(scenario, candidates)
    if best is None or chosen is None:
        raise explain_infeasible(scenario)
    block = scenario.workload.block
    if best.step_s > min(c.bound_s for c in candidates) * (1 + GOOD_GAP):
        best, chosen, extra = tighten(scenario, candidates, best, chosen)
        judged += extra
    for finer in finer_blocks(scenario):
        if best.step_s <= min(c.bound_s for c in candidates) * (1 + LARGE_GAP):
            break
        workload = dataclasses.replace(scenario.workload, block=finer)
        trial, of, extra = judge(dataclasses.replace(scenario, workload=workload), candidates)
        judged += extra
        if trial is not None and of is not None and trial.step_s < best.step_s * (1 - NEAR):
            best, chosen, block = trial, of, finer
    bound_s = min(c.bound_s for c in candidates)
    return Search(
        best, min(bound_s, best.step_s), chosen.relaxation, len(candidates), judged, block
    )


def finer_blocks(scenario: Scenario) -> Iterator[int]:
    """Halves of the block size whose rows over a micro-batch still fill whole GEMM tiles."""
    block = scenario.workload.block
    while (
        scenario.options.refine_blocks
        and block % 2 == 0
        and block // 2 >= LEAST_BLOCK
        and block // 2 * scenario.workload.micro_batch % GEMM_TILE == 0
    ):
        block //= 2
        yield block


def everything_resident(scenario: Scenario) -> Search | None:
    """The plan without offload, if everything fits in HBM."""
    if all("resident" not in (p.name for p in paths) for paths in scenario.paths.values()):
        return None
    allocation = rounded(
        tokens=[scenario.cached_tokens(i) for i in range(len(scenario.model.layers))],
        targets=[{"resident": 1.0}] * len(scenario.model.layers), classes=scenario.classes,
        axis="token", stages=1, block=scenario.workload.block,
    )  # fmt: skip
    schedule = Schedule(stages=1, queue_depth=1, boundary=scenario.options.boundary,
                        mode=scenario.options.mode)  # fmt: skip
    evaluation = evaluate(scenario, schedule, allocation)
    if evaluation.overflow(scenario.capacity) is not None:
        return None
    relaxation = fluid.bound(evaluation.graph, scenario.classes, scenario.capacity)
    assert relaxation is not None
    step_s = min(relaxation.step_s, evaluation.step_s)
    return Search(evaluation, step_s, relaxation, 1, 1, scenario.workload.block)


def schedules(scenario: Scenario, stream_weights: bool, depth: int) -> Iterator[Schedule]:
    """Every schedule of one queue depth, simple ones first."""
    options, layers = scenario.options, len(scenario.model.layers)
    for axis in options.axes:
        for stages in sorted(set(options.stages)):
            if axis == "token" or stages <= layers:
                yield Schedule(axis=axis, stages=stages, queue_depth=depth,
                               boundary=options.boundary, mode=options.mode,
                               stream_weights=stream_weights)  # fmt: skip


def bounded_candidates(scenario: Scenario) -> list[Candidate]:
    """A bound for every axis and stage count that fits, at the least queue depth.

    Weights are streamed only where they must be, unless asked for.
    """
    tries = {"resident": (False,), "streamed": (True,), "auto": (False, True)}
    for stream in tries[scenario.options.weights]:
        found: list[Candidate] = []
        for schedule in schedules(scenario, stream, min(scenario.options.queue_depths)):
            unit = unit_graph(scenario, schedule)
            relaxation = fluid.bound(unit, scenario.classes, scenario.capacity, scenario.quality)
            if relaxation is not None:
                found.append(Candidate(schedule, unit, relaxation, relaxation.step_s))
        if found:
            return found
    return []


def deeper_candidates(scenario: Scenario, shallow: Sequence[Candidate]) -> list[Candidate]:
    """The same schedules with more buffers, where these could be better by more than NEAR.

    More buffers take HBM, so the bound of a schedule never falls with its queue depth; the bound
    of the least depth stands for all that are not built.
    """
    found: list[Candidate] = []
    for depth in sorted(set(scenario.options.queue_depths))[1:]:
        best_s = min(c.trial_s for c in [*shallow, *found])
        for candidate in shallow:
            if candidate.bound_s * (1 + NEAR) >= best_s:
                continue
            schedule = dataclasses.replace(candidate.schedule, queue_depth=depth)
            unit = with_queue_depth(candidate.unit, schedule)
            relaxation = fluid.bound(unit, scenario.classes, scenario.capacity, scenario.quality)
            if relaxation is not None:
                found.append(Candidate(schedule, unit, relaxation, relaxation.step_s))
                try_on_unit(scenario, found[-1])
    return found


def with_queue_depth(graph: StepGraph, schedule: Schedule) -> StepGraph:
    """The graph's variables and buffers at another queue depth; its edges stay as they were."""
    before = graph.schedule.queue_depth
    buffers = [
        dataclasses.replace(b, count=schedule.queue_depth) if b.count == before else b
        for b in graph.buffers
    ]
    return dataclasses.replace(graph, buffers=buffers, schedule=schedule)


def unit_layers(model: ModelSpec, schedule: Schedule) -> list[int] | None:
    """The shortest run of layers that, repeated, makes the model and whole stages; None if all."""
    count = len(model.layers)
    step = 1 if schedule.axis == "token" else count // schedule.stages
    if schedule.axis == "layer" and count % schedule.stages:
        return None
    for size in range(step, count // 2 + 1, step):
        if count % size == 0 and all(
            model.layers[i] == model.layers[i % size] for i in range(count)
        ):
            return list(range(size))
    return None


def full_structure(
    scenario: Scenario, schedule: Schedule, layers: Sequence[int]
) -> Structure:
    """Every allowed path in every layer and stage."""
    structure: dict[tuple[int, int | None], tuple[Path, ...]] = {}
    count = len(scenario.model.layers)
    for layer in layers:
        paths = scenario.paths[scenario.model.layers[layer]]
        structure[layer, None] = tuple(p for p in paths if p.attends != "stage")
        staged = tuple(p for p in paths if p.attends == "stage")
        if schedule.axis == "token":
            stages: Sequence[int] = range(schedule.stages)
        else:
            stages = (group_of(layer, count, schedule.stages),)
        structure.update({(layer, stage): staged for stage in stages})
    return structure


def unit_graph(scenario: Scenario, schedule: Schedule) -> StepGraph:
    """The step graph of one unit with every allowed path in every stage."""
    unit = unit_layers(scenario.model, schedule)
    layers = range(len(scenario.model.layers)) if unit is None else unit
    return build_step(
        scenario.model, scenario.hardware, scenario.workload, schedule,
        full_structure(scenario, schedule, layers), unit,
    )  # fmt: skip


def targets(scenario: Scenario, relaxation: fluid.Fluid) -> list[dict[str, float]]:
    """Tokens per path of every layer, as the fluid program wants them."""
    return [
        {path: tokens for (of, path), tokens in relaxation.tokens.items()
         if of == scenario.classes[layer] and path != "stream_weights"}
        for layer in range(len(scenario.model.layers))
    ]  # fmt: skip


def streamed(scenario: Scenario, relaxation: fluid.Fluid) -> list[float]:
    """Share of every layer's weights to stream."""
    return [
        min(relaxation.tokens.get((each, "stream_weights"), 0.0), 1.0)
        for each in scenario.classes
    ]


def try_on_unit(scenario: Scenario, candidate: Candidate) -> None:
    """Play the fractional allocation on one unit, with each pattern of mixing stages."""
    unit = unit_layers(scenario.model, candidate.schedule)
    if unit is None:
        candidate.trial_s = candidate.bound_s
        return
    for pattern in PATTERNS:
        step_s = play_unit(scenario, candidate, pattern, unit)
        if step_s < candidate.trial_s:
            candidate.trial_s, candidate.pattern = step_s, pattern


def round_to(
    scenario: Scenario, candidate: Candidate, pattern: str | Sequence[Mapping[str, float]],
    block: int, layers: int,
) -> Allocation:  # fmt: skip
    """Round the candidate's allocation to blocks, for its first layers."""
    wanted = targets(scenario, candidate.relaxation)[:layers]
    count = [scenario.cached_tokens(i) for i in range(layers)]
    schedule = candidate.schedule
    stages = schedule.stages
    if schedule.axis == "layer" and layers < len(scenario.model.layers):
        stages = layers * stages // len(scenario.model.layers)
    return rounded(count, wanted, scenario.classes[:layers], schedule.axis, stages, block, pattern)


def fractional(
    scenario: Scenario, candidate: Candidate, pattern: str, layers: Sequence[int]
) -> tuple[dict[tuple[int, int | None], list[Path]], dict[tuple[int, int | None, str], float]]:
    """Paths and tokens of every layer and stage, before rounding to blocks."""
    schedule, wanted = candidate.schedule, targets(scenario, candidate.relaxation)
    structure: dict[tuple[int, int | None], list[Path]] = {}
    tokens: dict[tuple[int, int | None, str], float] = {}
    for layer in layers:
        least = 1e-6 * scenario.cached_tokens(layer)
        present = {n: t for n, t in wanted[layer].items() if t > least}
        staged = {n: t for n, t in present.items() if REGISTRY[n].attends == "stage"}
        if schedule.axis == "token":
            mixes = list(enumerate(stage_mixes(staged, schedule.stages, pattern)))
        else:
            mixes = [(group_of(layer, len(scenario.model.layers), schedule.stages), staged)]
        places = [(stage, name, count) for stage, mix in mixes for name, count in mix.items()]
        places += [(None, n, t) for n, t in present.items() if n not in staged]
        for stage, name, count in places:
            if count > 0:
                tokens[layer, stage, name] = count
                structure.setdefault((layer, stage), []).append(REGISTRY[name])
    return structure, tokens


def play_unit(
    scenario: Scenario, candidate: Candidate, pattern: str, unit: Sequence[int]
) -> float:
    """Step of the fractional allocation of one unit, in which absent paths cost nothing."""
    structure, tokens = fractional(scenario, candidate, pattern, unit)
    shares = streamed(scenario, candidate.relaxation)
    graph = build_step(scenario.model, scenario.hardware, scenario.workload, candidate.schedule,
                       structure, unit)  # fmt: skip
    values = [
        shares[v.layer] if v.path == "stream_weights" else tokens[v.layer, v.stage, v.path]
        for v in graph.variables
    ]
    return simulate(graph, values).step_s


def judge(
    scenario: Scenario, candidates: Sequence[Candidate]
) -> tuple[Evaluation | None, Candidate | None, int]:
    """Round and play the best candidates whole, until no other can be better by more than NEAR."""
    least = min(c.trial_s for c in candidates)
    near = [c for c in candidates if c.trial_s <= least * (1 + NEAR)]
    rest = sorted((c for c in candidates if c not in near), key=lambda c: c.trial_s)
    best: Evaluation | None = None
    chosen: Candidate | None = None
    judged = 0
    for candidate in [*sorted(near, key=simplicity), *rest]:
        if best is not None and best.step_s <= candidate.trial_s * (1 + NEAR):
            break
        evaluation = fitted(scenario, candidate)
        judged += 1
        if evaluation is not None and (
            best is None or evaluation.step_s < best.step_s * (1 - NEAR)
        ):
            best, chosen = evaluation, candidate
    return best, chosen, judged


def simplicity(candidate: Candidate) -> tuple[int, int, int]:
    """Token ranges before groups of layers, few stages before many, few buffers before many."""
    schedule = candidate.schedule
    return (schedule.axis != "token", schedule.stages, schedule.queue_depth)


def fitted(scenario: Scenario, candidate: Candidate) -> Evaluation | None:
    """Round a candidate; where rounding overflows a tier, plan again with that much less."""
    capacity = dict(scenario.capacity)
    layers = len(scenario.model.layers)
    trial = whole_blocks_away(scenario, candidate)
    quality = {**scenario.quality, **away_shares(scenario, trial)}
    margin = block_bytes(scenario, candidate.unit)
    for _ in range(8):
        allocation = round_to(scenario, trial, trial.pattern, scenario.workload.block, layers)
        evaluation = evaluate(
            scenario, trial.schedule, allocation, streamed(scenario, trial.relaxation)
        )
        over = evaluation.overflow(scenario.capacity)
        if over is None:
            return evaluation
        capacity[over[0]] -= over[1] + margin.get(over[0], 0.0)
        relaxation = fluid.bound(trial.unit, scenario.classes, capacity, quality)
        if relaxation is None:
            return None
        trial = dataclasses.replace(trial, relaxation=relaxation)
    return None


def away_shares(scenario: Scenario, candidate: Candidate) -> dict[str, float]:
    """Share of all tokens that each path attended where it lies takes."""
    total = sum(scenario.cached_tokens(i) for i in range(len(scenario.model.layers)))
    shares: dict[str, float] = {}
    for wanted in targets(scenario, candidate.relaxation):
        for name, tokens in wanted.items():
            if REGISTRY[name].attends == "away" and total:
                shares[name] = shares.get(name, 0.0) + tokens / total
    return shares


def whole_blocks_away(scenario: Scenario, candidate: Candidate) -> Candidate:
    """The candidate with whole blocks attended where they lie, the same in all equal layers.

    The link can work ahead and make up for a layer with one block more; what attends elsewhere
    needs the query first and cannot, so a layer with one block more there is late.
    """
    block, tokens = scenario.workload.block, dict(candidate.relaxation.tokens)
    changed = False
    for (of, name), count in candidate.relaxation.tokens.items():
        if name not in REGISTRY or REGISTRY[name].attends != "away" or count % block < 1e-6:
            continue
        whole = count // block * block
        others = {k: t for k, t in tokens.items() if k[0] == of and k[1] != name and t > 0
                  and k[1] in REGISTRY and REGISTRY[k[1]].attends == "stage"}  # fmt: skip
        if not others:
            continue
        total = sum(others.values())
        for key, t in others.items():
            tokens[key] = t * (1 + (count - whole) / total)
        tokens[of, name] = whole
        changed = True
    if not changed:
        return candidate
    relaxation = dataclasses.replace(candidate.relaxation, tokens=tokens)
    return dataclasses.replace(candidate, relaxation=relaxation)


def block_bytes(scenario: Scenario, graph: StepGraph) -> dict[str, float]:
    """Bytes that rounding one block of one layer can move in each tier."""
    repeat = len(scenario.model.layers) // len(graph.tokens)
    most: dict[str, float] = {}
    for variable in graph.variables:
        if variable.path != "stream_weights":
            for tier, size in variable.stored.items():
                block = size * scenario.workload.block / repeat
                most[tier] = max(most.get(tier, 0.0), block)
    return most


def tighten(
    scenario: Scenario, candidates: Sequence[Candidate], best: Evaluation, chosen: Candidate
) -> tuple[Evaluation, Candidate, int]:
    """Solve full programs where the fluid ones leave a gap, for better mixes and bounds."""
    judged = 0
    small = [c for c in candidates if len(c.unit.operations) <= LARGEST_PROGRAM]
    for candidate in sorted(small, key=lambda c: c.trial_s)[:POLISHED]:
        bound_s = min(c.bound_s for c in candidates)
        if best.step_s <= bound_s * (1 + GOOD_GAP) or candidate.trial_s > best.step_s:
            break
        for pattern in (*PATTERNS, "program"):
            polished = polish(scenario, candidate, pattern)
            evaluation = fitted(scenario, polished) if polished else None
            judged += 1
            if evaluation is not None and evaluation.step_s < best.step_s:
                best, chosen = evaluation, candidate
    raise_bounds(scenario, small, best.step_s)
    return best, chosen, judged


def raise_bounds(scenario: Scenario, candidates: Sequence[Candidate], step_s: float) -> None:
    """Sharpen the least bounds until they reach the plan found, or no longer rise."""
    target_s = step_s / (1 + GOOD_GAP)
    uniform = len(set(scenario.classes)) == 1
    for candidate in sorted(candidates, key=lambda c: c.bound_s):
        if candidate.bound_s >= target_s:
            return
        if uniform:
            sharper = certificate.sharpened(
                candidate.unit, scenario.classes, scenario.capacity, scenario.quality,
                scenario.workload.block, target_s,
            )  # fmt: skip
            candidate.bound_s = max(candidate.bound_s, sharper)
        if candidate.bound_s < target_s and len(candidate.unit.operations) <= LARGEST_PROGRAM:
            statement = program.state(
                unit_graph(scenario, candidate.schedule), scenario.capacity,
                quality=scenario.quality, relaxed=True, block=scenario.workload.block,
            )  # fmt: skip
            solution = program.solve(statement)
            solved_s = float("inf") if solution is None else solution.step_s
            candidate.bound_s = max(candidate.bound_s, solved_s)


def polish(scenario: Scenario, candidate: Candidate, pattern: str) -> Candidate | None:
    """The best split of tokens for the operations that a pattern leaves in each stage.

    The pattern ``program`` keeps what the relaxed program uses for more than a sliver of a stage.
    """
    unit = unit_layers(scenario.model, candidate.schedule)
    layers = list(range(len(scenario.model.layers))) if unit is None else unit
    if pattern == "program":
        structure = program_structure(scenario, candidate, layers)
    else:
        structure, _ = fractional(scenario, candidate, pattern, layers)
    if structure is None:
        return None
    graph = build_step(scenario.model, scenario.hardware, scenario.workload, candidate.schedule,
                       structure, unit)  # fmt: skip
    statement = program.state(
        graph, scenario.capacity, quality=scenario.quality, block=scenario.workload.block
    )
    solution = program.solve(statement)
    return None if solution is None else from_program(scenario, candidate, graph, solution)


def program_structure(
    scenario: Scenario, candidate: Candidate, layers: Sequence[int]
) -> dict[tuple[int, int | None], list[Path]] | None:
    """Paths that the relaxed program uses for more than a sliver of each stage."""
    unit = unit_graph(scenario, candidate.schedule)
    statement = program.state(
        unit, scenario.capacity, quality=scenario.quality, relaxed=True,
        block=scenario.workload.block,
    )  # fmt: skip
    solution = program.solve(statement)
    if solution is None:
        return None
    held: dict[tuple[int, int | None], dict[str, float]] = {}
    for variable, value in zip(unit.variables, solution.values, strict=True):
        if variable.path in REGISTRY:
            held.setdefault((variable.layer, variable.stage), {})[variable.path] = value
    structure: dict[tuple[int, int | None], list[Path]] = {}
    for place, paths in held.items():
        total = sum(paths.values())
        kept = [REGISTRY[n] for n, v in paths.items() if total > 0 and v > SLIVER * total]
        if kept:
            structure[place] = kept
    return structure


def from_program(
    scenario: Scenario, candidate: Candidate, unit: StepGraph, solution: program.Solution
) -> Candidate:
    """The candidate with the full program's tokens, and its mix of stages where layers agree."""
    tokens: dict[tuple[int, str], float] = {}
    layers: dict[int, set[int]] = {}
    for variable in unit.variables:
        layers.setdefault(scenario.classes[variable.layer], set()).add(variable.layer)
    mixes: list[dict[str, float]] = [{} for _ in range(candidate.schedule.stages)]
    for variable, value in zip(unit.variables, solution.values, strict=True):
        key = (scenario.classes[variable.layer], variable.path)
        tokens[key] = tokens.get(key, 0.0) + max(value, 0.0) / len(layers[key[0]])
        if variable.stage is not None and candidate.schedule.axis == "token":
            mix = mixes[variable.stage]
            mix[variable.path] = mix.get(variable.path, 0.0) + max(value, 0.0)
    relaxation = dataclasses.replace(candidate.relaxation, tokens=tokens)
    pattern = mixes if len(layers) == 1 and candidate.schedule.axis == "token" else "even"
    return dataclasses.replace(candidate, relaxation=relaxation, pattern=pattern)


def explain_infeasible(scenario: Scenario) -> InfeasibleError:
    """Which budget binds, and the smallest change that makes a plan possible."""
    stream = scenario.options.weights != "resident"
    least: tuple[float, dict[str, float]] | None = None
    for schedule in schedules(scenario, stream, min(scenario.options.queue_depths)):
        unit = unit_graph(scenario, schedule)
        found = fluid.shortfall(unit, scenario.classes, scenario.capacity, scenario.quality)
        total = sum(found.shortfall_bytes.values())
        if least is None or total < least[0]:
            least = (total, found.shortfall_bytes)
    assert least is not None
    short = {tier: size for tier, size in least[1].items() if size > 0.5}
    short = short or {"hbm": float(scenario.workload.block)}
    tier = max(sorted(short), key=lambda t: short[t])
    flag = {"hbm": "--hbm", "dram": "--dram", "pinned": "--pinned", "disk": "--disk"}[tier]
    have = scenario.capacity[tier]
    change = f"give {flag} at least {format_bytes(have + short[tier] * 1.01)}"
    smaller = largest_batch(scenario)
    if smaller:
        change += f" or lower --batch to {smaller}"
    return InfeasibleError(
        tier, f"{format_bytes(short[tier])} short of a budget of {format_bytes(have)}", change
    )


def largest_batch(scenario: Scenario) -> int:
    """The largest smaller batch that some schedule can hold; 0 if none."""
    low, high = 0, scenario.workload.batch
    while high - low > 1:
        batch = (low + high) // 2
        workload = dataclasses.replace(scenario.workload, batch=batch, micro_batches=1)
        trial = dataclasses.replace(scenario, workload=workload)
        if fits(trial):
            low = batch
        else:
            high = batch
    return low


def fits(scenario: Scenario) -> bool:
    """Whether any schedule has a fluid plan, or everything is resident."""
    return everything_resident(scenario) is not None or bool(bounded_candidates(scenario))
