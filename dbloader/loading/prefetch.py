"""Prefetch the batches of a loader, and copy them to a GPU."""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from dbloader._describe import describe
from dbloader._options import whole_number
from dbloader.errors import LoaderError, OptionError
from dbloader.loading.checkpoint import Position, SamplerCheckpoint, SamplerPosition, find_checkpoint, keeps_order
from dbloader.loading.iteration import BackgroundBatches, Iteration
from dbloader.loading.stats import Clock
from dbloader.loading.torch_workers import end_workers, own_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from dbloader.device.preparation import Preparation
    from dbloader.device.transfer import Transfer
    from dbloader.loading.background import BackgroundThread
    from dbloader.loading.checkpoint import Checkpoint
    from dbloader.loading.stats import Stats

T = TypeVar("T")

# ``__getattr__`` does not forward these to the loader, because the loader's state also counts prefetched batches.
_STATE = ("state_dict", "load_state_dict")
# Options of a DataLoader. ``__setattr__`` always assigns these to the loader, which may refuse the change.
_OPTIONS = ("collate_fn", "generator", "num_workers", "pin_memory", "prefetch_factor", "timeout", "worker_init_fn")


class PrefetchLoader(Generic[T]):
    """Prepares the batches of a DataLoader, or of any iterable, ahead of the training in a background thread.

    Each ``iter()`` is a new run over the loader, with every batch in order. An error is raised in place of its batch.
    The loader's iterator is made in the caller's thread: in ``iter()``, or in the first ``next()`` if the loader can be
    resumed. The background thread starts with the first ``next()``. So a DataLoader draws its seeds and forks its
    workers in the same thread as without prefetching, and ``torch.manual_seed`` gives the same order. With
    ``num_workers=0`` the background thread makes the samples. Then samples and training draw from the same global
    random generators in an undefined order. To avoid this, use workers, or dbloader's samplers and decoders.

    After ``break`` the next ``iter()`` waits for the batch in production. Several iterators may run side by side. But a
    DataLoader with ``persistent_workers=True`` can run only one epoch at a time: a new iterator ends the earlier
    iterator, whose ``next()`` then raises LoaderError.

    **Epochs and resuming.** With one of dbloader's samplers, ``iter()`` begins the next epoch after a received batch.
    After ``set_epoch`` or ``load_state_dict``, it begins at the chosen epoch or state. An iteration begins with its
    first ``next()``, so ``set_epoch`` may be called between ``iter()`` and ``next()``.

    This object has two more methods if the loader has its own ``state_dict``, or has one of dbloader's samplers inside
    torch's BatchSampler or a SeededBatchSampler:

    - ``state_dict()`` returns a state for torch.save: the position after the last received batch of the latest
      iteration. After ``set_epoch`` or ``load_state_dict``, it returns the beginning of the next iteration. With one of
      dbloader's samplers, the state is a dict of ints and strs: seed, epoch, position in the global order, and the
      sampler's options. The position does not count samples that were only prefetched. You may resume with another
      batch size, or another number of workers or ranks. With other samplers, the state is the loader's own state
      after the last received batch.
    - ``load_state_dict(state)`` makes the next ``iter()`` continue after the batches that the state counts. The call
      takes the same time at any position. The call ends all live iterators, so end your loop over the loader first.
      A state of another order or dataset, or with missing or unknown keys, raises OptionError. A state that is not a
      dict of ints and strs raises TypeError.

    For an LMDBDataset or a MongoDataset, the state also contains the dataset's ``content_digest``. So the state fits a
    copy of the store, but no store with other images. For a Subset or another dataset, only the length is compared.

    All other public attributes belong to the loader. Reading or assigning them here affects the loader.

    Args:
        loader: A DataLoader or another iterable of batches; an iterator can be iterated once.
        device: The device for the tensors: a torch device or its name, "auto" for the best device present, or None to
            leave them where they are. "cuda" is the CUDA device that is current now. See ``dbloader.device.transfer``.
        depth: Largest number of batches ahead of the consumer, including the batch in production.
        preparation: Called with each batch on the device: a Preparation, or a callable or module that takes the
            images. Preparations run in the background thread: under ``torch.no_grad()``, and without the consumer's
            ``torch.autocast``. On CUDA, they run on the stream that copies batches, in parallel with the training.
            With one of dbloader's samplers, the random numbers of a preparation depend on the sample's position in the
            epoch. Otherwise they depend on a number that each ``iter()`` draws from torch's global generator.

    Raises:
        TypeError: ``loader`` is not iterable, ``depth`` is not an int, or ``preparation`` is not callable.
        OptionError: ``depth`` is below 1, or ``device`` is not present. From ``iter()``: torch.distributed has several
            processes, and a DataLoader without a sampler would give all samples to each of them.
        LoaderError: From ``iter()``: ``loader`` is an iterator that was iterated before. From ``next()``: a sample
            raised StopIteration, which would silently end the epoch. Or an error has ended the iterator, the loader was
            closed, or the process was forked.
    """

    fused = ""  # for repr(): how create_loader runs the steps of a transform

    def __init__(
        self,
        loader: Iterable[T],
        device: torch.device | str | int | None = None,
        depth: int = 2,
        *,
        preparation: Callable[..., Any] | None = None,
    ) -> None:
        given: Any = loader
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
            raise TypeError(
                f"loader must be a DataLoader or another iterable of batches, got {type(given).__name__}"
                f"{': pass DataLoader(dataset)' if hasattr(given, '__getitem__') else ''}"
            )
        self.depth = whole_number("depth", depth, 1)
        self.preparation: Preparation | None = None
        self._loader: Any = loader
        self._transfer: Transfer | None = None
        if device is not None:
            from dbloader.device.transfer import create_transfer  # imports torch, which not every loader needs

            self._transfer = create_transfer(device)
        if preparation is not None:
            from dbloader.device.preparation import Preparation

            self.preparation = preparation if isinstance(preparation, Preparation) else Preparation(preparation)
        self._checkpoint: Checkpoint | None = find_checkpoint(loader)
        self._iterated = False
        self._cache_checked = False
        self._forget_iterators()

    def _forget_iterators(self) -> None:
        self._clock = Clock()
        self._running = _Running()
        if self._checkpoint is not None and not hasattr(type(self), "state_dict"):  # a subclass may have its own
            # Frameworks call state_dict if the object or its class has this attribute. So only an object that can
            # resume gets the two functions below. Neither refers to this object, because a reference cycle would
            # keep the workers of a dropped loader alive until the garbage collector runs.
            load = functools.partial(self._running.load, self._checkpoint)
            vars(self).update(state_dict=self._checkpoint.state, load_state_dict=load)

    # Iterating

    def __iter__(self) -> BackgroundBatches[T]:
        if self._iterated and isinstance(self._loader, Iterator):
            kind = type(self._loader).__name__
            raise LoaderError(f"a loader that is an iterator can be iterated only once, got a second iter() of {kind}")
        if getattr(self._loader, "persistent_workers", False):
            self._running.stop(
                "ended by a new iterator over the same DataLoader: persistent_workers=True allows only one at a time"
            )
        self._iterated = True
        iteration = Iteration(
            self._make_iterator,
            self._transfer,
            self.preparation,
            getattr(self._loader, "check_skipped", None),
            # With batch_size=None, a DataLoader yields samples or batches. Nothing shows which, so count no samples.
            counts_samples=getattr(self._loader, "batch_sampler", self) is not None,
        )
        self._clock = iteration.clock
        if self._checkpoint is None:
            iteration.start()
        batches: BackgroundBatches[T] = BackgroundBatches(iteration, self.depth)
        self._running.threads.add(batches.thread)
        return batches

    def _make_iterator(self) -> tuple[Iterator[T], Position]:
        """Make the loader's iterator, and return it with its position. This is called in the consumer's thread."""
        self._running.wait_for_stopped()
        check_shared(self._loader)
        position = Position(self._loader) if self._checkpoint is None else self._checkpoint.begin()
        try:
            if isinstance(position, SamplerPosition):
                self._announce_order(position)
            end_workers(self._loader, only_inherited=True)
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

    def _announce_order(self, position: SamplerPosition) -> None:
        """Pass the order of the new iteration to the dataset, so its cache fetches shards in this order."""
        expect_order = getattr(getattr(self._loader, "dataset", None), "expect_order", None)
        if expect_order is None:
            return
        ahead = getattr(self._loader, "batches_ahead", None)
        if ahead is None:  # a loader that create_loader did not make
            workers = max(1, getattr(self._loader, "num_workers", 0))
            ahead = workers * (getattr(self._loader, "prefetch_factor", None) or 1)
        margin = ahead * position.batch_size  # a worker may be this many samples behind another
        # Check the size of the cache only once: a cache that is too small must not end a training in a later epoch.
        expect_order(position.sampler, position.start, margin=margin, check=not self._cache_checked)
        self._cache_checked = True

    def close(self) -> None:
        """End all iterators, wait until each has stopped preparing batches, and end the worker processes.

        If an iterator has not stopped after 10 s, warn with a RuntimeWarning and stop waiting for it. ``iter()`` may be
        called again, and starts new workers.
        """
        self._running.stop("its PrefetchLoader was closed")
        for thread in [*self._running.threads]:
            thread.close()
        end_workers(self._loader)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def stats(self) -> Stats:
        """Return how the latest iteration spent its time. Print the result to see what limits the speed."""
        num_workers, sources = getattr(self._loader, "num_workers", None), self._clock.stats.sources
        # A Subset of a mixture has sources too, but no method ``passes``.
        if sources and isinstance(self._checkpoint, SamplerCheckpoint) and hasattr(self.dataset, "passes"):
            passes = self.dataset.passes(self._checkpoint.state())
            sources = {name: dataclasses.replace(one, passes=passes[name]) for name, one in sources.items()}
        advice = getattr(self._loader, "advice", None)
        return dataclasses.replace(
            self._clock.stats, num_workers=num_workers, depth=self.depth, advice=advice, sources=sources
        )

    # Description

    @property
    def wrapped_loader(self) -> Iterable[T]:
        """The loader whose batches are prefetched."""
        loader: Iterable[T] = self._loader
        return loader

    @property
    def device(self) -> torch.device | None:
        """The device for the tensors; None leaves them where they are."""
        return None if self._transfer is None else self._transfer.device

    def __repr__(self) -> str:
        device = "" if self.device is None else f", device={str(self.device)!r}"
        return f"PrefetchLoader({describe(self._loader)}, depth={self.depth}{device}){self.fused}"

    def __getstate__(self) -> dict[str, Any]:
        own = ("_running", "_clock", *_STATE)
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_iterators()

    # The loader's attributes

    def __len__(self) -> int:
        return len(self._loader)  # if the loader has no length, the error names the loader

    @property
    def multiprocessing_context(self) -> Any:
        """Raise an error: programs read this attribute to make a new DataLoader, which would not prepare batches.

        Tools that read every attribute, such as inspect.getmembers, get the error too.

        Raises:
            LoaderError: Always.
        """
        raise LoaderError(
            "accelerate.skip_first_batches and the Hugging Face Trainer would make a new loader that does not prepare "
            "its batches: save state_dict(), and continue with load_state_dict(). With the Trainer, also pass "
            "ignore_data_skip=True (docs/loading.md shows how)"
        )

    def __getattr__(self, name: str) -> Any:
        # Private names are never taken from the loader: pickle and copy ask for some before _loader is set.
        if name.startswith("_") or name in _STATE:
            why = ": resuming needs one of dbloader's samplers, or a loader with a state_dict of its own"
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{why if name in _STATE else ''}"
            )
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign the loader's attributes, such as ``worker_init_fn``, to the loader. Here they would have no effect."""
        loader = vars(self).get("_loader")
        own = loader is None or name.startswith("_") or name in (*vars(self), *_STATE) or hasattr(type(self), name)
        if own or (name not in _OPTIONS and not hasattr(loader, name)):
            super().__setattr__(name, value)
        elif hasattr(loader, name) or hasattr(loader, "__dict__"):
            setattr(loader, name, value)
        else:
            kind = type(loader).__name__
            raise AttributeError(f"{name} is an option of a DataLoader, and this loader is a {kind}: wrap a DataLoader")

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, by ``set_epoch`` of the loader, else of its samplers and dataset.

        Inside a loop over the loader, ``set_epoch`` has no effect: the next received batch overrides the epoch.
        """
        parts: list[Any] = [self._loader]
        if not hasattr(self._loader, "set_epoch"):
            parts = [getattr(self, name, None) for name in ("batch_sampler", "sampler", "dataset")]
            parts.append(getattr(parts[0], "sampler", None))  # with batch_sampler=, the loader's own sampler is unused
        for part in {id(part): part for part in parts if hasattr(part, "set_epoch")}.values():
            part.set_epoch(epoch)


class _Running:
    """The background threads of a PrefetchLoader that may still run."""

    def __init__(self) -> None:
        self.threads: weakref.WeakSet[BackgroundThread[Any]] = weakref.WeakSet()

    def stop(self, reason: str) -> None:
        """Ask all iterators to end, so their ``next()`` raises a LoaderError with the reason."""
        for thread in [*self.threads]:
            thread.stop(reason)

    def wait_for_stopped(self) -> None:
        """Wait until all threads that were asked to end have ended."""
        for thread in [*self.threads]:
            if thread.stopped:
                thread.wait()

    def load(self, checkpoint: Checkpoint, state_dict: Mapping[str, Any]) -> None:
        """End all iterators, and make the next iteration continue from a state."""
        self.stop("ended by load_state_dict(): call iter() again for the batches after the state")
        self.wait_for_stopped()
        checkpoint.load(state_dict)


def check_shared(loader: Any) -> None:
    """Raise OptionError for a DataLoader that gives all samples to each of several processes."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    dispatcher = getattr(sys.modules.get("accelerate.data_loader"), "DataLoaderDispatcher", None)
    if dispatcher is not None and isinstance(loader, dispatcher):  # one process reads batches for all processes
        return
    batches: Any = getattr(loader, "batch_sampler", Ellipsis)
    world = distributed.get_world_size()
    sampler = getattr(loader if batches is None else batches, "sampler", None)  # with batch_size=None, no batch sampler
    of_torch = sys.modules["torch.utils.data"]
    shuffle = {of_torch.RandomSampler: True, of_torch.SequentialSampler: False}.get(type(sampler))
    if world > 1 and shuffle is not None and (batches is None or keeps_order(batches)):
        name = "ShuffleSampler" if shuffle else "OrderedSampler"
        raise OptionError(
            f"shuffle={shuffle} does not share the samples among the {world} processes. If all processes have the same "
            f"dataset, each would use all samples: pass sampler={name}(dataset) instead. If each process has only its "
            f"own part, or should use all samples, pass sampler={name}(dataset, num_replicas=1, rank=0)"
        )
