"""The share of the samples that each process gets, and the check that they are shared only once."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch.distributed
from torch.utils.data import DistributedSampler

from dbloader._options import checked_flag, whole_number
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from types import FrameType

# Classes of Accelerate that give each process a part of what a sampler gives, even if the sampler did so already.
_MODULE, _SHARING = "accelerate.data_loader", ("BatchSamplerShard", "DataLoaderDispatcher")


class RankSampler(DistributedSampler[int]):
    """A sampler that shares one global order of positions among ranks.

    It is a DistributedSampler so that frameworks do not share its samples a second time, but asks for the ranks only
    when it is used: torch.distributed may be initialized later.

    Attributes:
        length: Positions in the global order, before it is padded.
        drop_last: Whether the ranks leave out the tail that they cannot share evenly. Otherwise they pad it with the
            first positions of the epoch, repeatedly if those are too few. Both as DistributedSampler does.
    """

    def __init__(self, length: int, num_replicas: int | None, rank: int | None, *, drop_last: bool) -> None:
        # DistributedSampler's constructor is not called: it would ask for the ranks now, and keep the dataset.
        self.length = length
        self._given_ranks = (num_replicas, rank)
        if self._given_ranks != (None, None):
            resolve_ranks(num_replicas, rank)  # raises errors now
        self.drop_last = checked_flag("drop_last", drop_last)

    @property
    def num_replicas(self) -> int:  # type: ignore[override] # DistributedSampler has a plain attribute
        """The number of processes that share the order: as given, else from torch.distributed, else 1.

        Raises:
            OptionError: It was not given, torch.distributed is not initialized, and torchrun started this process as
                one of several.
        """
        return resolve_ranks(*self._given_ranks)[0]

    @property
    def rank(self) -> int:  # type: ignore[override] # likewise
        """The number of this process, from 0; otherwise as ``num_replicas``."""
        return resolve_ranks(*self._given_ranks)[1]

    def _end(self, position: int) -> int:
        """Return where the global order from a position ends for all ranks; it is padded above ``length``."""
        left = self.length - position
        shares = left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)
        return position + shares * self.num_replicas

    def _share(self, position: int) -> range:
        """Return the positions of this rank in the global order that starts at a position."""
        return range(position + self.rank, self._end(position), self.num_replicas)

    def __len__(self) -> int:
        return len(self._share(0))


def is_distributed() -> bool:
    """Return whether torch.distributed is initialized."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def resolve_ranks(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return the number of processes and the rank of this one, from torch.distributed if they are not given.

    Its errors are those of ShuffleSampler.
    """
    if num_replicas is None or rank is None:
        if is_distributed():
            num_replicas = torch.distributed.get_world_size() if num_replicas is None else num_replicas
            rank = torch.distributed.get_rank() if rank is None else rank
        elif num_replicas is not None or rank is not None:
            raise OptionError(
                "num_replicas and rank must be given together where torch.distributed is not initialized, "
                f"got num_replicas={num_replicas} and rank={rank}",
            )
        else:
            # Without this error each process would train on all samples.
            started = os.environ.get("WORLD_SIZE", "1")
            if started != "1":
                raise OptionError(
                    "call torch.distributed.init_process_group() first, or give num_replicas and rank "
                    f"(1 and 0 for all samples in each process): got neither in one of WORLD_SIZE={started} processes",
                )
            num_replicas, rank = 1, 0
    num_replicas, rank = whole_number("num_replicas", num_replicas, 1), whole_number("rank", rank)
    if not 0 <= rank < num_replicas:
        raise OptionError(f"rank must be 0 to {num_replicas - 1}, of {num_replicas} replicas, got {rank}")
    return num_replicas, rank


def check_shared_once(name: str, num_replicas: int) -> None:
    """Raise OptionError if a caller shares the samples of a sampler, named here, that shares them already.

    ``iter()`` has no argument for the object that calls it, and Accelerate makes that object after the sampler. So this
    looks for it among the callers.
    """
    module = sys.modules.get(_MODULE)
    if module is None or num_replicas == 1:
        return
    sharing = tuple(getattr(module, name) for name in _SHARING if hasattr(module, name))
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        # Only frames of that module: before Python 3.13, f_locals keeps all that it names alive as long as its frame.
        shares = frame.f_locals.get("self") if frame.f_globals.get("__name__") == _MODULE else None
        if isinstance(shares, sharing) and getattr(shares, "num_processes", 0) != 1:
            raise OptionError(
                f"{name} shares the samples among {num_replicas} processes, and "
                f"{_MODULE}.{type(shares).__name__} would share that part again, so that most samples were left out: "
                "make the sampler with num_replicas=1, rank=0, or do not prepare() its loader"
            )
        frame = frame.f_back
