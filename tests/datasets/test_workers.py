"""An LMDBDataset in many processes and threads, beyond the contract of datasets."""

import multiprocessing
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, get_worker_info

from dbloader import LMDBDataset, Record, write_store
from dbloader.errors import DamagedImageError, StoreNotFoundError
from tests.contracts.dataset import EXPECTED, LENGTH, WAIT_S, Witness, in_worker, make, read_all

# Python >= 3.12 warns of every fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make(tmp_path_factory.mktemp("workers") / "s.lmdb"))


def watched(place: Path) -> LMDBDataset:
    witness = Witness()
    witness.dataset = dataset = LMDBDataset(place, decode=witness)
    return dataset


def test_workers_may_come_and_go_while_the_parent_reads(place: Path) -> None:
    with LMDBDataset(place, decode=None) as dataset:
        loader = DataLoader(dataset, 6, num_workers=1, shuffle=True, collate_fn=list)
        for _ in range(3):
            for batch in loader:
                for data, label in batch:
                    assert (data, label) == EXPECTED[data[0]]
                assert dataset[batch[0][0][0]] == batch[0]


def test_an_epoch_that_is_left_early_leaves_the_parent_its_store(place: Path) -> None:
    with LMDBDataset(place, decode=None) as dataset:
        for _ in DataLoader(dataset, 2, num_workers=2, collate_fn=list):
            break
        assert read_all(dataset) == EXPECTED


def test_two_datasets_on_one_file_go_to_the_same_workers(place: Path) -> None:
    """LMDB allows a file to be opened once in a process."""
    with LMDBDataset(place, decode=None) as one, LMDBDataset(place, decode=len) as other:
        loader = DataLoader(one + other, LENGTH, num_workers=2, collate_fn=list)
        first, second = list(loader)
        assert first == EXPECTED == read_all(one)
        assert [size for size, _ in second] == [500] * LENGTH


def tell_worker(_: Any) -> int:
    info = get_worker_info()
    return -1 if info is None else info.id


def test_transforms_run_in_the_workers(place: Path) -> None:
    with LMDBDataset(place, tell_worker, decode=None) as dataset:
        ids = [images.tolist() for images, _ in DataLoader(dataset, 8, num_workers=2)]
        assert ids == [[0] * 8, [1] * 8, [0] * 8]
        assert dataset[0][0] == -1


# Errors in workers


def test_an_image_that_was_stored_damaged_is_the_same_error_in_a_worker(tmp_path: Path) -> None:
    write_store([Record("a/cut.jpg", 1, b"\xff\xd8", damaged="its end is missing")], tmp_path / "s.lmdb")
    told = r"record 0 \(a/cut\.jpg\) of .* was stored damaged: its end is missing; .*decode=None"
    with LMDBDataset(tmp_path / "s.lmdb") as dataset, pytest.raises(DamagedImageError, match=told):
        in_worker(dataset)


def test_a_worker_that_finds_no_store_says_so(tmp_path: Path) -> None:
    place = Path(make(tmp_path / "s.lmdb"))
    with LMDBDataset(place, decode=None) as dataset:
        place.unlink()
        with pytest.raises(StoreNotFoundError, match=r"s\.lmdb does not exist"):
            in_worker(dataset)
        assert read_all(dataset) == EXPECTED


# Threads


def test_a_thread_may_close_the_dataset_while_others_read(place: Path) -> None:
    count = 4
    with LMDBDataset(place, decode=None) as dataset:
        barrier = threading.Barrier(count + 1)

        def read(_: int) -> bool:
            barrier.wait(WAIT_S)
            return all(read_all(dataset) == EXPECTED for _ in range(50))

        with ThreadPoolExecutor(count) as executor:
            results = executor.map(read, range(count))
            barrier.wait(WAIT_S)
            for _ in range(100):
                dataset.close()
            assert all(results)


# Forks


def in_fork(function: Callable[[], Any]) -> Any:
    """What a function gives in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            with os.fdopen(writing, "wb") as pipe:
                try:
                    result = pickle.dumps(function())
                    status = 0
                except BaseException:  # the parent is to see whatever it is
                    result = pickle.dumps(traceback.format_exc())
                pipe.write(result)
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        result = pickle.load(pipe)  # noqa: S301 - our own
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, result
    return result


def test_a_fork_reads_what_its_parent_has_open(place: Path) -> None:
    with watched(place) as dataset:
        assert dataset[0][0][1] == os.getpid()
        reader, opener, first = in_fork(lambda: dataset[5][0].tolist())
        assert reader == opener != os.getpid()
        assert first == 5
        assert dataset[5][0].tolist() == [os.getpid(), os.getpid(), 5]


def test_a_fork_of_a_fork_reads_too(place: Path) -> None:
    with watched(place) as dataset:

        def child() -> list[Any]:
            before = dataset[1][0].tolist()
            return [before, in_fork(lambda: dataset[2][0].tolist()), dataset[3][0].tolist()]

        assert dataset[0][0][2] == 0
        first, second, third = in_fork(child)
        assert [first[2], second[2], third[2]] == [1, 2, 3]
        assert first[:2] == third[:2] == [first[0]] * 2
        assert second[:2] == [second[0]] * 2
        assert len({os.getpid(), first[0], second[0]}) == 3


def test_a_child_that_closes_its_dataset_leaves_the_parent_its_own(place: Path) -> None:
    with LMDBDataset(place, decode=None) as dataset:
        assert dataset[0] == EXPECTED[0]

        def child() -> list[Any]:
            dataset.close()
            before = read_all(dataset)
            dataset.close()
            return before

        assert in_fork(child) == EXPECTED == read_all(dataset)


def test_forks_read_while_other_threads_of_the_parent_do(place: Path) -> None:
    """The child has none of those threads, whatever they were about to do."""
    count = 3
    with LMDBDataset(place, decode=None) as dataset:
        barrier, done = threading.Barrier(count + 1), threading.Event()

        def read(_: int) -> int:
            barrier.wait(WAIT_S)
            rounds = 0
            while not done.is_set():
                assert read_all(dataset) == EXPECTED
                rounds += 1
                if not rounds % 5:
                    dataset.close()  # so that they are opening at times
            return rounds

        with ThreadPoolExecutor(count) as executor:
            rounds = executor.map(read, range(count))
            barrier.wait(WAIT_S)
            try:
                for _ in range(20):
                    assert in_fork(lambda: read_all(dataset)) == EXPECTED
            finally:
                done.set()
            assert min(rounds) > 0


def test_a_fork_waits_for_nothing_when_a_thread_is_decoding(place: Path) -> None:
    """Decoding takes long, and needs no store any more."""
    decoding, forked = threading.Event(), threading.Event()

    def decode(data: bytes) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            decoding.set()
            assert forked.wait(WAIT_S)
        return data

    with LMDBDataset(place, decode=decode) as dataset, ThreadPoolExecutor(1) as executor:
        sample = executor.submit(dataset.__getitem__, 4)
        assert decoding.wait(WAIT_S)
        try:
            assert in_fork(lambda: read_all(dataset)) == EXPECTED
        finally:
            forked.set()
        assert sample.result(WAIT_S) == EXPECTED[4]


def test_a_process_pool_gets_the_dataset(place: Path) -> None:
    with LMDBDataset(place, decode=None) as dataset:
        assert len(dataset.targets) == LENGTH
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(read_all, (dataset,)) == EXPECTED
            pool.close()
            pool.join()


# What is sent to workers


def test_what_is_sent_to_a_worker_does_not_grow_with_the_records(tmp_path: Path) -> None:
    sizes = []
    for length in (100, 5000):
        place = tmp_path / f"{length:04}.lmdb"
        write_store(({"label": index % 7, "name": f"{index}.jpg"} for index in range(length)), place)
        with LMDBDataset(place) as dataset:
            assert len(dataset.targets) == len(dataset.names) == len(dataset.samples) == length
            sizes.append(len(pickle.dumps(dataset)))
    # But for the digits of the counts in the manifest: length, labelled, named and seven labels.
    assert 0 <= sizes[1] - sizes[0] <= 10
    assert sizes[1] < 2000
