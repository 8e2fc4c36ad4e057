"""Measurements of one machine: the registry, the most important ones first."""

from __future__ import annotations

from kvplan_validate.measure import (
    attention,
    copies,
    dequantise,
    disk,
    edges,
    host,
    launch,
    matmul,
    memory,
    pinned,
)
from kvplan_validate.measure.base import Measured, Measurement, Point, Sampled
from kvplan_validate.measure.machine import Clock, Machine

REGISTRY: tuple[Measurement, ...] = (
    copies.Registered(),
    copies.Latency(),
    copies.Duplex(),
    memory.Hbm(),
    launch.Light(),
    launch.Issue(),
    launch.Kernel(),
    launch.Eager(),
    launch.Graph(),
    launch.Fork(),
    edges.Waiting(),
    launch.Sample(),
    matmul.Linear(),
    matmul.Rebuild(),
    attention.TokenMajor(),
    host.Attention(),
    host.Call(),
    host.HandOver(),
    dequantise.Runtime(),
    matmul.Formats(),
    copies.Pageable(),
    copies.Eager(),
    copies.Strided(),
    copies.Pinned(),
    disk.Read(),
    pinned.Limit(),
    pinned.Allocator(),
    attention.HeadMajor(),
    matmul.Sustained(),
)
"""Every measurement, in the order of running."""

__all__ = ["REGISTRY", "Clock", "Machine", "Measured", "Measurement", "Point", "Sampled"]
