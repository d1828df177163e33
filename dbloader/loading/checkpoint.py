"""Going on with an epoch where its consumer was, not where the loader had run ahead to.

What came last counts: a batch that the consumer received, or an epoch or a state that was chosen. ``iter()`` alone
changes nothing, as an iteration begins with its first ``next()``.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from typing_extensions import override

from dbloader.errors import OptionError
from dbloader.sampling.rng import SampleRNG

if TYPE_CHECKING:
    from collections.abc import Callable

State = dict[str, Any]

# Under which a state has the digest of the dataset's content, where that has one.
_DATASET = "dataset"


class _Sampler(Protocol):
    """What ResumableSampler has; it is not asked for by its class, as that would import torch."""

    choices: int
    held: bool

    def hold(self, since: Mapping[str, Any]) -> None: ...
    def release(self, *, received: bool) -> None: ...
    def positions(self, since: Mapping[str, Any] | None = None) -> range: ...
    def next_state(self) -> State: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None: ...


class Position(ABC):
    """Where one iteration began, and what its consumer has received of it."""

    def __init__(self) -> None:
        self.received = 0
        self.ended = False

    def capture(self) -> State | None:
        """Return what must be kept beside the batch that was just made, in the thread that made it."""
        return None

    def receive(self, captured: State | None) -> None:
        """Take note that the consumer has received the next batch, and what was captured beside it."""
        self.received += 1

    def end(self) -> None:
        """Take note that the consumer has seen the end."""
        self.ended = True

    def fail(self) -> None:  # noqa: B027 - most need not
        """Take note that the iteration ended with an error."""

    def draw(self) -> None:  # noqa: B027 - most need not
        """Draw, in the consumer's thread, the names of samples that have none, so that torch.manual_seed decides."""

    @abstractmethod
    def keys(self, number: int, samples: int) -> SampleRNG:
        """Name the samples of a batch, for what is random in its preparation.

        Args:
            number: Of the batch in the iteration, from 0.
            samples: How many are in it.
        """


class Resumption(ABC):
    """How a loader is resumed."""

    @abstractmethod
    def begin(self) -> Position:
        """Return the place of the iteration that begins now; the loader's iterator is about to be made."""

    @abstractmethod
    def state(self) -> State:
        """Return the state of the consumer, or of the epoch or state that was chosen since."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Have the next iteration go on from a state."""

    def batches(self) -> int | None:
        """Return how many batches the next iteration has, where that is known."""
        return None


class BySampler(Resumption):
    """Counts the samples that the consumer has received, of the order that one of dbloader's samplers gives.

    Args:
        sampler: Gives it.
        batch_size: Samples in a batch.
        drop_last: Whether the last batch is left out if it has fewer.
        dataset: What the samples are of, for the state to tell it from others.
    """

    def __init__(self, sampler: _Sampler, batch_size: int, *, drop_last: bool, dataset: Any = None) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._dataset = dataset
        self._latest: _InOrder | None = None

    @override
    def begin(self) -> Position:
        self._latest = self._place()
        self._latest.hold()
        return self._latest

    def _place(self) -> _InOrder:
        return _InOrder(self._sampler, self._next(), self._batch_size, drop_last=self._drop_last)

    @property
    def _chosen(self) -> bool:
        return self._latest is None or self._sampler.choices != self._latest.choices

    def _next(self) -> State:
        """Return where the next iteration begins."""
        if self._latest is None or self._chosen or self._sampler.held:  # held by another loader in front
            return self._sampler.next_state()
        return self._latest.following()

    @override
    def state(self) -> State:
        latest = self._latest
        state = self._sampler.next_state() if latest is None or self._chosen else latest.state()
        return {**state, **self._of_dataset()}

    @override
    def batches(self) -> int:
        return self._place().batches

    @override
    def load(self, state: Any) -> None:
        own = self._of_dataset()
        # A state need not tell: it is of an older version, or of a dataset that nobody can tell from others.
        if own and isinstance(state, Mapping) and state.get(_DATASET, own[_DATASET]) != own[_DATASET]:
            raise OptionError(
                f"the state is of another dataset, with the digest {state[_DATASET]}: this loader's, "
                f"{type(self._dataset).__name__}, has the digest {own[_DATASET]}, and would go on with other samples"
            )
        self._sampler.load_state_dict(state)

    def _of_dataset(self) -> State:
        digest = getattr(self._dataset, "content_digest", None)
        return {_DATASET: digest} if isinstance(digest, str) else {}


class _InOrder(Position):
    """An iteration over the order of a sampler.

    Attributes:
        choices: Those of the sampler that are older than what the consumer received last.
        batches: How many the iteration has.
    """

    def __init__(self, sampler: _Sampler, since: State, batch_size: int, *, drop_last: bool) -> None:
        super().__init__()
        self._sampler = sampler
        self._since = since
        self._batch_size = batch_size
        self._holds = False
        self.choices = sampler.choices
        self._positions = sampler.positions(since)
        self._samples = len(self._positions)
        if drop_last:
            self._samples -= self._samples % batch_size
        self.batches = -(-self._samples // batch_size)

    def hold(self) -> None:
        """Have the sampler begin here, until the consumer has received something."""
        if not self._sampler.held:  # by another loader in front, which decides
            self._sampler.hold(self._since)
            self._holds = True

    def _release(self, *, received: bool) -> None:
        self.choices = self._sampler.choices
        if self._holds:
            self._holds = False
            self._sampler.release(received=received)

    @override
    def receive(self, captured: State | None) -> None:
        super().receive(captured)
        self._release(received=True)

    @override
    def end(self) -> None:
        super().end()
        self._release(received=True)

    @override
    def fail(self) -> None:
        if self._holds:
            self._release(received=False)

    def state(self) -> State:
        """Return the state of the consumer."""
        consumed = min(self.received * self._batch_size, self._samples)
        if self.ended or consumed >= self._samples:
            return self._next_epoch()  # nothing is left of this one
        position = self._since["position"] + consumed * self._positions.step
        return {**self._since, "position": min(position, self._since["length"])}

    def following(self) -> State:
        """Return where the iteration after this one begins."""
        return self._next_epoch() if self.received or self.ended else self._since

    def _next_epoch(self) -> State:
        return {**self._since, "epoch": self._since["epoch"] + 1, "position": 0}

    @override
    def keys(self, number: int, samples: int) -> SampleRNG:
        part = self._positions[number * self._batch_size : (number + 1) * self._batch_size]
        return SampleRNG(self._since["seed"], self._since["epoch"], np.arange(part.start, part.stop, part.step))


class ByLoader(Resumption):
    """Keeps, beside each batch, the state that the loader itself had when it gave it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._latest: _Captured | None = None

    @override
    def begin(self) -> Position:
        self._latest = _Captured(self._loader.state_dict)
        return self._latest

    @override
    def state(self) -> State:
        state = None if self._latest is None else self._latest.captured
        return self._loader.state_dict() if state is None else state

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._latest = None


class Unknown(Position):
    """Of a loader that cannot be resumed: the names of its samples are drawn, with torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self._seed: int | None = None
        self._samples = 0

    @override
    def draw(self) -> None:
        self._seed = SampleRNG.from_torch(0).seed

    @override
    def keys(self, number: int, samples: int) -> SampleRNG:
        first, self._samples = self._samples, self._samples + samples
        return SampleRNG(self._seed or 0, 0, np.arange(first, self._samples))


class _Captured(Unknown):
    """An iteration over a loader that has a state of its own.

    Attributes:
        captured: That right after the batch that the consumer received last; None at the beginning and at the end, when
            the loader is where its consumer is.
    """

    def __init__(self, state_dict: Callable[[], State]) -> None:
        super().__init__()
        self._state_dict = state_dict
        self.captured: State | None = None

    @override
    def capture(self) -> State:
        return self._state_dict()

    @override
    def receive(self, captured: State | None) -> None:
        super().receive(captured)
        self.captured = captured

    @override
    def end(self) -> None:
        super().end()
        self.captured = None


def find_resumption(loader: Any) -> Resumption | None:
    """Return how a loader is resumed, or None if it cannot be."""
    batches: Any = getattr(loader, "batch_sampler", Ellipsis)
    sampler: Any = getattr(loader if batches is None else batches, "sampler", None)
    if all(hasattr(sampler, name) for name in ("positions", "hold", "load_state_dict")):
        source_dataset = getattr(loader, "source_dataset", None)  # if its own dataset only makes batches
        dataset = getattr(loader, "dataset", None) if source_dataset is None else source_dataset
        if batches is None:  # as a DataLoader with batch_size=None says that its batches are samples
            return BySampler(sampler, 1, drop_last=False, dataset=dataset)
        if in_order(batches):
            return BySampler(sampler, batches.batch_size, drop_last=batches.drop_last, dataset=dataset)
    # A loader that Accelerate has prepared has these methods always, but a state only if the one behind it has.
    inner = getattr(loader, "base_dataloader", loader)
    if hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict"):
        return ByLoader(loader)
    return None


def in_order(batches: Any) -> bool:
    """Say whether each batch is the next ``batch_size`` samples of its sampler's order; False for unknown classes.

    Nothing is imported for that: a class that is not imported is not the class of this object.
    """
    for module, name in (
        ("torch.utils.data", "BatchSampler"),
        ("torchdata.stateful_dataloader.sampler", "BatchSampler"),
        ("dbloader.sampling", "SeededBatchSampler"),
    ):
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and type(batches).__iter__ is known.__iter__:
            return True
    return False


def check_shared(loader: Any) -> None:
    """Refuse a DataLoader that shuffles all samples in each of several processes.

    Raises:
        OptionError: It is one, and torch.distributed is initialized.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    dispatcher = getattr(sys.modules.get("accelerate.data_loader"), "DataLoaderDispatcher", None)
    if dispatcher is not None and isinstance(loader, dispatcher):  # it reads in one process, and shares the batches
        return
    batches = getattr(loader, "batch_sampler", None)
    world = distributed.get_world_size()
    shuffles = type(getattr(batches, "sampler", None)) is sys.modules["torch.utils.data"].RandomSampler
    if world > 1 and in_order(batches) and shuffles:
        raise OptionError(
            f"shuffle=True does not share the samples among the {world} processes. If all of them have the same "
            "dataset, each would train on all of it: pass sampler=ShuffleSampler(dataset) instead. If each has only "
            "its own part, pass sampler=ShuffleSampler(dataset, num_replicas=1, rank=0), which shuffles that"
        )
