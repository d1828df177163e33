"""LMDBDataset works in processes and threads, beyond the contract of datasets."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dbloader import LMDBDataset
from dbloader.errors import StoreNotFoundError
from tests.contracts.dataset import EXPECTED, WAIT_S, in_worker, make, read_all
from tests.support.children import in_child

# Python >= 3.12 warns about every fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make(tmp_path_factory.mktemp("workers") / "s.lmdb"))


def test_missing_store_is_an_error_in_a_worker(tmp_path: Path) -> None:
    place = Path(make(tmp_path / "s.lmdb"))
    with LMDBDataset(place, decode=None) as dataset:
        place.unlink()
        with pytest.raises(StoreNotFoundError, match=r"s\.lmdb does not exist"):
            in_worker(dataset)
        assert read_all(dataset) == EXPECTED


def test_fork_does_not_wait_for_a_decoding_thread(place: Path) -> None:
    """Decoding is slow and does not use the store."""
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
