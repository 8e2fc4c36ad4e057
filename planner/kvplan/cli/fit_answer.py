"""The answer of ``kvplan fit``: its document, its warnings, and why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.cli.host import describe
from kvplan.cli.reserved import reserved
from kvplan.errors import InfeasibleError
from kvplan.fit import OUTSIDE_TORCH_BYTES, Fit
from kvplan.fit_change import changes
from kvplan.hardware import ONE_POOL, HardwareProfile
from kvplan.host_cache import HostCache
from kvplan.model import MAX_TOKENS, ModelSpec
from kvplan.units import format_bytes
from kvplan.wording import uncounted_words

SHORTEST = 1024
"""First context of the table where none is given; it doubles from there."""

LONGEST_STATE = 1 << 20
"""Context that is looked at where the cache does not grow, so that none is the longest."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was asked, and what it comes to.

    Args:
        fit: the model on the card.
        card: the machine.
        contexts: that were asked for; None for none.
        batch: that was asked for; None for none.
        cache: host cache that was asked for; None for none.
    """

    fit: Fit
    card: HardwareProfile
    cache: HostCache | None
    contexts: tuple[int, ...] | None
    batch: int | None

    @property
    def model(self) -> ModelSpec:
        """The whole model."""
        return self.fit.model

    @property
    def most(self) -> int:
        """The longest context that is looked for."""
        unbounded = MAX_TOKENS - 1 if self.fit.block_bytes else LONGEST_STATE
        return self.model.max_positions or unbounded

    def context(self) -> int:
        """The context that figures are for: asked for, or the longest that fits."""
        if self.contexts:
            return max(self.contexts)
        return self.fit.most_context(self.batch or 1, self.most) or min(self.most, SHORTEST)

    def sequences(self) -> int:
        """The batch that figures are for: asked for, or the most that fit."""
        return self.batch or max(self.fit.most_batch(self.context()), 1)

    def rows(self) -> list[dict[str, int]]:
        """Contexts and the most sequences of each."""
        wanted = list(self.contexts or ())
        if not wanted:
            longest = self.context()
            wanted = [SHORTEST]
            while wanted[-1] * 2 < longest:
                wanted.append(wanted[-1] * 2)
            wanted = sorted({*(c for c in wanted if c < longest), longest})
        return [{"context": c, "max_batch": self.fit.most_batch(c)} for c in wanted]

    def document(self) -> dict[str, Any]:
        """The answer; sizes in bytes of one GPU."""
        fit, context, batch = self.fit, self.context(), self.sequences()
        pool, fits = fit.pool_bytes(context, batch), self.fits()
        helps = [] if fits else changes(fit, context, batch, not self.card.unified)
        limit = fit.limit(context, batch)
        capped = not self.contexts and context == self.most
        return {
            "model": self.model.name, "gpu": self.card.name, "tp": fit.tp, "pp": fit.pp,
            "context": context, "batch": batch, "fits": fits,
            "limit": "positions" if fits and capped and limit == "kv" else limit,
            "memory_bytes": {
                "total": fit.memory_bytes, "budget": fit.budget_bytes,
                "weights": fit.rank_weights_bytes, "activation_peak": fit.peak(context, batch),
                "non_torch": fit.outside_bytes, "reserve": fit.reserve_bytes, "pool": pool,
                "needed": batch * fit.sequence_bytes(context),
            },
            "pool_bytes": max(pool, 0.0), "kv_dtype": fit.kv_dtype,
            "block_tokens": fit.block, "block_bytes": fit.block_bytes,
            "blocks": fit.blocks(context, batch), "tokens": fit.blocks(context, batch) * fit.block,
            "bytes_per_token": fit.block_bytes / fit.block,
            "bytes_per_sequence": fit.sequence_bytes(context),
            "max_concurrency": fit.concurrency(context, batch),
            "reserved": reserved(fit.reserved_bytes(context), max(pool, 0.0), context),
            "max_context": fit.most_context(batch, self.most),
            "max_batch": fit.most_batch(context),
            "contexts_that_fit": fit.contexts(batch, self.most),
            "table": self.rows(),
            "host": self.host(),
            "changes": [{"option": c.option, "value": c.value, "words": c.words} for c in helps],
            "assumed": self.assumed(),
        }  # fmt: skip

    def host(self) -> dict[str, Any] | None:
        """The host cache, and the tokens it holds; None where none was asked for."""
        if self.cache is None:
            return None
        each = self.fit.block_bytes
        blocks = int((self.cache.size_bytes or 0) // each) if each else None
        tokens = None if blocks is None else blocks * self.fit.block
        return {"tokens": tokens} | describe(self.cache)

    def fits(self) -> bool:
        """Whether what was asked fits; with several contexts, whether one of them does."""
        contexts = self.contexts or (self.context(),)
        return any(self.fit.fits(context, self.batch or 1) for context in contexts)

    def assumed(self) -> list[str]:
        """Which figures nobody gave."""
        fit, found = self.fit, []
        if fit.weights_bytes is None:
            found.append(f"weights counted as {fit.weights_dtype or self.model.weight_dtype}")
            without = uncounted_words(self.model)
            if without:
                found.append(without)
        if fit.peak_bytes is None:
            tokens = fit.chunking.prefill_tokens(self.context())
            found.append(f"activation peak estimated for a prefill of {tokens} tokens")
        context = self.context()
        if any(layer.window is not None and layer.window < context for layer in self.model.layers):
            found.append("layers with a window keep no more than it; an engine may keep all, or "
                         "a chunk more")  # fmt: skip
        if abs(fit.outside_bytes - OUTSIDE_TORCH_BYTES) < 2:
            found.append("0.4 GiB outside torch, as engines report")
        return found

    def warnings(self) -> list[str]:
        """What is accepted and yet likely not what was meant."""
        found = list(self.cache.warnings) if self.cache else []
        longest = max(self.contexts or (0,))
        if self.model.max_positions and longest > self.model.max_positions:
            found.append(
                f"{longest} tokens are more than the {self.model.max_positions} positions of "
                f"{self.model.name}; counted all the same"
            )
        ranges = self.fit.contexts(self.batch or 1, max(self.most, longest))
        if len(ranges) > 1:
            spans = " and ".join(f"{first} to {last}" for first, last in ranges)
            found.append(f"not every shorter context fits: only {spans} (the activation peak falls "
                         "where prompts are cut)")  # fmt: skip
        return found

    def refusal(self) -> InfeasibleError:
        """Why it does not fit, and what helps."""
        fit, context, batch = self.fit, self.context(), self.sequences()
        limit, pool = fit.limit(context, batch), fit.pool_bytes(context, batch)
        helps = [change.words for change in changes(fit, context, batch, not self.card.unified)]
        need = format_bytes(batch * fit.sequence_bytes(context))
        tokens = fit.blocks(context, batch) * fit.block
        reason = {
            "weights": f"weights of {format_bytes(fit.rank_weights_bytes)} do not fit a budget of "
            f"{format_bytes(fit.budget_bytes)}",
            "activation peak": f"a prefill of {fit.chunking.prefill_tokens(context)} tokens peaks "
            f"at {format_bytes(fit.peak(context, batch))} beside weights of "
            f"{format_bytes(fit.rank_weights_bytes)}, which leaves no pool in "
            f"{format_bytes(fit.budget_bytes)}",
            "kv": f"{batch} x {context} tokens need {need}, the pool is "
            f"{format_bytes(max(pool, 0.0))}, {tokens} tokens",
        }[limit]
        if self.card.unified:
            reason += f" ({ONE_POOL})"
        change = "enough is one of: " + ", ".join(helps) if helps else (
            "no single change of context, batch, format, share or ranks is enough"
        )  # fmt: skip
        return InfeasibleError(limit, reason, change)
