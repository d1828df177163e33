"""The base of all samplers: the samples of each rank, epochs, and resuming in the middle of an epoch."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch.utils.data import DistributedSampler
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader._options import checked_flag, whole_number
from dbloader.errors import LoaderError, OptionError
from dbloader.sampling.ranks import check_shared_once, resolve_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized

    from dbloader.sampling.rng import Array

# Number of indices that are computed at a time. The first index of a ShuffleSampler takes 0.4 ms, and each of a million
# indices 63 ns on average. With blocks of 1,024 or of 65,536 indices, the average is about 120 ns.
BLOCK = 8192


class Start(NamedTuple):
    """Where an iteration over a sampler starts: a position in the global order of an epoch."""

    seed: int
    epoch: int
    position: int


class ResumableSampler(DistributedSampler[int], ABC):
    """A sampler whose order is a pure function of (seed, epoch). An iteration can start anywhere in the order.

    With W ranks, rank r takes the positions r, r + W, r + 2 W and so on in one global order. After k samples on each
    rank, the first k * W samples of the order are consumed. Any number of ranks can share the remaining samples.

    ``iter()`` uses the current epoch; ``set_epoch`` and ``load_state_dict`` do not change existing iterators. ``len()``
    is the number of this rank's samples in a whole epoch, even after ``load_state_dict``: training schedules depend on
    ``len()``. ``remaining`` is the number of samples in the next iteration.

    **Resuming.** A loader reads ahead of the training. The sampler cannot see how far the training is, so it has no
    ``state_dict``. Use ``PrefetchLoader(loader).state_dict()``, which counts the batches that the training received. In
    your own loader, use ``state_after(samples)``. After ``load_state_dict``, the next iteration starts at that state.
    Later iterations start at the beginning of an epoch.

    This class is a DistributedSampler, so frameworks do not divide its samples among the ranks again. Unlike torch's
    sampler, this class finds out the ranks only when it needs them. So torch.distributed may be initialized later.

    Attributes:
        length: Positions in the global order, without padding.
        population: Length of the dataset, or None if unknown.
        seed: The seed of all epochs.
        epoch: The epoch of the next ``iter()``.
        drop_last: Whether ranks leave out the tail that they cannot share evenly. Otherwise the order is padded with
            the first positions of the epoch, repeatedly if needed. DistributedSampler leaves out and pads the same.
        times_chosen: How often ``set_epoch`` and ``load_state_dict`` were called.
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
        # DistributedSampler's constructor is not called: it would ask for the ranks now, and keep the dataset.
        self.length = self.period = length
        self.population = population
        self._given_ranks = (num_replicas, rank)
        if self._given_ranks != (None, None):
            resolve_ranks(num_replicas, rank)  # check the given ranks now, not in iter()
        self.drop_last = checked_flag("drop_last", drop_last)
        self.seed = whole_number("seed", seed)
        self.epoch = 0
        self.times_chosen = 0
        self._position = 0  # the next iter() starts here
        self._begun: Start | None = None  # the last iter() started here; None after an epoch or a state was chosen
        self._held: Start | None = None  # each iter() starts here while a loader holds the sampler

    @abstractmethod
    def order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        """Return a function from an array of positions to an array of indices: int64, shape (positions,)."""

    # Ranks

    @property
    def num_replicas(self) -> int:  # type: ignore[override] # DistributedSampler has a plain attribute
        """The number of processes that share the order: the given number, else torch.distributed's, else 1.

        Raises:
            OptionError: torchrun started several processes, but torch.distributed is not initialized, and no number was
                given.
        """
        return resolve_ranks(*self._given_ranks)[0]

    @property
    def rank(self) -> int:  # type: ignore[override] # DistributedSampler has a plain attribute
        """The number of this process, from 0, with the same defaults and errors as ``num_replicas``."""
        return resolve_ranks(*self._given_ranks)[1]

    def end_of(self, position: int) -> int:
        """Return the position where an iteration from ``position`` ends. With padding, the end is above ``length``."""
        left = self.length - position
        shares = left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)
        return position + shares * self.num_replicas

    def _share(self, position: int) -> range:
        """Return this rank's positions in an iteration that starts at ``position``."""
        return range(position + self.rank, self.end_of(position), self.num_replicas)

    def __len__(self) -> int:
        return len(self._share(0))

    # Iterations

    @override
    def __iter__(self) -> Iterator[int]:
        check_shared_once(type(self).__name__, self.num_replicas)
        start = self._begun = self._held or self.next_start()
        indices = self._compute(self._share(start.position), self.order(start.seed, start.epoch))
        return self._take(indices, None if self.is_held else self.times_chosen)

    def _take(self, indices: Iterator[int], times_chosen: int | None) -> Iterator[int]:
        # Reset at the first index, not in iter(), because a DataLoader with workers makes two iterators and uses one.
        if times_chosen == self.times_chosen:
            self._position = 0
        yield from indices

    def positions(self, since: Mapping[str, Any]) -> range:
        """Return this rank's positions in an iteration that starts at a state. Those from ``length`` on are padding."""
        return self._share(self.start_of(since).position)

    @property
    def remaining(self) -> int:
        """The number of this rank's samples in the next iteration."""
        return len(self._share(self._position))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``.

        If a state in the middle of this epoch was loaded, the iteration starts there, else at the beginning. If the
        state is in the middle of another epoch, the rest of that epoch is left out, with a warning.

        Raises:
            OptionError: ``epoch`` is negative.
            TypeError: ``epoch`` is not an int.
        """
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self.epoch:
            if self._held is None and 0 < self._position < self.length:
                warnings.warn(
                    f"set_epoch({epoch}) leaves out the rest of epoch {self.epoch}, where the loaded state is at "
                    f"position {self._position} of {self.length}. To train on the rest, call set_epoch({self.epoch}). "
                    "Lightning calls set_epoch too. It counts an epoch as complete even if max_steps ended it: resume "
                    "from a checkpoint that ModelCheckpoint(every_n_train_steps=...) saved before the end of fit()",
                    UserWarning,
                    stacklevel=2,
                )
            self._position = 0
        self.epoch = epoch
        self._begun = None
        self.times_chosen += 1

    def _compute(self, share: range, order: Callable[[Array], Array]) -> Iterator[int]:
        for begin in range(0, len(share), BLOCK):
            part = share[begin : begin + BLOCK]
            positions = np.arange(part.start, part.stop, part.step, dtype=np.int64)
            yield from order(self.unpadded(positions)).tolist()

    def unpadded(self, positions: Array) -> Array:
        """Replace each position of padding by the earlier position with the same sample."""
        return np.where(positions < self.length, positions, positions % self.period % self.length)

    # States

    def state_after(self, consumed: int = 0, *, since: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the state of an iteration after ``consumed`` samples: a dict of ints and a str.

        The state is the same on all ranks that have consumed the same number of samples. If some ranks have one sample
        more, use the state of rank 0.

        Args:
            consumed: Number of this rank's samples, not batches, that the training has received in the iteration.
            since: The state where the iteration started. None means the last ``iter()``. After ``set_epoch`` or
                ``load_state_dict``, None means the next ``iter()``.

        Raises:
            OptionError: ``consumed`` is more than the iteration has, or ``since`` is a state of another sampler.
            TypeError: ``consumed`` is not an int.
        """
        consumed = whole_number("consumed", consumed)
        start = self.start_of(since) if since is not None else self._begun or self.next_start()
        most = len(self._share(start.position))
        if not 0 <= consumed <= most:
            raise OptionError(f"consumed must be 0 to {most} (rank {self.rank} has {most} samples), got {consumed}")
        position = min(start.position + consumed * self.num_replicas, self.length)
        return self._state(start._replace(position=position))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Start the next ``iter()`` at a state, and use the seed in the state.

        The state must be from a sampler with the same options, or from its loader; the number of ranks may differ.
        Loaders check that the state belongs to their dataset. The sampler does not.

        Raises:
            OptionError: The state is of another order, lacks an entry, or has an unknown entry.
            TypeError: The state is not a dict, or an entry is not an int.
        """
        self.seed, self.epoch, self._position = self.start_of(state_dict)
        self._begun = None
        self.times_chosen += 1

    def next_state(self) -> dict[str, Any]:
        """Return the state where the next ``iter()`` starts: a dict of ints and a str."""
        return self._state(self._held or self.next_start())

    def facts(self) -> dict[str, Any]:
        """Return the part of a state that describes the sampler: its class, length and options.

        Subclasses add the options that affect the order. Seed and epoch are separate parts of a state.
        """
        return {"sampler": type(self).__name__, "length": self.length}

    @property
    def is_held(self) -> bool:
        """Whether ``hold`` was called, and ``release`` was not called after it."""
        return self._held is not None

    def hold(self, since: Mapping[str, Any]) -> None:
        """Start each ``iter()`` at this state until ``release`` is called. Until then, ``set_epoch`` has no effect.

        Some loaders count epochs themselves and call ``set_epoch`` in their ``iter()``. So PrefetchLoader calls
        ``hold`` before ``iter()`` of the loader that it wraps, and ``release`` after it has delivered the first batch.
        """
        self._held, self._begun = self.start_of(since), None

    def release(self, *, received: bool) -> None:
        """Let ``set_epoch`` and ``load_state_dict`` decide again where ``iter()`` starts.

        Args:
            received: Whether the training has received a batch, or has reached the end. If not, the next iteration
                starts at the state given to ``hold``.

        Raises:
            LoaderError: ``received`` is true, but ``iter()`` was not called since ``hold``.
        """
        held, self._held = self._held, None
        assert held is not None, "release without hold"
        self.seed, self.epoch, self._position = held._replace(position=0) if received else held
        if received and self._begun != held:
            raise LoaderError(
                "the wrapped loader did not begin where the PrefetchLoader began. It took the order of its samples "
                f"earlier, or continues from its own state, or {type(self).__name__}.__iter__ does not call "
                "super().__iter__(). Call state_dict() and load_state_dict() of the PrefetchLoader only"
            )

    def __repr__(self) -> str:
        num_replicas, rank = self._given_ranks
        options = {name: value for name, value in self.facts().items() if name not in ("sampler", "length")}
        options |= {"num_replicas": num_replicas, "rank": rank}
        options |= {"seed": self.seed, "epoch": self.epoch, "drop_last": self.drop_last}
        return f"{type(self).__name__}({self.length} samples, {', '.join(f'{k}={v}' for k, v in options.items())})"

    def next_start(self) -> Start:
        """Return where the next iteration starts."""
        return Start(self.seed, self.epoch, self._position)

    def _state(self, start: Start) -> dict[str, Any]:
        return {**self.facts(), **start._asdict()}

    def start_of(self, state: Mapping[str, Any]) -> Start:
        """Check a state, and return where its iteration starts. Raise the errors of ``load_state_dict``."""
        order = self.facts()
        wanted = f"a state must be a dict from state_dict() of a loader with this {order['sampler']}"
        if not isinstance(state, Mapping):
            raise TypeError(f"{wanted}, got {short_repr(state)}")
        known = {*order, *Start._fields}
        # "dataset" is the digest that a loader adds (loading.checkpoint).
        for what, names in (("lacks", known - {*state}), ("also has", {*state} - known - {"dataset"})):
            if names:
                raise OptionError(f"{wanted}, got one that {what} {', '.join(sorted(map(repr, names)))}")
        for name, value in order.items():
            if state[name] != value:
                raise OptionError(
                    f"the state must have {name} {value}, like this sampler, to continue its order, got {state[name]}"
                )
        start = Start(*(whole_number(f"{name!r} in the state", state[name]) for name in Start._fields))
        if start.epoch < 0:
            raise OptionError(f"'epoch' in the state must be at least 0, got {start.epoch}")
        if not 0 <= start.position <= self.length:
            raise OptionError(f"'position' in the state must be 0 to {self.length}, got {start.position}")
        return start


def length_of(dataset: Sized) -> int:
    """Return the length of a dataset. Raise TypeError for a str, because its length is no number of samples."""
    if isinstance(dataset, (str, bytes)):
        raise TypeError(f"dataset must be a dataset, not its place: got {short_repr(dataset)}")
    return len(dataset)
