"""A resumed loader continues after the last received batch, for any workers and ranks."""

import copy
import inspect
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, Subset

from dbloader import LMDBDataset
from dbloader.errors import LoaderError, OptionError
from dbloader.loading.create import create_loader
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.sampling import OrderedSampler, ResumableSampler, SeededBatchSampler, ShuffleSampler
from dbloader.sampling.permutation import Permutation
from tests.support.loaders import Numbers, process_loader, thread_loader
from tests.support.stores import store_samples

LENGTH = 23


def make(
    sampler: ResumableSampler, batch_size: int = 2, *, kind: str = "threads", workers: int = 0, **options: Any
) -> PrefetchLoader[torch.Tensor]:
    dataset = Numbers(sampler.length)
    drop_last = options.pop("drop_last", False)
    if kind == "torch":
        loader: Any = DataLoader(dataset, batch_size, sampler=sampler, num_workers=workers, drop_last=drop_last)
    else:
        kinds: dict[str, Any] = {"processes": process_loader, "threads": thread_loader}
        batches = SeededBatchSampler(sampler, batch_size, drop_last)
        loader = kinds[kind](dataset, batch_sampler=batches, num_workers=workers)
    return PrefetchLoader(loader, **options)


def taken(loader: Any, batches: int | None = None) -> list[int]:
    """Return the samples in the first batches of an iteration, or in all batches."""
    return [sample for batch in itertools.islice(loader, batches) for sample in batch.tolist()]


def place_of(loader: PrefetchLoader[Any]) -> tuple[int, int]:
    """Return the epoch and the position of a loader."""
    state = loader.state_dict()
    return state["epoch"], state["position"]


def order_of(epoch: int, seed: int = 0, length: int = LENGTH) -> list[int]:
    order: list[int] = Permutation(length, seed, epoch)(np.arange(length)).tolist()
    return order


@pytest.mark.parametrize(("kind", "depth"), [("threads", 1), ("threads", 50), ("torch", 2)])
def test_state_counts_received_batches_at_any_depth(kind: str, depth: int) -> None:
    loader = make(ShuffleSampler(range(LENGTH), seed=5), 4, kind=kind, depth=depth)
    positions = []
    for epoch in range(2):
        positions.append(loader.state_dict()["position"])
        for _ in loader:
            state = loader.state_dict()
            positions.append(state["position"])
            assert state["seed"] == 5
            assert state["epoch"] == epoch + (state["position"] == 0)
        assert loader.state_dict() == state
    assert positions == [0, 4, 8, 12, 16, 20, 0] * 2


@pytest.mark.parametrize("kind", ["threads", "processes", "torch"])
def test_state_ignores_samples_that_drop_last_leaves_out(kind: str) -> None:
    loader = make(ShuffleSampler(range(LENGTH)), 4, kind=kind, drop_last=True)
    assert taken(loader, 4) == order_of(0)[:16]
    state = loader.state_dict()
    resumed = make(ShuffleSampler(range(LENGTH)), 5, kind=kind, drop_last=True)
    resumed.load_state_dict(state)
    assert taken(resumed, 1) == order_of(0)[16:21]  # the last 2 samples do not fill a batch
    assert place_of(resumed) == (1, 0)
    assert taken(resumed) == order_of(1)[:20]
    # Less than a batch is left, so the iteration is empty.
    loader.load_state_dict({**state, "position": 21})
    assert taken(loader) == []
    assert place_of(loader) == (1, 0)
    assert taken(loader, 1) == order_of(1)[:4]


def test_resuming_at_sample_ten_million_makes_few_batches() -> None:
    length = 20_000_000
    sampler = ShuffleSampler(range(length), seed=1)
    loader = make(sampler, 64, workers=2)
    loader.load_state_dict({**loader.state_dict(), "epoch": 7, "position": 10_000_000})
    assert taken(loader, 2) == Permutation(length, 1, 7)(np.arange(10_000_000, 10_000_128)).tolist()
    assert loader.state_dict()["position"] == 10_000_128
    loader.close()
    # Two batches received, two prefetched by the thread, two by the wrapped loader, and one being made by each.
    assert loader.dataset.asked <= 64 * 8


@pytest.mark.parametrize("kind", ["threads", "torch"])
def test_load_state_dict_inside_a_loop_ends_the_loop(kind: str) -> None:
    """A training may load an earlier state to roll back."""
    loader = make(ShuffleSampler(range(LENGTH)), kind=kind)
    taken(loader, 1)
    begin = loader.state_dict()
    received = []
    with pytest.raises(LoaderError, match=r"ended by load_state_dict\(\).*: call iter\(\) again"):  # noqa: PT012
        for batch in loader:
            received.append(batch.tolist())
            if len(received) == 3:
                loader.load_state_dict(begin)
    assert len(received) == 3
    assert loader.state_dict() == begin
    assert taken(loader) == order_of(0)[2:]


@pytest.mark.parametrize("kind", ["threads", "processes", "torch"])
def test_iter_starts_the_next_epoch_unless_one_is_set(kind: str) -> None:
    sampler = ShuffleSampler(range(LENGTH))
    loader = make(sampler, kind=kind)
    assert [taken(loader) for _ in range(3)] == [order_of(epoch) for epoch in range(3)]
    loader.set_epoch(7)
    assert [taken(loader), taken(loader, 1)] == [order_of(7), order_of(8)[:2]]
    sampler.set_epoch(5)
    assert [taken(loader), taken(loader)] == [order_of(5), order_of(6)]
    loader.set_epoch(6)  # the epoch that has just ended
    assert taken(loader) == order_of(6)


@pytest.mark.parametrize(("kind", "workers"), [("threads", 2), ("processes", 1), ("torch", 1)])
def test_epoch_set_after_iter_applies_to_that_iteration(kind: str, workers: int) -> None:
    """Lightning calls iter(), sometimes twice, and then sets the epoch of the sampler."""
    loader = make(ShuffleSampler(range(LENGTH)), kind=kind, workers=workers)
    iter(loader)
    iterator = iter(loader)
    loader.batch_sampler.sampler.set_epoch(9)
    assert place_of(loader) == (9, 0)
    received = next(iterator).tolist() + next(iterator).tolist()
    assert received == order_of(9)[:4]
    assert place_of(loader) == (9, 4)
    assert received + taken(iterator) == order_of(9)
    assert taken(loader) == order_of(10)


@pytest.mark.parametrize(("kind", "workers"), [("threads", 2), ("processes", 1), ("torch", 0)])
def test_iter_and_set_epoch_keep_a_loaded_state(kind: str, workers: int) -> None:
    loader = make(ShuffleSampler(range(LENGTH)), kind=kind, workers=workers)
    state = {**loader.state_dict(), "epoch": 2, "position": 6}
    loader.load_state_dict(state)
    for _ in range(2):
        iterator = iter(loader)
        loader.set_epoch(2)
        assert loader.state_dict() == state
    assert taken(iterator) == order_of(2)[6:]
    assert taken(loader) == order_of(3)
    loader.set_epoch(3)  # the epoch that has just ended
    assert place_of(loader) == (3, 0)
    assert taken(loader) == order_of(3)


def test_loader_whose_iterator_was_made_before_iter_is_an_error() -> None:
    class Early(DataLoader[Any]):
        """Makes its iterator before iter(), like a StatefulDataLoader after its state is read."""

        early: Any

        def __iter__(self) -> Any:
            return self.early

    inner = Early(Numbers(LENGTH), 2, sampler=ShuffleSampler(range(LENGTH)), num_workers=1)
    inner.early = DataLoader.__iter__(inner)
    loader: Any = PrefetchLoader(inner)
    with pytest.raises(LoaderError, match=r"did not begin where .* load_state_dict\(\) of the PrefetchLoader only$"):
        taken(loader)


def test_sampler_with_its_own_iter_is_named_in_the_error() -> None:
    class Reversed(ShuffleSampler):
        def __iter__(self) -> Iterator[int]:
            return iter(range(LENGTH - 1, -1, -1))

    with pytest.raises(LoaderError, match=r"or Reversed\.__iter__ does not call super\(\)\.__iter__\(\)"):
        taken(PrefetchLoader(DataLoader(Numbers(LENGTH), 2, sampler=Reversed(range(LENGTH)))))


def test_failure_before_the_first_batch_keeps_the_position() -> None:
    def fail(_: int) -> int:
        raise ValueError("not now")

    dataset = Numbers(LENGTH, fail)
    loader: Any = PrefetchLoader(DataLoader(dataset, 2, sampler=ShuffleSampler(range(LENGTH))))
    state = {**loader.state_dict(), "epoch": 1, "position": 6}
    loader.load_state_dict(state)
    for _ in range(2):
        iterator = iter(loader)
        with pytest.raises(ValueError, match="not now"):
            next(iterator)
        with pytest.raises(
            LoaderError, match=r"^an error ended this iterator \(ValueError: not now\): call iter\(\) again$"
        ):
            next(iterator)
        assert loader.state_dict() == state
    loader.set_epoch(1)
    assert loader.state_dict() == state
    dataset.function = int
    assert taken(loader) == order_of(1)[6:]


def test_state_is_in_the_next_epoch_after_a_loader_that_ends_early() -> None:
    class Limited(DataLoader[Any]):
        def __iter__(self) -> Any:
            return itertools.islice(super().__iter__(), 3)

    loader: Any = PrefetchLoader(Limited(Numbers(LENGTH), 2, sampler=ShuffleSampler(range(LENGTH))))
    assert taken(loader) == order_of(0)[:6]
    assert place_of(loader) == (1, 0)
    assert taken(loader) == order_of(1)[:6]


@pytest.mark.parametrize("kind", ["threads", "torch"])
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])  # noqa: S301
def test_copy_of_a_loader_keeps_the_position(clone: Any, kind: str) -> None:
    loader = make(ShuffleSampler(range(LENGTH)), kind=kind)
    iterator = iter(loader)
    next(iterator)
    other = clone(loader)
    assert has_state(other)
    assert other.state_dict() == loader.state_dict()
    assert taken(other) == order_of(1)
    assert loader.state_dict()["position"] == 2
    assert taken(iterator) == order_of(0)[2:]


class Wrapper:
    """A user's class around a loader. CombinedLoader calls its methods, not those of the loader."""

    def __init__(self, loader: PrefetchLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.loader.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Lightning's imports
@pytest.mark.parametrize("wrap", [Wrapper, lambda loader: loader])
def test_wrapped_loader_in_a_combined_loader_stays_at_its_end(wrap: Any) -> None:
    combined_loader = pytest.importorskip("lightning.pytorch.utilities.combined_loader")

    def combined() -> Any:
        loaders = [wrap(make(ShuffleSampler(range(length)), 2)) for length in (5, LENGTH)]
        return combined_loader.CombinedLoader(loaders, "max_size")

    loader = combined()
    for (short, _), number, _ in itertools.islice(iter(loader), 8):
        assert (short is None) == (number >= 3)
    states = [each.state_dict() for each in loader.flattened]
    resumed = combined()
    resumed._load_state_dicts(states)  # as Lightning's trainer does
    rest = [batches for batches, *_ in iter(resumed)]
    assert [short for short, _ in rest] == [None] * (12 - 8)
    assert [sample for _, long in rest for sample in long.tolist()] == order_of(0)[16:]
    assert [short is None for (short, _), *_ in iter(resumed)] == [False] * 3 + [True] * 9


def has_state(loader: Any) -> bool:
    """Return whether hasattr and isinstance with a protocol both find the state methods."""
    by_class = inspect.getattr_static(loader, "state_dict", None) is not None
    assert by_class == hasattr(loader, "state_dict") == hasattr(loader, "load_state_dict")
    return by_class


class OfThree(SeededBatchSampler):
    """A batch sampler that changes the order that it inherits."""

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(super().__iter__(), 3)


class Batching:
    """A loader that has a sampler but is not a DataLoader."""

    def __init__(self) -> None:
        self.sampler = ShuffleSampler(range(LENGTH))

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.tensor([*self.sampler]).reshape(-1, 1))


@pytest.mark.parametrize(
    "loader",
    [
        [1, 2],
        DataLoader(Numbers(LENGTH), 2),
        DataLoader(Numbers(LENGTH), 2, sampler=DistributedSampler(Numbers(LENGTH), 2, 0)),
        DataLoader(Numbers(LENGTH), batch_sampler=OfThree(ShuffleSampler(range(LENGTH)), 2)),
        Batching(),
    ],
    ids=["list", "no sampler", "torch's sampler", "own order", "no DataLoader"],
)
def test_loader_with_unknown_order_has_no_state(loader: Any) -> None:
    assert not has_state(PrefetchLoader(loader))


def test_subclass_without_state_methods_uses_the_state_of_its_loader() -> None:
    class Named(PrefetchLoader[Any]):
        pass

    class Own(PrefetchLoader[Any]):
        def state_dict(self) -> dict[str, Any]:
            return {"epoch": 9}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    def source() -> Any:
        return DataLoader(Numbers(LENGTH), 2, sampler=ShuffleSampler(range(LENGTH)))

    assert Own(source()).state_dict() == {"epoch": 9}
    named = Named(source())
    assert has_state(named)
    assert [taken(named), taken(named)] == [order_of(0), order_of(1)]
    assert place_of(named) == (2, 0)


def test_state_of_a_loader_without_batches_counts_samples() -> None:
    samples: Any = [torch.full((3,), number) for number in range(LENGTH)]
    loader = PrefetchLoader(DataLoader(samples, batch_size=None, sampler=OrderedSampler(range(LENGTH))))
    assert [sample[0].item() for sample in itertools.islice(loader, 5)] == [0, 1, 2, 3, 4]
    assert loader.state_dict()["position"] == 5
    assert loader.stats().samples is None  # the three values of a sample are not three samples


def dataset_at(place: Path, first: int = 0) -> LMDBDataset:
    """Return a dataset over a new store of LENGTH records. ``first`` determines the images."""
    store_samples(((bytes([number]), number % 3) for number in range(first, first + LENGTH)), place)
    return LMDBDataset(place, decode=None, fields=("index", "label"))


def loaders_of(dataset: Any) -> Iterator[PrefetchLoader[Any]]:
    for workers in ("threads", "processes"):
        options: dict[str, Any] = {"worker_type": workers, "transform": None, "normalize": None, "device": None}
        yield create_loader(dataset, batch_size=4, num_workers=0, **options)
    yield PrefetchLoader(DataLoader(dataset, 4, sampler=OrderedSampler(dataset)))


def test_state_is_accepted_for_a_copy_of_its_store_but_no_other_store(tmp_path: Path) -> None:
    one, copied, other = (dataset_at(tmp_path / f"{number}.lmdb", number // 2) for number in range(3))
    message = f"another dataset, with the digest {one.manifest.digest}: this .* LM"
    for mine, of_copy, others in zip(loaders_of(one), loaders_of(copied), loaders_of(other), strict=True):
        states = [mine.state_dict(), *(mine.state_dict() for _ in mine), mine.state_dict()]
        for state in states:
            assert state["dataset"] == one.manifest.digest
            assert {type(value) for value in state.values()} == {int, str}
            with pytest.raises(OptionError, match=message):
                others.load_state_dict(state)
            assert others.state_dict()["dataset"] == other.manifest.digest
            of_copy.load_state_dict(state)
            assert of_copy.state_dict() == state


def test_state_without_a_digest_is_accepted(tmp_path: Path) -> None:
    dataset = dataset_at(tmp_path / "one.lmdb")
    part = Subset(dataset, range(LENGTH))
    for known, unknown in zip(loaders_of(dataset), loaders_of(part), strict=True):
        state = unknown.state_dict()
        assert "dataset" not in state  # as older versions wrote the state
        known.load_state_dict({**state, "position": 4})
        assert known.state_dict()["position"] == 4
        unknown.load_state_dict(known.state_dict())
        assert unknown.state_dict() == {**state, "position": 4}
        sampler = OrderedSampler(dataset)  # a sampler also accepts the state of a loader
        sampler.load_state_dict(known.state_dict())
        assert [*sampler] == list(range(4, LENGTH))


def test_malformed_state_is_refused(tmp_path: Path) -> None:
    for dataset in (dataset_at(tmp_path / "one.lmdb"), Numbers(LENGTH)):
        loader = PrefetchLoader(DataLoader(dataset, 4, sampler=OrderedSampler(dataset)))
        things: list[Any] = ["x", None, []]
        for thing in things:
            with pytest.raises(TypeError, match=r"^a state must be a dict from state_dict\(\) of a loader with this "):
                loader.load_state_dict(thing)
        with pytest.raises(OptionError, match="got one that lacks 'epoch', 'length', 'position', 'sampler', "):
            loader.load_state_dict({})


@pytest.mark.parametrize("name", ["state_dict", "load_state_dict"])
def test_error_explains_why_a_loader_has_no_state_dict(name: str) -> None:
    wanted = "resuming needs one of dbloader's samplers, or a loader with a state_dict of its own"
    for loader in (DataLoader(Numbers(), 4, shuffle=True), thread_loader(Numbers(), 4), [1, 2]):
        with pytest.raises(AttributeError, match=f"'PrefetchLoader' object has no attribute '{name}': {wanted}$"):
            getattr(PrefetchLoader(loader), name)
    with pytest.raises(AttributeError, match=r"^'list' object has no attribute 'nothing'$"):
        PrefetchLoader([1]).nothing  # noqa: B018
