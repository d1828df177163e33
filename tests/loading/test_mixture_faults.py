"""Faults that users of other loaders have reported of mixtures, as tests of ours.

LitData #694, MosaicML streaming #869, Hugging Face datasets #8308 and #7444, MaxText #5037 (Grain), NeMo RL #2519, and
the documentation of Megatron Energon, which asks for a constant number of ranks times workers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dbloader import Record, create_loader, mix, write_store
from dbloader.errors import OptionError

LENGTHS = (40, 7, 1)
OPTIONS: dict[str, Any] = {"transform": None, "normalize": None, "device": None, "is_training": True}
ALL = 240  # samples of an epoch


def write_sources(folder: Path, lengths: Iterable[int]) -> list[Path]:
    places = []
    for number, length in enumerate(lengths):
        places.append(folder / f"{number}.lmdb")
        write_store((Record(f"{number}/{index}", 0) for index in range(length)), places[-1])
    return places


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_sources(tmp_path_factory.mktemp("faults"), LENGTHS)


class Training:
    """A training of some ranks, which all run in this process."""

    def __init__(self, places: list[Path], ranks: int, batch_size: int, state: Any = None, **options: Any) -> None:
        mixture = mix(dict(zip(places, (3, 2, 1), strict=True)), fields=("name",), length=ALL)
        options = {"num_workers": 0, **OPTIONS, **options}
        samplers = [mixture.sampler(ranks, rank) for rank in range(ranks)]
        self.loaders = [create_loader(mixture, None, batch_size, sampler=one, **options) for one in samplers]
        for loader in self.loaders if state is not None else ():
            loader.load_state_dict(state)
        self.iterators: list[Any] = []

    def take(self, batches: int) -> list[str]:
        """Return the names of the samples of the next batches of all ranks, in their global order."""
        names: list[str] = []
        for _ in range(batches):
            try:
                parts = [next(iterator)["name"] for iterator in self.iterators or self._begin()]
            except StopIteration:
                parts = [next(iterator)["name"] for iterator in self._begin()]
            names += [name for row in zip(*parts, strict=True) for name in row]
        return names

    def _begin(self) -> list[Any]:
        self.iterators = [iter(loader) for loader in self.loaders]
        return self.iterators

    def stop(self) -> Any:
        """End the training; return its state, the same of all ranks."""
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        for loader in self.loaders:
            loader.close()
        return states[0]


@pytest.fixture(scope="module")
def expected(places: list[Path]) -> list[str]:
    training = Training(places, 1, 40)
    names = training.take(4 * ALL // 40)
    training.stop()
    return names


def test_forty_ranks_resume(places: list[Path], expected: list[str]) -> None:
    first = Training(places, 40, 2)
    assert first.take(2) == expected[:160]
    second = Training(places, 40, 2, first.stop())
    assert second.take(2) == expected[160:320]
    second.stop()


def test_resume_in_the_fourth_epoch_with_repeated_and_chosen_samples(places: list[Path], expected: list[str]) -> None:
    assert expected.count("2/0") == ALL * 4 // 6  # repeated 40 times in each epoch
    first = Training(places, 2, 20)
    assert first.take(19) == expected[:760]
    state = first.stop()
    assert (state["epoch"], state["position"]) == (3, 40)
    second = Training(places, 2, 20, state)
    assert second.take(5) == expected[760:]
    second.stop()


def test_second_resume_does_not_start_again(places: list[Path], expected: list[str]) -> None:
    state, names = None, []
    for _ in range(10):
        training = Training(places, 1, 16, state)
        names += training.take(1)
        state = training.stop()
        again = Training(places, 1, 16, state)  # resumed and stopped before its first batch
        assert again.stop() == state
    assert names == expected[:160]


def test_resume_loses_no_sample_of_a_shuffle(places: list[Path]) -> None:
    first = Training(places, 1, 24, num_workers=2, worker_type="threads")
    names = first.take(2)
    second = Training(places, 1, 24, first.stop(), num_workers=2, worker_type="threads")
    names += second.take(8)
    second.stop()
    of_first = [name for name in names if name.startswith("0/")]
    assert len(of_first) == 120
    assert all(len({*of_first[begin : begin + 40]}) == 40 for begin in (0, 40, 80))


def test_ranks_and_workers_may_change(places: list[Path], expected: list[str]) -> None:
    state, names = None, []
    for ranks, workers, kind in ((2, 0, "threads"), (1, 2, "processes"), (4, 2, "threads"), (3, 1, "threads")):
        training = Training(places, ranks, 24 // ranks, state, num_workers=workers, worker_type=kind)
        names += training.take(2)
        state = training.stop()
    assert names == expected[: 4 * 48]


def test_number_of_threads_does_not_depend_on_the_sources(tmp_path: Path) -> None:
    places = write_sources(tmp_path, [3] * 35)
    counts = []
    for count in (1, 35):
        before = {*threading.enumerate()}
        mixture = mix(dict.fromkeys(places[:count], 1), fields=("name",))
        loader = create_loader(mixture, None, 3, num_workers=2, worker_type="threads", **OPTIONS)
        next(iter(loader))
        counts.append(len({*threading.enumerate()} - before))
        loader.close()
    assert max(counts) <= 2 + 1  # the workers, started when needed, and the background thread


def test_state_of_changed_sources_is_refused(places: list[Path], tmp_path: Path) -> None:
    first = Training(places, 1, 40)
    first.take(1)
    state = first.stop()
    (longer,) = write_sources(tmp_path, [8])
    with pytest.raises(OptionError, match=r"it has other samples of .*0\.lmdb"):
        Training([places[0], longer, places[2]], 1, 40, state)
    copied = tmp_path / "copy.lmdb"
    copied.write_bytes(places[1].read_bytes())
    moved = Training([places[0], copied, places[2]], 1, 40, state)  # the same samples at another place
    moved.stop()
