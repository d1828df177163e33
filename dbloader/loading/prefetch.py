"""Prefetch the batches of a loader, up to a GPU."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from dbloader._describe import describe
from dbloader._options import whole_number
from dbloader.errors import LoaderError
from dbloader.loading.checkpoint import Position
from dbloader.loading.iteration import BackgroundBatches, Iteration, SynchronousBatches
from dbloader.loading.known_loaders import check_shared, find_checkpoint
from dbloader.loading.loader_proxy import LoaderProxy
from dbloader.loading.stats import Clock
from dbloader.loading.workers import own_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from dbloader.batches.skipped import SkipLimit
    from dbloader.device.preparation import Preparation
    from dbloader.device.transfer import Transfer
    from dbloader.loading.background import BackgroundThread
    from dbloader.loading.checkpoint import Checkpoint
    from dbloader.loading.stats import Stats

T = TypeVar("T")


class PrefetchLoader(LoaderProxy, Generic[T]):
    """The batches of a DataLoader, or of any iterable, prepared ahead in a background thread.

    Each ``iter()`` is a new run over the loader: every batch, in order, errors at their place (see
    ``BackgroundIterator``). The loader's iterator is made in the caller's thread: at once, or with the first ``next()``
    if the loader can be resumed. The background thread starts with the first ``next()``. So a DataLoader draws its
    seeds and forks its workers where it does without prefetching, and ``torch.manual_seed`` gives the same order. With
    ``num_workers=0`` the samples are made in the background thread: their draws from global random generators mix with
    the training's own. Use workers, or dbloader's samplers and decoders.

    After ``break`` the next ``iter()`` waits for the batch in production. Live iterators run side by side. But a
    DataLoader with ``persistent_workers=True`` can run only one epoch at a time: a new iterator ends the one before,
    whose ``next()`` then raises LoaderError.

    **Epochs and resuming.** With one of dbloader's samplers, the latest event counts: a received batch, ``set_epoch``
    or ``load_state_dict``. After received batches ``iter()`` begins the next epoch. An iteration begins with its first
    ``next()``, and a ``set_epoch`` before that applies to it. With such a sampler, or a ``state_dict`` of the loader's
    own, this object is a ResumablePrefetchLoader. (A batch sampler must be torch's or SeededBatchSampler for that; a
    subclass must derive from ResumablePrefetchLoader.) All other public attributes are the loader's.

    Args:
        loader: A DataLoader or another iterable of batches; an iterator can be iterated once.
        device: Where the tensors go: a torch device or its name, "auto" for the best one present, or None to leave
            them where they are. "cuda" is the device that is current now. See ``dbloader.device.transfer``.
        depth: Most batches ahead of the consumer, including the one in production; 0 makes each when it is asked for,
            without a thread.
        preparation: Called with each batch on the device: a Preparation, or a callable or module that takes the
            images. On CUDA it runs on the stream of the copies, beside the training. Its random numbers depend on the
            sample's position in its epoch where one of dbloader's samplers knows it; else on torch's global generator,
            from which each ``iter()`` draws one number.

    Raises:
        TypeError: ``loader`` is not iterable, ``depth`` not an int or ``preparation`` not callable.
        OptionError: ``depth`` is below 0, or ``device`` not present. From ``iter()``: torch.distributed has several
            processes and the loader is a DataLoader with ``shuffle=True``, which would give each all samples.
        LoaderError: From the second ``iter()`` over an iterator. From ``next()``: a sample raised StopIteration, which
            torch takes for the end of the epoch; after ``close()``; in a forked process.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> PrefetchLoader[T]:
        """Return a ResumablePrefetchLoader where the loader can be resumed: frameworks look for its ``state_dict``."""
        loader = args[0] if args else kwargs.get("loader")
        resumable = cls is PrefetchLoader and find_checkpoint(loader) is not None
        return object.__new__(ResumablePrefetchLoader if resumable else cls)

    def __init__(
        self,
        loader: Iterable[T],
        device: torch.device | str | int | None = None,
        depth: int = 2,
        *,
        preparation: Callable[..., Any] | None = None,
        _skip_limit: SkipLimit | None = None,  # given by create_loader
    ) -> None:
        given: Any = loader
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
            raise TypeError(
                f"loader must be a DataLoader or another iterable of batches, got {type(given).__name__}"
                f"{': pass DataLoader(dataset)' if hasattr(given, '__getitem__') else ''}"
            )
        self.depth = whole_number("depth", depth, 0)
        self._loader = loader
        self._transfer: Transfer | None = None
        if device is not None:
            from dbloader.device.transfer import create_transfer  # imports torch, which not every loader needs

            self._transfer = create_transfer(device)
        self.preparation: Preparation | None = None
        if preparation is not None:
            from dbloader.device.preparation import Preparation

            self.preparation = preparation if isinstance(preparation, Preparation) else Preparation(preparation)
        self._checkpoint: Checkpoint | None = find_checkpoint(loader)
        if self._checkpoint is None and isinstance(self, ResumablePrefetchLoader):
            raise LoaderError(
                "only a loader with one of dbloader's samplers, or a state_dict of its own, can be resumed, "
                f"got {type(loader).__name__}"
            )
        self._skip_limit = _skip_limit
        self._iterated = False
        self._forget_iterators()

    def _forget_iterators(self) -> None:
        self._clock = Clock()
        self._threads: list[BackgroundThread[Any]] = []
        self._synchronous: weakref.WeakSet[SynchronousBatches[T]] = weakref.WeakSet()

    @property
    def wrapped_loader(self) -> Iterable[T]:
        """The loader whose batches are prefetched."""
        loader: Iterable[T] = self._loader
        return loader

    def __iter__(self) -> BackgroundBatches[T] | SynchronousBatches[T]:
        if self._iterated and isinstance(self._loader, Iterator):
            kind = type(self._loader).__name__
            raise LoaderError(f"a loader that is an iterator can be iterated only once, got a second iter() of {kind}")
        if getattr(self._loader, "persistent_workers", False):
            self._stop("ended by a new iterator over the same DataLoader, as persistent_workers=True demands")
        self._iterated = True
        # With batch_size=None a DataLoader may give samples or batches: nobody knows.
        batched = getattr(self._loader, "batch_sampler", self) is not None
        iteration = Iteration(
            self._make_iterator, self._transfer, self.preparation, self._skip_limit, counts_samples=batched
        )
        self._clock = iteration.clock
        if self._checkpoint is None:
            iteration.start()
        self._threads = [thread for thread in self._threads if thread.is_alive() or not thread.stopped]
        if not self.depth:
            synchronous: SynchronousBatches[T] = SynchronousBatches(iteration)
            self._synchronous.add(synchronous)
            return synchronous
        batches: BackgroundBatches[T] = BackgroundBatches(iteration, self.depth)
        self._threads.append(batches.thread)
        return batches

    def _make_iterator(self) -> tuple[Iterator[T], Position]:
        """Return the loader's iterator, made in the consumer's thread, and its position."""
        for thread in self._threads:
            if thread.stopped:
                thread.wait()
        check_shared(self._loader)
        position = Position(self._loader) if self._checkpoint is None else self._checkpoint.begin()
        try:
            iterator = iter(self._loader)
        except BaseException as error:
            position.fail()
            if isinstance(error, StopIteration):
                raise LoaderError("iter() of the loader raised StopIteration, which would end the epoch") from error
            raise
        own_workers(iterator)
        if self.preparation is not None:
            position.draw_seed()
        return iterator, position

    def __repr__(self) -> str:
        device = "" if self.device is None else f", device={str(self.device)!r}"
        return f"PrefetchLoader({describe(self._loader)}, depth={self.depth}{device})"

    def stats(self) -> Stats:
        """Return what the latest iteration spent its time on so far; as a str, what limits it, in one line."""
        num_workers = getattr(self._loader, "num_workers", None)
        return dataclasses.replace(self._clock.stats, num_workers=num_workers, depth=self.depth)

    @property
    def device(self) -> torch.device | None:
        """Where the tensors go; None leaves them where they are."""
        return None if self._transfer is None else self._transfer.device

    def close(self) -> None:
        """End all iterators; wait for their batches in production, 10 s for each before a RuntimeWarning."""
        self._stop("its PrefetchLoader was closed")
        for thread in self._threads:
            thread.close()

    def _stop(self, reason: str) -> None:
        for thread in self._threads:
            thread.stop(reason)
        for batches in [*self._synchronous]:
            batches.close(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_threads", "_synchronous", "_clock")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_iterators()


class ResumablePrefetchLoader(PrefetchLoader[T]):
    """A PrefetchLoader that can continue where its consumer was; PrefetchLoader(...) makes one where possible.

    With one of dbloader's samplers, the state is a dict of ints and strs: seed, epoch, position in the global order,
    and what the order depends on. It counts the samples that the consumer has received, whatever was prefetched. It is
    valid for other numbers of workers and ranks and another batch size, and resuming is as fast at any position.

    The state of an LMDBDataset or a MongoDataset also has its ``content_digest``, as ``"dataset"``. A state of other
    images is refused, that of a copy of the store is not. For a Subset or another dataset only the length is compared.

    With a loader that has a ``state_dict`` of its own (torchdata's StatefulDataLoader), the state is the one that this
    had right after the batch that was received last.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer of the latest iteration is, for ``load_state_dict`` and torch.save.

        If an epoch or a state was chosen since, it is the beginning of the next iteration.
        """
        assert self._checkpoint is not None, "the constructor checks this"
        return self._checkpoint.state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue, with the next ``iter()``, where the consumer of this state was.

        This ends all live iterators. Inside a loop over the loader, leave the loop after it.

        Raises:
            OptionError: The state is of another order or dataset, lacks a key, or has an unknown one.
            TypeError: It is not a dict, or a value is not an int.
        """
        self._stop("ended by load_state_dict(), as its next batches are not those after the state: call iter() again")
        for thread in self._threads:
            thread.wait()
        assert self._checkpoint is not None, "the constructor checks this"
        self._checkpoint.load(state_dict)
