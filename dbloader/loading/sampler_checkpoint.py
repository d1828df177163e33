"""Resume an order of one of dbloader's samplers, by counting the samples that the consumer has received."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from typing_extensions import override

from dbloader.errors import OptionError
from dbloader.loading.checkpoint import Checkpoint, Position
from dbloader.sampling.rng import SampleRNG

if TYPE_CHECKING:
    from dbloader.loading.checkpoint import State

# Key of the dataset's content digest in a state.
_DATASET = "dataset"


class _Sampler(Protocol):
    """The methods of ResumableSampler that are used here; importing the class would import torch."""

    choices: int
    held: bool

    def hold(self, since: Mapping[str, Any]) -> None: ...
    def release(self, *, received: bool) -> None: ...
    def positions(self, since: Mapping[str, Any] | None = None) -> range: ...
    def next_state(self) -> State: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None: ...


class SamplerCheckpoint(Checkpoint):
    """Counts the samples that the consumer has received, in the order of one of dbloader's samplers.

    The ``content_digest`` of the dataset, if it has one, tells a state from that of another dataset.
    """

    def __init__(self, sampler: _Sampler, batch_size: int, *, drop_last: bool, dataset: Any = None) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._dataset = dataset
        self._latest: _SamplerPosition | None = None

    @override
    def begin(self) -> Position:
        # Where another PrefetchLoader in front holds the sampler, that one decides.
        if self._latest is None or self._was_chosen or self._sampler.held:
            start = self._sampler.next_state()
        else:
            start = self._latest.next_start()
        self._latest = _SamplerPosition(self._sampler, start, self._batch_size, drop_last=self._drop_last)
        return self._latest

    @property
    def _was_chosen(self) -> bool:
        """Whether ``set_epoch`` or ``load_state_dict`` was called since the last batch was received."""
        return self._latest is not None and self._sampler.choices != self._latest.choices

    @override
    def state(self) -> State:
        if self._latest is None or self._was_chosen:
            return {**self._sampler.next_state(), **self._digest()}
        return {**self._latest.state(), **self._digest()}

    @override
    def load(self, state: Any) -> None:
        own = self._digest()
        # A state may lack the digest: an older version wrote it, or its dataset has none.
        if own and isinstance(state, Mapping) and state.get(_DATASET, own[_DATASET]) != own[_DATASET]:
            raise OptionError(
                f"the state is of another dataset, with the digest {state[_DATASET]}: this loader's, "
                f"{type(self._dataset).__name__}, has the digest {own[_DATASET]}, and would go on with other samples"
            )
        self._sampler.load_state_dict(state)

    def _digest(self) -> State:
        digest = getattr(self._dataset, "content_digest", None)
        return {_DATASET: digest} if isinstance(digest, str) else {}


class _SamplerPosition(Position):
    """The position in an iteration over the order of a sampler.

    Until the consumer has received something, the sampler is held, so that its order begins at ``start``.

    Attributes:
        choices: Those of the sampler that are older than what the consumer received last.
    """

    def __init__(self, sampler: _Sampler, start: State, batch_size: int, *, drop_last: bool) -> None:
        self._sampler = sampler
        self._start = start
        self._batch_size = batch_size
        self._received = 0
        self._ended = False
        self.choices = sampler.choices
        self._positions = sampler.positions(start)
        self._samples = len(self._positions)
        if drop_last:
            self._samples -= self._samples % batch_size
        self._holds = not sampler.held
        if self._holds:
            sampler.hold(start)

    def _release(self, *, received: bool) -> None:
        self.choices = self._sampler.choices
        if self._holds:
            self._holds = False
            self._sampler.release(received=received)

    @override
    def receive(self, snapshot: State | None) -> None:
        self._received += 1
        self._release(received=True)

    @override
    def end(self) -> None:
        self._ended = True
        self._release(received=True)

    @override
    def fail(self) -> None:
        if self._holds:
            self._release(received=False)

    def state(self) -> State:
        consumed = min(self._received * self._batch_size, self._samples)
        if self._ended or consumed >= self._samples:
            return self._next_epoch()  # nothing is left of this one
        position = self._start["position"] + consumed * self._positions.step
        return {**self._start, "position": min(position, self._start["length"])}

    def next_start(self) -> State:
        return self._next_epoch() if self._received or self._ended else self._start

    def _next_epoch(self) -> State:
        return {**self._start, "epoch": self._start["epoch"] + 1, "position": 0}

    @override
    def sample_rng(self, number: int, samples: int) -> SampleRNG:
        part = self._positions[number * self._batch_size : (number + 1) * self._batch_size]
        return SampleRNG(self._start["seed"], self._start["epoch"], np.arange(part.start, part.stop, part.step))
