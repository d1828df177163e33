"""Resume an epoch where its consumer was, not where the loader had run ahead to.

The latest event counts: a batch that the consumer received, or a ``set_epoch`` or ``load_state_dict``. ``iter()`` alone
changes nothing, since an iteration begins with its first ``next()``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from dbloader.sampling.rng import SampleRNG

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

State = dict[str, Any]


class Position(ABC):
    """How far the consumer of one iteration has come."""

    def snapshot(self) -> State | None:
        """Return the loader's own state after the batch that it just made, in the thread that made it."""
        return None

    def receive(self, snapshot: State | None) -> None:  # noqa: B027 - not every position counts
        """Note that the consumer has received the next batch, of which this is the snapshot."""

    def end(self) -> None:  # noqa: B027
        """Note that the consumer has seen the end."""

    def fail(self) -> None:  # noqa: B027
        """Note that the iteration ended with an error."""

    def draw_seed(self) -> None:  # noqa: B027
        """Draw a seed in the consumer's thread, so that torch.manual_seed decides, where no sampler has one."""

    @abstractmethod
    def sample_rng(self, number: int, samples: int) -> SampleRNG:
        """Return the random numbers for the preparation of the batch with a number, from 0, and so many samples."""


class Checkpoint(ABC):
    """How a loader is resumed."""

    @abstractmethod
    def begin(self) -> Position:
        """Return the position of the iteration that begins now; the loader's iterator is made after this."""

    @abstractmethod
    def state(self) -> State:
        """Return the state of the consumer, or of the epoch or state that was chosen since."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue from a state."""


class UnknownPosition(Position):
    """A position in an order that nobody knows; torch's global generator seeds the random numbers."""

    def __init__(self) -> None:
        self._seed = 0
        self._samples = 0

    @override
    def draw_seed(self) -> None:
        self._seed = SampleRNG.from_torch(0).seed

    @override
    def sample_rng(self, number: int, samples: int) -> SampleRNG:
        first, self._samples = self._samples, self._samples + samples
        return SampleRNG(self._seed, 0, np.arange(first, self._samples))


class LoaderCheckpoint(Checkpoint):
    """Keeps, with each batch, the state that the loader itself had after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._latest: _LoaderPosition | None = None

    @override
    def begin(self) -> Position:
        self._latest = _LoaderPosition(self._loader.state_dict)
        return self._latest

    @override
    def state(self) -> State:
        state = None if self._latest is None else self._latest.received
        return self._loader.state_dict() if state is None else state

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._latest = None


class _LoaderPosition(UnknownPosition):
    """The position in an iteration over a loader that has a state of its own."""

    def __init__(self, state_dict: Callable[[], State]) -> None:
        super().__init__()
        self._state_dict = state_dict
        # The state after the batch that was received last; None at the beginning and at the end, when the loader is
        # where its consumer is.
        self.received: State | None = None

    @override
    def snapshot(self) -> State:
        return self._state_dict()

    @override
    def receive(self, snapshot: State | None) -> None:
        self.received = snapshot

    @override
    def end(self) -> None:
        self.received = None
