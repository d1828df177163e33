"""Going on with an epoch where its consumer was, not where the loader had run ahead to."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from typing_extensions import override

from dbloader.errors import LoaderError, OptionError
from dbloader.keys import SampleKeys

if TYPE_CHECKING:
    from collections.abc import Callable

State = dict[str, Any]

# Under which a state has the digest of the dataset's content, where that has one.
_DATASET = "dataset"


class _Sampler(Protocol):
    """What ResumableSampler has; it is not asked for by its class, as that would import torch."""

    length: int
    seed: int
    epoch: int
    started: bool

    def positions(self, since: Mapping[str, Any] | None = None) -> range: ...
    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self, consumed: int = 0, *, since: Mapping[str, Any] | None = None) -> State: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None: ...


class Place(ABC):
    """Where one iteration began, so that it can be told where its consumer is."""

    @abstractmethod
    def state(self, received: int, captured: State | None, *, ended: bool) -> State:
        """Gives the state of the consumer.

        Args:
            received: Batches that it has received.
            captured: What was captured beside the last of them.
            ended: Whether it has seen the end.
        """

    def capture(self) -> State | None:
        """Gives what must be kept beside the batch that was just made, in the thread that made it."""
        return None

    def batches(self) -> int | None:
        """Gives how many batches the iteration has in all, where that is known."""
        return None

    def draw(self) -> None:  # noqa: B027 - most need not
        """Draws, in the consumer's thread, the names of samples that have none, so that torch.manual_seed decides."""

    @abstractmethod
    def keys(self, number: int, samples: int) -> SampleKeys:
        """Names the samples of a batch, for what is random in its preparation.

        Args:
            number: Of the batch in the iteration, from 0.
            samples: How many are in it.
        """


class Resumption(ABC):
    """How a loader is resumed."""

    @abstractmethod
    def begin(self) -> None:
        """The loader's iterator is about to be made."""

    @abstractmethod
    def place(self) -> Place:
        """Gives the place of the iterator that was just made."""

    @abstractmethod
    def state(self) -> State | None:
        """Gives the state if the next iteration was chosen, by an epoch or a state; None if the last one counts."""

    @abstractmethod
    def following(self) -> State:
        """Gives the state of what comes next, where others have begun what counts last: another loader, a copy."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on from a state."""


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

    @override
    def begin(self) -> None:
        if self._sampler.started:
            self._sampler.set_epoch(self._sampler.epoch + 1)

    @override
    def place(self) -> Place:
        return _InOrder(self._sampler, self._batch_size, drop_last=self._drop_last, of_dataset=self._of_dataset)

    @override
    def state(self) -> State | None:
        return None if self._sampler.started else {**self._sampler.state_dict(), **self._of_dataset()}

    @override
    def following(self) -> State:
        return {**_next_epoch(self._sampler.state_dict()), **self._of_dataset()}

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


class _InOrder(Place):
    def __init__(self, sampler: _Sampler, batch_size: int, *, drop_last: bool, of_dataset: Callable[[], State]) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._of_dataset = of_dataset
        # torch's BatchSampler, where a DataLoader has no workers, takes the order with its first batch only.
        self._settled = sampler.started
        self._take()

    def _take(self) -> None:
        self._since = self._sampler.state_dict()
        self._positions = self._sampler.positions(self._since)
        self._samples = len(self._positions)
        if self._drop_last:
            self._samples -= self._samples % self._batch_size

    @override
    def batches(self) -> int:
        return -(-self._samples // self._batch_size)

    @override
    def capture(self) -> None:
        if not self._settled:
            self._settled = True
            self._take()

    @override
    def state(self, received: int, captured: State | None, *, ended: bool) -> State:
        consumed = min(received * self._batch_size, self._samples)
        if consumed < self._samples:
            state = self._sampler.state_dict(consumed, since=self._since)
        else:
            state = _next_epoch(self._since)  # nothing is left of this one
        return {**state, **self._of_dataset()}

    @override
    def keys(self, number: int, samples: int) -> SampleKeys:
        part = self._positions[number * self._batch_size : (number + 1) * self._batch_size]
        return SampleKeys(self._since["seed"], self._since["epoch"], np.arange(part.start, part.stop, part.step))


def _next_epoch(state: State) -> State:
    return {**state, "epoch": state["epoch"] + 1, "position": 0}


class ByLoader(Resumption):
    """Keeps, beside each batch, the state that the loader itself had when it gave it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._begun = False

    @override
    def begin(self) -> None:
        self._begun = True

    @override
    def place(self) -> Place:
        return _Captured(self._loader)

    @override
    def state(self) -> State | None:
        return None if self._begun else self.following()

    @override
    def following(self) -> State:
        return self._loader.state_dict()  # type: ignore[no-any-return]

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._begun = False


class Unknown(Place):
    """Of a loader that cannot be resumed: the names of its samples are drawn, with torch's global generator."""

    def __init__(self) -> None:
        self._seed: int | None = None
        self._samples = 0

    @override
    def state(self, received: int, captured: State | None, *, ended: bool) -> State:
        raise LoaderError("a loader without one of dbloader's samplers, and without a state of its own, has no state")

    @override
    def draw(self) -> None:
        self._seed = SampleKeys.drawn(0).seed

    @override
    def keys(self, number: int, samples: int) -> SampleKeys:
        first, self._samples = self._samples, self._samples + samples
        return SampleKeys(self._seed or 0, 0, np.arange(first, self._samples))


class _Captured(Unknown):
    def __init__(self, loader: Any) -> None:
        super().__init__()
        self._loader = loader

    @override
    def capture(self) -> State:
        return self._loader.state_dict()  # type: ignore[no-any-return]

    @override
    def state(self, received: int, captured: State | None, *, ended: bool) -> State:
        if ended:
            return self.capture()
        if captured is None:
            raise LoaderError(
                "no batch of this epoch has been received yet, and the loader has run ahead of it: "
                "ask for its state before iter(), or after the first batch"
            )
        return captured


def find_resumption(loader: Any) -> Resumption | None:
    """Gives how a loader is resumed, or None if it cannot be."""
    batches: Any = getattr(loader, "batch_sampler", Ellipsis)
    sampler: Any = getattr(loader if batches is None else batches, "sampler", None)
    if all(hasattr(sampler, name) for name in ("positions", "started", "load_state_dict")):
        made_of = getattr(loader, "made_of", None)  # where the loader's own dataset only makes the batches
        dataset = getattr(loader, "dataset", None) if made_of is None else made_of
        if batches is None:  # as a DataLoader with batch_size=None says that its batches are samples
            return BySampler(sampler, 1, drop_last=False, dataset=dataset)
        if _in_order(batches):
            return BySampler(sampler, batches.batch_size, drop_last=batches.drop_last, dataset=dataset)
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return ByLoader(loader)
    return None


def _in_order(batches: Any) -> bool:
    """Says whether each batch is the next ``batch_size`` samples of its sampler's order: of other classes nobody knows.

    Nothing is imported for that: where a class is not, this is not of it.
    """
    for module, name in (("torch.utils.data", "BatchSampler"), ("dbloader.sampling", "KeyedBatchSampler")):
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and type(batches).__iter__ is known.__iter__:
            return True
    return False
