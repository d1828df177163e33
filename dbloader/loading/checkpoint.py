"""Resume an epoch where its consumer was, not where the loader had run ahead to.

The latest event counts: a batch that the consumer received, or a ``set_epoch`` or ``load_state_dict``. ``iter()`` alone
changes nothing, since an iteration begins with its first ``next()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from typing_extensions import override

from dbloader.errors import OptionError
from dbloader.sampling.rng import SampleRNG

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sampling.base import ResumableSampler

State: TypeAlias = dict[str, Any]
Checkpoint: TypeAlias = "LoaderCheckpoint | SamplerCheckpoint"

# Key of the dataset's content digest in a state.
_DATASET = "dataset"


class Position:
    """How far the consumer of one iteration has come; this one is in an order that nobody knows.

    Args:
        loader: The loader, which may know its number of batches.
    """

    _seed = 0
    _samples = 0

    def __init__(self, loader: Any = None) -> None:
        self._loader = loader
        self._batches_received = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the consumer has received the last batch; False where that is not known."""
        try:
            return self._batches_received == len(self._loader)
        except TypeError:
            return False

    def snapshot(self) -> State | None:
        """Return the loader's own state after the batch that it just made, in the thread that made it."""
        return None

    def receive(self, snapshot: State | None) -> None:
        """Note that the consumer has received the next batch, of which this is the snapshot."""
        self._batches_received += 1

    def end(self) -> None:
        """Note that the consumer has seen the end."""

    def fail(self) -> None:
        """Note that the iteration ended with an error."""

    def draw_seed(self) -> None:
        """Draw a seed in the consumer's thread, so that torch.manual_seed decides, unless a sampler has one."""
        self._seed = SampleRNG.from_torch(0).seed

    def sample_rng(self, number: int, samples: int) -> SampleRNG:
        """Return the random numbers for the preparation of the batch with a number, from 0, and so many samples."""
        first, self._samples = self._samples, self._samples + samples
        return SampleRNG(self._seed, 0, np.arange(first, self._samples))


class LoaderCheckpoint:
    """Resumes a loader that has a state of its own: keeps, with each batch, the state that the loader had after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._latest: _LoaderPosition | None = None

    def begin(self) -> Position:
        """Return the position of the iteration that begins now; the loader's iterator is made after this."""
        self._latest = _LoaderPosition(self._loader.state_dict)
        return self._latest

    def state(self) -> State:
        """Return the state of the consumer, or of the epoch or state that was chosen since."""
        state = None if self._latest is None else self._latest.received
        return self._loader.state_dict() if state is None else state

    def load(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue from a state."""
        self._loader.load_state_dict(state)
        self._latest = None


class _LoaderPosition(Position):
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


class SamplerCheckpoint:
    """Resumes one of dbloader's samplers: the samples received are computed from the batches received.

    The ``content_digest`` of the dataset, if it has one, tells a state from that of another dataset.
    """

    def __init__(
        self, sampler: ResumableSampler, batch_size: int, *, drop_last: bool, dataset: Any = None, ahead: int = 1
    ) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._dataset = dataset
        self._ahead = ahead  # most batches that the loader's workers make at one time
        self._latest: _SamplerPosition | None = None

    def begin(self) -> Position:
        """Return the position of the iteration that begins now."""
        # Where another PrefetchLoader in front holds the sampler, that one decides.
        if self._latest is None or self._was_chosen or self._sampler.is_held:
            start = self._sampler.next_state()
        else:
            start = self._latest.next_start()
        expect_order = getattr(self._dataset, "expect_order", None)
        if expect_order is not None:
            # Later epochs are of the same kind: that their shards have other sizes must not end a training.
            first = self._latest is None
            expect_order(self._sampler, start, margin=self._ahead * self._batch_size, check=first)
        self._latest = _SamplerPosition(self._sampler, start, self._batch_size, drop_last=self._drop_last)
        return self._latest

    @property
    def _was_chosen(self) -> bool:
        """Whether ``set_epoch`` or ``load_state_dict`` was called since the last batch was received."""
        return self._latest is not None and self._sampler.times_chosen != self._latest.times_chosen

    def state(self) -> State:
        """Return the state of the consumer, or of the epoch or state that was chosen since."""
        if self._latest is None or self._was_chosen:
            return {**self._sampler.next_state(), **self._digest()}
        return {**self._latest.state(), **self._digest()}

    def load(self, state: Any) -> None:
        """Make the next iteration continue from a state."""
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
        times_chosen: That of the sampler when the consumer received its last batch.
    """

    def __init__(self, sampler: ResumableSampler, start: State, batch_size: int, *, drop_last: bool) -> None:
        super().__init__()
        self._sampler = sampler
        self._start = start
        self._batch_size = batch_size
        self._ended = False
        self.times_chosen = sampler.times_chosen
        self._positions = sampler.positions(start)
        self._samples = len(self._positions)
        if drop_last:
            self._samples -= self._samples % batch_size
        self._holds = not sampler.is_held
        if self._holds:
            sampler.hold(start)

    def _release(self, *, received: bool) -> None:
        self.times_chosen = self._sampler.times_chosen
        if self._holds:
            self._holds = False
            self._sampler.release(received=received)

    @property
    @override
    def is_at_end(self) -> bool:
        return self._batches_received * self._batch_size >= self._samples

    @override
    def receive(self, snapshot: State | None) -> None:
        super().receive(snapshot)
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
        if self._ended or self.is_at_end:
            return self._next_epoch()  # nothing is left of this one
        position = self._start["position"] + self._batches_received * self._batch_size * self._positions.step
        return {**self._start, "position": min(position, self._start["length"])}

    def next_start(self) -> State:
        return self._next_epoch() if self._batches_received or self._ended else self._start

    def _next_epoch(self) -> State:
        return {**self._start, "epoch": self._start["epoch"] + 1, "position": 0}

    @override
    def draw_seed(self) -> None:
        pass

    @override
    def sample_rng(self, number: int, samples: int) -> SampleRNG:
        part = self._positions[number * self._batch_size : (number + 1) * self._batch_size]
        return SampleRNG(self._start["seed"], self._start["epoch"], np.arange(part.start, part.stop, part.step))
