"""The machine that is measured: what it has, what it is called, how much time is left."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import platform
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan_validate.measure.timing import GpuTimer

_SMI_FIELDS = {
    "card": "name",
    "driver": "driver_version",
    "link_generation": "pcie.link.gen.max",
    "link_width": "pcie.link.width.max",
    "link_width_now": "pcie.link.width.current",
    "power_limit_w": "power.limit",
}


@dataclass(slots=True)
class Clock:
    """Time that one measurement may take.

    Args:
        end_s: reading of ``time.monotonic`` at which it is spent.
    """

    end_s: float

    def left_s(self) -> float:
        """Seconds left; negative once it is spent."""
        return self.end_s - time.monotonic()


@dataclass
class Machine:
    """The machine, as measurements see it.

    Args:
        torch: the torch module; None where it is not installed.
        cuda: whether torch finds a CUDA device; device 0 is measured.
        scratch: folder for temporary files on the disk to measure.
        clock: time of the running measurement.
    """

    torch: Any
    cuda: bool
    scratch: Path
    clock: Clock = field(default_factory=lambda: Clock(time.monotonic() + 60))

    @classmethod
    def here(cls, scratch: str | os.PathLike[str] | None = None) -> Machine:
        """The machine this runs on."""
        try:
            torch: Any = importlib.import_module("torch")
        except ImportError:
            torch = None
        cuda = torch is not None and bool(torch.cuda.is_available())
        return cls(torch, cuda, Path(scratch or tempfile.gettempdir()))

    @cached_property
    def timer(self) -> GpuTimer:
        """Timing on the GPU; made on first use."""
        from kvplan_validate.measure.timing import GpuTimer

        return GpuTimer(self.torch)

    def warm_up(self) -> None:
        """Start CUDA, so that no measurement's time is spent on it."""
        if self.cuda:
            with contextlib.suppress(Exception):  # every measurement will say so itself
                self.timer.warm_up()

    @cached_property
    def l2_bytes(self) -> int:
        """Size of the GPU's second-level cache; 64 MiB where torch does not say."""
        properties = self.torch.cuda.get_device_properties(0)
        return int(getattr(properties, "L2_cache_size", 0)) or 64 << 20

    def free_hbm_bytes(self) -> int:
        """GPU memory that is free now."""
        return int(self.torch.cuda.mem_get_info()[0])

    def free_dram_bytes(self) -> int:
        """Host memory that is available now; 4 GiB where the system does not say."""
        return memory_bytes("MemAvailable") or 4 << 30

    def recover(self) -> None:
        """Free what a failed or finished measurement left behind, and clear its error."""
        gc.collect()
        if not self.cuda:
            return
        for tidy in (self.torch.cuda.synchronize, self.torch.cuda.empty_cache):
            try:
                tidy()
            except Exception:  # the error of the operation before, reported late
                continue

    def facts(self) -> dict[str, Any]:
        """Where the figures come from: card, driver, link, CPU, memory, versions, date."""
        facts: dict[str, Any] = {
            "date": datetime.now(UTC).date().isoformat(),
            "cpu": _proc_field("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
            "cores": usable_cores(),
            "virtual_machine": " hypervisor" in (_proc_field("/proc/cpuinfo", "flags") or ""),
            "dram_bytes": memory_bytes("MemTotal"),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "torch": str(self.torch.__version__) if self.torch else None,
        }
        if self.torch:
            facts["torch_threads"] = int(self.torch.get_num_threads())
        if self.cuda:
            properties = self.torch.cuda.get_device_properties(0)
            facts |= {
                "card": str(properties.name),
                "hbm_bytes": int(properties.total_memory),
                "l2_bytes": self.l2_bytes,
                "multiprocessors": int(properties.multi_processor_count),
                "cuda": str(self.torch.version.cuda),
            }
            facts |= _smi_facts()
        return facts


def usable_cores() -> int:
    """Cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def memory_bytes(name: str) -> int:
    """One line of /proc/meminfo, in bytes; 0 where there is none.

    >>> memory_bytes("NoSuchLine")
    0
    """
    text = _proc_field("/proc/meminfo", name)
    return int(text.split()[0]) * 1024 if text else 0


def _proc_field(file: str, name: str) -> str | None:
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                key, _, value = line.partition(":")
                if key.strip() == name:
                    return value.strip()
    except OSError:
        pass
    return None


def _smi_facts() -> dict[str, Any]:
    """What nvidia-smi says of the card; empty where it says nothing."""
    query = ",".join(_SMI_FIELDS.values())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    card = ["-i", visible] if visible else ["-i", "0"]
    command = ["nvidia-smi", *card, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=True)
        values = [value.strip() for value in done.stdout.strip().splitlines()[0].split(",")]
    except (OSError, subprocess.SubprocessError, IndexError):
        return {}
    found = dict(zip(_SMI_FIELDS, values, strict=False))
    return {key: _number(value) for key, value in found.items() if "N/A" not in value}


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
