"""What engines with an extended prefix cache can take from a plan, and what they cannot."""

from __future__ import annotations

from kvplan.errors import InfeasibleError, InputError
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment
from kvplan.export.exporter import Unexpressed
from kvplan.export.pool import Pool
from kvplan.units import format_bytes


def percent(share: float) -> str:
    """A share for people.

    >>> percent(0.469), percent(0.004)
    ('46.9 %', '0.4 %')
    """
    return f"{100 * share:.1f} %"


def schedule(demand: CacheDemand) -> str:
    """The plan's pipeline in a few words."""
    decision = demand.plan.decision
    return (
        f"{decision.stages} stages (axis {decision.axis}), queue depth {decision.queue_depth}, "
        f"boundary {decision.boundary}"
    )


def shares(demand: CacheDemand, *names: str) -> float:
    """Share of K and V that some paths take together; a name may end with ``*``."""
    return sum(
        share
        for path, share in demand.path_share.items()
        if any(path.startswith(n[:-1]) if n.endswith("*") else path == n for n in names)
    )


def recompute_lost(demand: CacheDemand, why: str) -> list[Unexpressed]:
    """Recompute from activations, if the plan does it."""
    share = shares(demand, "recompute*")
    return [Unexpressed("recompute", f"{percent(share)} of K and V from activations", why)] * (
        share > 0
    )


def precision_lost(demand: CacheDemand, why: str) -> list[Unexpressed]:
    """Packed blocks, if the plan has any."""
    packed = {p: s for p, s in demand.path_share.items() if p.startswith("fetch_int")}
    said = ", ".join(f"{percent(s)} as {p.removeprefix('fetch_')}" for p, s in packed.items())
    return [Unexpressed("precision per block", said, why)] * bool(packed)


def host_attention_lost(demand: CacheDemand, why: str) -> list[Unexpressed]:
    """Attention on the CPU, if the plan uses it."""
    share = shares(demand, "attend_host")
    return [Unexpressed("attention on the host", f"{percent(share)} of K and V", why)] * (share > 0)


def weights_lost(demand: CacheDemand, why: str) -> list[Unexpressed]:
    """Streamed weights, if the plan streams any."""
    share = demand.streamed_weights
    return [Unexpressed("streamed weights", f"{percent(share)} of the layers", why)] * (share > 0)


def lost(demand: CacheDemand, deployment: Deployment, engine: str) -> list[Unexpressed]:
    """What an engine that attends only what lies in HBM leaves out of a plan.

    Args:
        demand: the plan's cache.
        deployment: ranks.
        engine: name of the engine, for the sentences.

    Raises:
        InfeasibleError: HBM does not hold the weights and one whole sequence.
    """
    plan = demand.plan
    found = [
        Unexpressed(
            "decode schedule", schedule(demand),
            f"{engine} extends its prefix cache into host memory; a block is back in HBM, all "
            f"layers of it, before a step attends it, and the plan's {plan.prediction.step_s:.4g} "
            "s per step is not what it will take",
        ),
        Unexpressed(
            "resident tokens per layer", f"{percent(1 - demand.away_share)} of K and V in HBM",
            "blocks span all layers and the engine decides which stay",
        ),
        _concurrency(demand, deployment, engine),
    ]  # fmt: skip
    found += recompute_lost(demand, "K and V of these tokens are stored in the pool instead")
    found += precision_lost(demand, "the pool holds the cache's own format, and is sized for it")
    found += host_attention_lost(demand, "these tokens are loaded into HBM before they are used")
    found += weights_lost(demand, "all weights stay in HBM")
    if not demand.model.uniform:
        kinds = len(demand.model.layer_classes)
        found.append(
            Unexpressed(
                "unlike layers", f"{kinds} kinds",
                "the engine may give each kind chunks of its own: capacity in bytes holds, the "
                "number of chunks does not",
            )
        )  # fmt: skip
    if plan.inputs.workload.micro_batches > 1:
        found.append(
            Unexpressed(
                "micro-batches", str(plan.inputs.workload.micro_batches),
                "the engine's scheduler forms its own batches",
            )
        )  # fmt: skip
    return found


def sequences_at_once(demand: CacheDemand, deployment: Deployment, engine: str) -> int:
    """Sequences of the plan's length whose K and V fit in HBM together.

    Raises:
        InfeasibleError: not even one.
    """
    left = demand.hbm_kv_bytes(deployment.ranks)
    copies = demand.engine_token_bytes(deployment.ranks) / demand.token_bytes
    each = copies * demand.all_bytes / demand.batch
    if each > left:
        raise InfeasibleError(
            "hbm",
            f"{engine} attends only what is in HBM: one sequence of {demand.tokens} tokens takes "
            f"{format_bytes(each)}, {format_bytes(left)} are left beside the weights",
            "fewer tokens, more ranks (--tp), or a runtime that runs the plan",
        )
    return int(left // each) if each else demand.batch


def _concurrency(demand: CacheDemand, deployment: Deployment, engine: str) -> Unexpressed:
    most = sequences_at_once(demand, deployment, engine)
    why = (
        f"HBM holds the K and V of all {demand.batch} at {demand.tokens} tokens"
        if most >= demand.batch
        else f"HBM holds the K and V of about {most} at {demand.tokens} tokens; the engine runs "
        "that many and the others wait or are preempted"
    )
    return Unexpressed("sequences at once", str(demand.batch), why)


def inclusive(demand: CacheDemand, deployment: Deployment, pool: Pool, engine: str) -> list[str]:
    """Warn of a pool that mostly holds copies of what is in HBM."""
    left = demand.hbm_kv_bytes(deployment.ranks)
    if pool.total_bytes > left:
        return []
    copies = demand.engine_token_bytes(deployment.ranks) / demand.token_bytes
    whole = format_bytes(copies * demand.all_bytes).replace(" ", "")
    return [
        f"{engine} copies blocks to the pool while they are still in HBM: the pool's "
        f"{format_bytes(pool.total_bytes)} may all be copies of the {format_bytes(left)} there; "
        f"--pool all ({whole}) holds the whole batch"
    ]


def pool_meaning(demand: CacheDemand, deployment: Deployment, pool: Pool) -> str:
    """One sentence on what a pool's bytes are."""
    size = f"{format_bytes(pool.total_bytes)}, {pool.chunks} chunks of {pool.chunk_tokens} tokens"
    if isinstance(deployment.pool, int):
        return f"{size}: as given"
    if deployment.pool == "all":
        return f"{size}: K and V of the whole batch"
    own = demand.plan.prediction.memory_bytes.get("dram", 0.0)
    also = "" if abs(own - pool.asked_bytes) < 0.01 * own else (
        f" (the plan itself needs {format_bytes(own)} of host memory, as it does not store all of "
        "that as K and V)"
    )  # fmt: skip
    return f"{size}: K and V of the {percent(demand.away_share)} outside HBM{also}"


def disk_path(demand: CacheDemand, deployment: Deployment) -> str | None:
    """Folder of the disk tier; None where the plan uses none.

    Raises:
        InputError: the plan uses the disk and no folder was given.
    """
    if not demand.place_bytes["disk"]:
        return None
    if not deployment.disk_path:
        size = format_bytes(demand.place_bytes["disk"])
        raise InputError("--disk-path", None, f"a folder for the {size} the plan keeps on disk")
    return deployment.disk_path
