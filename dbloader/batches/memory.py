"""Memory for batches, used again when its last user has let go of it."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import torch

# Blocks that wait to be used again, at the most: a loader has some batches ahead, and its consumer one or two.
_KEPT = 4


class BatchMemory:
    """Gives tensors of memory that earlier ones had, once these are gone with all that shares their memory.

    New memory comes from the system page by page, each cleared when it is first touched: of a batch of 64 images of
    224 x 224 pixels, 2,352 pages. Threads may share this; pickled, it is empty.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray[Any, Any]] = deque(maxlen=_KEPT)

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor of uint8, of any values."""
        nbytes = math.prod(shape)
        try:
            block = self._free.pop()
        except IndexError:
            block = np.empty(nbytes, np.uint8)
        if block.nbytes < nbytes:
            block = np.empty(nbytes, np.uint8)
        lent = block[:nbytes].reshape(shape).view(_Lent)
        lent.block, lent.home = block, self._free
        return torch.from_numpy(lent)  # keeps the array, until its storage is freed

    def __reduce__(self) -> tuple[type[BatchMemory], tuple[()]]:
        return type(self), ()


class _Lent(np.ndarray[Any, Any]):
    """An array that gives its memory back when it goes; a view of it has nothing to give."""

    block: np.ndarray[Any, Any]
    home: deque[np.ndarray[Any, Any]] | None = None

    def __del__(self) -> None:
        if self.home is not None:
            self.home.append(self.block)
