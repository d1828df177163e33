"""What all samplers have in common: ranks, epochs, and going on from the middle."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch.distributed
from torch.utils.data import Sampler
from typing_extensions import override

from dbloader.errors import OptionError
from dbloader.options import checked_flag, shown, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dbloader.mixing import Array

# Indices made at a time. With ShuffleSampler the first of an epoch takes 0.4 ms, and each of a million 63 ns; in blocks
# of an eighth of this or of eight times as many each takes about 120 ns.
_BLOCK = 8192

# What a loader adds to a state, as a sampler does not know it: which dataset its samples are of. See dbloader.resuming.
_OF_LOADER = "dataset"


def length_of(dataset: Any) -> int:
    """Gives the length of a dataset.

    Raises:
        TypeError: It has none, or is a text, of which each letter would be a sample.
    """
    if not isinstance(dataset, Sized) or isinstance(dataset, (str, bytes)):
        raise TypeError(f"dataset must be a dataset, or anything else of its length, got {shown(dataset)}")
    return len(dataset)


class _Point(NamedTuple):
    seed: int
    epoch: int
    position: int


class ResumableSampler(Sampler[int], ABC):
    """A sampler whose order is a pure function of (seed, epoch), and which can start anywhere in it.

    All ranks share one global order of ``length`` positions. Of those, rank r of W takes r, r + W, r + 2 W and so on.
    So when each rank has taken k samples, the first k W of the global order are consumed, and any number of ranks can
    share what remains.

    ``iter()`` takes the epoch as it is then; ``set_epoch`` and ``load_state_dict`` change no iterator there is.
    ``len()`` is the number of this rank's samples in a whole epoch, also after ``load_state_dict``, as training
    schedules count on it; ``remaining`` is how many the next ``iter()`` gives.

    **Resuming.** A loader runs ahead of its consumer, so only who counts what the consumer has received knows where it
    is. A loader in front of the sampler does this::

        sampler.set_epoch(epoch)
        since = sampler.state_dict()  # before iter(): where this iteration begins
        for batch in batches:  # made from iter(sampler), ahead of here
            received += len(batch)
            ...
            checkpoint = sampler.state_dict(received, since=since)

    and in a new process, of this or another number of ranks::

        sampler.load_state_dict(checkpoint)
        sampler.set_epoch(checkpoint["epoch"])  # harmless: the same epoch
        for batch in batches:  # goes on where it was

    The next ``iter()`` goes on there; one after its first sample was taken begins at the beginning of an epoch. An
    epoch of which all was consumed has nothing left (``remaining`` is 0), so there a loader keeps the state of the
    epoch after it.

    Attributes:
        length: Positions in the global order, before it is padded.
        population: Length of the dataset whose indices it gives; None where only its subclass knows.
        num_replicas: Number of processes that share it.
        rank: Which of them this is, from 0.
        seed: Of all epochs.
        epoch: That of the next ``iter()``.
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
    ) -> None:  # Sampler has no state, and its constructor wants arguments with torch 2.0 that warn with later ones.
        self.length = length
        self.population = population
        self.num_replicas, self.rank = _place(num_replicas, rank)
        self.seed = whole_number("seed", seed)
        self.drop_last = checked_flag("drop_last", drop_last)
        self.epoch = 0
        self._position = 0  # of the next iter()
        self._begun: _Point | None = None  # where the last one began

    @abstractmethod
    def _order(self) -> Callable[[Array], Array]:
        """Gives the function from positions to indices of the present seed and epoch: int64, shape (positions,)."""

    def _options(self) -> dict[str, int]:
        """Gives the options that, beside seed, epoch and length, decide about the order."""
        return {}

    def _end(self, position: int) -> int:
        """Gives where the global order that begins at a position ends for all ranks; above length it is padded."""
        left = self.length - position
        shares = left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)
        return position + shares * self.num_replicas

    def _share(self, position: int) -> range:
        return range(position + self.rank, self._end(position), self.num_replicas)

    @override
    def __iter__(self) -> Iterator[int]:
        # No generator itself: it would not begin before the first next(), and take the epoch as it is then.
        self._begun = self._next()
        return self._given(self._begun, self._order())

    def _given(self, begun: _Point, order: Callable[[Array], Array]) -> Iterator[int]:
        if self._begun is begun:
            # Only with the first sample: a DataLoader with workers makes two iterators, and takes nothing from one.
            self._position = 0
        yield from _indices(self._share(begun.position), self.length, order)

    def __len__(self) -> int:
        return len(self._share(0))

    @property
    def started(self) -> bool:
        """Whether the present epoch was begun by an ``iter()``, so that the next one belongs to the next epoch."""
        return self._begun is not None

    def positions(self, since: Mapping[str, Any] | None = None) -> range:
        """Gives where in the global order this rank's samples stand; beyond ``length`` the order begins again.

        Args:
            since: The state where the iteration began; else that of the next ``iter()``.
        """
        return self._share((self._next() if since is None else self._read(since)).position)

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

    def state_dict(self, consumed: int = 0, *, since: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Gives the state of an iteration of which a number of samples has been consumed: ints and a str.

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

    def __repr__(self) -> str:
        shown = {**self._options(), "num_replicas": self.num_replicas, "rank": self.rank, "seed": self.seed}
        shown |= {"epoch": self.epoch, "drop_last": self.drop_last}
        return f"{type(self).__name__}({self.length} samples, {', '.join(f'{k}={v}' for k, v in shown.items())})"

    def _next(self) -> _Point:
        return _Point(self.seed, self.epoch, self._position)

    def _facts(self) -> dict[str, Any]:
        """Gives what a state must have as this sampler has it: ints and a str."""
        return {"sampler": type(self).__name__, "length": self.length, **self._options()}

    def _read(self, state: Mapping[str, Any]) -> _Point:
        facts = self._facts()
        wanted = f"a state must be the dict that state_dict() of the {facts['sampler']} or its loader gave"
        if not isinstance(state, Mapping):
            raise TypeError(f"{wanted}, got {shown(state)}")
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


def _indices(share: range, length: int, order: Callable[[Array], Array]) -> Iterator[int]:
    for begin in range(0, len(share), _BLOCK):
        part = share[begin : begin + _BLOCK]
        positions = np.arange(part.start, part.stop, part.step, dtype=np.int64)
        if part[-1] >= length:
            positions %= length
        yield from order(positions).tolist()


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Gives the number of processes and which this is, from torch.distributed where they are not given."""
    if num_replicas is None or rank is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            num_replicas = torch.distributed.get_world_size() if num_replicas is None else num_replicas
            rank = torch.distributed.get_rank() if rank is None else rank
        elif num_replicas is not None or rank is not None:
            raise OptionError(
                "num_replicas and rank must be given together where torch.distributed is not initialized, "
                f"got num_replicas={num_replicas} and rank={rank}",
            )
        else:
            # Each process would take all samples for its own, and nobody would notice.
            started = os.environ.get("WORLD_SIZE", "1")
            if started != "1":
                raise OptionError(
                    "call torch.distributed.init_process_group() first, or give num_replicas and rank "
                    f"(1 and 0 for all samples in each process): got neither in one of WORLD_SIZE={started} processes",
                )
            num_replicas, rank = 1, 0
    num_replicas, rank = whole_number("num_replicas", num_replicas, 1), whole_number("rank", rank)
    if not 0 <= rank < num_replicas:
        raise OptionError(f"rank must be 0 to {num_replicas - 1}, of {num_replicas} replicas, got {rank}")
    return num_replicas, rank
