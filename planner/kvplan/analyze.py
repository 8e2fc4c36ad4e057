"""Is the link the bottleneck, how well is it hidden, and what would change it: from a trace.

Time on a resource is the union of what ran on it, so overlapping streams count once.
"""

from __future__ import annotations

import dataclasses

from kvplan.advice import advise
from kvplan.analysis import Analysis
from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile
from kvplan.profiler_trace import Profile
from kvplan.spans import both, length, union
from kvplan.traced_copies import copies_of

BUSY = 0.9
"""Share of the time from which a resource counts as the bottleneck."""


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
    h2d, d2h = copies_of(profile.work, "h2d"), copies_of(profile.work, "d2h")
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
    return dataclasses.replace(
        found, answer=_answer(found), advice=advise(found, profile, hardware)
    )


def _verdict(shares: dict[str, float], exposed: float, idle: float) -> str:
    if shares.get("h2d", 0.0) >= BUSY:
        return "link"
    if shares.get("gpu", 0.0) >= BUSY:
        return "gpu"
    if exposed >= 0.1 and exposed >= idle:
        return "exposed"
    return "idle" if idle >= 0.2 else "mixed"


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
