"""One dataset in many processes and threads: each process opens the store itself, and all read the same."""

import itertools
import multiprocessing
import os
import pickle
import random
import shutil
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from dbloader import LMDBDataset, Record, write_store
from dbloader.errors import DamagedImageError, DamagedRecordError, NotAStoreError, StoreNotFoundError
from dbloader.records.record import encode
from dbloader.stores.lmdb.keys import RECORDS, record_key
from dbloader.stores.lmdb.store import LMDBStore

WAIT_S = 60.0  # for what is on its way; only a broken test waits so long
LENGTH = 24
CONTEXTS = ("fork", "spawn", "forkserver")

# Python >= 3.12 warns of every fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

# Where it is new, the forkserver imports torch once instead of once for each worker.
multiprocessing.set_forkserver_preload(["dbloader.datasets"])


class Witness:
    """Decodes an image to the process that does so, the one that opened the store, and the bytes' first one."""

    dataset: LMDBDataset

    def __call__(self, data: bytes) -> torch.Tensor:
        store = self.dataset.store
        assert isinstance(store, LMDBStore)
        assert store.handle is not None
        return torch.tensor([os.getpid(), store.handle.shared.pid, data[0]])


def data_of(index: int) -> bytes:
    return bytes([index % 256]) * 5000


def make(place: Path, length: int = LENGTH) -> Path:
    """A store of which every record tells its index."""
    records = (Record(f"{index}.x", index % 7, data_of(index)) for index in range(length))
    write_store(records, place, classes=list("abcdefg"))
    return place


def watched(place: Path) -> LMDBDataset:
    witness = Witness()
    witness.dataset = LMDBDataset(place, decode=witness)
    return witness.dataset


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("workers") / "s.lmdb")


def read_all(dataset: LMDBDataset) -> list[tuple[bytes, int]]:
    return dataset.__getitems__(range(len(dataset)))


EXPECTED = [(data_of(index), index % 7) for index in range(LENGTH)]


# DataLoader workers

CASES = [
    *((workers, None, False, opened) for workers in (0,) for opened in (False, True)),
    *itertools.product((2,), CONTEXTS, (False, True), (False, True)),
]


@pytest.mark.parametrize(("workers", "context", "persistent", "opened"), CASES)
def test_every_worker_opens_the_store_itself_and_all_read_the_same(
    place: Path, workers: int, context: str | None, persistent: bool, opened: bool
) -> None:
    with watched(place) as dataset:
        if opened:
            assert dataset[3][0].tolist() == [os.getpid(), os.getpid(), 3]
            assert dataset.targets[3] == 3
        else:
            dataset.close()
        loader = DataLoader(
            dataset, 4, num_workers=workers, multiprocessing_context=context, persistent_workers=persistent
        )
        of_epochs = []
        for _ in range(2 if persistent or context != "spawn" else 1):  # starting workers anew takes seconds there
            batches = list(loader)
            images, labels = (torch.cat(column) for column in zip(*batches, strict=True))
            assert images[:, 2].tolist() == list(range(LENGTH))
            assert labels.tolist() == [label for _, label in EXPECTED]
            assert images[:, 0].equal(images[:, 1])  # the process that reads is the one that opened
            of_epochs.append({int(pid) for pid in images[:, 0]})
        assert len(of_epochs[0]) == max(1, workers)
        assert (os.getpid() in of_epochs[0]) == (workers == 0)
        assert (of_epochs[0] == of_epochs[-1]) == (persistent or workers == 0 or len(of_epochs) == 1)
        # And the parent, whose workers have ended:
        assert [dataset[index][0].tolist() for index in (0, -1)] == [
            [os.getpid(), os.getpid(), index] for index in (0, LENGTH - 1)
        ]
        if persistent:
            loader._iterator._shutdown_workers()  # type: ignore[union-attr]


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
        assert [size for size, _ in second] == [5000] * LENGTH


def tell_worker(_: Any) -> int:
    info = get_worker_info()
    return -1 if info is None else info.id


def test_transforms_run_in_the_workers(place: Path) -> None:
    with LMDBDataset(place, tell_worker, decode=None) as dataset:
        ids = [images.tolist() for images, _ in DataLoader(dataset, 8, num_workers=2)]
        assert ids == [[0] * 8, [1] * 8, [0] * 8]
        assert dataset[0][0] == -1


# Errors in workers


def in_worker(dataset: LMDBDataset, context: str = "fork") -> None:
    """Read everything in one worker, and ends that."""
    iterator = iter(DataLoader(dataset, 4, num_workers=1, multiprocessing_context=context, collate_fn=list))
    try:
        for _ in iterator:
            pass
    finally:
        iterator._shutdown_workers()  # type: ignore[attr-defined]


def tamper(place: Path, index: int, change: Callable[[bytearray], None]) -> None:
    """Change the stored bytes of one record."""
    with lmdb.open(str(place), subdir=False, max_dbs=2, lock=False) as env:
        records = env.open_db(RECORDS, create=False)
        with env.begin(write=True) as txn:
            document = bytearray(txn.get(record_key(index), db=records) or b"")
            change(document)
            txn.put(record_key(index), bytes(document), db=records)


def flip_a_bit(document: bytearray) -> None:
    document[len(document) // 2] ^= 1


def test_a_damaged_record_is_the_same_error_in_a_worker_as_in_the_parent(place: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(place, tmp_path / "copy.lmdb"))
    tamper(copy, 6, flip_a_bit)
    told = rf"record 6 \(6\.x\) of {copy} is damaged: its CRC-32 is \w{{8}}, not \w{{8}}; convert again"
    with LMDBDataset(copy, decode=None) as dataset:
        with pytest.raises(DamagedRecordError, match=told):
            read_all(dataset)
        with pytest.raises(DamagedRecordError, match=told):
            in_worker(dataset)
        assert dataset.__getitems__([5, 7]) == [EXPECTED[5], EXPECTED[7]]


def test_a_record_in_the_place_of_another_is_damage(place: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(place, tmp_path / "copy.lmdb"))
    other = encode(Record("5.x", 5, data_of(5))).document(5)
    tamper(copy, 6, lambda document: document.__setitem__(slice(None), other))
    with LMDBDataset(copy, decode=None) as dataset, pytest.raises(DamagedRecordError, match=r"record 6 .*is record 5"):
        in_worker(dataset)


def test_an_image_that_was_stored_damaged_is_the_same_error_in_a_worker(tmp_path: Path) -> None:
    write_store([Record("a/cut.jpg", 1, b"\xff\xd8", damaged="its end is missing")], tmp_path / "s.lmdb")
    told = r"record 0 \(a/cut\.jpg\) of .* was stored damaged: its end is missing; .*decode=None"
    with LMDBDataset(tmp_path / "s.lmdb") as dataset, pytest.raises(DamagedImageError, match=told):
        in_worker(dataset)


def fail_at_9(data: bytes) -> Any:
    if data[0] == 9:
        raise ZeroDivisionError("at nine")


def test_an_exception_of_a_transform_in_a_worker_keeps_its_type_and_tells_the_record(place: Path) -> None:
    with LMDBDataset(place, fail_at_9, decode=None) as dataset:
        with pytest.raises(ZeroDivisionError, match="at nine") as raised:
            in_worker(dataset)
        if hasattr(raised.value, "add_note"):  # Python 3.11
            assert f"in record 9 (9.x) of {place}" in str(raised.value)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_that_finds_another_store_says_so(tmp_path: Path, context: str) -> None:
    place = make(tmp_path / "s.lmdb")
    with LMDBDataset(place, decode=None) as dataset:
        write_store(((data_of(0), 0) for _ in range(LENGTH)), place, overwrite=True)
        with pytest.raises(NotAStoreError, match=r"replaced since .*: make the dataset again"):
            in_worker(dataset, context)
        assert read_all(dataset) == EXPECTED


def test_a_worker_that_finds_no_store_says_so(tmp_path: Path) -> None:
    place = make(tmp_path / "s.lmdb")
    with LMDBDataset(place, decode=None) as dataset:
        place.unlink()
        with pytest.raises(StoreNotFoundError, match=r"s\.lmdb does not exist"):
            in_worker(dataset)
        assert read_all(dataset) == EXPECTED


# Threads


def test_many_threads_share_one_dataset(place: Path) -> None:
    count = 24  # more than LMDB keeps transactions for
    with LMDBDataset(place, decode=None) as dataset:
        dataset.close()  # so that they all open it at once
        barrier = threading.Barrier(count)

        def read(seed: int) -> bool:
            order = random.Random(seed)
            barrier.wait(WAIT_S)
            for _ in range(20):
                indices = order.choices(range(-LENGTH, LENGTH), k=order.randrange(1, 9))
                if dataset.__getitems__(indices) != [EXPECTED[index] for index in indices]:
                    return False
            return dataset.find(f"{seed}.x") == seed and len(dataset.targets) == LENGTH

        with ThreadPoolExecutor(count) as executor:
            assert all(executor.map(read, range(count)))


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


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_process_pool_gets_the_dataset(place: Path, context: str) -> None:
    with LMDBDataset(place, decode=None) as dataset:
        assert len(dataset.targets) == LENGTH
        with multiprocessing.get_context(context).Pool(1) as pool:
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


def test_a_pickle_holds_neither_columns_nor_a_handle(place: Path) -> None:
    with LMDBDataset(place, decode=None) as dataset:
        assert dataset.targets.sum() + len(dataset.names) + len(dataset.samples) > 0
        data = pickle.dumps(dataset)
        for module in (b"numpy", b"lmdb\n", b"Names", b"_Handle", b"Environment"):
            assert module not in data
        assert isinstance(dataset.targets, np.ndarray)  # which the dataset itself keeps
        assert "targets" in vars(dataset)
