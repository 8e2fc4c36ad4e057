"""Statements from public reports, checked on the machine at hand."""

from __future__ import annotations

from kvplan_validate.trials import copies, pinning, steps
from kvplan_validate.trials.base import Finding, Place, Trial
from kvplan_validate.trials.run import run_trials, table

REGISTRY: tuple[Trial, ...] = (
    copies.CopyRamp(),
    copies.MemoryKinds(),
    copies.BlockLayout(),
    pinning.AllocatorRounding(),
    pinning.PinLimit(),
    pinning.PinSpeed(),
    steps.SerialOrOverlapped(),
    steps.RecomputeCurve(),
    copies.SmallCopies(),
)
"""Every trial, in the order of running."""

__all__ = ["REGISTRY", "Finding", "Place", "Trial", "run_trials", "table"]
