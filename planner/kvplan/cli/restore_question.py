"""The question that options of ``kvplan restore`` ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.cli.declarations import MOST_RANKS
from kvplan.cli.overrides import overrides_of
from kvplan.cli.question import is_profile_path, text_of
from kvplan.cli.restore_options import RestoreRequest
from kvplan.cli.values import share, share_below_one, size, whole_number, words
from kvplan.formats import cache_dtype
from kvplan.units import parse_flops, parse_token_rate, parse_tokens

if TYPE_CHECKING:
    from kvplan.prefix import Prefix
    from kvplan.restoration import Restoration


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a request means.

    Args:
        restoration: one rank's model, the machine, the prefix.
        ways: ways that may be used.
        prefixes: different prefixes in use, if that was asked.
        overrides: figures changed by hand.
        hardware_file: the profile's file, if it is not in the library.
        warnings: what is accepted and yet likely not what was meant.
    """

    restoration: Restoration
    ways: tuple[str, ...]
    prefixes: int | None
    overrides: dict[str, float]
    hardware_file: str | None
    warnings: tuple[str, ...]


def question_of(request: RestoreRequest) -> Question:
    """The question a request means.

    Raises:
        InputError: an option that is not accepted.
    """
    from kvplan.hardware import override
    from kvplan.hardware_library import load_hardware
    from kvplan.hits import MOST_PREFIXES
    from kvplan.model_library import load_model
    from kvplan.ranks import rank_budgets, rank_hardware, rank_model
    from kvplan.restoration import Restoration
    from kvplan.workload import Budgets

    model = load_model(text_of("--model", request.model))
    hardware = load_hardware(text_of("--gpu", request.gpu))
    overrides = overrides_of(request)
    prefix = _prefix(request)
    tp = whole_number(request.tp, "--tp", MOST_RANKS)
    prefixes = request.prefixes
    budgets = Budgets(
        hbm_bytes=size(request.hbm, "--hbm"),
        utilisation=share(request.utilisation, "--utilisation"),
        reserve_bytes=size(request.reserve, "--reserve") or 0,
        dram_bytes=size(request.dram, "--dram"),
    )
    machine = override(hardware, **overrides) if overrides else hardware  # type: ignore[arg-type]
    restoration = Restoration(
        model=rank_model(model, tp) if tp > 1 else model,
        hardware=rank_hardware(machine, tp, None) if tp > 1 else machine,
        prefix=prefix,
        budgets=rank_budgets(budgets, tp),
        ranks=tp,
    )
    return Question(
        restoration=restoration,
        ways=words(request.ways, "--ways"),
        prefixes=None if prefixes is None else whole_number(prefixes, "--prefixes", MOST_PREFIXES),
        overrides=overrides,
        hardware_file=request.gpu if is_profile_path(request.gpu) else None,
        warnings=_warnings(request, restoration),
    )


def _prefix(request: RestoreRequest) -> Prefix:
    """The prefix, and who else uses the machine."""
    from kvplan.prefix import MOST_REQUESTS, Prefix

    rate, attending = request.prefill_rate, request.attention_flops
    return Prefix(
        tokens=parse_tokens(request.prefix, "--prefix"),
        suffix=parse_tokens(request.suffix, "--suffix"),
        requests=whole_number(request.concurrency, "--concurrency", MOST_REQUESTS),
        source=request.source,
        kv_dtype=cache_dtype(request.kv_dtype, "--kv-dtype"),
        stored_dtype=request.stored_as,
        block=parse_tokens(request.block, "--block"),
        chunk=parse_tokens(request.chunk, "--chunk"),
        granularity=request.granularity,
        overlap=request.overlap,
        pinned=not request.pageable,
        gpu_busy=share_below_one(request.gpu_busy, "--gpu-busy"),
        link_busy=share_below_one(request.link_busy, "--link-busy"),
        prefill_tokens_per_s=None if rate is None else parse_token_rate(rate, "--prefill-rate"),
        attention_flop_per_s=(
            None if attending is None else parse_flops(attending, "--attention-flops")
        ),
        mode=request.mode,
    )


def _warnings(request: RestoreRequest, restoration: Restoration) -> tuple[str, ...]:
    found = []
    model, prefix = restoration.model, restoration.prefix
    whole = prefix.tokens + prefix.suffix
    if model.max_positions is not None and whole > model.max_positions:
        found.append(
            f"{whole} tokens are more than the {model.max_positions} positions of {model.name}; "
            "planned all the same"
        )
    if request.disk_bandwidth is not None and prefix.source != "disk":
        found.append("--disk-bandwidth changes nothing without --from disk")
    if request.pageable_bandwidth is not None and prefix.pinned:
        found.append("--pageable-bandwidth changes nothing without --pageable")
    return tuple(found)
