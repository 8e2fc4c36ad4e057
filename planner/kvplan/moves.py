"""What changes hands when a later segment of a generation decides otherwise.

Attention does not mind the order of the cache, so which tokens take a path is free: as few as the
counts allow change theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvplan import cost
from kvplan.allocation import Allocation, Segment, spread, tokens_by_path
from kvplan.paths import REGISTRY, Path
from kvplan.scenario import Scenario


@dataclass(slots=True)
class Moves:
    """Work between two segments, over all layers and sequences.

    Args:
        bytes_moved: per link and disk.
        rebuild_s: seconds of rebuilding K and V of tokens that were kept as activations.
        kept_bytes: activations that the earlier segments must keep in host memory, because
            tokens whose K and V they hold are recomputed later.
    """

    bytes_moved: dict[str, float] = field(default_factory=dict)
    rebuild_s: float = 0.0
    kept_bytes: float = 0.0

    def add(self, link: str, size: float) -> None:
        """Count bytes over a link."""
        if size:
            self.bytes_moved[link] = self.bytes_moved.get(link, 0.0) + size

    def seconds(self, scenario: Scenario) -> float:
        """Seconds with one thing done after the other, at the rates of large copies."""
        hardware = scenario.hardware
        rates = {
            "h2d": cost.copy_to_gpu(hardware).rate(),
            "d2h": cost.copy_to_host(hardware).rate(),
        }
        disk = cost.read_disk(hardware)
        if disk is not None:
            rates["disk"] = disk.rate()
        return self.rebuild_s + sum(s / rates[link] for link, s in self.bytes_moved.items())


def shrunk(
    segments: Sequence[Segment], count: int, order: Sequence[str] = ("stage", "away", "resident")
) -> tuple[Segment, ...]:
    """A layer's ranges before its last tokens have come.

    Args:
        segments: ranges of a layer.
        count: tokens it holds now.
        order: places that go empty, the first before the next.

    >>> full = [Segment(0, 40, "fetch", 0), Segment(40, 60, "fetch", 1),
    ...         Segment(60, 100, "resident", None)]
    >>> [(s.begin, s.end, s.path) for s in shrunk(full, 70)]
    [(0, 20, 'fetch'), (20, 30, 'fetch'), (30, 70, 'resident')]
    """
    sizes = [segment.tokens for segment in segments]
    excess = sum(sizes) - count
    for place in order:
        own = [i for i, s in enumerate(segments) if REGISTRY[s.path].attends == place]
        total = sum(sizes[i] for i in own)
        if not total:
            continue
        left = total - min(max(excess, 0), total)
        parts = spread({str(i): float(sizes[i]) for i in own}, left, {})
        for i in own:
            excess -= sizes[i] - parts[str(i)]
            sizes[i] = parts[str(i)]
    laid, begin = [], 0
    for size, segment in zip(sizes, segments, strict=True):
        if size:
            laid.append(Segment(begin, begin + size, segment.path, segment.stage))
        begin += size
    return tuple(laid)


def moves(scenario: Scenario, before: Allocation, after: Allocation) -> Moves:
    """What changes hands between two allocations of the same tokens.

    Args:
        scenario: model, machine and workload.
        before: ranges of every layer at the end of a segment.
        after: ranges of every layer at the beginning of the next.
    """
    found = Moves()
    sequences, dtype = scenario.workload.batch, scenario.workload.kv_dtype
    for layer, (old, new) in enumerate(zip(before, after, strict=True)):
        for source, target, tokens in exchanged(tokens_by_path(old), tokens_by_path(new)):
            count_move(
                found,
                scenario,
                layer,
                REGISTRY[source],
                REGISTRY[target],
                tokens * sequences,
                dtype,
            )
    return found


def exchanged(old: Mapping[str, int], new: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """Which path hands how many tokens to which; as few as the counts allow.

    >>> exchanged({"resident": 80, "fetch": 20}, {"resident": 60, "fetch": 40})
    [('resident', 'fetch', 20)]
    """
    gives = {p: n - new.get(p, 0) for p, n in old.items() if n > new.get(p, 0)}
    takes = {p: n - old.get(p, 0) for p, n in new.items() if n > old.get(p, 0)}
    pairs = sorted(
        ((g, t) for g in gives for t in takes),
        key=lambda pair: kind_of(pair[0]) != kind_of(pair[1]),
    )
    found = []
    for source, target in pairs:
        tokens = min(gives[source], takes[target])
        if tokens:
            found.append((source, target, tokens))
            gives[source] -= tokens
            takes[target] -= tokens
    return found


def kind_of(name: str) -> str:
    """What a path stores: ``kv`` in the cache's format or a smaller one, or ``activations``."""
    return "activations" if name.startswith("recompute") else REGISTRY[name].precision or "kv"


def count_move(
    found: Moves,
    scenario: Scenario,
    layer: int,
    source: Path,
    target: Path,
    tokens: float,
    dtype: str,
) -> None:
    """Count what tokens of a layer that change their path take with them."""
    spec = scenario.model.layers[layer]
    stored = {path.name: dict(path.stored(spec, dtype)) for path in (source, target)}
    for sizes in stored.values():
        sizes.pop("pinned", None)
    [(origin, size)] = stored[source.name].items()
    [(home, new_size)] = stored[target.name].items()
    before, after = kind_of(source.name), kind_of(target.name)
    if after == "activations" and before != "activations":
        found.kept_bytes += new_size * tokens  # saved when the token was computed
        if home == "hbm":
            found.add("h2d", new_size * tokens)
        return
    if before == "activations" and after != "activations":
        curve = cost.rebuild(scenario.hardware, spec, scenario.model.weight_dtype)
        found.rebuild_s += max(p.s_per_unit for p in curve.pieces) * tokens
    if before == after and origin == home:
        return
    if origin != "hbm":
        found.add("h2d", size * tokens)
    if home != "hbm":
        found.add("d2h", new_size * tokens)
    for tier, amount in ((origin, size), (home, new_size)):
        if tier == "disk":
            found.add("disk", amount * tokens)
