"""What all samplers have in common: ranks, epochs, and going on from the middle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch.utils.data import DistributedSampler
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader._options import checked_flag, whole_number
from dbloader.errors import LoaderError, OptionError
from dbloader.sampling.ranks import check_shared_once, resolved_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sampling.rng import Array

# Indices made at a time. With ShuffleSampler the first of an epoch takes 0.4 ms, and each of a million 63 ns; in blocks
# of an eighth of this or of eight times as many each takes about 120 ns.
_BLOCK = 8192

# Which dataset the samples are of: added to a state by the loader, as a sampler does not know it (loading.checkpoint).
_OF_LOADER = "dataset"


def length_of(dataset: Any) -> int:
    """Return the length of a dataset.

    Raises:
        TypeError: It has none, or is a str or bytes, of which each letter would be a sample.
    """
    if not isinstance(dataset, Sized) or isinstance(dataset, (str, bytes)):
        raise TypeError(f"dataset must be a dataset, or anything else that has a length, got {short_repr(dataset)}")
    return len(dataset)


class _Point(NamedTuple):
    seed: int
    epoch: int
    position: int


class ResumableSampler(DistributedSampler[int], ABC):
    """A sampler whose order is a pure function of (seed, epoch), and which can start anywhere in it.

    All ranks share one global order of ``length`` positions. Of those, rank r of W takes r, r + W, r + 2 W and so on.
    So when each rank has taken k samples, the first k W of the global order are consumed, and any number of ranks can
    share what remains. It is a DistributedSampler so that frameworks leave it as it is, rather than share it again.

    ``iter()`` takes the epoch as it is then; ``set_epoch`` and ``load_state_dict`` change no iterator there is.
    ``len()`` is the number of this rank's samples in a whole epoch, also after ``load_state_dict``, as training
    schedules count on it; ``remaining`` is how many the next ``iter()`` gives.

    **Resuming.** A loader runs ahead of its consumer. So a sampler has no ``state_dict``: it cannot know where the
    consumer is. A loader that counts what its consumer has received can: ``PrefetchLoader(loader).state_dict()``, or
    ``state_after(samples)`` in a loader of your own. ``load_state_dict`` takes such a state. The next ``iter()`` goes
    on there; one after its first sample was taken begins at the beginning of an epoch. (An iterator over the sampler
    has a ``state_dict``, which says what it has given. torchdata's StatefulDataLoader keeps that with each batch.)

    Attributes:
        length: Positions in the global order, before it is padded.
        population: Length of the dataset whose indices it gives; None where only its subclass knows.
        seed: Of all epochs.
        epoch: That of the next ``iter()``.
        choices: How often ``set_epoch`` or ``load_state_dict`` was called.
        drop_last: Whether the ranks leave out the tail that they cannot share evenly; else they fill it up with the
            first positions of the epoch, again and again where those are too few. Both as DistributedSampler does.
    """

    def __init__(
        self,
        length: int,
        *,
        num_replicas: int | None,
        rank: int | None,
        seed: int,
        drop_last: bool,
        population: int | None = None,
    ) -> None:  # DistributedSampler's constructor is not called: it would ask for the ranks now, and keep the dataset.
        self.length = length
        self.population = population
        self._given_ranks = (num_replicas, rank)
        if self._given_ranks != (None, None):
            resolved_ranks(num_replicas, rank)  # an error is raised here
        self.seed = whole_number("seed", seed)
        self.drop_last = checked_flag("drop_last", drop_last)
        self.epoch = 0
        self._position = 0  # of the next iter()
        self._begun: _Point | None = None  # where the last one began, if nothing was chosen since
        self._held: _Point | None = None  # where each begins, while a loader holds the sampler
        self.choices = 0

    @abstractmethod
    def _order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        """Return the function from positions to indices: int64, shape (positions,)."""

    def _options(self) -> dict[str, int]:
        """Return the options that, beside seed, epoch and length, decide about the order."""
        return {}

    @property
    def num_replicas(self) -> int:  # type: ignore[override] # DistributedSampler has a plain attribute
        """Number of processes that share the order: as given, else those of torch.distributed now, else 1.

        Raises:
            OptionError: It was not given, torch.distributed is not initialized, and torchrun started this process as
                one of several.
        """
        return resolved_ranks(*self._given_ranks)[0]

    @property
    def rank(self) -> int:  # type: ignore[override] # likewise
        """Which of them this process is, from 0.

        Raises:
            OptionError: As from ``num_replicas``.
        """
        return resolved_ranks(*self._given_ranks)[1]

    def _end(self, position: int) -> int:
        """Return where the global order that begins at a position ends for all ranks; above length it is padded."""
        left = self.length - position
        shares = left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)
        return position + shares * self.num_replicas

    def _share(self, position: int) -> range:
        return range(position + self.rank, self._end(position), self.num_replicas)

    @override
    def __iter__(self) -> Iterator[int]:
        check_shared_once(type(self).__name__, self.num_replicas)
        self._begun = self._held or self._next()
        return _Samples(self, self._begun)

    def __len__(self) -> int:
        return len(self._share(0))

    def positions(self, since: Mapping[str, Any] | None = None) -> range:
        """Return where in the global order this rank's samples stand; beyond ``length`` the order begins again.

        Args:
            since: The state where the iteration began; else that of the next ``iter()``.
        """
        return self._share((self._held or self._next() if since is None else self._read(since)).position)

    @property
    def remaining(self) -> int:
        """How many samples the next ``iter()`` gives."""
        return len(self._share(self._position))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``, which begins at its beginning unless it was resumed in that epoch.

        Raises:
            OptionError: It is negative.
            TypeError: It is no int.
        """
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self.epoch:
            self._position = 0
        self.epoch = epoch
        self._begun = None
        self.choices += 1

    def state_after(self, consumed: int = 0, *, since: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the state of an iteration of which a number of samples has been consumed: ints and a str.

        It is the same on all ranks if they have consumed equally many. Where shares differ by one sample, that of rank
        0 is the right one at the end.

        Args:
            consumed: Samples, not batches, that this rank's consumer has received since the iteration began.
            since: The state where it began. Else it is the iteration that ``iter()`` began last, or, if
                ``set_epoch`` or ``load_state_dict`` was called since, the one that it will begin next.

        Raises:
            OptionError: ``consumed`` is more than there is in the iteration, or ``since`` of another sampler.
            TypeError: ``consumed`` is no int.
        """
        consumed = whole_number("consumed", consumed)
        begun = self._read(since) if since is not None else self._begun or self._next()
        most = len(self._share(begun.position))
        if not 0 <= consumed <= most:
            raise OptionError(f"consumed must be 0 to {most}, the samples of rank {self.rank}, got {consumed}")
        position = min(begun.position + consumed * self.num_replicas, self.length)
        return {**self._facts(), **begun._replace(position=position)._asdict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on, with the next ``iter()``, where a sampler was of which this is the state.

        That may have been one of another number of ranks, and its seed is taken over. The state of a loader in front
        of one does as well; of which dataset that is, only a loader can compare.

        Raises:
            OptionError: Its order is not that of this sampler; or it lacks something, or has what no state has.
            TypeError: It is no dict, or something in it no int.
        """
        self.seed, self.epoch, self._position = self._read(state_dict)
        self._begun = None
        self.choices += 1

    def next_state(self) -> dict[str, Any]:
        """Return the state where the next ``iter()`` begins: ints and a str."""
        return {**self._facts(), **(self._held or self._next())._asdict()}

    @property
    def held(self) -> bool:
        """Whether a loader in front decides where ``iter()`` begins."""
        return self._held is not None

    def hold(self, since: Mapping[str, Any]) -> None:
        """Have each ``iter()`` begin at a state until ``release``, whatever epoch is chosen meanwhile.

        A loader in front calls this before it makes the iterator of the loader behind it, and ``release`` when its
        consumer has the first batch. Some loaders choose an epoch of their own counting in between.
        """
        self._held, self._begun = self._read(since), None

    def release(self, *, received: bool) -> None:
        """Let ``iter()`` begin again where ``set_epoch`` and ``load_state_dict`` say.

        Args:
            received: Whether the consumer has received something of the iteration, or its end. Otherwise the next one
                begins at the same point.

        Raises:
            LoaderError: Something was received, and the order of its samples was not taken since ``hold``.
        """
        held, self._held = self._held, None
        assert held is not None, "else it was not held"
        self.seed, self.epoch, self._position = held._replace(position=0) if received else held
        if received and self._begun != held:
            raise LoaderError(
                "the loader behind the PrefetchLoader had taken the order of its samples before this iteration, or "
                f"goes on from a state of its own, or {type(self).__name__}.__iter__ does not call super's: "
                "call state_dict() and load_state_dict() of the PrefetchLoader only"
            )

    def __repr__(self) -> str:
        shown: dict[str, Any] = {**self._options(), "num_replicas": self._given_ranks[0], "rank": self._given_ranks[1]}
        shown |= {"seed": self.seed, "epoch": self.epoch, "drop_last": self.drop_last}
        return f"{type(self).__name__}({self.length} samples, {', '.join(f'{k}={v}' for k, v in shown.items())})"

    def _next(self) -> _Point:
        return _Point(self.seed, self.epoch, self._position)

    def _facts(self) -> dict[str, Any]:
        """Return what a state must have as this sampler has it: ints and a str."""
        return {"sampler": type(self).__name__, "length": self.length, **self._options()}

    def _read(self, state: Mapping[str, Any]) -> _Point:
        facts = self._facts()
        wanted = f"a state must be the dict that state_dict() of a loader with this {facts['sampler']} gave"
        if not isinstance(state, Mapping):
            raise TypeError(f"{wanted}, got {short_repr(state)}")
        known = {*facts, *_Point._fields}
        for what, keys in (("lacks", known - {*state}), ("also has", {*state} - known - {_OF_LOADER})):
            if keys:
                raise OptionError(f"{wanted}, got one that {what} {', '.join(sorted(map(repr, keys)))}")
        for name, value in facts.items():
            if state[name] != value:
                raise OptionError(
                    f"the state must have {name} {value}, as this sampler has, for the order to go on, "
                    f"got {state[name]}",
                )
        point = _Point(*(whole_number(f"{name!r} in the state", state[name]) for name in _Point._fields))
        if point.epoch < 0:
            raise OptionError(f"'epoch' in the state must be at least 0, got {point.epoch}")
        if not 0 <= point.position <= self.length:
            raise OptionError(f"'position' in the state must be 0 to {self.length}, got {point.position}")
        return point


class _Samples(Iterator[int]):
    """The indices of one run over a sampler, which takes nothing more from it.

    Its state is what it has given, not what anybody has received. It is for loaders that keep the state of their
    sampler's iterator beside each batch, and give it back to a new one, as torchdata's do.
    """

    def __init__(self, sampler: ResumableSampler, point: _Point) -> None:
        self._sampler = sampler
        self._begin(point)

    def _begin(self, point: _Point) -> None:
        self._since = {**self._sampler._facts(), **point._asdict()}
        self._choices = None if self._sampler.held else self._sampler.choices
        self._count = 0
        share, order = self._sampler._share(point.position), self._sampler._order(point.seed, point.epoch)
        self._indices = _indices(share, self._sampler.length, order)

    @override
    def __next__(self) -> int:
        if not self._count and self._choices == self._sampler.choices:
            # Only with the first sample: a DataLoader with workers makes two iterators, and takes nothing from one.
            self._sampler._position = 0
        index = next(self._indices)
        self._count += 1
        return index

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the samples that this has given."""
        return self._sampler.state_after(self._count, since=self._since)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another one was; the seed of the state becomes the sampler's too.

        The sampler's epoch stays: torchdata calls this within its next ``iter()``, after an epoch was chosen for that.
        """
        point = self._sampler._read(state_dict)
        self._sampler.seed = point.seed
        self._sampler._begun = None if self._sampler.held else point
        self._begin(point)


def _indices(share: range, length: int, order: Callable[[Array], Array]) -> Iterator[int]:
    for begin in range(0, len(share), _BLOCK):
        part = share[begin : begin + _BLOCK]
        positions = np.arange(part.start, part.stop, part.step, dtype=np.int64)
        if part[-1] >= length:
            positions %= length
        yield from order(positions).tolist()
