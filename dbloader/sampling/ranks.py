"""The share of the samples that this process gets, and the check that they are shared only once."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch.distributed

from dbloader._options import whole_number
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from types import FrameType

# The module of Accelerate, and its classes that give a process only a part of what a sampler gives. They do not ask
# whether the sampler did so already.
_MODULE, _SHARING = "accelerate.data_loader", ("BatchSamplerShard", "DataLoaderDispatcher")


def check_shared_once(name: str, num_replicas: int) -> None:
    """Refuse to give this process its share of the samples to something that shares them again.

    A sampler is not told which object asks for its order. So this looks for such a class among the callers.

    Args:
        name: Of the sampler's class.
        num_replicas: Number of processes that share its samples.

    Raises:
        OptionError: There is one: samples would be left out.
    """
    module = sys.modules.get(_MODULE)
    if module is None or num_replicas == 1:
        return
    sharing = tuple(getattr(module, name) for name in _SHARING if hasattr(module, name))
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        # Only of those in that module: until Python 3.13 f_locals keeps all that it names alive as long as its frame.
        shares = frame.f_locals.get("self") if frame.f_globals.get("__name__") == _MODULE else None
        if isinstance(shares, sharing) and getattr(shares, "num_processes", 0) != 1:
            raise OptionError(
                f"{name} shares the samples among {num_replicas} processes, and "
                f"{_MODULE}.{type(shares).__name__} would share that part again, so that most samples were left out: "
                "make the sampler with num_replicas=1, rank=0, or do not prepare() its loader"
            )
        frame = frame.f_back


def resolved_ranks(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return the number of processes and which of them this is, from torch.distributed where they are not given.

    Raises:
        OptionError: ``num_replicas`` is below 1, or ``rank`` not 0 to ``num_replicas - 1``. Or only one of the two is
            given, and torch.distributed is not initialized. Or neither is given, torch.distributed is
            not initialized, and torchrun started this process as one of several.
        TypeError: One of them is no int.
    """
    if num_replicas is None or rank is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            num_replicas = torch.distributed.get_world_size() if num_replicas is None else num_replicas
            rank = torch.distributed.get_rank() if rank is None else rank
        elif num_replicas is not None or rank is not None:
            raise OptionError(
                "num_replicas and rank must be given together where torch.distributed is not initialized, "
                f"got num_replicas={num_replicas} and rank={rank}",
            )
        else:
            # Else each process would train on all samples, without any error.
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
