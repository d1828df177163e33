"""What all samplers have in common: ranks, epochs, and resuming in the middle of an epoch."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from dbloader._options import whole_number
from dbloader.errors import LoaderError, OptionError
from dbloader.sampling.ranks import RankSampler, check_shared_once
from dbloader.sampling.state import Start, read_start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dbloader.sampling.rng import Array

BLOCK = 8192
"""Indices made at a time. With ShuffleSampler the first of an epoch takes 0.4 ms, and each of a million 63 ns; with an
eighth of this or eight times as many, each takes about 120 ns."""


class ResumableSampler(RankSampler, ABC):
    """A sampler whose order is a pure function of (seed, epoch), and which can start anywhere in it.

    Rank r of W takes the positions r, r + W, r + 2 W and so on of one global order. So when each rank has taken k
    samples, the first k W are consumed, and any number of ranks can share the rest.

    ``iter()`` uses the current epoch; ``set_epoch`` and ``load_state_dict`` do not change existing iterators. ``len()``
    is the number of this rank's samples in a whole epoch, also after ``load_state_dict``, since training schedules
    count on it. ``remaining`` is the number of samples that the next ``iter()`` gives.

    **Resuming.** A loader runs ahead of its consumer, so a sampler cannot know where the consumer is and has no
    ``state_dict``. Use ``PrefetchLoader(loader).state_dict()``, which counts what the consumer has received, or
    ``state_after(samples)`` in a loader of your own. ``load_state_dict`` takes such a state, and the next ``iter()``
    starts there; after its first sample is taken, the following one starts at the beginning of an epoch.

    Attributes:
        population: Length of the dataset that the indices are of, or None if unknown.
        seed: The seed of all epochs.
        epoch: The epoch of the next ``iter()``.
        times_chosen: Calls of ``set_epoch`` and ``load_state_dict``.
    """

    def __init__(
        self,
        length: int,
        population: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(length, num_replicas, rank, drop_last=drop_last)
        self.population = population
        self.seed = whole_number("seed", seed)
        self.epoch = 0
        self.times_chosen = 0
        self._position = 0  # where the next iter() starts
        self._begun: Start | None = None  # where the last iter() started, unless an epoch or state was chosen since
        self._held: Start | None = None  # where each iter() starts while a loader holds the sampler

    @abstractmethod
    def order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        """Return the function from positions to indices: int64, shape (positions,)."""

    def _options(self) -> dict[str, int]:
        """Return the options that decide the order, besides seed, epoch and length."""
        return {}

    @override
    def __iter__(self) -> Iterator[int]:
        check_shared_once(type(self).__name__, self.num_replicas)
        self._begun = self._held or self._next()
        return _Indices(self, self._begun)

    def positions(self, since: Mapping[str, Any]) -> range:
        """Return this rank's positions of an iteration from a state; from ``length`` on the order starts again."""
        return self._share(self._read(since).position)

    @property
    def remaining(self) -> int:
        """The number of samples that the next ``iter()`` gives."""
        return len(self._share(self._position))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``, which starts at its beginning unless it was resumed in that epoch.

        After ``load_state_dict`` in the middle of another epoch, it warns that the rest of that epoch is left out.

        Raises:
            OptionError: The epoch is negative.
            TypeError: It is not an int.
        """
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self.epoch:
            if self._held is None and 0 < self._position < self.length:
                warnings.warn(
                    f"set_epoch({epoch}) leaves out the rest of epoch {self.epoch}: the loaded state is at position "
                    f"{self._position} of {self.length} there. To train on the rest, call set_epoch({self.epoch}). "
                    "Lightning calls set_epoch, and counts an epoch that max_steps ended as whole: resume from a "
                    "checkpoint that ModelCheckpoint(every_n_train_steps=...) saved before the end of fit()",
                    UserWarning,
                    stacklevel=2,
                )
            self._position = 0
        self.epoch = epoch
        self._begun = None
        self.times_chosen += 1

    def state_after(self, consumed: int = 0, *, since: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the state of an iteration of which some samples have been consumed: ints and a str.

        It is the same on all ranks that have consumed equally many. If shares differ by one sample, take rank 0's.

        Args:
            consumed: Samples, not batches, that this rank's consumer has received since the iteration started.
            since: The state where the iteration started. None for the last ``iter()``; or for the next one if
                ``set_epoch`` or ``load_state_dict`` was called since.

        Raises:
            OptionError: ``consumed`` is more than the iteration has, or ``since`` is of another sampler.
            TypeError: ``consumed`` is not an int.
        """
        consumed = whole_number("consumed", consumed)
        start = self._read(since) if since is not None else self._begun or self._next()
        most = len(self._share(start.position))
        if not 0 <= consumed <= most:
            raise OptionError(f"consumed must be 0 to {most}, the samples of rank {self.rank}, got {consumed}")
        position = min(start.position + consumed * self.num_replicas, self.length)
        return self._state(start._replace(position=position))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Start the next ``iter()`` at a state of such a sampler or its loader, with any number of ranks, and its seed.

        Only a loader can check that the state is of the same dataset.

        Raises:
            OptionError: The state is of another order, lacks an entry, or has one that no state has.
            TypeError: It is not a dict, or an entry is not an int.
        """
        self.seed, self.epoch, self._position = self._read(state_dict)
        self._begun = None
        self.times_chosen += 1

    def next_state(self) -> dict[str, Any]:
        """Return the state where the next ``iter()`` starts: ints and a str."""
        return self._state(self._held or self._next())

    @property
    def is_held(self) -> bool:
        """Whether a loader in front decides where ``iter()`` starts."""
        return self._held is not None

    def hold(self, since: Mapping[str, Any]) -> None:
        """Start each ``iter()`` at a state until ``release``, even if another epoch is chosen meanwhile.

        PrefetchLoader calls this before it makes the iterator of the loader behind it, and ``release`` when its
        consumer has the first batch, since some loaders set an epoch of their own counting in between.
        """
        self._held, self._begun = self._read(since), None

    def release(self, *, received: bool) -> None:
        """Start ``iter()`` again where ``set_epoch`` and ``load_state_dict`` say.

        Args:
            received: Whether the consumer has received a batch of the iteration, or its end. Otherwise the next
                iteration starts at the same position.

        Raises:
            LoaderError: The consumer has received something, but ``iter()`` was not called since ``hold``.
        """
        held, self._held = self._held, None
        assert held is not None, "release without hold"
        self.seed, self.epoch, self._position = held._replace(position=0) if received else held
        if received and self._begun != held:
            raise LoaderError(
                "the loader behind the PrefetchLoader had taken the order of its samples before this iteration, or "
                f"goes on from a state of its own, or {type(self).__name__}.__iter__ does not call super's: "
                "call state_dict() and load_state_dict() of the PrefetchLoader only"
            )

    def __repr__(self) -> str:
        num_replicas, rank = self._given_ranks
        options = {**self._options(), "num_replicas": num_replicas, "rank": rank}
        options |= {"seed": self.seed, "epoch": self.epoch, "drop_last": self.drop_last}
        return f"{type(self).__name__}({self.length} samples, {', '.join(f'{k}={v}' for k, v in options.items())})"

    def _next(self) -> Start:
        return Start(self.seed, self.epoch, self._position)

    def facts(self) -> dict[str, Any]:
        """Return the entries of a state that describe the order: the class, length and options of the sampler."""
        return {"sampler": type(self).__name__, "length": self.length, **self._options()}

    def _state(self, start: Start) -> dict[str, Any]:
        return {**self.facts(), **start._asdict()}

    def _read(self, state: Mapping[str, Any]) -> Start:
        """Return where an iteration from a state starts; raise the errors of ``load_state_dict``."""
        return read_start(state, self.facts())


class _Indices(Iterator[int]):
    """The indices of one iteration over a sampler.

    Its state is what it has given, not what a consumer has received. It is for loaders such as torchdata's, which keep
    the state of their sampler's iterator with each batch and give it to a new iterator.
    """

    def __init__(self, sampler: ResumableSampler, start: Start) -> None:
        self._sampler = sampler
        self._begin(start)

    def _begin(self, start: Start) -> None:
        sampler = self._sampler
        self._since = sampler._state(start)
        self._times_chosen = None if sampler.is_held else sampler.times_chosen
        self._count = 0
        self._indices = _compute(sampler.positions(self._since), sampler.length, sampler.order(*start[:2]))

    @override
    def __next__(self) -> int:
        if not self._count and self._times_chosen == self._sampler.times_chosen:
            # Not before the first sample: a DataLoader with workers makes two iterators and takes nothing from one.
            self._sampler._position = 0
        index = next(self._indices)
        self._count += 1
        return index

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the samples that this has given."""
        return self._sampler.state_after(self._count, since=self._since)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at a state, whose seed becomes the sampler's too.

        The sampler's epoch stays: torchdata calls this in its next ``iter()``, after an epoch was chosen for that.
        """
        start = self._sampler._read(state_dict)
        self._sampler.seed = start.seed
        self._sampler._begun = None if self._sampler.is_held else start
        self._begin(start)


def _compute(share: range, length: int, order: Callable[[Array], Array]) -> Iterator[int]:
    for begin in range(0, len(share), BLOCK):
        part = share[begin : begin + BLOCK]
        positions = np.arange(part.start, part.stop, part.step, dtype=np.int64)
        if part[-1] >= length:
            positions %= length
        yield from order(positions).tolist()
