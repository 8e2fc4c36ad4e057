"""What would make a traced step faster, and by how much at most."""

from __future__ import annotations

from kvplan.analysis import Advice, Analysis
from kvplan.hardware import HardwareProfile
from kvplan.profiler_trace import Profile
from kvplan.traced_copies import SIZES
from kvplan.units import format_bytes, format_rate, format_seconds

WORTH = 0.02
"""Share of the time a change must save to be advised."""


def advise(
    found: Analysis, profile: Profile, hardware: HardwareProfile | None
) -> tuple[Advice, ...]:
    """Changes worth making, those that save most first.

    Args:
        found: what the trace says; its advice is not read.
        profile: the trace.
        hardware: the machine, to say what its link could do; None compares with the trace itself.
    """
    listed = [
        *_less_over_the_link(found),
        *_faster_copies(found, hardware),
        *_overlap(found),
        *_fewer_gaps(found, profile),
    ]
    worth = [a for a in listed if a.saves_s is None or a.saves_s >= WORTH * found.window_s]
    return tuple(sorted(worth, key=lambda a: -(a.saves_s or 0.0)))


def _less_over_the_link(found: Analysis) -> list[Advice]:
    """Fewer bytes, where the link is what takes the time."""
    link, others = found.busy_s.get("h2d", 0.0), [s for k, s in found.busy_s.items() if k != "h2d"]
    if found.verdict != "link":
        return []
    least = max([*others, link / 2])
    return [
        Advice(
            "move fewer bytes: keep more KV in HBM, recompute from activations (half the bytes "
            "with multi-head attention), store int8 (half), or attend on the host; half the bytes "
            f"would leave {format_seconds(least)} of {format_seconds(found.window_s)}. "
            "`kvplan solve` finds the mix",
            found.window_s - least,
        )
    ]


def _faster_copies(found: Analysis, hardware: HardwareProfile | None) -> list[Advice]:
    """Pinned memory, larger copies, the right slot: the same bytes in less time."""
    copies, rate = found.h2d, found.h2d.bytes_per_s
    if rate is None or not copies.size_bytes:
        return []
    reach = hardware.h2d.copy.rate() if hardware else copies.best_bytes_per_s
    by_whom = f"the link of {hardware.name}" if hardware else "the class of the largest copies"
    better = f"{by_whom} reaches {format_rate(reach)}" if reach else ""
    slow = reach is None or rate < 0.8 * reach
    loose = copies.pageable_share or 0.0
    small = sum(moved for limit, (moved, _) in copies.classes.items() if limit in SIZES[:2])
    share = small / copies.size_bytes
    advice = []
    if loose > 0.05:
        beside = f"; {better}" if reach and reach > rate else ""
        what = (
            f"pin the host memory: {100 * loose:.0f} % of the bytes come from pageable memory, "
            f"at {format_rate(rate)} in all{beside}"
        )
        advice.append(Advice(what, _saved_s(found, rate, reach, loose)))
    if loose <= 0.5 and share > 0.5 and slow:
        what = (
            f"make copies larger: half are at most {format_bytes(copies.median_bytes or 0)} "
            f"and they reach {format_rate(rate)}; lay out tokens so that one stage is one copy "
            "of 16 MiB or more"
        )
        advice.append(Advice(what, _saved_s(found, rate, reach, share)))
    if hardware and reach and loose <= 0.05 and share <= 0.5 and slow:
        what = (
            f"find out why the link is slow: {format_rate(rate)} where {better} "
            "(slot width, other traffic, the other socket's memory)"
        )
        advice.append(Advice(what, _saved_s(found, rate, reach, 1.0)))
    return advice


def _saved_s(found: Analysis, rate: float, reach: float | None, share: float) -> float | None:
    """Of the window, if this share of the bytes moved at the rate that can be reached."""
    if reach is None or reach <= rate:
        return None
    shorter = found.h2d.busy_s * share * (1 - rate / reach)
    gain = shorter * (1 - (found.hidden_share or 0.0))
    return shorter if found.verdict == "link" else gain


def _overlap(found: Analysis) -> list[Advice]:
    if found.verdict == "link" or found.exposed_s < 0.05 * found.window_s:
        return []
    saves_s = min(found.exposed_s, found.window_s - found.best_s)
    return [
        Advice(
            "copy on a stream of its own, ahead of the layer that needs it, into two or more "
            f"buffers: {format_seconds(found.exposed_s)} of the copies run while the GPU waits; "
            f"with full overlap {format_seconds(found.window_s)} would be "
            f"{format_seconds(found.window_s - saves_s)}",
            saves_s,
        )
    ]


def _fewer_gaps(found: Analysis, profile: Profile) -> list[Advice]:
    if found.idle_s < 0.1 * found.window_s:
        return []
    calls = [("launches", profile.launches), ("copy calls", profile.copy_calls)]
    told = [f"{len(c)} {name} took {format_seconds(sum(c))}" for name, c in calls if c]
    grounds = f"; {' and '.join(told)} of the CPU's time" if told else ""
    if sum(profile.copy_calls) > sum(profile.launches):
        how = "Issue fewer, larger copies, from pinned memory so that no call waits"
    else:
        how = "Capture the step in a CUDA graph, and do not wait for the GPU between layers"
    return [
        Advice(
            f"close the gaps: nothing runs for {format_seconds(found.idle_s)}{grounds}. {how}",
            found.idle_s,
        )
    ]
