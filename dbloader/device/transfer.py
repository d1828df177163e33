"""Move batches to a device.

A batch is a tensor, or tensors nested in tuples, named tuples, lists, mappings and dataclasses. The moved tensors are
put into new containers of the same types. An object whose class has a method ``to`` (PackedSequence, a graph of PyTorch
Geometric) moves itself. Everything else (None, str, numbers, numpy arrays, sets) stays as it is.
"""

import copy
import dataclasses
import threading
from collections import UserDict
from collections.abc import Callable, Mapping, MutableMapping
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import override

from dbloader.errors import OptionError

Batch: TypeAlias = Any
Device: TypeAlias = torch.device | str | int


def to_device(batch: Batch, device: Device) -> Batch:
    """Move the tensors in a batch to the device. A container in which nothing moves stays the same object."""
    return _replace(batch, lambda leaf: leaf.to(device))


def _replace(batch: Batch, function: Callable[[Any], Any]) -> Batch:
    """Replace each leaf of a batch by ``function(leaf)``. A leaf is a tensor, or an object that moves itself."""
    # Check for ``to`` first: a PackedSequence is also a named tuple, but must move itself, because one of its tensors
    # stays on the CPU. Look for ``to`` in the class: an instance may seem to have any attribute. A UserDict, such as
    # the tokenizers' BatchEncoding, is a container: its ``to`` would change a batch that the loader may still use.
    if callable(getattr(type(batch), "to", None)) and not isinstance(batch, UserDict):
        return function(batch)
    if isinstance(batch, Mapping):
        old = dict(batch)
    elif isinstance(batch, (tuple, list)):
        old = dict(enumerate(batch))
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch)]
        old = {name: getattr(batch, name) for name in names if hasattr(batch, name)}
    else:
        return batch
    new = {key: _replace(value, function) for key, value in old.items()}
    return batch if all(new[key] is value for key, value in old.items()) else rebuild(batch, new)


def rebuild(batch: Batch, values: dict[Any, Any]) -> Batch:
    """Return a container of the same type with other values. Keys of ``values`` are keys, positions or field names."""
    if isinstance(batch, tuple):
        return type(batch)(*values.values()) if hasattr(batch, "_fields") else type(batch)(values.values())
    if isinstance(batch, Mapping) and not isinstance(batch, MutableMapping):
        return type(batch)(values)  # type: ignore[call-arg] # all known classes accept a dict
    clone = copy.copy(batch)  # keeps the object's other attributes, such as the default of a defaultdict
    for key, value in values.items():
        if isinstance(batch, (list, MutableMapping)):
            clone[key] = value
        else:
            object.__setattr__(clone, key, value)  # a dataclass may be frozen
    return clone


def resolve_device(device: Device) -> torch.device:
    """Return the torch device for a name: "auto" is CUDA if present, else the CPU; "cuda" is the current CUDA device.

    Raises:
        OptionError: This machine has no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    remedy = 'use device="auto" for the best device present, or device=None to leave batches where they are'
    try:
        resolved = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"device must be a device of torch, got {device!r}: {remedy}") from error
    if resolved.type != "cuda":
        return resolved
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (resolved.index or 0) >= count:
        raise OptionError(f"torch finds {count} CUDA devices here, got device={device!r}: {remedy}")
    index = torch.cuda.current_device() if resolved == torch.device("cuda") else resolved.index
    return torch.device("cuda", index)


def send_small(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a small tensor from the CPU to a device without waiting for the device."""
    if device.type == "cuda":
        # Only a copy from pinned memory does not wait. PyTorch's allocator reuses that memory only after the copy.
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


class Transfer:
    """Moves batches to a device in two steps: one in the background thread, one in the consumer's thread."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin(self) -> None:
        """Begin an iteration, in the consumer's thread."""

    def start(self, batch: Batch, then: Callable[[Batch], Batch] | None = None) -> Batch:
        """Start to move a batch, in the background thread, and return the argument for ``receive``.

        ``then`` is called with the batch on the device, and its result replaces the batch. ``then`` may queue work on
        the current stream without waiting for that work.
        """
        moved = to_device(batch, self.device)
        return moved if then is None else then(moved)

    def receive(self, in_transit: Batch) -> Batch:
        """Return the batch, ready for use, in the consumer's thread."""
        return in_transit


class _Copying(NamedTuple):
    batch: Batch
    done: torch.cuda.Event
    prepared: bool


class CudaTransfer(Transfer):
    """Copies on a CUDA stream of its own, the side stream, while the consumer's stream works on earlier batches.

    PyTorch's allocator considers only the stream on which a tensor was made. So three rules prevent races between the
    streams (docs/notes/cuda-race.md). First, the consumer's stream waits for the copies of a batch before it uses the
    batch. Second, if the consumer drops a tensor, ``record_stream`` keeps its memory until the work queued on the
    tensor is done. Third, before a copy, the side stream waits for all work that the consumer's stream had at the last
    call of ``begin`` or ``receive``.

    The rules do not work for objects that move themselves without a ``record_stream``, and for Tensor subclasses that
    hide their inner tensors. ``receive`` moves such objects on the consumer's stream, after ``then`` and without
    overlap with the training. ``then`` may also make such objects on the side stream, and their memory could be reused
    too early. So the consumer gets deep copies after ``then``. The originals are kept until the copies are complete.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream: torch.cuda.Stream | None = None
        self._lock = threading.Lock()
        self._consumer_events: SimpleQueue[torch.cuda.Event] = SimpleQueue()  # from begin(), receive()
        self._copied: dict[torch.cuda.Event, Any] = {}  # originals of deep copies, until the copy is complete

    @override
    def __reduce__(self) -> tuple[type[Self], tuple[torch.device]]:
        return type(self), (self.device,)  # streams and events belong to one process

    @override
    def begin(self) -> None:
        self._record_consumer()  # the consumer's stream may still have to fill tensors that the loader will return

    def _side_stream(self) -> torch.cuda.Stream:
        with self._lock:  # the threads of two iterators must not make two streams
            if self._stream is None:
                self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            return self._stream

    def _record_consumer(self) -> torch.cuda.Stream:
        stream = torch.cuda.current_stream(self.device)
        self._consumer_events.put(stream.record_event())
        return stream

    @override
    def start(self, batch: Batch, then: Callable[[Batch], Batch] | None = None) -> Batch:
        source_stream = torch.cuda.current_stream(self.device)
        stream = self._side_stream()
        self.await_consumer(stream)

        def copy_to_device(leaf: Any) -> Any:
            if find_memory(leaf) is None:
                return leaf
            if leaf.is_cuda:  # the loader made the leaf on the GPU, in this thread's stream
                stream.wait_stream(source_stream)
                record(leaf, stream)  # `then` may drop the leaf while this stream still reads it
            else:
                leaf = _pin(leaf)  # only a copy from pinned memory is asynchronous
            # The pinned memory may be dropped at once: PyTorch's allocator reuses it only after the copy.
            return leaf.to(self.device, non_blocking=True)

        # The block also sets the current device. Each thread has its own current device, and each epoch its own thread.
        with torch.cuda.stream(stream):
            moved = _replace(batch, copy_to_device)
            return _Copying(moved if then is None else then(moved), stream.record_event(), then is not None)

    def await_consumer(self, stream: torch.cuda.Stream) -> None:
        """Make the side stream wait for the work that the consumer's stream had at the last begin() or receive()."""
        try:
            while True:
                stream.wait_event(self._consumer_events.get_nowait())
        except Empty:
            pass

    @override
    def receive(self, in_transit: Batch) -> Batch:
        stream = self._record_consumer()
        self.await_copies(stream, in_transit.done)
        for copied in [*self._copied]:
            if copied.query():  # type: ignore[no-untyped-call]
                self._copied.pop(copied, None)  # the consumer of another iterator may have removed it

        def hand_over(leaf: Any) -> Any:
            if find_memory(leaf) is None:
                moved = leaf.to(self.device)
                if in_transit.prepared:
                    moved = copy.deepcopy(moved)
                    self._copied[stream.record_event()] = leaf
                return moved
            if not leaf.is_cuda:
                return leaf.to(self.device)
            self.keep(leaf, stream)
            return leaf

        return _replace(in_transit.batch, hand_over)

    def await_copies(self, stream: torch.cuda.Stream, done: torch.cuda.Event) -> None:
        """Make the consumer's stream wait until the side stream has completed the batch."""
        stream.wait_event(done)

    def keep(self, leaf: Any, stream: torch.cuda.Stream) -> None:
        """Keep the memory of a leaf until the work that the consumer queues on it is done."""
        record(leaf, stream)


def find_memory(leaf: Any) -> list[Any] | None:
    """Return the objects that own a leaf's memory, or None if they are unknown. Each has a ``record_stream``."""
    if isinstance(leaf, PackedSequence):
        return [part for part in leaf if part is not None]
    if not isinstance(leaf, torch.Tensor):
        names = ("record_stream", "pin_memory", "is_cuda")  # a graph of PyTorch Geometric has these attributes
        return [leaf] if all(hasattr(type(leaf), name) for name in names) else None
    own: list[Any] = []
    if hasattr(leaf, "__tensor_flatten__"):  # a wrapper of other tensors, such as a jagged nested tensor
        parts = [getattr(leaf, name) for name in leaf.__tensor_flatten__()[0]]
    elif leaf.layout in _SPARSE:
        parts = [getattr(leaf, name)() for name in _SPARSE[leaf.layout]]
    elif leaf.is_nested:
        parts = [leaf.values()]
    elif _has_storage(leaf):
        own, parts = [leaf], [value for value in vars(leaf).values() if isinstance(value, torch.Tensor)]
    else:
        return None
    found = [find_memory(part) for part in parts]
    return None if None in found else [*own, *(part for memory in found for part in memory or ())]


_SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _has_storage(tensor: torch.Tensor) -> bool:
    try:
        return tensor.untyped_storage().data_ptr() != 0 or tensor.numel() == 0
    except (RuntimeError, TypeError):  # a subclass that wraps other tensors
        return False


def record(leaf: Any, stream: torch.cuda.Stream) -> None:
    """Tell PyTorch's allocator that a stream uses the memory of a leaf."""
    for part in find_memory(leaf) or ():
        if part.is_cuda:  # the lengths in a PackedSequence stay on the CPU
            part.record_stream(stream)


def _pin(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf.pin_memory()
    if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided or leaf.is_nested or leaf.is_pinned():
        return leaf  # a pinned copy might lose what a subclass adds to its tensor
    # Not the tensor's own pin_memory(), which refuses expanded tensors.
    return torch.empty_like(leaf, pin_memory=True).copy_(leaf)


def create_transfer(device: Device) -> Transfer:
    """Return the transfer to a device. Raise OptionError if the device is not present."""
    resolved = resolve_device(device)
    return CudaTransfer(resolved) if resolved.type == "cuda" else Transfer(resolved)
