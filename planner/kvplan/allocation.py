"""Which tokens take which path: whole blocks per layer and stage, and rounding to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kvplan.errors import InputError
from kvplan.paths import REGISTRY
from kvplan.step import group_of

_Count = TypeVar("_Count", int, float)
_Name = TypeVar("_Name")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A run of tokens ``[begin, end)`` of one layer that takes one path in one stage.

    Stage is None for paths outside the pipeline.
    """

    begin: int
    end: int
    path: str
    stage: int | None

    @property
    def tokens(self) -> int:
        """Length of the run."""
        return self.end - self.begin


Place = tuple[int | None, str]
"""A stage, or None outside the pipeline, and a path."""

Allocation = tuple[tuple[Segment, ...], ...]
"""Segments of every layer, in token order."""


def tokens_by_path(segments: Sequence[Segment]) -> dict[str, int]:
    """Tokens per path of one layer.

    >>> tokens_by_path([Segment(0, 64, "fetch", 0), Segment(64, 100, "fetch", 1)])
    {'fetch': 100}
    """
    total: dict[str, int] = {}
    for segment in segments:
        total[segment.path] = total.get(segment.path, 0) + segment.tokens
    return total


def unevenness(tokens: int, block: int) -> int:
    """Tokens by which a stage of whole blocks differs from the mean of its layer at most.

    Stages differ by one block; where the last block is a part of one, by up to two.

    >>> unevenness(4096, 64), unevenness(4100, 64)
    (64, 128)
    """
    return block if tokens % block == 0 else 2 * block


def spread(
    shares: Mapping[_Name, float], count: int, carry: dict[_Name, float]
) -> dict[_Name, int]:
    """Cut ``count`` into whole parts, remembering what rounding left over for the next call.

    Args:
        shares: weight of each part.
        count: what to cut, whole.
        carry: left over so far, changed in place.

    Returns:
        Whole parts that add up to ``count``.

    >>> carry = {}
    >>> [spread({"a": 0.5, "b": 0.5}, 1, carry)["a"] for _ in range(4)]
    [1, 0, 1, 0]
    """
    total = sum(max(s, 0.0) for s in shares.values())
    if total <= 0:
        raise InputError("shares", dict(shares), "at least one share above 0")
    wanted = {
        name: max(share, 0.0) / total * count + carry.get(name, 0.0)
        for name, share in shares.items()
    }
    parts = {name: max(int(value + 1e-9), 0) for name, value in wanted.items()}
    excess = sum(parts.values()) - count
    names = list(shares)
    for name in sorted(names, key=lambda n: wanted[n] - parts[n]):
        drop = min(max(excess, 0), parts[name])
        parts[name] -= drop
        excess -= drop
    order = sorted(names, key=lambda n: (-(wanted[n] - parts[n]), names.index(n)))
    for position in range(-excess):
        parts[order[position % len(order)]] += 1
    for name in names:
        carry[name] = wanted[name] - parts[name]
    return parts


def rounded(
    tokens: Sequence[int],
    targets: Sequence[Mapping[str, float]],
    classes: Sequence[int],
    axis: str,
    stages: int,
    block: int,
    pattern: str | Sequence[Mapping[str, float]] = "even",
) -> Allocation:
    """Whole blocks per layer and stage, close to fractional targets.

    What rounding a layer leaves over goes to the next equal layer, so that the mean over layers
    is the target.

    Args:
        tokens: tokens each layer caches.
        targets: for each layer, tokens per path; only their ratios count.
        classes: class number of each layer.
        axis: ``token`` or ``layer``.
        stages: S.
        block: tokens per block; the last block of a layer may be shorter.
        pattern: ``even`` gives every stage the same mix, ``grouped`` fills stages path by path,
            ``alternating`` gives each stage one path as far as it goes, the one most behind; or
            the tokens per path of each stage.

    Returns:
        The allocation.
    """
    carries: dict[int, dict[str, float]] = {}
    layers: list[tuple[Segment, ...]] = []
    known: dict[object, tuple[Segment, ...]] = {}
    for layer, count in enumerate(tokens):
        blocks = -(-count // block)
        carry = carries.setdefault(classes[layer], {})
        wanted = {name: share for name, share in targets[layer].items() if share > 1e-9 * count}
        parts = spread(wanted, blocks, carry) if blocks else {}
        staged = {n: k for n, k in parts.items() if k and REGISTRY[n].attends == "stage"}
        group = None if axis == "token" else group_of(layer, len(tokens), stages)
        key = (count, group, tuple(parts.items()))
        if key not in known:
            if group is None:
                mixes = stage_mixes(staged, stages, pattern)
                numbered = list(enumerate(_by_stage(staged, stages, mixes)))
            else:
                numbered = [(group, staged)]
            known[key] = _segments(count, block, numbered, parts)
        layers.append(known[key])
    return tuple(layers)


def placed(
    tokens: Sequence[int], wanted: Sequence[Mapping[Place, float]], block: int, free: Place | None
) -> Allocation:
    """Lay out layers whose stages hold whole blocks, a free place excepted.

    Args:
        tokens: tokens each layer caches.
        wanted: for each layer of a repeated run, tokens per stage and path.
        block: tokens per block; the last block of a layer may be shorter.
        free: place whose tokens, like the resident ones, are means over layers.

    Returns:
        The allocation.

    >>> mix = {(0, "fetch"): 64.0, (1, "fetch"): 96.0, (None, "resident"): 96.0}
    >>> [[s.tokens for s in layer] for layer in placed([256] * 2, [mix], 64, (1, "fetch"))]
    [[64, 128, 64], [64, 64, 128]]
    """
    carries: list[dict[Place, float]] = [{} for _ in wanted]
    layers = []
    for layer, count in enumerate(tokens):
        number = layer % len(wanted)
        mix = {place: share for place, share in wanted[number].items() if share > 1e-6 * count}
        means = {p: n for p, n in mix.items() if p == free or REGISTRY[p[1]].attends == "resident"}
        parts = {place: round(n / block) for place, n in mix.items() if place not in means}
        left = -(-count // block) - sum(parts.values())
        if means:
            parts |= spread(means, max(left, 0), carries[number])
        layers.append(laid_out(count, block, parts))
    return tuple(layers)


def in_groups(allocation: Allocation, groups: int) -> Allocation:
    """Layers cut into groups: what a layer stages is in the stage of its own group.

    >>> [[s.stage for s in layer] for layer in in_groups(((Segment(0, 64, "fetch", 0),),) * 3, 3)]
    [[0], [1], [2]]
    """
    return tuple(
        tuple(
            segment if segment.stage is None else replace(segment, stage=group)
            for segment in segments
        )
        for segments, group in (
            (segments, group_of(index, len(allocation), groups))
            for index, segments in enumerate(allocation)
        )
    )


def laid_out(count: int, block: int, parts: Mapping[Place, int]) -> tuple[Segment, ...]:
    """Segments of a layer from its blocks per stage and path."""
    stages: dict[int, dict[str, int]] = {}
    outside: dict[str, int] = {}
    for (stage, name), blocks in parts.items():
        if stage is None:
            outside[name] = blocks
        elif blocks:
            stages.setdefault(stage, {})[name] = blocks
    return _segments(count, block, sorted(stages.items()), outside)


def stage_mixes(
    staged: Mapping[str, float], stages: int, pattern: str | Sequence[Mapping[str, float]]
) -> Sequence[Mapping[str, float]]:
    """Tokens (or blocks) per path that each stage of a layer should hold, fractional.

    >>> stage_mixes({"recompute": 3.0, "fetch": 1.0}, 2, "grouped")
    [{'recompute': 2.0, 'fetch': 0.0}, {'recompute': 1.0, 'fetch': 1.0}]
    """
    if not isinstance(pattern, str):
        return [{n: max(mix.get(n, 0.0), 0.0) for n in staged} for mix in pattern]
    if pattern == "even":
        return [{n: k / stages for n, k in staged.items()}] * stages
    total = sum(staged.values())
    size = total / stages
    left: dict[str, float] = dict(_in_order(staged))
    mixes = []
    for stage in range(stages):
        room, mix = size, {}
        order = list(left)
        if pattern == "alternating":
            due = {n: staged[n] * (stage + 1) / stages - (staged[n] - left[n]) for n in left}
            order.sort(key=lambda n: -due[n])
        for name in order:
            mix[name] = min(room, left[name])
            left[name] -= mix[name]
            room -= mix[name]
        mixes.append(mix)
    return mixes


def _in_order(staged: Mapping[str, _Count]) -> list[tuple[str, _Count]]:
    """Paths with most work after their copy first, so that it overlaps the copies of the rest."""
    rank = {"recompute": 0, "recompute_resident": 1}
    names = list(REGISTRY)
    return sorted(staged.items(), key=lambda item: (rank.get(item[0], 2), -names.index(item[0])))


def _by_stage(
    staged: Mapping[str, int], stages: int, mixes: Sequence[Mapping[str, float]]
) -> list[dict[str, int]]:
    """Whole blocks per path and stage: stages as even as blocks allow, mixes as near as they do."""
    total = sum(staged.values())
    left = dict(staged)
    planned = {n: sum(mix.get(n, 0.0) for mix in mixes) or 1.0 for n in staged}
    reached = dict.fromkeys(staged, 0.0)
    result = []
    for stage in range(stages):
        room = total // stages + (stage < total % stages)
        behind = {}
        for name, blocks in staged.items():
            reached[name] += mixes[stage].get(name, 0.0) / planned[name] * blocks
            behind[name] = reached[name] - (blocks - left[name])
        parts = {n: min(max(int(behind[n] + 1e-9), 0), left[n]) for n in staged}
        order = sorted(staged, key=lambda n: parts[n] - behind[n])
        missing = room - sum(parts.values())
        for name in order:
            added = min(max(missing, 0), left[name] - parts[name], 1)
            parts[name] += added
            missing -= added
        for name in [*order, *reversed(order)]:
            change = max(min(missing, left[name] - parts[name]), -parts[name])
            parts[name] += change
            missing -= change
        for name, blocks in parts.items():
            left[name] -= blocks
        result.append({n: k for n, k in parts.items() if k})
    return result


def _segments(
    count: int,
    block: int,
    stages: Sequence[tuple[int, Mapping[str, int]]],
    parts: Mapping[str, int],
) -> tuple[Segment, ...]:
    """Lay the blocks out in token order: stages, then tokens attended away, then resident."""
    order: list[tuple[str, int | None, int]] = []
    for stage, mix in stages:
        order += [(name, stage, blocks) for name, blocks in _in_order(mix)]
    for place in ("away", "resident"):
        order += [(n, None, k) for n, k in parts.items() if REGISTRY[n].attends == place and k]
    segments, begin = [], 0
    for name, at, blocks in order:
        end = min(begin + blocks * block, count)
        if end > begin:
            segments.append(Segment(begin, end, name, at))
        begin = end
    return tuple(segments)
