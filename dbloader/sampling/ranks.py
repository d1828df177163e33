"""Find the number of processes and this process's rank. Check that Accelerate does not divide the samples again."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch.distributed

from dbloader._options import whole_number
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from types import FrameType

# Classes of Accelerate that divide the samples of any sampler among processes, even if the sampler did so already.
_MODULE, _SHARING = "accelerate.data_loader", ("BatchSamplerShard", "DataLoaderDispatcher")


def is_distributed() -> bool:
    """Return whether torch.distributed is initialized."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def resolve_ranks(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return the number of processes and the rank of this process, from torch.distributed if they are not given.

    ShuffleSampler lists the errors.
    """
    if num_replicas is None or rank is None:
        if is_distributed():
            num_replicas = torch.distributed.get_world_size() if num_replicas is None else num_replicas
            rank = torch.distributed.get_rank() if rank is None else rank
        elif num_replicas is not None or rank is not None:
            raise OptionError(
                "num_replicas and rank must be given together where torch.distributed is not initialized, "
                f"got num_replicas={num_replicas} and rank={rank}"
            )
        else:
            # Without this error each process would train on all samples.
            started = os.environ.get("WORLD_SIZE", "1")
            if started != "1":
                raise OptionError(
                    "call torch.distributed.init_process_group() first, or give num_replicas and rank "
                    f"(1 and 0 for all samples in each process), because WORLD_SIZE is {started}"
                )
            num_replicas, rank = 1, 0
    num_replicas, rank = whole_number("num_replicas", num_replicas, 1), whole_number("rank", rank)
    if not 0 <= rank < num_replicas:
        raise OptionError(f"rank must be 0 to {num_replicas - 1}, of {num_replicas} replicas, got {rank}")
    return num_replicas, rank


def check_shared_once(name: str, num_replicas: int) -> None:
    """Raise OptionError if Accelerate would divide a sampler's samples among processes a second time.

    The sampler does not know the wrapper that Accelerate makes around it. So this function, which ``iter()`` calls,
    searches the stack for the wrapper.
    """
    module = sys.modules.get(_MODULE)
    if module is None or num_replicas == 1:
        return
    sharing = tuple(getattr(module, name) for name in _SHARING if hasattr(module, name))
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        # Read f_locals only in Accelerate's frames: before Python 3.13, f_locals keeps all variables of a frame alive.
        shares = frame.f_locals.get("self") if frame.f_globals.get("__name__") == _MODULE else None
        if isinstance(shares, sharing) and getattr(shares, "num_processes", 0) != 1:
            raise OptionError(
                f"{name} shares the samples among {num_replicas} processes, and "
                f"{_MODULE}.{type(shares).__name__} would share them again, and so leave out most of them: "
                "make the sampler with num_replicas=1, rank=0, or do not prepare() its loader"
            )
        frame = frame.f_back
