"""Is the link the bottleneck, how well is it hidden, and what would change it: from a trace.

Time on a resource is the union of what ran on it, so overlapping streams count once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile
from kvplan.profiler_trace import Profile, Work
from kvplan.units import KIB, MIB, format_bytes, format_rate, format_seconds

BUSY = 0.9
"""Share of the time from which a resource counts as the bottleneck."""

WORTH = 0.02
"""Share of the time a change must save to be advised."""

SIZES = (64 * KIB, MIB, 16 * MIB)
"""Copy sizes at which classes end; the last class is above."""

Spans = list[tuple[float, float]]


def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """Overlapping and touching spans joined, in order.

    >>> union([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0)])
    [(0.0, 2.0), (3.0, 4.0)]
    """
    joined: Spans = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def both(one: Spans, other: Spans) -> float:
    """Length of what two unions share.

    >>> both([(0.0, 2.0), (3.0, 4.0)], [(1.0, 3.5)])
    1.5
    """
    shared, at = 0.0, 0
    for begin, end in one:
        while at < len(other) and other[at][1] <= begin:
            at += 1
        k = at
        while k < len(other) and other[k][0] < end:
            shared += min(end, other[k][1]) - max(begin, other[k][0])
            k += 1
    return shared


def length(spans: Spans) -> float:
    """Length of a union.

    >>> length([(0.0, 2.0), (3.0, 4.0)])
    3.0
    """
    return sum(end - begin for begin, end in spans)


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one direction.

    Args:
        count: how many.
        size_bytes: bytes in all; None where the trace does not say.
        busy_s: time with one of them under way.
        median_bytes: half of the copies are smaller; None where the trace does not say.
        pageable_share: share of the bytes from memory that is not pinned; None where not said.
        classes: largest size of a class (None: above all) to its bytes and seconds.
    """

    count: int
    size_bytes: float | None
    busy_s: float
    median_bytes: float | None
    pageable_share: float | None
    classes: dict[int | None, tuple[float, float]]

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes over the time with a copy under way."""
        if self.size_bytes is None or self.busy_s <= 0:
            return None
        return self.size_bytes / self.busy_s


@dataclass(frozen=True, slots=True)
class Advice:
    """One change.

    Args:
        what: what to do, and on what grounds.
        saves_s: most it can save over the trace, seconds; None where the trace cannot say.
    """

    what: str
    saves_s: float | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a trace says about the link.

    Args:
        verdict: ``link``, ``exposed``, ``gpu``, ``idle`` or ``mixed``.
        answer: the verdict as a sentence.
        window_s: from the first to the last work of the GPU.
        steps: steps in it; 0 where not known.
        busy_s: resource to the time it worked.
        hidden_share: share of the copies' time to the GPU that the GPU worked beside; None: none.
        exposed_s: time with a copy to the GPU under way and the GPU waiting.
        idle_s: time in which nothing at all ran.
        best_s: the busiest resource's time: what perfect overlap would take.
        h2d: copies to the GPU.
        d2h: copies from it.
        advice: changes, those that save most first.
    """

    verdict: str
    answer: str
    window_s: float
    steps: int
    busy_s: dict[str, float]
    hidden_share: float | None
    exposed_s: float
    idle_s: float
    best_s: float
    h2d: Copies
    d2h: Copies
    advice: tuple[Advice, ...]


def analyze(
    profile: Profile, steps: int | None = None, hardware: HardwareProfile | None = None
) -> Analysis:
    """Judge a trace.

    Args:
        profile: the trace, as `read_profile` gives it.
        steps: decode steps in the trace; None takes what the profiler marked.
        hardware: the machine, to say what its link could do; None compares with the trace itself.

    Raises:
        InputError: the trace has no length.
    """
    spans = {
        kind: union((w.begin_s, w.end_s) for w in profile.work if w.kind == kind)
        for kind in dict.fromkeys(w.kind for w in profile.work)
    }
    begin = min(s[0][0] for s in spans.values())
    window_s = max(s[-1][1] for s in spans.values()) - begin
    if window_s <= 0:
        raise InputError("trace", f"{len(profile.work)} events", "events that take time")
    busy = {kind: length(own) for kind, own in sorted(spans.items())}
    link, gpu = spans.get("h2d", []), spans.get("gpu", [])
    hidden_s = both(link, gpu)
    idle_s = window_s - length(union(s for own in spans.values() for s in own))
    h2d, d2h = _copies(profile.work, "h2d"), _copies(profile.work, "d2h")
    exposed_s = h2d.busy_s - hidden_s
    shares = {kind: seconds / window_s for kind, seconds in busy.items()}
    verdict = _verdict(shares, exposed_s / window_s, idle_s / window_s)
    found = Analysis(
        verdict=verdict,
        answer="",
        window_s=window_s,
        steps=profile.steps if steps is None else steps,
        busy_s=busy,
        hidden_share=hidden_s / h2d.busy_s if h2d.busy_s else None,
        exposed_s=exposed_s,
        idle_s=max(idle_s, 0.0),
        best_s=max(busy.values()),
        h2d=h2d,
        d2h=d2h,
        advice=(),
    )
    return _completed(found, profile, hardware)


def _verdict(shares: dict[str, float], exposed: float, idle: float) -> str:
    if shares.get("h2d", 0.0) >= BUSY:
        return "link"
    if shares.get("gpu", 0.0) >= BUSY:
        return "gpu"
    if exposed >= 0.1 and exposed >= idle:
        return "exposed"
    return "idle" if idle >= 0.2 else "mixed"


def _copies(work: Sequence[Work], kind: str) -> Copies:
    own = [w for w in work if w.kind == kind]
    known = [w for w in own if w.size_bytes is not None]
    total = sum(w.size_bytes or 0.0 for w in known) if len(known) == len(own) and own else None
    told = [w for w in known if w.pinned is not None]
    classes: dict[int | None, tuple[float, float]] = {}
    for w in known:
        size = w.size_bytes or 0.0
        limit = next((most for most in SIZES if size <= most), None)
        moved, seconds = classes.get(limit, (0.0, 0.0))
        classes[limit] = (moved + size, seconds + w.end_s - w.begin_s)
    said = sum(w.size_bytes or 0.0 for w in told)
    loose = sum(w.size_bytes or 0.0 for w in told if not w.pinned)
    return Copies(
        count=len(own),
        size_bytes=total if own else 0.0,
        busy_s=length(union((w.begin_s, w.end_s) for w in own)),
        median_bytes=statistics.median(w.size_bytes or 0.0 for w in known) if known else None,
        pageable_share=loose / said if said else None,
        classes={limit: classes[limit] for limit in (*SIZES, None) if limit in classes},
    )


def _completed(found: Analysis, profile: Profile, hardware: HardwareProfile | None) -> Analysis:
    import dataclasses

    listed = [
        *_less_over_the_link(found, hardware),
        *_faster_copies(found, hardware),
        *_overlap(found),
        *_fewer_gaps(found, profile),
    ]
    worth = [a for a in listed if a.saves_s is None or a.saves_s >= WORTH * found.window_s]
    worth.sort(key=lambda a: -(a.saves_s or 0.0))
    return dataclasses.replace(found, answer=_answer(found), advice=tuple(worth))


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %"


def _answer(found: Analysis) -> str:
    window, link = found.window_s, found.busy_s.get("h2d", 0.0)
    gpu = found.busy_s.get("gpu", 0.0)
    if not found.h2d.count:
        works = _percent(gpu, window)
        return f"Nothing crosses the link to the GPU; the GPU works {works} of the time"
    hidden = f"{100 * (found.hidden_share or 0.0):.0f} %"
    if found.verdict == "link" and gpu >= BUSY * window:
        return (
            f"Link and GPU are both full ({_percent(link, window)} and {_percent(gpu, window)} of "
            "the time): the work is balanced between them"
        )
    if found.verdict == "link":
        return (
            f"The link is the bottleneck: it is busy {_percent(link, window)} of the time; more "
            "prefetch or more buffers cannot help"
        )
    if found.verdict == "gpu":
        return (
            f"The link is not the bottleneck: the GPU works {_percent(gpu, window)} of the time "
            f"and hides {hidden} of the copies"
        )
    if found.verdict == "exposed":
        return (
            f"The link is not full but not hidden: the GPU waits for copies "
            f"{_percent(found.exposed_s, window)} of the time; {hidden} of their time is beside "
            "its work"
        )
    if found.verdict == "idle":
        return (
            f"Neither the link nor the GPU is the bottleneck: nothing at all runs "
            f"{_percent(found.idle_s, window)} of the time"
        )
    return (
        f"No single bottleneck: the link is busy {_percent(link, window)} of the time, the GPU "
        f"{_percent(gpu, window)}"
    )


def _less_over_the_link(found: Analysis, hardware: HardwareProfile | None) -> list[Advice]:
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
    copies, advice = found.h2d, []
    rate = copies.bytes_per_s
    if rate is None or not copies.size_bytes:
        return []
    reach = hardware.h2d.copy.rate() if hardware else _best_rate(copies)
    by_whom = f"the link of {hardware.name}" if hardware else "the class of the largest copies"

    def saved(share: float) -> float | None:
        """Of the window, if this share of the bytes moved at the rate that can be reached."""
        if reach is None or reach <= rate:
            return None
        shorter = copies.busy_s * share * (1 - rate / reach)
        gain = shorter * (1 - (found.hidden_share or 0.0))
        return shorter if found.verdict == "link" else gain

    loose = copies.pageable_share or 0.0
    if loose > 0.05:
        advice.append(
            Advice(
                f"pin the host memory: {100 * loose:.0f} % of the bytes come from pageable memory, "
                f"at {format_rate(rate)} in all"
                + (f"; {by_whom} reaches {format_rate(reach)}" if reach and reach > rate else ""),
                saved(loose),
            )
        )
    small = sum(moved for limit, (moved, _) in copies.classes.items() if limit in SIZES[:2])
    if loose <= 0.5 and small > 0.5 * copies.size_bytes and (reach is None or rate < 0.8 * reach):
        advice.append(
            Advice(
                f"make copies larger: half are at most {format_bytes(copies.median_bytes or 0)} "
                f"and they reach {format_rate(rate)}; lay out tokens so that one stage is one copy "
                "of 16 MiB or more",
                saved(small / copies.size_bytes),
            )
        )
    large = loose <= 0.05 and small <= 0.5 * copies.size_bytes
    if hardware and reach and large and rate < 0.8 * reach:
        advice.append(
            Advice(
                f"find out why the link is slow: {format_rate(rate)} where {by_whom} reaches "
                f"{format_rate(reach)} (slot width, other traffic, the other socket's memory)",
                saved(1.0),
            )
        )
    return advice


def _best_rate(copies: Copies) -> float | None:
    """Rate of the largest class of copies, where there are several."""
    if len(copies.classes) < 2:
        return None
    moved, seconds = list(copies.classes.values())[-1]
    return moved / seconds if seconds > 0 else None


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
