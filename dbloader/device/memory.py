"""Reuse the memory of batches that nothing references any more."""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

# Number of values computed at a time, to fit into a CPU's cache. An image of 224 x 224 pixels has fewer (150,528).
_AT_ONCE = 2**18


class ReleasingArray(np.ndarray[Any, Any]):
    """An array that calls ``release`` when it is freed. A view keeps the array alive, and does not call ``release``."""

    release: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.release is not None:
            self.release()


class BatchMemory:
    """Makes tensors in the memory of earlier tensors that nothing references any more.

    New memory is slow, because the system clears each page at its first use. Without reuse, a batch from a store of
    pixels took a sixth to a third more CPU time. Threads may share a BatchMemory. Pickling drops the memory.
    """

    def __init__(self) -> None:
        # Four blocks are enough: a loader makes a few batches ahead, and its consumer keeps one or two.
        self._free: deque[np.ndarray[Any, Any]] = deque(maxlen=4)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8, layout: Any = None) -> torch.Tensor:
        """Return a tensor with undefined values; ``layout`` is a memory format, contiguous if None."""
        like = torch.empty(shape, dtype=dtype, device="meta", memory_format=layout or torch.contiguous_format)
        try:
            block = self._free.pop()
        except IndexError:
            block = np.empty(like.nbytes, np.uint8)
        if block.nbytes < like.nbytes:
            block = np.empty(like.nbytes, np.uint8)
        array = block[: like.nbytes].view(ReleasingArray)
        array.release = functools.partial(self._free.append, block)
        storage = torch.from_numpy(array).untyped_storage()  # the storage keeps the array alive
        return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, like.stride())

    def compute(self, images: torch.Tensor, function: Any, dtype: torch.dtype, layout: Any = None) -> torch.Tensor:
        """Call ``function(some images, memory for their results)``, and return all results. Reuse memory on a CPU."""
        shape = tuple(images.shape)
        if type(images) is not torch.Tensor or images.device.type != "cpu" or torch.compiler.is_compiling():
            layout = layout or torch.contiguous_format
            result = torch.empty(shape, dtype=dtype, device=images.device, memory_format=layout)
            function(images, result)
            return result
        result, count = self.empty(shape, dtype, layout), max(1, _AT_ONCE // max(1, images[:1].numel()))
        for some, out in zip(torch.split(images, count), torch.split(result, count), strict=True):
            function(some, out)
        return result

    def __reduce__(self) -> tuple[type[BatchMemory], tuple[()]]:
        return type(self), ()
