"""An LMDBDataset in many processes and threads, beyond the contract of datasets."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from dbloader import LMDBDataset
from dbloader.errors import StoreNotFoundError
from tests.contracts.dataset import EXPECTED, LENGTH, WAIT_S, Witness, in_worker, make, read_all
from tests.support.children import in_child

# Python >= 3.12 warns of every fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make(tmp_path_factory.mktemp("workers") / "s.lmdb"))


def test_workers_may_come_and_go_while_the_parent_reads(place: Path) -> None:
    with LMDBDataset(place, decode=None) as dataset:
        loader = DataLoader(dataset, 6, num_workers=1, shuffle=True, collate_fn=list)
        for _ in range(3):
            for batch in loader:
                for data, label in batch:
                    assert (data, label) == EXPECTED[data[0]]
                assert dataset[batch[0][0][0]] == batch[0]


def test_two_datasets_on_one_file_go_to_the_same_workers(place: Path) -> None:
    """LMDB allows a file to be opened once in a process."""
    with LMDBDataset(place, decode=None) as one, LMDBDataset(place, decode=len) as other:
        loader = DataLoader(one + other, LENGTH, num_workers=2, collate_fn=list)
        first, second = list(loader)
        assert first == EXPECTED == read_all(one)
        assert [size for size, _ in second] == [500] * LENGTH


# Errors in workers


def test_a_worker_that_finds_no_store_says_so(tmp_path: Path) -> None:
    place = Path(make(tmp_path / "s.lmdb"))
    with LMDBDataset(place, decode=None) as dataset:
        place.unlink()
        with pytest.raises(StoreNotFoundError, match=r"s\.lmdb does not exist"):
            in_worker(dataset)
        assert read_all(dataset) == EXPECTED


# Forks


def test_a_fork_and_a_fork_of_it_read_through_handles_of_their_own(place: Path) -> None:
    witness = Witness()
    with LMDBDataset(place, decode=witness) as dataset:
        witness.dataset = dataset

        def check_own(index: int) -> None:
            assert dataset[index][0].tolist() == [os.getpid(), os.getpid(), index]

        def read_and_fork() -> None:
            check_own(1)
            assert in_child(lambda: check_own(2)) == 0
            check_own(3)
            dataset.close()  # which leaves the parent its own
            check_own(4)

        check_own(0)
        assert in_child(read_and_fork) == 0
        check_own(5)


def test_a_fork_waits_for_nothing_when_a_thread_is_decoding(place: Path) -> None:
    """Decoding takes long, and needs no store any more."""
    decoding, forked = threading.Event(), threading.Event()

    def decode(data: bytes) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            decoding.set()
            assert forked.wait(WAIT_S)
        return data

    def check_all() -> None:
        assert read_all(dataset) == EXPECTED

    with LMDBDataset(place, decode=decode) as dataset, ThreadPoolExecutor(1) as executor:
        sample = executor.submit(dataset.__getitem__, 4)
        assert decoding.wait(WAIT_S)
        try:
            assert in_child(check_all) == 0
        finally:
            forked.set()
        assert sample.result(WAIT_S) == EXPECTED[4]
