"""Prefetching the batches of a loader, up to a GPU."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import override

from dbloader._describe import describe
from dbloader.errors import LoaderError, OptionError
from dbloader.loading.checkpoint import Unknown, check_shared, find_resumption
from dbloader.loading.clock import Clock
from dbloader.loading.iteration import Ahead, Batches, InTurn, Iteration
from dbloader.loading.progress import with_bar
from dbloader.loading.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from typing_extensions import Self

    from dbloader.device.compose import Preparation
    from dbloader.device.transfer import Transfer
    from dbloader.loading.background import BackgroundThread
    from dbloader.loading.checkpoint import Position, Resumption

T = TypeVar("T")


_ENDED = "ended by a new iterator over the same DataLoader, as persistent_workers=True demands"
_LOADED = "ended by load_state_dict(), as its next batches are not those after the state: call iter() again"
# What the loader says of these is of what it has made, not of what the consumer has received.
_OWN = ("state_dict", "load_state_dict")


def _of_loader(name: str) -> property:
    return property(lambda self: getattr(self._loader, name), doc=f"The loader's ``{name}``.")


class PrefetchLoader(Generic[T]):
    """The batches of a DataLoader, or of any iterable, prepared ahead in a background thread.

    Each ``iter()`` is a fresh run over the loader: every batch, in order, errors at their place (see
    ``BackgroundIterator``). It makes the loader's iterator in the caller's thread: at once, or with the first
    ``next()`` if the loader can be resumed. Its own thread starts with the first ``next()``. So a DataLoader draws its
    seeds and forks its workers where it does without prefetching, and ``torch.manual_seed`` gives the same order. With
    ``num_workers=0`` the samples are made in the background thread: what they draw from the global random generators
    mixes with the training's own draws, in no certain order. Use workers, or dbloader's samplers and decoders.

    An iterator that was left (``break``) is waited for by the next ``iter()``, as long as its batch in production
    takes. Iterators that are alive run side by side, each in its thread; but a DataLoader with
    ``persistent_workers=True`` can do only one epoch at a time, so there a new iterator ends the one before, of
    which ``next()`` then raises LoaderError.

    **Epochs and resuming.** If the loader goes by one of dbloader's samplers, what came last counts: a batch that was
    received, or an epoch or a state that was chosen. After received batches ``iter()`` begins the next epoch. An
    iteration begins with its first ``next()``, so ``iter()`` alone changes nothing, and ``set_epoch`` before that
    ``next()`` holds for it. Then, and if the loader has a ``state_dict`` of its own, this
    object is a ResumablePrefetchLoader, whose ``state_dict()`` tells where the consumer is. (A batch sampler must be
    SeededBatchSampler or torch's for that. A subclass says itself whether it is resumable, by deriving from the other.)

    All other public attributes are the loader's.

    Args:
        loader: A DataLoader or another iterable of batches; if it is an iterator, it can be iterated once.
        device: Where the tensors go: a torch device or its name, "auto" for the best that is present, or None
            to leave them where they are. "cuda" is the one that is current now. See ``dbloader.device.transfer``.
        depth: Most batches ahead of the consumer, the one in production included; 0 for no thread: each is made
            when it is asked for.
        preparation: Called with each batch where the device is: a Preparation, or a callable or module that takes the
            images, which is made one. On CUDA it runs on the stream of the copies, beside the training. What is random
            in it is decided by the sample's position in its epoch, where one of dbloader's samplers tells it; else by
            torch's global generator, from which one number is drawn with each ``iter()``.

    Raises:
        TypeError: ``loader`` is not iterable, ``depth`` not an int or ``preparation`` not callable.
        OptionError: ``depth`` is below 0, or ``device`` not present.
        OptionError: From ``iter()``, if torch.distributed has several processes and the loader is a DataLoader with
            ``shuffle=True``, of which each would give all samples.
        LoaderError: From the second ``iter()`` over an iterator. From ``next()`` where a sample raised
            StopIteration, which torch takes for the end of the epoch; after ``close()``; in a forked process.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> PrefetchLoader[T]:
        """Return a ResumablePrefetchLoader where the loader can be resumed.

        Frameworks ask a loader whether it has a state_dict, and only one that works may be there.
        """
        loader = args[0] if args else kwargs.get("loader")
        return object.__new__(
            ResumablePrefetchLoader if cls is PrefetchLoader and find_resumption(loader) is not None else cls
        )

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
        if not isinstance(depth, int):
            raise TypeError(f"depth must be an int, got {depth!r}")
        if depth < 0:
            raise OptionError(f"depth must be at least 0, got {depth}")
        self.depth = depth
        self._loader = loader
        self._transfer: Transfer | None = None
        if device is not None:
            from dbloader.device.transfer import create_transfer  # imports torch, which not every loader needs

            self._transfer = create_transfer(device)
        self.preparation: Preparation | None = None
        if preparation is not None:
            from dbloader.device.compose import Preparation

            self.preparation = preparation if isinstance(preparation, Preparation) else Preparation(preparation)
        self._resumption = self._find_resumption(loader)
        self._iterated = False
        self._iteration: Iteration | None = None
        self._forget()

    @property
    def wrapped_loader(self) -> Iterable[T]:
        """The loader whose batches are prefetched."""
        return self._loader

    @staticmethod
    def _find_resumption(loader: Any) -> Resumption | None:
        return find_resumption(loader)

    def _forget(self) -> None:
        """Knows of no iterators; those that run without a thread end by being dropped."""
        self._runs: list[BackgroundThread[T]] = []
        self._in_turn: weakref.WeakSet[InTurn[T]] = weakref.WeakSet()

    def __iter__(self) -> Ahead[T] | InTurn[T]:
        if self._iterated and isinstance(self._loader, Iterator):
            kind = type(self._loader).__name__
            raise LoaderError(f"a loader that is an iterator can be iterated only once, got a second iter() of {kind}")
        if getattr(self._loader, "persistent_workers", False):
            self._stop(_ENDED)
        self._iterated = True
        iteration = self._iteration = Iteration(self._transfer)
        # With batch_size=None nobody knows whether a DataLoader gives samples or batches.
        counts = getattr(self._loader, "batch_sampler", self) is not None
        batches = Batches(self._begin, iteration, self.preparation, counts=counts)
        if self._resumption is None:
            batches.begin()
        self._runs = [run for run in self._runs if run.is_alive() or not run.stopped]
        if not self.depth:
            in_turn: InTurn[T] = InTurn(batches, iteration)
            self._in_turn.add(in_turn)
            return in_turn
        ahead: Ahead[T] = Ahead(batches, self.depth, iteration)
        self._runs.append(ahead.run)
        return ahead

    def _begin(self) -> tuple[Iterator[T], Position]:
        """Make the loader's iterator, in the consumer's thread, and say where it begins."""
        for run in self._runs:
            if run.stopped:
                run.wait()
        check_shared(self._loader)
        place = Unknown() if self._resumption is None else self._resumption.begin()
        try:
            source = iter(self._loader)
        except BaseException as error:
            place.fail()
            if isinstance(error, StopIteration):
                raise LoaderError(
                    "iter() of the loader raised StopIteration, which would end the epoch early"
                ) from error
            raise
        if self.preparation is not None:
            place.draw()
        return source, place

    def progress(self, desc: str | None = None, **options: Any) -> Iterator[T]:
        """Return the batches of one ``iter()`` under a progress bar: images a second, share of waiting.

        Args:
            desc: In front of the bar.
            **options: Others of tqdm's, such as ``leave``, ``position``, ``file`` and ``disable``.
        """
        left = None if self._resumption is None else self._resumption.batches()  # fewer than the length after a resume
        batches = iter(self)
        iteration = self._iteration
        total = self._known_length() if left is None else left
        stats = functools.partial(self._stats, iteration)
        return with_bar(batches, stats, {"total": total, "desc": desc, **options})

    def _known_length(self) -> int | None:
        try:
            return len(self)
        except TypeError:  # of an iterable, also behind another loader
            return None

    def __repr__(self) -> str:
        device = "" if self.device is None else f", device={str(self.device)!r}"
        return f"PrefetchLoader({describe(self._loader)}, depth={self.depth}{device})"

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type] # says itself what has no length

    def stats(self) -> Stats:
        """Return what the time of the latest iteration went into, so far; as a str, what limits it, in one line."""
        return self._stats(self._iteration)

    def _stats(self, iteration: Iteration | None) -> Stats:
        clock = Clock() if iteration is None else iteration.clock
        return Stats.of(clock, getattr(self._loader, "num_workers", None), self.depth)

    @property
    def waited(self) -> float:
        """Seconds that the consumer of the latest iterator has waited for its batches so far, the first included."""
        clock = Clock() if self._iteration is None else self._iteration.clock
        return clock.first + clock.waited

    @property
    def device(self) -> torch.device | None:
        """Where the tensors go; None leaves them where they are."""
        return None if self._transfer is None else self._transfer.device

    @property
    def dataset(self) -> Any:
        """The dataset that the batches are made of."""
        source_dataset = getattr(self._loader, "source_dataset", None)  # if its own dataset only makes batches
        return self._loader.dataset if source_dataset is None else source_dataset  # type: ignore[attr-defined]

    sampler = _of_loader("sampler")
    batch_sampler = _of_loader("batch_sampler")
    batch_size = _of_loader("batch_size")
    drop_last = _of_loader("drop_last")
    num_workers = _of_loader("num_workers")

    @property
    def multiprocessing_context(self) -> Any:
        """Raise an error: this is read to make a new DataLoader of this one's parts, which would not prepare batches.

        Tools that ask for every attribute, such as inspect.getmembers, get the error too.

        Raises:
            LoaderError: Always.
        """
        raise LoaderError(
            "a loader made of the parts of a PrefetchLoader, as accelerate.skip_first_batches and the resume of the "
            "Hugging Face Trainer make it, would neither prepare its batches nor send them: save state_dict(), and go "
            "on with load_state_dict() (with the Trainer, pass ignore_data_skip=True; docs/loading.md shows how)"
        )

    def __getattr__(self, name: str) -> Any:
        # Not for private names: pickle and copy ask for some of those before there is a loader to ask.
        if name.startswith("_") or name in _OWN:
            why = ": resuming needs one of dbloader's samplers, or a loader with a state_dict of its own"
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{why if name in _OWN else ''}"
            )
        if hasattr(type(self), name):
            # A property has just found that the loader has none. To ask again would double the work at each of many
            # loaders in front of each other.
            raise AttributeError(f"{type(self._loader).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader, before the first batch of an iteration, the epoch; or else its samplers and dataset.

        Inside a loop over the loader it changes nothing: what came last counts, and the next batch comes after it.
        """
        parts: list[Any] = [self._loader]
        if not hasattr(self._loader, "set_epoch"):
            parts = [getattr(self, name, None) for name in ("batch_sampler", "sampler", "dataset")]
            parts.append(getattr(parts[0], "sampler", None))  # not the loader's, where it was given a batch_sampler
        for part in {id(part): part for part in parts if hasattr(part, "set_epoch")}.values():
            part.set_epoch(epoch)

    def close(self) -> None:
        """End all iterators; wait for their batches in production, 10 s for each before a RuntimeWarning."""
        self._stop("its PrefetchLoader was closed")
        for run in self._runs:
            run.close()

    def _stop(self, why: str) -> None:
        for run in self._runs:
            run.stop(why)
        for in_turn in [*self._in_turn]:
            in_turn.close(why)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_runs", "_in_turn", "_iteration")  # threads belong to this object
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _iteration=None)
        self._forget()


class ResumablePrefetchLoader(PrefetchLoader[T]):
    """A PrefetchLoader that can go on where its consumer was: PrefetchLoader(...) gives one where that is possible.

    With one of dbloader's samplers, the state is a dict of ints and strs: seed, epoch, position in the global order,
    and what the order depends on. It counts the samples that the consumer has received, whatever was prefetched, and
    holds for another number of workers, another batch size and another number of ranks. Reading it, and going on
    from it, takes the same time at any position.

    Where the loader's dataset is an LMDBDataset or a MongoDataset itself, the state also has its ``content_digest``, as
    ``"dataset"``; so that of other images is refused, and that of a copy of the store is not. Of a Subset or any other
    dataset nobody knows the content: there, and with a state that has no ``"dataset"``, only the length is compared.

    With a loader that has a ``state_dict`` of its own (torchdata's StatefulDataLoader), the state is the one it had
    right after it gave the batch that was received last.
    """

    @staticmethod
    @override
    def _find_resumption(loader: Any) -> Resumption:
        resumption = find_resumption(loader)
        if resumption is None:
            raise LoaderError(
                f"only a loader with one of dbloader's samplers, or a state_dict of its own, can be resumed, "
                f"got {type(loader).__name__}"
            )
        return resumption

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer of the latest iteration is, for ``load_state_dict``; to be saved with torch.save.

        Where an epoch or a state was chosen since, it is the beginning of what comes next.
        """
        return self._resumer.state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on, with the next ``iter()``, where the consumer was that this state tells of.

        This ends the iterators that there are. In a loop over the loader, leave the loop after it.

        Raises:
            OptionError: It is none of this loader's order, or of another dataset; it lacks something, or has what no
                state has.
            TypeError: It is no dict, or something in it no int.
        """
        self._stop(_LOADED)
        for run in self._runs:
            run.wait()
        self._resumer.load(state_dict)

    @property
    def _resumer(self) -> Resumption:
        assert self._resumption is not None, "else it was not made"
        return self._resumption
