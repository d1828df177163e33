"""Prefetching the batches of a loader, up to a GPU."""

import traceback
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import Self, override

from dbloader.ahead import BackgroundIterator
from dbloader.errors import LoaderError, OptionError

if TYPE_CHECKING:
    import torch

    from dbloader.ahead import Run
    from dbloader.device import Transfer

T = TypeVar("T")


def _of_loader(name: str) -> property:
    return property(lambda self: getattr(self._loader, name), doc=f"The loader's ``{name}``.")


class PrefetchLoader(Generic[T]):
    """The batches of a DataLoader, or of any iterable, prepared ahead in a background thread.

    Each ``iter()`` is a fresh run over the loader: every batch, in order, errors at their place (see
    ``BackgroundIterator``). It takes the loader's iterator in the caller's thread, and starts its own with the
    first ``next()``. So a DataLoader draws its seeds and forks its workers just where it does without prefetching,
    and ``torch.manual_seed`` gives the same order. With ``num_workers=0`` the samples are made in the background
    thread: what they draw from the global random generators mixes with the training's own draws, in no certain
    order. Use workers, or a generator seeded for each sample.

    An iterator that was left (``break``) is waited for by the next ``iter()``, as long as its batch in production
    takes. Iterators that are alive run side by side, each in its thread; but a DataLoader with
    ``persistent_workers=True`` can do only one epoch at a time, so there a new iterator ends the one before, of
    which ``next()`` then raises LoaderError.

    All other public attributes are the loader's. If it has a ``state_dict``, that counts the batches that were
    prefetched, not those that were received.

    Args:
        loader: A DataLoader or another iterable of batches; if it is an iterator, it can be iterated once.
        device: Where the tensors go: a torch device or its name, "auto" for the best that is present, or None
            to leave them where they are. "cuda" is the one that is current now. See ``dbloader.device``.
        depth: Most batches ahead of the consumer, the one in production included.

    Raises:
        TypeError: ``loader`` is not iterable, or ``depth`` not an int.
        OptionError: ``depth`` is below 1, or ``device`` not present.
        LoaderError: From the second ``iter()`` over an iterator. From ``next()`` where a sample raised
            StopIteration, which torch takes for the end of the epoch; after ``close()``; in a forked process.
    """

    def __init__(self, loader: Iterable[T], device: "torch.device | str | int | None" = None, depth: int = 2) -> None:
        if not isinstance(loader, Iterable):
            raise TypeError(f"loader must be iterable, as a DataLoader is, got {type(loader).__name__}")
        if not isinstance(depth, int):
            raise TypeError(f"depth must be an int, got {depth!r}")
        if depth < 1:
            raise OptionError(f"depth must be at least 1, got {depth}")
        self.depth = depth
        self._loader = loader
        self._transfer: Transfer | None = None
        if device is not None:
            from dbloader.device import create_transfer  # imports torch, which not every loader needs

            self._transfer = create_transfer(device)
        self._iterated = False
        self._runs: list[Run[T]] = []

    def __iter__(self) -> BackgroundIterator[T]:
        if self._iterated and isinstance(self._loader, Iterator):
            kind = type(self._loader).__name__
            raise LoaderError(f"a loader that is an iterator can be iterated only once, got a second iter() of {kind}")
        for run in self._runs:
            if getattr(self._loader, "persistent_workers", False):
                run.stop("ended by a new iterator over the same DataLoader, as persistent_workers=True demands")
            if run.stopped:
                run.wait()
        self._iterated = True
        iterator = _PrefetchIterator(_Batches(iter(self._loader), self._transfer), self.depth, self._transfer)
        self._runs = [*(run for run in self._runs if not run.stopped), iterator.run]
        return iterator

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type] # says itself what has no length

    @property
    def waited(self) -> float:
        """Seconds that the consumer of the latest iterator has waited for its batches so far."""
        return self._runs[-1].waited if self._runs else 0.0

    @property
    def device(self) -> "torch.device | None":
        """Where the tensors go; None leaves them where they are."""
        return None if self._transfer is None else self._transfer.device

    dataset = _of_loader("dataset")
    sampler = _of_loader("sampler")
    batch_sampler = _of_loader("batch_sampler")
    batch_size = _of_loader("batch_size")
    drop_last = _of_loader("drop_last")
    num_workers = _of_loader("num_workers")

    def __getattr__(self, name: str) -> Any:
        # Not for private names: pickle and copy ask for some of those before there is a loader to ask.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader, before ``iter()``, the epoch; or else its samplers and dataset."""
        parts: list[Any] = [self._loader]
        if not hasattr(self._loader, "set_epoch"):
            parts = [getattr(self._loader, name, None) for name in ("batch_sampler", "sampler", "dataset")]
            parts.append(getattr(parts[0], "sampler", None))  # not the loader's, where it was given a batch_sampler
        for part in {id(part): part for part in parts if hasattr(part, "set_epoch")}.values():
            part.set_epoch(epoch)

    def close(self) -> None:
        """End all iterators; wait for their batches in production, 10 s for each before a RuntimeWarning."""
        for run in self._runs:
            run.stop("its PrefetchLoader was closed")
        for run in self._runs:
            run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_runs": []}  # threads belong to this object


class _PrefetchIterator(BackgroundIterator[T]):
    def __init__(self, source: Iterator[T], depth: int, transfer: "Transfer | None") -> None:
        super().__init__(source, depth)
        self._transfer = transfer

    @override
    def _receive(self, item: T) -> T:
        return item if self._transfer is None else self._transfer.receive(item)


class _Batches(Iterator[T]):
    """What the thread iterates: the loader's batches, on their way to the device."""

    def __init__(self, source: Iterator[T], transfer: "Transfer | None") -> None:
        self._source = source
        self._transfer = transfer

    @override
    def __next__(self) -> T:
        try:
            batch = next(self._source)
            return batch if self._transfer is None else self._transfer.prepare(batch)
        except StopIteration as stop:
            if _is_of_a_sample(stop):
                raise LoaderError(
                    "StopIteration was raised in the making of a sample or batch, which would end the epoch "
                    "early: catch it there, or give next() a default"
                ) from stop
            raise

    def close(self) -> None:
        if hasattr(self._source, "close"):
            self._source.close()
        elif hasattr(self._source, "_shutdown_workers") and not getattr(self._source, "_persistent_workers", False):
            # A DataLoader's iterator has no close. One that raised lives on in a cycle with its error, and when the
            # garbage collector comes upon it, that waits 5 s for each worker, in whatever thread it runs.
            self._source._shutdown_workers()


def _is_of_a_sample(stop: StopIteration) -> bool:
    """Whether it came out of a map-style dataset or the transfer, and torch lets it pass for the end."""
    for frame, _ in traceback.walk_tb(stop.__traceback__):
        module = frame.f_globals.get("__name__")
        if module == "torch.utils.data._utils.fetch":
            if type(frame.f_locals["self"]).__name__ == "_MapDatasetFetcher":  # an iterable one ends this way
                return True
        elif module in ("torch._utils", "dbloader.device"):  # the former raises again what a worker raised
            return True
    return False
