"""A pool of whole blocks in three tiers: hot in HBM, warm in host memory, cold on disk.

Every block is in exactly one tier. Blocks move by a plan (`follow`) or by use: where a tier is
full, its least recently used block makes way, one tier down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvplan.errors import InputError, KvplanError, ResourceError
from kvplan_validate.pool import PinnedPool
from kvplan_validate.token_file import TokenFile, aligned

TIERS = ("hbm", "dram", "disk")
"""From hot to cold."""

BlockKey = tuple[int, int, int]
"""(layer, micro-batch, number of the block)."""


@dataclass(slots=True)
class Traffic:
    """What a pool has served and moved.

    Args:
        hits: reads by the tier that served them.
        read_bytes: bytes by the tier that served them.
        moves: moved blocks by (from, to).
        moved_bytes: bytes by (from, to).
    """

    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    read_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    moves: dict[tuple[str, str], int] = field(default_factory=dict)
    moved_bytes: dict[tuple[str, str], int] = field(default_factory=dict)

    def hit_rate(self) -> dict[str, float]:
        """Share of reads that each tier served; a read below HBM is a miss of the tiers above."""
        reads = sum(self.hits.values())
        return {tier: count / reads for tier, count in self.hits.items()} if reads else {}

    def moved(self, source: str, target: str, size: int) -> None:
        """Count one move."""
        way = (source, target)
        self.moves[way] = self.moves.get(way, 0) + 1
        self.moved_bytes[way] = self.moved_bytes.get(way, 0) + size

    @property
    def promotions(self) -> int:
        """Blocks moved to a hotter tier."""
        return sum(n for (a, b), n in self.moves.items() if TIERS.index(b) < TIERS.index(a))

    @property
    def demotions(self) -> int:
        """Blocks moved to a colder tier."""
        return sum(n for (a, b), n in self.moves.items() if TIERS.index(b) > TIERS.index(a))


class TieredPool:
    """Blocks of equal size in tiers of fixed capacity.

    Args:
        block_bytes: bytes of a block.
        capacities: blocks that each tier holds; a tier left out holds none.
        device: of the HBM tier.
        host: where host memory comes from; two blocks more than ``dram`` holds.
        folder: of the disk tier.
        notice: takes a sentence if the disk refuses direct reads.

    Raises:
        InputError: an unknown tier.
        ResourceError: a tier cannot be had.
    """

    def __init__(
        self,
        block_bytes: int,
        capacities: Mapping[str, int],
        *,
        device: torch.device,
        host: PinnedPool,
        folder: Path,
        notice: Callable[[str], None],
    ) -> None:
        """Get all memory at once."""
        for tier in capacities:
            if tier not in TIERS:
                raise InputError("capacities", tier, f"one of {', '.join(TIERS)}")
        self.block_bytes, self.slot_bytes = block_bytes, aligned(block_bytes)
        self.capacities = {tier: capacities.get(tier, 0) for tier in TIERS}
        self.traffic = Traffic()
        self._held: dict[str, OrderedDict[BlockKey, int]] = {t: OrderedDict() for t in TIERS}
        self._free = {tier: list(range(n))[::-1] for tier, n in self.capacities.items()}
        self._where: dict[BlockKey, str] = {}
        hbm, dram, disk = (self.capacities[tier] for tier in TIERS)
        self._hbm = torch.empty(hbm, self.slot_bytes, dtype=torch.uint8, device=device)
        self._dram = host.take(dram * self.slot_bytes).view(dram, self.slot_bytes) if dram else None
        self._bounce = host.take(self.slot_bytes)
        self._spare = host.take(self.slot_bytes)
        self.file: TokenFile | None = None
        if disk:
            page = memoryview(bytes(self.slot_bytes))
            self.file = TokenFile.create(folder, disk * self.slot_bytes, page, notice)

    def __len__(self) -> int:
        """Blocks in all tiers."""
        return len(self._where)

    def where(self, key: BlockKey) -> str:
        """The tier that holds a block."""
        return self._where[key]

    def held(self, tier: str) -> list[BlockKey]:
        """Blocks of a tier, the least recently used first."""
        return list(self._held[tier])

    def slot(self, key: BlockKey) -> int:
        """Place of a block in its tier."""
        return self._held[self._where[key]][key]

    # -- reading -------------------------------------------------------------------------------

    def touch(self, key: BlockKey) -> str:
        """Count a read of a block by the tier that serves it, which is returned."""
        tier = self._where[key]
        self._held[tier].move_to_end(key)
        self.traffic.hits[tier] += 1
        self.traffic.read_bytes[tier] += self.block_bytes
        return tier

    def memory(self, key: BlockKey) -> Tensor:
        """Bytes of a block in HBM or host memory, where they lie."""
        tier = self._where[key]
        arena = self._hbm if tier == "hbm" else self._dram
        assert arena is not None
        assert tier != "disk", key
        return arena[self.slot(key), : self.block_bytes]

    def offset(self, key: BlockKey) -> int:
        """Bytes into the file of a block on disk."""
        return self.slot(key) * self.slot_bytes

    def read(self, key: BlockKey, out: Tensor) -> str:
        """Copy a block to a tensor of as many bytes; counts, and returns the tier that served."""
        tier = self.touch(key)
        out.copy_(self._content(key, self._bounce))
        return tier

    def _content(self, key: BlockKey, bounce: Tensor) -> Tensor:
        """A block's bytes, through a host buffer where they are on disk."""
        if self._where[key] != "disk":
            return self.memory(key)
        assert self.file is not None
        self.file.read(memoryview(bounce.numpy()), self.offset(key), self.block_bytes)
        return bounce[: self.block_bytes]

    # -- placing -------------------------------------------------------------------------------

    def put(self, key: BlockKey, data: Tensor, tier: str = "hbm") -> None:
        """Add a block; where its tier is full, the coldest block there moves down first.

        Raises:
            InputError: the block is there already.
            ResourceError: this tier and all below are full.
        """
        if key in self._where:
            raise InputError("block", key, "a block that is not in the pool yet")
        self._make_room(tier)
        self._store(key, tier, data.reshape(-1).view(torch.uint8))

    def drop(self, key: BlockKey) -> None:
        """Forget a block."""
        tier = self._where.pop(key)
        self._free[tier].append(self._held[tier].pop(key))

    def move(self, key: BlockKey, tier: str) -> None:
        """Move a block to a tier; where that is full, its coldest block moves down first.

        Raises:
            ResourceError: this tier and all below are full.
        """
        if self._where[key] == tier:
            return
        # The mover's own place must not be counted on before the room is there: what makes way
        # may need it, so the mover waits in a spare buffer.
        source = self._where[key]
        self._spare[: self.block_bytes].copy_(self._content(key, self._bounce))
        self.drop(key)
        try:
            self._make_room(tier)
        except ResourceError:
            self._store(key, source, self._spare[: self.block_bytes])
            raise
        self._store(key, tier, self._spare[: self.block_bytes])
        self.traffic.moved(source, tier, self.block_bytes)

    def follow(self, placement: Mapping[BlockKey, str]) -> int:
        """Move blocks to where a plan wants them; returns how many moved.

        Args:
            placement: tier of every block of the pool.

        Raises:
            InputError: a block without a tier.
            ResourceError: a tier would hold more than it can; nothing is moved then.
        """
        for key in self._where:
            if key not in placement:
                raise InputError("placement", key, "a tier for every block of the pool")
        wanted = [placement[key] for key in self._where]
        for tier in TIERS:
            if wanted.count(tier) > self.capacities[tier]:
                raise self._full(tier, wanted.count(tier))
        pending = [key for key, tier in self._where.items() if placement[key] != tier]
        moved = len(pending)
        while pending:
            ready = [key for key in pending if self._free[placement[key]]]
            if ready:
                for key in ready:
                    if self._free[placement[key]]:
                        self._shift(key, placement[key], self._content(key, self._bounce))
            else:
                self._rotate(_cycle(pending, self._where, placement), placement)
            pending = [key for key in pending if self._where[key] != placement[key]]
        return moved

    def _shift(self, key: BlockKey, tier: str, content: Tensor) -> None:
        """Move a block to a free place."""
        source = self._where[key]
        slot = self._free[tier].pop()
        self._write(tier, slot, content)
        self.drop(key)
        self._held[tier][key], self._where[key] = slot, tier
        self.traffic.moved(source, tier, self.block_bytes)

    def _rotate(self, ring: list[BlockKey], placement: Mapping[BlockKey, str]) -> None:
        """Blocks each of which wants the next one's tier, all full: the first waits outside."""
        first = ring[0]
        source, target = self._where[first], placement[first]
        self._spare[: self.block_bytes].copy_(self._content(first, self._bounce))
        self.drop(first)
        for key in reversed(ring[1:]):
            self._shift(key, placement[key], self._content(key, self._bounce))
        self._store(first, target, self._spare[: self.block_bytes])
        self.traffic.moved(source, target, self.block_bytes)

    def _make_room(self, tier: str) -> None:
        """Free a place in a tier: coldest blocks move down, one tier each."""
        if self._free[tier]:
            return
        below = TIERS[TIERS.index(tier) + 1 :]
        down = next((t for t in below if self.capacities[t]), None)
        if down is None or not self._held[tier]:
            raise self._full(tier, self.capacities[tier] + 1)
        self._make_room(down)
        coldest = next(iter(self._held[tier]))
        self._shift(coldest, down, self._content(coldest, self._bounce))

    def _full(self, tier: str, blocks: int) -> ResourceError:
        held = self.capacities[tier]
        return ResourceError(tier, f"{blocks} blocks in a tier of {held}", "raise its capacity")

    def _store(self, key: BlockKey, tier: str, content: Tensor) -> None:
        slot = self._free[tier].pop()
        self._write(tier, slot, content)
        self._held[tier][key], self._where[key] = slot, tier

    def _write(self, tier: str, slot: int, content: Tensor) -> None:
        if tier != "disk":
            arena: Any = self._hbm if tier == "hbm" else self._dram
            arena[slot, : self.block_bytes].copy_(content)
            return
        assert self.file is not None
        if content.data_ptr() != self._bounce.data_ptr():
            self._bounce[: self.block_bytes].copy_(content)
        self.file.write(memoryview(self._bounce.numpy()), slot * self.slot_bytes)

    def runs(self, keys: Iterable[BlockKey]) -> list[list[BlockKey]]:
        """Blocks in HBM, cut where neighbours do not lie beside each other without a gap."""
        found: list[list[BlockKey]] = []
        gapless = self.slot_bytes == self.block_bytes
        for key in keys:
            if gapless and found and self.slot(found[-1][-1]) + 1 == self.slot(key):
                found[-1].append(key)
            else:
                found.append([key])
        return found

    def span(self, keys: list[BlockKey]) -> Tensor:
        """Bytes of a run of `runs`, flat, where they lie."""
        first = self.slot(keys[0])
        return self._hbm[first : first + len(keys), : self.block_bytes].view(-1)

    def close(self) -> None:
        """Give the disk's space back; the memory belongs to others."""
        if self.file is not None:
            self.file.close()
            self.file = None


def _cycle(
    pending: list[BlockKey], where: Mapping[BlockKey, str], placement: Mapping[BlockKey, str]
) -> list[BlockKey]:
    """Blocks of which each wants the tier of the next, and the last that of the first.

    Where every wanted tier is full and none is to hold more than it can, there is one: a full tier
    that a block wants has one that wants to leave.
    """
    by_way = {(where[key], placement[key]): key for key in pending}
    for (here, there), key in by_way.items():
        if (there, here) in by_way:
            return [key, by_way[there, here]]
        for tier in TIERS:
            if (there, tier) in by_way and (tier, here) in by_way:
                return [key, by_way[there, tier], by_way[tier, here]]
    raise KvplanError(f"no way to place {len(pending)} blocks")
