"""Resume an epoch after the batches that its consumer received, not after those that were prefetched.

The latest event counts: a batch that the consumer received, a ``set_epoch`` or a ``load_state_dict``. ``iter()`` alone
changes nothing, since an iteration begins with its first ``next()``.

Loaders are recognized by their attributes and by modules that are already imported. Nothing is imported for that.
"""

from __future__ import annotations

import sys
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


def find_checkpoint(loader: Any) -> Checkpoint | None:
    """Return what resumes a loader, or None if nothing can."""
    batches: Any = getattr(loader, "batch_sampler", Ellipsis)
    sampler: Any = getattr(loader if batches is None else batches, "sampler", None)
    if all(hasattr(sampler, name) for name in ("positions", "hold", "load_state_dict")):
        if batches is None:  # a DataLoader with batch_size=None: each sample is a batch
            return SamplerCheckpoint(sampler, 1, drop_last=False, dataset=dataset_of(loader))
        if keeps_order(batches):
            size, drop_last = batches.batch_size, batches.drop_last
            return SamplerCheckpoint(sampler, size, drop_last=drop_last, dataset=dataset_of(loader))
    # A loader that Accelerate has prepared always has these methods, but a state only if the loader inside has one.
    inner = getattr(loader, "base_dataloader", loader)
    if hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict"):
        return LoaderCheckpoint(loader)
    return None


def dataset_of(loader: Any) -> Any:
    """Return the dataset whose samples a loader gives, or None."""
    source = getattr(loader, "source_dataset", None)  # of a ProcessLoader, whose ``dataset`` gives batches
    return getattr(loader, "dataset", None) if source is None else source


def keeps_order(batches: Any) -> bool:
    """Return whether each batch is the next ``batch_size`` samples of its sampler; False for unknown classes."""
    for module, name in (
        ("torch.utils.data", "BatchSampler"),
        ("torchdata.stateful_dataloader.sampler", "BatchSampler"),
        ("dbloader.sampling", "SeededBatchSampler"),
    ):
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and getattr(type(batches), "__iter__", None) is known.__iter__:
            return True
    return False


class Position:
    """How much of one iteration its consumer has received, for a loader whose order is unknown.

    Args:
        loader: The loader, which may have a length.
    """

    _seed = 0
    _samples = 0

    def __init__(self, loader: Any = None) -> None:
        self._loader = loader
        self._batches_received = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the consumer has received the last batch; False if that is unknown."""
        try:
            return self._batches_received == len(self._loader)
        except TypeError:
            return False

    def snapshot(self) -> State | None:
        """Return the loader's own state after its latest batch; called in the thread that made the batch."""
        return None

    def receive(self, snapshot: State | None) -> None:
        """Note that the consumer has received the next batch, which has this snapshot."""
        self._batches_received += 1

    def end(self) -> None:
        """Note that the consumer has seen the end."""

    def fail(self) -> None:
        """Note that the iteration ended with an error."""

    def draw_seed(self) -> None:
        """Draw a seed from torch's generator, in the consumer's thread; not if a sampler has a seed."""
        self._seed = SampleRNG.from_torch(0).seed

    def sample_rng(self, number: int, samples: int) -> SampleRNG:
        """Return the random numbers for the preparation of a batch; ``number`` counts batches from 0."""
        first, self._samples = self._samples, self._samples + samples
        return SampleRNG(self._seed, 0, np.arange(first, self._samples))


class LoaderCheckpoint:
    """Resumes a loader that has a ``state_dict`` of its own, by keeping the loader's state after each batch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._latest: _LoaderPosition | None = None

    def begin(self) -> Position:
        """Return the position of a new iteration; called before the loader's iterator is made."""
        self._latest = _LoaderPosition(self._loader.state_dict)
        return self._latest

    def state(self) -> State:
        """Return the consumer's state, or the state that was chosen since the last batch."""
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
        # The state after the batch that was received last. At the beginning and at the end it is None, because the
        # loader's own state is then right for the consumer.
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
    """Resumes one of dbloader's samplers by counting the batches that the consumer received.

    If the dataset has a ``content_digest``, a state of another dataset is refused.
    """

    def __init__(self, sampler: ResumableSampler, batch_size: int, *, drop_last: bool, dataset: Any = None) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._dataset = dataset
        self._latest: SamplerPosition | None = None

    def begin(self) -> Position:
        """Return the position of a new iteration."""
        # An outer PrefetchLoader that holds the sampler decides where the iteration begins.
        if self._latest is None or self._was_chosen or self._sampler.is_held:
            start = self._sampler.next_state()
        else:
            start = self._latest.next_start()
        self._latest = SamplerPosition(self._sampler, start, self._batch_size, drop_last=self._drop_last)
        return self._latest

    @property
    def _was_chosen(self) -> bool:
        """Whether ``set_epoch`` or ``load_state_dict`` was called since the last batch was received."""
        return self._latest is not None and self._sampler.times_chosen != self._latest.times_chosen

    def state(self) -> State:
        """Return the consumer's state, or the state that was chosen since the last batch."""
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
                f"{type(self._dataset).__name__}, has the digest {own[_DATASET]}, and would "
                "continue with other samples: pass the dataset that the state was saved with"
            )
        self._sampler.load_state_dict(state)

    def _digest(self) -> State:
        digest = getattr(self._dataset, "content_digest", None)
        return {_DATASET: digest} if isinstance(digest, str) else {}


class SamplerPosition(Position):
    """The position in an iteration over the order of one of dbloader's samplers.

    It holds the sampler until the consumer has received a batch. While the sampler is held, each iteration over it
    begins at ``start``.

    Attributes:
        sampler: The sampler.
        start: The state in which the iteration began.
        batch_size: Samples in a batch.
        times_chosen: The sampler's ``times_chosen`` when the consumer received its last batch.
    """

    def __init__(self, sampler: ResumableSampler, start: State, batch_size: int, *, drop_last: bool) -> None:
        super().__init__()
        self.sampler = sampler
        self.start = start
        self.batch_size = batch_size
        self._ended = False
        self.times_chosen = sampler.times_chosen
        self._positions = sampler.positions(start)
        self._length = len(self._positions)
        if drop_last:
            self._length -= self._length % batch_size
        self._holds = not sampler.is_held
        if self._holds:
            sampler.hold(start)

    def _release(self, *, received: bool) -> None:
        self.times_chosen = self.sampler.times_chosen
        if self._holds:
            self._holds = False
            self.sampler.release(received=received)

    @property
    @override
    def is_at_end(self) -> bool:
        return self._batches_received * self.batch_size >= self._length

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
        """Return the state after the batches received so far."""
        if self._ended or self.is_at_end:
            return self._next_epoch()
        position = self.start["position"] + self._batches_received * self.batch_size * self._positions.step
        return {**self.start, "position": min(position, self.start["length"])}

    def next_start(self) -> State:
        """Return the state where the next iteration starts: the next epoch, or this start if nothing was received."""
        return self._next_epoch() if self._batches_received or self._ended else self.start

    def _next_epoch(self) -> State:
        return {**self.start, "epoch": self.start["epoch"] + 1, "position": 0}

    @override
    def draw_seed(self) -> None:
        pass

    @override
    def sample_rng(self, number: int, samples: int) -> SampleRNG:
        part = self._positions[number * self.batch_size : (number + 1) * self.batch_size]
        return SampleRNG(self.start["seed"], self.start["epoch"], np.arange(part.start, part.stop, part.step))
