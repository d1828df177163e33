"""Prefetching the batches of a loader, up to a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import override

from dbloader.errors import LoaderError, OptionError
from dbloader.resuming import Unknown, find_resumption
from dbloader.staging import Ahead, Batches, InTurn, Iteration
from dbloader.timing import Clock, Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from typing_extensions import Self

    from dbloader.ahead import Run
    from dbloader.device import Transfer
    from dbloader.preparation import Preparation
    from dbloader.resuming import Place

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
    order. Use workers, or dbloader's samplers and decoders.

    An iterator that was left (``break``) is waited for by the next ``iter()``, as long as its batch in production
    takes. Iterators that are alive run side by side, each in its thread; but a DataLoader with
    ``persistent_workers=True`` can do only one epoch at a time, so there a new iterator ends the one before, of
    which ``next()`` then raises LoaderError.

    **Epochs and resuming.** If the loader goes by one of dbloader's samplers, each ``iter()`` begins the next epoch of
    it, unless ``set_epoch`` chose one since the last. Then, and if the loader has a ``state_dict`` of its own, this
    object is a ResumablePrefetchLoader, whose ``state_dict()`` tells where the consumer is.

    All other public attributes are the loader's.

    Args:
        loader: A DataLoader or another iterable of batches; if it is an iterator, it can be iterated once.
        device: Where the tensors go: a torch device or its name, "auto" for the best that is present, or None
            to leave them where they are. "cuda" is the one that is current now. See ``dbloader.device``.
        depth: Most batches ahead of the consumer, the one in production included; 0 for no thread: each is made
            when it is asked for.
        preparation: Called with each batch where the device is: a Preparation, or a callable or module that takes the
            images, which is made one. On CUDA it runs on the stream of the copies, beside the training. What is random
            in it is decided by the sample's position in its epoch, where one of dbloader's samplers tells it; else by
            torch's global generator, from which one number is drawn with each ``iter()``.

    Raises:
        TypeError: ``loader`` is not iterable, ``depth`` not an int or ``preparation`` not callable.
        OptionError: ``depth`` is below 0, or ``device`` not present.
        LoaderError: From the second ``iter()`` over an iterator. From ``next()`` where a sample raised
            StopIteration, which torch takes for the end of the epoch; after ``close()``; in a forked process.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> PrefetchLoader[T]:
        """Gives a ResumablePrefetchLoader where the loader can be resumed.

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
        if not isinstance(loader, Iterable):
            raise TypeError(f"loader must be iterable, as a DataLoader is, got {type(loader).__name__}")
        if not isinstance(depth, int):
            raise TypeError(f"depth must be an int, got {depth!r}")
        if depth < 0:
            raise OptionError(f"depth must be at least 0, got {depth}")
        self.depth = depth
        self._loader = loader
        self._transfer: Transfer | None = None
        if device is not None:
            from dbloader.device import create_transfer  # imports torch, which not every loader needs

            self._transfer = create_transfer(device)
        self.preparation: Preparation | None = None
        if preparation is not None:
            from dbloader.preparation import Preparation

            self.preparation = preparation if isinstance(preparation, Preparation) else Preparation(preparation)
        self._iterated = False
        self._runs: list[Run[T]] = []
        self._iteration: Iteration | None = None

    def __iter__(self) -> Ahead[T] | InTurn[T]:
        if self._iterated and isinstance(self._loader, Iterator):
            kind = type(self._loader).__name__
            raise LoaderError(f"a loader that is an iterator can be iterated only once, got a second iter() of {kind}")
        for run in self._runs:
            if getattr(self._loader, "persistent_workers", False):
                run.stop("ended by a new iterator over the same DataLoader, as persistent_workers=True demands")
            if run.stopped:
                run.wait()
        self._iterated = True
        iteration = Iteration(self._begin(), self._transfer)
        batches = Batches(iter(self._loader), iteration, self.preparation)
        self._runs = [run for run in self._runs if not run.stopped]
        self._iteration = iteration
        if not self.depth:
            return InTurn(batches, iteration)
        ahead: Ahead[T] = Ahead(batches, self.depth, iteration)
        self._runs.append(ahead.run)
        return ahead

    def _begin(self) -> Place:
        place = Unknown()
        if self.preparation is not None:
            place.draw()
        return place

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type] # says itself what has no length

    def stats(self) -> Stats:
        """Gives what the time of the latest iteration went into, so far; as a str, what limits it, in one line."""
        clock = Clock() if self._iteration is None else self._iteration.clock
        batch_size = getattr(self._loader, "batch_size", None)
        if batch_size is None:  # as it is where a DataLoader was given a batch_sampler
            batch_size = getattr(getattr(self._loader, "batch_sampler", None), "batch_size", None)
        return Stats.of(clock, batch_size, getattr(self._loader, "num_workers", None))

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
        made_of = getattr(self._loader, "made_of", None)  # where the DataLoader's own only makes the batches
        return self._loader.dataset if made_of is None else made_of  # type: ignore[attr-defined]

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
        return {**self.__dict__, "_runs": [], "_iteration": None}  # threads belong to this object


class ResumablePrefetchLoader(PrefetchLoader[T]):
    """A PrefetchLoader that can go on where its consumer was: PrefetchLoader(...) gives one where that is possible.

    With one of dbloader's samplers, the state is a dict of ints and a str: seed, epoch, position in the global order,
    and what the order depends on. It counts the samples that the consumer has received, whatever was prefetched, and
    holds for another number of workers, another batch size and another number of ranks. Reading it, and going on
    from it, takes the same time at any position.

    With a loader that has a ``state_dict`` of its own (torchdata's StatefulDataLoader), the state is the one it had
    right after it gave the batch that was received last.
    """

    def __init__(
        self,
        loader: Iterable[T],
        device: torch.device | str | int | None = None,
        depth: int = 2,
        *,
        preparation: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(loader, device, depth, preparation=preparation)
        resumption = find_resumption(loader)
        if resumption is None:
            raise LoaderError(
                f"only a loader with one of dbloader's samplers, or a state_dict of its own, can be resumed, "
                f"got {type(loader).__name__}"
            )
        self._resumption = resumption

    def state_dict(self) -> dict[str, Any]:
        """Gives where the consumer of the latest iteration is, for ``load_state_dict``; to be saved with torch.save.

        Where an epoch or a state was chosen since, it is the beginning of what comes next.

        Raises:
            LoaderError: The loader has a state of its own, and no batch of the iteration has been received yet.
        """
        chosen = self._resumption.state()
        return self._iteration.state() if chosen is None and self._iteration is not None else chosen or {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on, with the next ``iter()``, where the consumer was that this state tells of.

        Raises:
            OptionError: It is none of this loader's order.
        """
        self._resumption.load(state_dict)

    @override
    def _begin(self) -> Place:
        place = self._resumption.begin()
        if self.preparation is not None and isinstance(place, Unknown):
            place.draw()
        return place
