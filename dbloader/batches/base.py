"""What makes a batch, in one thread or in many.

A batch is made in three steps. ``begin`` reads its records, or tells the store of them where those who decode read
them; parts of them are decoded, by whatever thread ``submit`` gives them to; and the function that ``begin`` returned
waits for the parts and puts the rest together. Who makes it, and in how many parts, makes no difference to the batch.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from torch.utils.data import default_collate

from dbloader.datasets.store import StoreDataset
from dbloader.errors import LoaderError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.batches.shared_memory import SharedBatchPool
    from dbloader.batches.timed import TimedBatch

# What is in a sample that is a tuple.
_PARTS = ("image", "label", "index")

T = TypeVar("T")
Submit: TypeAlias = "Callable[..., Future[Any]]"
Finish: TypeAlias = "Callable[[], TimedBatch]"

# Most samples that a thread decodes at a time: with one each, handing them over took a fifth of the time, and with 16 a
# sample took 3 % longer.
PART = 32


class BatchFetcher(ABC):
    """Makes the batches of a dataset. It can be pickled if the dataset can.

    Attributes:
        dataset: What the batches are made of.
        pin_memory: Whether the tensors that it makes itself are in pinned memory, from which they are copied to a GPU.
        frees_lock: Whether nearly all of the work is done without Python's lock, so that threads share it well.
        image_nbytes: Bytes of each image in the batches, if they come in one tensor of uint8; else None.
        blocks: Where the worker processes that it is sent to are to make that tensor.
    """

    dataset: Any
    pin_memory = False
    frees_lock = False
    image_nbytes: int | None = None
    blocks: SharedBatchPool | None = None

    @abstractmethod
    def begin(self, indices: Sequence[int], submit: Submit, part: int) -> Finish:
        """Read the samples at some indices, and has them decoded.

        Args:
            indices: SeededIndices, if what is random in the batch is to be decided by them.
            submit: Has a function called with some arguments, now or later and by any thread, as an executor does.
            part: Most samples that one call of it is for.

        Returns:
            A function that gives the batch, and raises the first error of its samples.
        """

    def as_now(self) -> BatchFetcher:
        """Return a maker of the same batches that ``MongoDataset.refresh`` does not change."""
        dataset = getattr(self, "dataset", None)
        if not isinstance(dataset, StoreDataset) or not hasattr(dataset, "refresh"):
            return self
        maker = copy.copy(self)
        maker.dataset = copy.copy(dataset)
        return maker

    def make(self, indices: Sequence[int]) -> TimedBatch:
        """Make a batch in this thread."""
        return self.begin(indices, call, max(1, len(indices)))()


def put_together(
    dataset: StoreDataset,
    indices: Sequence[int],
    images: Any,
    others: list[Any],
    sent: Callable[[Any], Any] = lambda collated: collated,
) -> Any:
    """Return a batch as default_collate gives that of samples, of which the images are together already.

    Args:
        dataset: Theirs.
        indices: Where they are in it.
        images: Their images.
        others: What else is in each of them.
        sent: What is to be done with the rest, collated, for it to be sent.

    Raises:
        OptionError: As from ``collate``.
    """
    batch = dataset._joined(images, sent(collate(dataset, indices, others, _PARTS[1:])))
    return [*batch] if isinstance(batch, tuple) else batch


def collate(dataset: Any, indices: Sequence[int], samples: list[Any], names: Sequence[str] = _PARTS) -> Any:
    """Return what default_collate gives of samples, and says which one has a None where it cannot take that.

    Args:
        dataset: Theirs.
        indices: Where they are in it.
        samples: Each a dict, a tuple or anything else.
        names: What the elements of such a tuple are.

    Raises:
        OptionError: A sample has None where others have a value that is collated with theirs.
    """
    try:
        return default_collate(samples)
    except (TypeError, RuntimeError) as error:  # torch's own say neither where nor what
        if not all(isinstance(sample, (dict, tuple, list)) for sample in samples):
            raise
        none = next(_nones(samples, names), None)
        if none is None:
            raise
        raise OptionError(_without(dataset, indices[none[0]], none[1])) from error


def _nones(samples: list[Any], names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield where samples have None, and under which name."""
    named = [sample if isinstance(sample, dict) else dict(zip(names, sample, strict=False)) for sample in samples]
    # Where the first is a text torch makes no more than a list, which may have None.
    texts = {name for name, value in named[0].items() if isinstance(value, str)}
    for at, sample in enumerate(named):
        yield from ((at, name) for name, value in sample.items() if value is None and name not in texts)


def _without(dataset: Any, index: int, name: str) -> str:
    """Return the message about a sample that lacks something."""
    remedy = "leave it out with a Subset, or pass a collate_fn that takes None"
    if not isinstance(dataset, StoreDataset):
        return f"sample {index} of {type(dataset).__name__} has no {name}, which torch cannot collate: {remedy}"
    told = dataset._describe(dataset.records([index])[0])
    fields = "('image',)" if name != "image" else "('name', 'label')"
    return f"{told} has no {name}, which torch cannot collate: choose fields without it, as fields={fields}, {remedy}"


def parts(length: int, part: int) -> list[slice]:
    """Return the parts of a batch."""
    return [slice(at, at + part) for at in range(0, length, part)]


def part_size(length: int, threads: int) -> int:
    """Return how many samples of a batch a thread is to decode at a time, so that all have something to do."""
    return max(1, min(PART, -(-length // threads)))


def call(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call a function now, in this thread."""
    future: Future[Any] = Future()
    try:
        future.set_result(function(*arguments))
    except Exception as error:  # an executor keeps it too
        future.set_exception(error)
    return future


def whole(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function gives that makes a batch, or begins to.

    Raises:
        LoaderError: A sample raised StopIteration, which would be taken for the end of the epoch.
    """
    try:
        return function(*arguments)
    except StopIteration as stop:
        raise LoaderError(
            "StopIteration was raised in the making of a sample or batch, which would end the epoch early: "
            "catch it there, or give next() a default"
        ) from stop
