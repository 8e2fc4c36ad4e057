"""Tensor parallelism: what one rank of several holds, computes, and shares with the others.

All ranks do the same at the same time, so one stands for all: a model with its share of the heads
and weights, on a machine with its share of the host. Planning goes on with that rank.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import msgspec

from kvplan.disk import Disk
from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile
from kvplan.hardware_parts import Host
from kvplan.kv_size import heads_per_rank
from kvplan.layer_budget import budgeted_model
from kvplan.link import Link, Links
from kvplan.model import LayerSpec, ModelSpec
from kvplan.scenario import Scenario
from kvplan.workload import Budgets, Workload


def shared_out(count: int, ranks: int) -> int:
    """A rank's part of equal things, the largest.

    >>> shared_out(50272, 4), shared_out(7, 4)
    (12568, 2)
    """
    return -(-count // ranks)


def rank_kv_heads(layer: LayerSpec, ranks: int) -> int:
    """KV heads of one rank; where ranks exceed heads, several hold copies of the same one.

    Raises:
        InputError: heads that ranks cannot share out evenly.

    >>> from kvplan.model_library import load_model
    >>> layer = load_model("llama-3.1-8b").layers[0]  # 8 KV heads
    >>> [rank_kv_heads(layer, ranks) for ranks in (1, 2, 8, 16)]
    [8, 4, 1, 1]
    """
    heads = layer.kv_heads
    if heads and heads % ranks and ranks % heads:
        raise InputError("tp", ranks, f"a divisor or a multiple of {heads} KV heads")
    return heads_per_rank(heads, ranks) if heads else 0


def rank_layer(layer: LayerSpec, ranks: int) -> LayerSpec:
    """What one rank holds of a layer: its heads, its columns of the MLP, its share of weights.

    Latents and indices are on every rank, states and sources are shared out by heads. Norms are on
    every rank and counted as shared out; they are a few thousand weights.

    Raises:
        InputError: query heads or KV heads that ranks cannot share out evenly.
    """
    if layer.query_heads % ranks:
        raise InputError("tp", ranks, f"a divisor of {layer.query_heads} query heads")
    kv_heads = rank_kv_heads(layer, ranks)
    width = 0 if layer.latent else layer.head_dim_k + layer.head_dim_v
    kv_params = layer.hidden * layer.kv_heads * width
    state, experts = layer.state, layer.experts
    if state is not None:
        own = heads_per_rank(state.heads, ranks)
        state = msgspec.structs.replace(
            state, conv=state.conv * own // state.heads,
            recurrent=state.recurrent * own // state.heads, heads=own,
        )  # fmt: skip
    if experts is not None:
        experts = msgspec.structs.replace(experts, params=shared_out(experts.params, ranks))
    rest = shared_out(max(layer.attention_params - kv_params, 0), ranks)
    return msgspec.structs.replace(
        layer,
        query_heads=layer.query_heads // ranks,
        kv_heads=kv_heads,
        intermediate=shared_out(layer.intermediate, ranks),
        cross=shared_out(layer.cross, ranks) if layer.cross else 0,
        state=state,
        experts=experts,
        attention_params=rest + layer.hidden * kv_heads * width,
        mlp_params=shared_out(layer.mlp_params, ranks),
    )


def rank_model(model: ModelSpec, ranks: int) -> ModelSpec:
    """What one rank holds of a model; vocabulary matrices are shared out by rows.

    Raises:
        InputError: heads that ranks cannot share out evenly.

    >>> from kvplan.model_library import load_model
    >>> whole, half = load_model("llama-3.1-8b"), rank_model(load_model("llama-3.1-8b"), 2)
    >>> half.layers[0].kv_heads, round(whole.params / half.params, 2)
    (4, 2.0)
    """
    known: dict[LayerSpec, LayerSpec] = {}
    layers = []
    for layer in model.layers:
        if layer not in known:
            known[layer] = rank_layer(layer, ranks)
        layers.append(known[layer])
    return msgspec.structs.replace(
        model,
        layers=tuple(layers),
        vocab=shared_out(model.vocab, ranks),
        embedding_params=shared_out(model.embedding_params, ranks),
        head_params=shared_out(model.head_params, ranks),
    )


def slower(link: Link, bytes_per_s: float) -> Link:
    """A link that gets no more than a rate."""
    rate = link.copy.rate()
    if bytes_per_s >= rate:
        return link
    share = bytes_per_s / rate
    return replace(
        link,
        copy=link.copy.scaled(1 / share),
        duplex_bytes_per_s=link.duplex_bytes_per_s and link.duplex_bytes_per_s * share,
        pageable_bytes_per_s=link.pageable_bytes_per_s and link.pageable_bytes_per_s * share,
    )


def rank_links(links: Links, ranks: int, uplink_bytes_per_s: float | None) -> Links:
    """Links of one rank, at its part of what ranks share: as given, or as the profile knows it."""
    if uplink_bytes_per_s is None:
        parts = {name: links.rate(name, ranks) for name in ("h2d", "d2h")}
    else:
        parts = dict.fromkeys(("h2d", "d2h"), uplink_bytes_per_s / ranks)
    h2d, d2h = slower(links.h2d, parts["h2d"]), slower(links.d2h, parts["d2h"])
    return replace(links, h2d=h2d, d2h=d2h)


def rank_host(host: Host, ranks: int) -> Host:
    """One rank's part of host memory, of the CPU's attention and of what may be pinned."""
    return replace(
        host,
        dram_bytes=host.dram_bytes // ranks,
        pinned_bytes=None if host.pinned_bytes is None else host.pinned_bytes // ranks,
        attention_bytes_per_s={k: r / ranks for k, r in host.attention_bytes_per_s.items()},
        attention_gqa_bytes_per_s={k: r / ranks for k, r in host.attention_gqa_bytes_per_s.items()},
    )


def rank_disk(disk: Disk, ranks: int) -> Disk:
    """One rank's part of a disk's capacity and rate."""
    return replace(disk.faster(1 / ranks), capacity_bytes=disk.capacity_bytes // ranks)


def rank_hardware(
    hardware: HardwareProfile, ranks: int, uplink_bytes_per_s: float | None
) -> HardwareProfile:
    """The machine as one rank sees it.

    Args:
        hardware: one GPU with its host.
        ranks: such GPUs on the host.
        uplink_bytes_per_s: what all of them together get from host memory; None takes what the
            profile knows of links they share.
    """
    return replace(
        hardware,
        links=hardware.links and rank_links(hardware.links, ranks, uplink_bytes_per_s),
        host=rank_host(hardware.host, ranks),
        disk=hardware.disk and rank_disk(hardware.disk, ranks),
        ranks=ranks,
    )


def rank_budgets(budgets: Budgets, ranks: int) -> Budgets:
    """One rank's part of what the host may give; the GPU's memory is its own."""
    names = ("dram_bytes", "pinned_bytes", "disk_bytes")
    given: dict[str, Any] = {name: getattr(budgets, name) for name in names}
    parts: dict[str, Any] = {n: None if v is None else v // ranks for n, v in given.items()}
    return replace(budgets, **parts)


def planned_with(scenario: Scenario) -> Scenario:
    """What planning goes on with: layers within their budgets, one rank of several.

    Raises:
        InputError: heads that ranks cannot share out evenly, or budgets for other layers.
    """
    load = scenario.workload
    if scenario.whole is not None or (load.tp == 1 and load.layer_tokens is None):
        return scenario
    model, hardware, budgets = scenario.model, scenario.hardware, scenario.budgets
    if load.layer_tokens is not None:
        model = budgeted_model(model, [tokens + load.gen for tokens in load.layer_tokens])
    if load.tp > 1:
        model = rank_model(model, load.tp)
        hardware = rank_hardware(hardware, load.tp, budgets.uplink_bytes_per_s)
        budgets = rank_budgets(budgets, load.tp)
    return dataclasses.replace(
        scenario, model=model, hardware=hardware, budgets=budgets, whole=scenario
    )


def with_workload(scenario: Scenario, workload: Workload) -> Scenario:
    """The scenario with another workload; budgets of layers move with its generated tokens."""
    if scenario.whole is None:
        return dataclasses.replace(scenario, workload=workload)
    whole = dataclasses.replace(scenario.whole, workload=workload)
    if workload.gen == scenario.workload.gen:
        return dataclasses.replace(scenario, workload=workload, whole=whole)
    options = {"options": scenario.options, "objective": scenario.objective}
    return planned_with(dataclasses.replace(whole, **options))  # type: ignore[arg-type]
