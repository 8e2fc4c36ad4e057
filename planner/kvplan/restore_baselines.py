"""How published systems restore a prefix, judged as every other split is.

HCache divides by layers, Cake by tokens; both balance two times and know nothing of the suffix.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.restoration import Restoration
from kvplan.restored import Restored, Split, judge, none_rebuilt


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Seconds of one layer of the whole prefix, by way.

    Args:
        send_activations_s: its activations over the link (and from disk).
        rebuild_s: K and V from activations.
        send_kv_s: its K and V over the link (and from disk).
        recompute_s: K and V from tokens: the layer below must be computed too.
    """

    send_activations_s: float
    rebuild_s: float
    send_kv_s: float
    recompute_s: float


def hcache_layers(count: int, times: LayerTimes) -> tuple[int, str]:
    """Layers that HCache does not rebuild from activations, and how they come back instead.

    Where sending activations takes longer than rebuilding from them the GPU has time left, and some
    layers are recomputed from tokens; else the link has, and some are loaded as K and V. As many
    as make the longer of both times least.

    Source: HCache, arXiv 2410.05004, section 4.1, bubble-free restoration.

    >>> hcache_layers(48, LayerTimes(send_activations_s=2.24, rebuild_s=1.0, send_kv_s=4.48,
    ...                              recompute_s=6.2))
    (8, 'recompute')
    """
    waits = times.send_activations_s > times.rebuild_s
    way = "recompute" if waits else "load"

    def longest_s(others: int) -> float:
        rest = count - others
        link_s = rest * times.send_activations_s + (0 if waits else others * times.send_kv_s)
        gpu_s = rest * times.rebuild_s + (others * times.recompute_s if waits else 0)
        return max(link_s, gpu_s)

    return min(range(count + 1), key=longest_s), way


def layer_times(restoration: Restoration) -> LayerTimes:
    """Times of the mean layer: link or disk, whichever is slower."""
    given, layers = restoration, restoration.model.layers

    def sending_s(path_name: str) -> float:
        path = given.rebuild if path_name == "rebuild" else given.load
        found: dict[str, float] = {}
        for index, layer in enumerate(layers):
            for leg in given.legs(path, layer) if given.cached[index] else ():
                if leg.curve is not None:
                    seconds = leg.curve.seconds(float(given.cached[index]))
                    found[leg.resource] = found.get(leg.resource, 0.0) + seconds
        return max(found.get("h2d", 0.0), found.get("disk", 0.0)) / len(layers)

    rebuilding_s = sum(
        leg.curve.seconds(float(given.cached[index]))
        for index, layer in enumerate(layers)
        if given.cached[index]
        for leg in given.legs(given.rebuild, layer)
        if leg.resource == "gpu" and leg.curve is not None
    )
    return LayerTimes(
        send_activations_s=sending_s("rebuild"),
        rebuild_s=rebuilding_s / len(layers),
        send_kv_s=sending_s("load"),
        recompute_s=given.prefix_s(len(layers)) / len(layers),
    )


def hcache(restoration: Restoration) -> Restored:
    """HCache: layers rebuilt from activations, the first recomputed or the last loaded."""
    given, count = restoration, len(restoration.model.layers)
    others, way = hcache_layers(count, layer_times(given))
    if way == "recompute":
        rebuilt = tuple(0 if i < others else given.cached[i] for i in range(count))
        return judge(given, Split(front=given.prefix.tokens, depth=others, rebuilt=rebuilt))
    rebuilt = tuple(given.cached[i] if i < count - others else 0 for i in range(count))
    return judge(given, Split(front=0, depth=0, rebuilt=rebuilt))


def cake(restoration: Restoration) -> Restored:
    """Cake: chunks computed from the front, loaded from the back, until they meet.

    The compute side takes the next chunk from the front whenever it is free, the link the next one
    from the back; the chunk on which they meet goes to whoever would have it first.

    Source: Cake, arXiv 2410.03065, section 3.
    """
    given, depth = restoration, len(restoration.model.layers)
    edges = given.edges
    first, last = 0, len(edges) - 1
    computed_s = loaded_s = 0.0
    while first < last:
        compute_s = given.chunk_s(edges[first], edges[first + 1] - edges[first], depth)
        tail_s = _loading_s(given, edges[last - 1]) - _loading_s(given, edges[last])
        if computed_s + compute_s <= loaded_s + tail_s:
            computed_s, first = computed_s + compute_s, first + 1
        else:
            loaded_s, last = loaded_s + tail_s, last - 1
    return judge(given, Split(front=edges[first], depth=depth, rebuilt=none_rebuilt(given)))


def _loading_s(restoration: Restoration, front: int) -> float:
    """Seconds of the slower of link and disk for all that lies behind a front."""
    busy: dict[str, float] = {}
    for index, layer in enumerate(restoration.model.layers):
        tokens = float(restoration.behind(index, front))
        for leg in restoration.legs(restoration.load, layer) if tokens else ():
            if leg.resource != "gpu" and leg.curve is not None:
                busy[leg.resource] = busy.get(leg.resource, 0.0) + leg.curve.seconds(tokens)
    return max(busy.values(), default=0.0)


BASELINES = {"hcache": ("HCache, by layers", hcache), "cake": ("Cake, by chunks", cake)}
"""Name to title and function."""
