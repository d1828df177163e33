"""Memory in which worker processes make batches: shared with the training, and used again.

Else torch makes new shared memory for every batch. Its pages are cleared when they are first touched, its descriptor
goes through a socket with a handshake and a thread of its own, and the training maps it and unmaps it. For batches of
64 images of 224 x 224 pixels that was a sixth to a quarter of all the time, 2.5 ms of the training's process among it.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

_tokens = itertools.count()
# Those that this process has made, and that somebody still has.
_made: WeakValueDictionary[str, SharedBatchPool] = WeakValueDictionary()


class SharedBatchPool:
    """Blocks of shared memory for the workers of one run over a loader.

    Each worker has some of its own. A byte for each block tells whether it is in use: the worker sets it before it
    writes into the block, and it is cleared where the last thing goes that shares the memory: in the process of the
    training, once the batch has arrived there, else in the worker's. A block that the training has when it forks is not
    used again, as nobody knows how long the child has it. So no batch is written to while anybody has it.

    Memory is taken when it is first written to, and given back when the run and all that is in the block have gone.

    Args:
        workers: How many there are.
        each: Blocks of each.
        nbytes: Of a block.

    Raises:
        OSError: The process may open no more files: each block is one, as long as it is there.
    """

    def __init__(self, workers: int, each: int, nbytes: int) -> None:
        self.token = f"{os.getpid()}.{next(_tokens)}"
        self.each = each
        self.nbytes = nbytes
        self._files: list[int] = []
        for size in (workers * each, *itertools.repeat(nbytes, workers * each)):
            self._files.append(os.memfd_create("dbloader"))  # not in /dev/shm, of which containers have little
            os.ftruncate(self._files[-1], size)
        self._open()
        _made[self.token] = self

    @staticmethod
    def can_be_made() -> bool:
        """Return whether this system has files that are only memory."""
        return hasattr(os, "memfd_create")

    def _open(self) -> None:
        self._used, *self._blocks = [np.frombuffer(mmap.mmap(file, 0), np.uint8) for file in self._files]

    def started(self) -> None:
        """Close what only processes needed that were to be started."""
        while self._files:
            os.close(self._files.pop())

    def take(self, worker: int, shape: tuple[int, ...]) -> SharedSlot | None:
        """Return a worker a block of its own for a batch; None if it has none free, or none so large.

        Args:
            worker: Its number, from 0 on. One thread of it may call this at a time.
            shape: Of the batch: uint8, (count, height, width, 3).
        """
        if math.prod(shape) > self.nbytes:
            return None
        own = range(worker * self.each, (worker + 1) * self.each)
        index = next((index for index in own if not self._used[index]), None)
        if index is None:
            return None
        self._used[index] = 1
        return SharedSlot(self, index, shape)

    def borrow(self, index: int, shape: tuple[int, ...]) -> _Lent:
        """Return the memory of a block that is in use, and will not be when that is gone with all that shares it."""
        lent = self._blocks[index][: math.prod(shape)].reshape(shape).view(_Lent)
        lent.used, lent.index, lent.process = self._used, index, os.getpid()
        return lent

    def __getstate__(self) -> tuple[str, int, int, list[Any]]:
        return self.token, self.each, self.nbytes, [DupFd(file) for file in self._files]

    def __setstate__(self, state: tuple[str, int, int, list[Any]]) -> None:
        self.token, self.each, self.nbytes, files = state
        self._files = [file.detach() for file in files]
        self._open()
        self.started()

    def __del__(self) -> None:
        self.started()


class _Lent(np.ndarray[Any, Any]):
    """An array in a block; a view of it has nothing to give back."""

    used: npt.NDArray[np.uint8] | None = None
    index: int
    process: int

    def __del__(self) -> None:
        # A process that was forked has what its parent has, but has not got it.
        if self.used is not None and os.getpid() == self.process:
            self.used[self.index] = 0


class SharedSlot:
    """Room for the images of a batch, in the process of a worker; where it is sent to, it arrives as their tensor.

    Attributes:
        pixels: uint8, shape (count, height, width, 3), to be written to.
    """

    def __init__(self, blocks: SharedBatchPool, index: int, shape: tuple[int, ...]) -> None:
        self._token, self._index = blocks.token, index
        self._lent = blocks.borrow(index, shape)
        self.pixels: npt.NDArray[np.uint8] = torch.from_numpy(self._lent).numpy()

    def __reduce__(self) -> tuple[Any, tuple[str, int, tuple[int, ...]]]:
        self._lent.used = None  # from now on it is the receiver's
        return _arrived, (self._token, self._index, self.pixels.shape)


# What has arrived in this process, and is still there, by its id: arrays have no hash.
_held: WeakValueDictionary[int, _Lent] = WeakValueDictionary()


def _arrived(token: str, index: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return images that a worker has made: uint8, shape (count, 3, height, width)."""
    lent = _made[token].borrow(index, shape)
    _held[id(lent)] = lent
    return torch.from_numpy(lent).permute(0, 3, 1, 2)


def _keep_all() -> None:
    """Before a fork: the child will have what is held, too."""
    for lent in list(_held.values()):
        lent.used = None


os.register_at_fork(before=_keep_all)


class ByValue:
    """A tensor that is sent as its values, and arrives as one of its own.

    Args:
        tensor: Contiguous.
        axes: In which order the tensor that arrives has its axes, in the same memory.
    """

    def __init__(self, tensor: torch.Tensor, axes: tuple[int, ...] | None = None) -> None:
        self._array = tensor.numpy()
        self._axes = axes

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _tensor_of, (self._array, self._axes)


def _tensor_of(array: npt.NDArray[Any], axes: tuple[int, ...] | None) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if axes is None else tensor.permute(axes)


# Bytes of a tensor that are sent through a pipe, which is as fast then as sending shared memory for them.
_SMALL = 2**16
_OF_NUMPY = (torch.int64, torch.int32, torch.float64, torch.float32, torch.uint8, torch.bool)


def small_by_value(collated: Any) -> Any:
    """Return what default_collate gave, with its small tensors, such as the labels, to be sent by value."""
    if type(collated) is dict:
        return {key: small_by_value(value) for key, value in collated.items()}
    if type(collated) in (list, tuple):
        return type(collated)(map(small_by_value, collated))
    return ByValue(collated) if _is_small_and_plain(collated) else collated


def _is_small_and_plain(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.dtype in _OF_NUMPY
        and not (value.requires_grad or value.is_nested or value.is_neg())
        and value.is_contiguous()
        and value.nbytes <= _SMALL
    )
