"""Compare the waiting of all ranks: the slowest one decides how fast a synchronous training is."""

from __future__ import annotations

import dataclasses
import socket
import statistics
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._describe import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

# A rank is named as slow if it waits so many times the median, and so much of its time longer.
_TIMES, _SHARE = 2.0, 0.02
_WORK = {"read_s": "reading", "decode_s": "decoding", "collate_s": "collating"}
_ROW = struct.Struct("<6d64s")


class RankStats(NamedTuple):
    """What one rank waited for in an iteration; all times are in seconds.

    Attributes:
        rank: The number of the rank in the group.
        host: The name of its machine, at most 64 bytes.
        seconds: Waiting and computing.
        waited_s: As in Stats.
        first_s: As in Stats.
        read_s, decode_s, collate_s: As in ``Stats.work``: of all workers together; 0 where the workers do not tell.
    """

    rank: int
    host: str
    seconds: float
    waited_s: float
    first_s: float
    read_s: float
    decode_s: float
    collate_s: float


@dataclasses.dataclass(frozen=True)
class GatheredStats:
    """The waiting of all ranks; as a str, which rank is slow and why, in one line.

    Attributes:
        ranks: One for each rank, in their order.
    """

    ranks: tuple[RankStats, ...]

    @property
    def slowest(self) -> RankStats | None:
        """The rank that waited longest, if it waited clearly longer than the median; else None."""
        row = max(self.ranks, key=lambda row: row.waited_s)
        median = self._median("waited_s")
        is_slow = row.waited_s >= _TIMES * median and row.waited_s - median > _SHARE * row.seconds
        return row if is_slow else None

    def __str__(self) -> str:
        row = self.slowest
        if row is None:
            least, most = min(row.waited_s for row in self.ranks), max(row.waited_s for row in self.ranks)
            return f"{counted(len(self.ranks), 'rank')} waited {least:.3g} to {most:.3g} s for data: no rank stands out"
        median = self._median("waited_s")
        times = f", {row.waited_s / median:.0f} x the median" if median else ""
        return f"rank {row.rank} (host {row.host}) waited {row.waited_s:.3g} s for data{times}, for: {self._cause(row)}"

    def _cause(self, row: RankStats) -> str:
        excess = {doing: getattr(row, name) - self._median(name) for name, doing in _WORK.items()}
        doing = max(excess, key=lambda doing: excess[doing])
        if excess[doing] > 0.25 * (row.waited_s - self._median("waited_s")):
            return doing
        return "nothing that its workers do longer than others; its CPUs or its copies to the device may be slower"

    def _median(self, name: str) -> float:
        # The lower of two, so that one of two ranks may be slow.
        return float(statistics.median_low(getattr(row, name) for row in self.ranks))


def gather(seconds: Sequence[float], group: Any) -> GatheredStats:
    """Return the stats of all ranks of a group of torch.distributed, or of this process where there is no group.

    Args:
        seconds: Those of RankStats of this process, in their order.
        group: None for all ranks.
    """
    import torch.distributed  # not at the top: a loader of other things than tensors needs no torch

    row = _ROW.pack(*seconds, socket.gethostname().encode())
    rows = [row]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # Collective operations of NCCL take only tensors on a GPU.
        device = "cuda" if torch.distributed.get_backend(group) == "nccl" else "cpu"
        own = torch.frombuffer(bytearray(row), dtype=torch.uint8).to(device)
        gathered = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size(group))]
        torch.distributed.all_gather(gathered, own, group)
        rows = [bytes(tensor.cpu().numpy()) for tensor in gathered]
    unpacked = [_ROW.unpack(row) for row in rows]
    return GatheredStats(
        tuple(RankStats(rank, host.rstrip(b"\0").decode(), *rest) for rank, (*rest, host) in enumerate(unpacked))
    )
