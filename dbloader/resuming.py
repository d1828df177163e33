"""Going on with an epoch where its consumer was, not where the loader had run ahead to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from dbloader.errors import LoaderError
from dbloader.keys import SampleKeys

State = dict[str, Any]


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

    @abstractmethod
    def keys(self, number: int, batch: Any) -> SampleKeys:
        """Names the samples of a batch, for what is random in its preparation."""


class Resumption(ABC):
    """How a loader is resumed."""

    @abstractmethod
    def begin(self) -> Place:
        """An iteration is about to begin."""

    @abstractmethod
    def state(self) -> State | None:
        """Gives the state if the next iteration was chosen, by an epoch or a state; None if the last one counts."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on from a state."""


class BySampler(Resumption):
    """Counts the samples that the consumer has received, of the order that one of dbloader's samplers gives."""

    def __init__(self, sampler: _Sampler, batch_size: int, *, drop_last: bool) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last

    @override
    def begin(self) -> Place:
        if self._sampler.started:
            self._sampler.set_epoch(self._sampler.epoch + 1)
        return _InOrder(self._sampler, self._batch_size, drop_last=self._drop_last)

    @override
    def state(self) -> State | None:
        return None if self._sampler.started else self._sampler.state_dict()

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state)


class _InOrder(Place):
    def __init__(self, sampler: _Sampler, batch_size: int, *, drop_last: bool) -> None:
        self._sampler = sampler
        self._since = sampler.state_dict()
        self._positions = sampler.positions(self._since)
        self._batch_size = batch_size
        self._samples = len(self._positions)
        if drop_last:
            self._samples -= self._samples % batch_size

    @override
    def state(self, received: int, captured: State | None, *, ended: bool) -> State:
        consumed = min(received * self._batch_size, self._samples)
        if consumed < self._samples:
            return self._sampler.state_dict(consumed, since=self._since)
        # Nothing is left of it, so what comes next is the epoch after it, from its beginning.
        return {**self._since, "epoch": self._since["epoch"] + 1, "position": 0}

    @override
    def keys(self, number: int, batch: Any) -> SampleKeys:
        part = self._positions[number * self._batch_size : (number + 1) * self._batch_size]
        return SampleKeys(self._since["seed"], self._since["epoch"], np.arange(part.start, part.stop, part.step))


class ByLoader(Resumption):
    """Keeps, beside each batch, the state that the loader itself had when it gave it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._begun = False

    @override
    def begin(self) -> Place:
        self._begun = True
        return _Captured(self._loader)

    @override
    def state(self) -> State | None:
        return None if self._begun else self._loader.state_dict()

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

    def draw(self) -> None:
        """Draws the names; in the consumer's thread, so that torch.manual_seed decides them."""
        self._seed = SampleKeys.drawn(0).seed

    @override
    def keys(self, number: int, batch: Any) -> SampleKeys:
        first, self._samples = self._samples, self._samples + _samples(batch)
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


def _samples(batch: Any) -> int:
    """Gives the length of the first thing in a batch that has a first axis: its images."""
    if hasattr(batch, "shape") and len(batch.shape):
        return int(batch.shape[0])
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    return next((count for count in map(_samples, parts) if count), 0)


def find_resumption(loader: Any) -> Resumption | None:
    """Gives how a loader is resumed, or None if it cannot be."""
    batches: Any = getattr(loader, "batch_sampler", None)
    samplers: list[Any] = [getattr(batches, "sampler", None), getattr(loader, "sampler", None)]
    for sampler in samplers:
        if not hasattr(sampler, "positions") or not hasattr(sampler, "load_state_dict"):
            continue
        if batches is None:  # batches are samples
            return BySampler(sampler, 1, drop_last=False)
        if hasattr(batches, "batch_size") and hasattr(batches, "drop_last"):
            return BySampler(sampler, batches.batch_size, drop_last=batches.drop_last)
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return ByLoader(loader)
    return None
