"""Resume an epoch after the last batch that its consumer received. Prefetched batches do not count.

The loader continues from whichever came last: a received batch, ``set_epoch`` or ``load_state_dict``.
``iter()`` alone changes nothing, because an iteration begins with its first ``next()``.

To import no frameworks, this module recognizes loaders by attributes, or by classes that are already imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from typing_extensions import override

from dbloader.errors import LoaderError, OptionError
from dbloader.sampling.rng import SampleRNG

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sampling.base import ResumableSampler

State: TypeAlias = dict[str, Any]
Checkpoint: TypeAlias = "LoaderCheckpoint | SamplerCheckpoint"

# Key of the dataset's content digest in a state.
_DATASET = "dataset"


def find_checkpoint(loader: Any) -> Checkpoint | None:
    """Return the object that can resume a loader, or None if the loader cannot be resumed."""
    batches: Any = getattr(loader, "batch_sampler", Ellipsis)
    sampler: Any = getattr(loader if batches is None else batches, "sampler", None)
    dataset = getattr(loader, "dataset", None)
    if all(hasattr(sampler, name) for name in ("positions", "hold", "load_state_dict")):
        if batches is None:  # a DataLoader with batch_size=None: each sample is a batch
            return SamplerCheckpoint(sampler, 1, drop_last=False, dataset=dataset)
        if keeps_order(batches):
            return SamplerCheckpoint(sampler, batches.batch_size, drop_last=batches.drop_last, dataset=dataset)
    # A loader that Accelerate has prepared always has both methods below, but they fail if the inner loader has none.
    inner = getattr(loader, "base_dataloader", loader)
    if hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict"):
        return LoaderCheckpoint(loader)
    return None


def keeps_order(batches: Any) -> bool:
    """Return whether a batch sampler fills batches with successive indices of its sampler; False if unknown."""
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
    """Counts the batches of an iteration that the consumer has received. Suits any loader.

    Args:
        loader: The loader, with or without a length.
        state_dict: Returns the loader's own state, if it has one.

    Attributes:
        received: The loader's own state after the last received batch. None at the beginning and at the end: there,
            ``state_dict()`` itself returns the right state, because the loader is not ahead of the consumer.
    """

    _seed = 0
    _samples = 0

    def __init__(self, loader: Any = None, state_dict: Callable[[], State] | None = None) -> None:
        self._loader = loader
        self._batches_received = 0
        self._state_dict = state_dict
        self.received: State | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether the consumer has received the last batch; False if that is unknown."""
        try:
            return self._batches_received == len(self._loader)
        except TypeError:
            return False

    def snapshot(self) -> State | None:
        """Return the loader's own state after its latest batch. This is called in the thread that made the batch."""
        return None if self._state_dict is None else self._state_dict()

    def receive(self, snapshot: State | None) -> None:
        """Count a batch that the consumer has received. ``snapshot`` is the loader's state after this batch."""
        self._batches_received += 1
        self.received = snapshot

    def end(self) -> None:
        """Handle the end of the iteration."""
        self.received = None

    def fail(self) -> None:
        """Handle an error that ended the iteration."""

    def draw_seed(self) -> None:
        """Draw the seed of ``sample_rng`` from torch's generator, in the consumer's thread."""
        self._seed = SampleRNG.from_torch(0).seed

    def sample_rng(self, number: int, samples: int) -> SampleRNG:
        """Return the random numbers for preparing batch ``number`` (from 0), which has ``samples`` samples."""
        first, self._samples = self._samples, self._samples + samples
        return SampleRNG(self._seed, 0, np.arange(first, self._samples))


class LoaderCheckpoint:
    """Resumes a loader that has its own ``state_dict``, by storing the loader's state after each batch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._latest: Position | None = None

    def begin(self) -> Position:
        """Return the position of a new iteration. Call this before making the loader's iterator."""
        self._latest = Position(self._loader, self._loader.state_dict)
        return self._latest

    def state(self) -> State:
        """Return the state after the last received batch, or the state that was loaded later."""
        state = None if self._latest is None else self._latest.received
        return self._loader.state_dict() if state is None else state

    def load(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue from a state."""
        self._loader.load_state_dict(state)
        self._latest = None


class SamplerCheckpoint:
    """Resumes one of dbloader's samplers by counting the batches that the consumer received.

    If the dataset has a ``content_digest``, loading a state of another dataset raises OptionError.
    """

    def __init__(self, sampler: ResumableSampler, batch_size: int, *, drop_last: bool, dataset: Any = None) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._dataset = dataset
        self._latest: SamplerPosition | None = None
        self._later: State | None = None  # if load() makes the next iteration empty, the iteration after it begins here

    def begin(self) -> Position:
        """Return the position of a new iteration."""
        # If an outer PrefetchLoader has called ``sampler.hold``, the outer loader decides where the iteration begins.
        if self._latest is None or self._was_chosen or self._sampler.is_held:
            start = self._sampler.next_state()
            if start["position"] < start["length"]:
                self._later = None
        else:
            start, self._later = self._later or self._latest.next_start(), None
        self._latest = SamplerPosition(self._sampler, start, self._batch_size, drop_last=self._drop_last)
        return self._latest

    @property
    def _was_chosen(self) -> bool:
        """Whether ``set_epoch`` or ``load_state_dict`` was called since the last batch was received."""
        return self._latest is not None and self._sampler.times_chosen != self._latest.times_chosen

    def state(self) -> State:
        """Return the state after the last received batch, or the epoch or state that was chosen later."""
        if self._latest is None or self._was_chosen:
            return {**self._sampler.next_state(), **self._digest()}
        return {**self._latest.state(), **self._digest()}

    def load(self, state: Any) -> None:
        """Make the next iteration continue from a state."""
        own = self._digest()
        # States of older versions, and of datasets without a digest, have no digest.
        if own and isinstance(state, Mapping) and state.get(_DATASET, own[_DATASET]) != own[_DATASET]:
            raise OptionError(
                f"the state belongs to another dataset, with the digest {state[_DATASET]}: this loader's "
                f"{type(self._dataset).__name__} has the digest {own[_DATASET]}. Make the loader with the dataset that "
                "the state was saved with"
            )
        self._sampler.load_state_dict(state)
        self._later = None
        longest = _longest_in_combined_loader()
        if longest is None:
            return
        if not longest["position"]:  # Lightning is at the beginning of an epoch, so all its loaders begin this epoch
            self._sampler.load_state_dict({**state, "epoch": longest["epoch"], "position": 0})
        elif state["epoch"] > longest["epoch"]:  # this loader has no batches left in Lightning's epoch
            self._later = self._sampler.next_state()
            self._sampler.load_state_dict({**state, "epoch": longest["epoch"], "position": state["length"]})

    def _digest(self) -> State:
        digest = getattr(self._dataset, "content_digest", None)
        return {_DATASET: digest} if isinstance(digest, str) else {}


def _longest_in_combined_loader() -> State | None:
    """If a CombinedLoader of Lightning calls ``load_state_dict``, return the state of its longest loader, else None.

    Lightning passes each loader only its own state. That state does not show whether other loaders have batches left.
    """
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_qualname != "CombinedLoader._load_state_dicts":
        frame = frame.f_back
    if frame is None:
        return None
    if "states" not in frame.f_locals:
        raise LoaderError("dbloader cannot read the states of the CombinedLoader of this version of Lightning")
    loaders = [loader for loader in frame.f_locals["self"].flattened if hasattr(loader, "state_dict")]
    pairs = [pair for pair in zip(loaders, frame.f_locals["states"], strict=True) if "position" in pair[1]]
    state: State = max(pairs, key=lambda pair: len(pair[0]))[1]
    return state


class SamplerPosition(Position):
    """Counts the received batches of an iteration over one of dbloader's samplers.

    Until the consumer has received a batch, ``sampler.hold`` makes each iteration over the sampler begin at ``start``.

    Attributes:
        start: The sampler's state at the beginning of the iteration.
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
        """Return the state in which the next iteration starts: the next epoch, or ``start`` if no batch was taken."""
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
