"""Memory in which worker processes make batches: shared with the training, and used again.

Else torch makes new shared memory for every batch. Its pages are cleared when they are first touched, its descriptor
goes through a socket with a handshake and a thread of its own, and the training maps it and unmaps it. For batches of
64 images of 224 x 224 pixels that was a sixth to a quarter of all the time, 2.5 ms of the training's process among it.
"""

from __future__ import annotations

import itertools
import math
import os
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

_ALIGNED = 4096  # bytes: no two blocks are in one page
_tokens = itertools.count()
# Those that this process has made, and that somebody still has.
_made: WeakValueDictionary[str, Blocks] = WeakValueDictionary()


class Blocks:
    """Blocks of shared memory for the workers of one run over a loader.

    Each worker has some of its own. A byte for each block tells whether it is in use: the worker sets it before it
    writes into the block, and it is cleared where the last thing goes that shares the memory: in the process of the
    training, once the batch has arrived there, else in the worker's. So no batch is written to while anybody has it.
    Where all are in use, a worker makes the batch elsewhere.

    Args:
        workers: How many there are.
        each: Blocks of each.
        nbytes: Of a block.
    """

    def __init__(self, workers: int, each: int, nbytes: int) -> None:
        self.token = f"{os.getpid()}.{next(_tokens)}"
        self.each = each
        self.nbytes = -(-nbytes // _ALIGNED) * _ALIGNED
        count = workers * each
        storage = torch.UntypedStorage._new_shared(count * self.nbytes + count)  # type: ignore[no-untyped-call]
        self._memory = torch.empty(0, dtype=torch.uint8).set_(storage)  # all zero
        self._open(count)
        _made[self.token] = self

    def _open(self, count: int) -> None:
        self._bytes = self._memory.numpy()
        self._used = self._bytes[-count:]

    def take(self, worker: int, shape: tuple[int, ...]) -> Block | None:
        """Gives a worker a block of its own for a batch; None if it has none free, or none so large.

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
        return Block(self, index, shape)

    def lend(self, index: int, shape: tuple[int, ...]) -> _Lent:
        """Gives the memory of a block that is in use, and will not be when that is gone with all that shares it."""
        start = index * self.nbytes
        lent = self._bytes[start : start + math.prod(shape)].reshape(shape).view(_Lent)
        lent.used, lent.index, lent.process = self._used, index, os.getpid()
        return lent

    def __getstate__(self) -> tuple[str, int, int, torch.Tensor, int]:
        # A tensor in shared memory is sent as the memory itself, to a process that is started.
        return self.token, self.each, self.nbytes, self._memory, len(self._used)

    def __setstate__(self, state: tuple[str, int, int, torch.Tensor, int]) -> None:
        self.token, self.each, self.nbytes, self._memory, count = state
        self._open(count)


class _Lent(np.ndarray[Any, Any]):
    """An array in a block; a view of it has nothing to give back."""

    used: npt.NDArray[np.uint8] | None = None
    index: int
    process: int

    def __del__(self) -> None:
        # A process that was forked has what its parent has, but has not got it.
        if self.used is not None and os.getpid() == self.process:
            self.used[self.index] = 0


class Block:
    """Room for the images of a batch, in the process of a worker; where it is sent to, it arrives as their tensor.

    Attributes:
        pixels: uint8, shape (count, height, width, 3), to be written to.
    """

    def __init__(self, blocks: Blocks, index: int, shape: tuple[int, ...]) -> None:
        self._token, self._index = blocks.token, index
        self._lent = blocks.lend(index, shape)
        self.pixels: npt.NDArray[np.uint8] = torch.from_numpy(self._lent).numpy()

    def __reduce__(self) -> tuple[Any, tuple[str, int, tuple[int, ...]]]:
        self._lent.used = None  # from now on it is the receiver's
        return _arrived, (self._token, self._index, self.pixels.shape)


def _arrived(token: str, index: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Gives images that a worker has made: uint8, shape (count, 3, height, width)."""
    return torch.from_numpy(_made[token].lend(index, shape)).permute(0, 3, 1, 2)
