"""The GPU's own counters, through NVML where ``nvidia-ml-py`` is installed."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reading:
    """What the card says; None where it does not say.

    Args:
        gpu_busy: share of the last sampling period in which a kernel ran.
        memory_used_bytes: of its memory.
        pcie_to_gpu_bytes_per_s, pcie_to_host_bytes_per_s: over the last 20 ms, raw.
        power_w: drawn.
        clock_hz: of the multiprocessors.
    """

    gpu_busy: float | None = None
    memory_used_bytes: int | None = None
    pcie_to_gpu_bytes_per_s: float | None = None
    pcie_to_host_bytes_per_s: float | None = None
    power_w: float | None = None
    clock_hz: float | None = None


class Card:
    """One GPU as NVML sees it.

    Args:
        nvml: the module ``pynvml``.
        handle: of the device.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        """Keep the handle."""
        self.nvml, self.handle = nvml, handle

    @classmethod
    def here(cls, bus: str | None = None) -> Card | None:
        """A card, or None where NVML, its bindings or the card are missing.

        Args:
            bus: PCI address of the card; None takes the first.
        """
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            if bus is not None:
                return cls(nvml, nvml.nvmlDeviceGetHandleByPciBusId(bus.encode()))
            return cls(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
        except Exception:  # absent in any of a dozen ways; the other metrics do without
            return None

    def read(self) -> Reading:
        """All counters now."""
        nvml = self.nvml
        to_gpu, to_host = (
            self._asked("nvmlDeviceGetPcieThroughput", getattr(nvml, name, None))
            for name in ("NVML_PCIE_UTIL_RX_BYTES", "NVML_PCIE_UTIL_TX_BYTES")
        )
        rates = self._asked("nvmlDeviceGetUtilizationRates")
        memory = self._asked("nvmlDeviceGetMemoryInfo")
        power = self._asked("nvmlDeviceGetPowerUsage")
        clock = self._asked("nvmlDeviceGetClockInfo", getattr(nvml, "NVML_CLOCK_SM", 1))
        return Reading(
            gpu_busy=None if rates is None else rates.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            pcie_to_gpu_bytes_per_s=None if to_gpu is None else to_gpu * 1024.0,
            pcie_to_host_bytes_per_s=None if to_host is None else to_host * 1024.0,
            power_w=None if power is None else power / 1e3,
            clock_hz=None if clock is None else clock * 1e6,
        )

    def _asked(self, name: str, *arguments: Any) -> Any:
        with contextlib.suppress(Exception):  # a card may lack any of the counters
            return getattr(self.nvml, name)(self.handle, *arguments)
        return None
