"""Reusable shared memory in which worker processes make batches.

torch makes new shared memory for every batch. This takes time: the system clears the pages, torch sends a file
descriptor through a socket, and the training's process maps and unmaps the memory. Two workers that made batches of 64
images of 224 x 224 pixels spent a sixth to a quarter of their time on this. Reused memory saves this time.
"""

from __future__ import annotations

import functools
import itertools
import math
import mmap
import os
import resource
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor
from typing_extensions import override

from dbloader._describe import size
from dbloader.device.memory import ReleasingArray
from dbloader.errors import LoaderError

if TYPE_CHECKING:
    import numpy.typing as npt


def file_limit(least: int) -> int:
    """Return how many bytes a file may have (ulimit -f). Raise LoaderError if worker processes need a larger file."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0] % 2**63  # -1 is no limit
    if limit < least:
        raise LoaderError(
            f"worker processes need files of {size(least)}, but ulimit -f allows only {size(limit)}: raise the limit "
            "(ulimit -f unlimited), or use fewer workers, smaller batches, or worker_type='threads'"
        )
    return limit


_tokens = itertools.count()
# The live pools that this process has made.
_pools: WeakValueDictionary[str, SharedBatchPool] = WeakValueDictionary()


class SharedBatchPool:
    """Slots of shared memory, one per batch, for the worker processes of a loader.

    The training's process reserves a slot for each batch. One or more workers write the batch into the slot. One byte
    per slot is 1 while the slot is in use. The training's process clears the byte when nothing references the batch's
    memory any more. So no batch in use is overwritten. If this process forks, the child may keep the batches that are
    referenced at that time. So their slots are never reused.

    The system allocates memory at the first write, and frees it when the workers and all tensors in the slot are gone.

    Args:
        slots: The number of slots.
        nbytes: The size of each slot.

    Raises:
        LoaderError: A slot is larger than the largest file that this process may write (ulimit -f).
        OSError: Too many files are open. Each slot is an open file while the workers start.
    """

    def __init__(self, slots: int, nbytes: int) -> None:
        self.token = f"{os.getpid()}.{next(_tokens)}"
        self.nbytes = nbytes
        self._files: list[int] = []
        file_limit(nbytes)
        for length in (slots, *itertools.repeat(nbytes, slots)):
            self._files.append(os.memfd_create("dbloader"))  # not in /dev/shm, which is small in containers
            os.ftruncate(self._files[-1], length)
        self._map()
        _pools[self.token] = self

    def _map(self) -> None:
        self._used, *self._memory = [np.frombuffer(mmap.mmap(file, 0), np.uint8) for file in self._files]

    def close_files(self) -> None:
        """Close the files, which only starting processes need; the memory stays mapped."""
        while self._files:
            os.close(self._files.pop())

    def reserve(self) -> int | None:
        """Return a free slot and mark it as used; None if all slots are in use."""
        slot = next((slot for slot, used in enumerate(self._used) if not used), None)
        if slot is not None:
            self._used[slot] = 1
        return slot

    def free(self, slot: int) -> None:
        """Free the slot of a batch that could not be made."""
        self._used[slot] = 0

    def allocate(self, slot: int | None, shape: tuple[int, ...]) -> tuple[SharedSlot | TensorByValue, Any]:
        """Return an object to pickle, and the memory for its images: uint8, shape (count, height, width, 3).

        Unpickling the object makes a tensor of the images. The memory is private if ``slot`` is None or too small.
        """
        if slot is not None and math.prod(shape) <= self.nbytes:
            shared = SharedSlot(self, slot, shape)
            return shared, shared.pixels
        # Usually, no slot is free because the consumer keeps many batches. Private memory is less scarce than shared.
        private = torch.empty(shape, dtype=torch.uint8)
        return TensorByValue(private, (0, 3, 1, 2)), private.numpy()

    def view(self, slot: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Return the memory of a slot."""
        return self._memory[slot][: math.prod(shape)].reshape(shape)

    def receive(self, slot: int, shape: tuple[int, ...]) -> ReleasingArray:
        """Return the memory of a slot; the slot becomes free when the array and all its views are gone."""
        array = self.view(slot, shape).view(ReleasingArray)
        array.release = functools.partial(_free_slot, self._used, slot, os.getpid())
        return array

    def __getstate__(self) -> tuple[str, int, list[Any]]:
        return self.token, self.nbytes, [DupFd(file) for file in self._files]

    def __setstate__(self, state: tuple[str, int, list[Any]]) -> None:
        self.token, self.nbytes, files = state
        self._files = [file.detach() for file in files]
        self._map()
        self.close_files()

    def __del__(self) -> None:
        self.close_files()


def _free_slot(used: npt.NDArray[np.uint8], index: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child inherits the array, but must not free the parent's slot
        used[index] = 0


class SharedSlot:
    """Memory for the images of a batch in a worker process. Unpickling makes a tensor of the images.

    Attributes:
        pixels: uint8, shape (count, height, width, 3), to be written to.
    """

    def __init__(self, pool: SharedBatchPool, slot: int, shape: tuple[int, ...]) -> None:
        self._token, self._slot = pool.token, slot
        self.pixels = pool.view(slot, shape)

    def __reduce__(self) -> tuple[Any, tuple[str, int, tuple[int, ...]]]:
        return _receive_images, (self._token, self._slot, self.pixels.shape)


# The arrays of received batches that are still referenced. Keys are ids, because arrays cannot be hashed.
_received: WeakValueDictionary[int, ReleasingArray] = WeakValueDictionary()


def _receive_images(token: str, slot: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the images that a worker has made: uint8, shape (count, 3, height, width)."""
    array = _pools[token].receive(slot, shape)
    _received[id(array)] = array
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def _keep_received() -> None:
    """Keep the slots of received batches in use forever; called before the process forks."""
    for reference in _received.valuerefs():  # a copy, because another thread may receive a batch meanwhile
        array = reference()
        if array is not None:
            array.release = None


os.register_at_fork(before=_keep_received)


class TensorByValue:
    """Pickles a contiguous tensor with its values. Unpickling makes a tensor with memory of its own.

    ``axes`` permutes the axes of the new tensor, but not its memory.
    """

    def __init__(self, tensor: torch.Tensor, axes: tuple[int, ...]) -> None:
        self._array = tensor.numpy()
        self._axes = axes

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _to_tensor, (self._array, self._axes)


def _to_tensor(array: npt.NDArray[Any], axes: tuple[int, ...] | None = None) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if axes is None else tensor.permute(axes)


# Up to 256 KiB, a pipe is faster than new shared memory: a tensor of at most this size and the labels of its batch took
# 0.7 to 1.2 ms through a pipe, and 1.4 to 1.5 ms through shared memory.
_LARGEST_BY_VALUE = 2**18
_NUMPY_DTYPES = (torch.int64, torch.int32, torch.float64, torch.float32, torch.uint8, torch.bool)


class BatchPickler(ForkingPickler):
    """Pickles batches for another process. Small tensors, such as the labels, are pickled with their values.

    torch puts all other tensors into new shared memory. A small tensor arrives in memory of its own, even if it was a
    view of another tensor or in shared memory.
    """

    @override
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_nested:
            return NotImplemented
        tensor = value.resolve_conj().resolve_neg()
        plain = tensor.dtype in _NUMPY_DTYPES and tensor.device.type == "cpu" and not tensor.requires_grad
        # Unpickling changes the strides of arrays that are not contiguous.
        if plain and tensor.is_contiguous() and tensor.nbytes <= _LARGEST_BY_VALUE:
            return _to_tensor, (tensor.numpy(),)
        # torch drops the flags of lazily conjugated and negated tensors. Without the flags, their values are wrong.
        return NotImplemented if tensor is value else reduce_tensor(tensor)  # type: ignore[no-untyped-call]
