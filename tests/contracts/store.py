"""What stores/base.py and stores/writer.py promise, sentence by sentence: tests that each backend's tests inherit."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import bson
import lmdb
import numpy as np
import pytest

import dbloader.stores.writer as writing
from dbloader import Record, create_store, open_store
from dbloader._version import VERSION
from dbloader.errors import (
    DamagedRecordError,
    DamagedStoreError,
    DBLoaderError,
    FieldError,
    NotAStoreError,
    RecordIndexError,
    RecordNotFoundError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreLockedError,
    StoreNotFoundError,
)
from dbloader.records.columns import CHUNK, DTYPES, NO_LABEL
from dbloader.records.record import encode
from tests.support.children import in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from dbloader.records.manifest import Manifest
    from dbloader.stores.base import Store
    from dbloader.stores.writer import Writer

WAIT_S = 60.0  # for what must happen; a test that waits as long has failed
METHODS = ("fork", "spawn", "forkserver")
DIED = 17  # the exit status of a process that a test ends in the middle

Opener = "Callable[[Store], int | None]"


def make_records(count: int, seed: int = 0) -> list[Record]:
    """Records of all kinds, the same at every call: every 7th has no label, every 5th an array, one no name."""
    rng = random.Random(seed)
    records = []
    for number in range(count):
        record = Record(name=f"class {number % 3}/ä {number}.jpg", label=number % 3, image=rng.randbytes(number % 50))
        record.width, record.height, record.format = 10 + number % 90, 20 + number % 80, "JPEG" if number % 2 else "PNG"
        if number % 7 == 6:
            record.label = None
        if number % 5 == 4:
            record.image = np.frombuffer(rng.randbytes(24), "<u2").reshape(3, 4)
            record.width = record.height = record.format = None
        if number % 4 == 3:
            record.fields = {"caption": f"number {number}", "boxes": [[number, 1.5], []], "mask": np.arange(number % 9)}
        records.append(record)
    if count > 1:
        records[1].name = None
    return records


def small_records(count: int, name: Callable[[int], str | None] = lambda number: f"{number}.jpg") -> list[Record]:
    return [Record(name=name(number), label=number % 10) for number in range(count)]


def documents_of(records: Iterable[Record]) -> list[bytes]:
    return [encode(record).document(index) for index, record in enumerate(records)]


def plain(value: Any) -> Any:
    """Return a value that ``==`` compares, with the type, dtype and shape of everything in it."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.descr, value.shape, value.tobytes())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value), [plain(item) for item in value])
    return (type(value), value)


def facts(record: Record) -> Any:
    """Return all of a record but its index."""
    return plain({key: value for key, value in asdict(record).items() if key != "index"})


def owner_of(array: np.ndarray[Any, Any]) -> object:
    """Return the object whose memory an array uses in the end; None if that is the array's own."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base


def read_here(store: Store, opener: Any, indices: list[int]) -> tuple[int, int | None, int | None, list[bytes], Any]:
    """Return who reads, who had opened the handle before and after, and what was read."""
    before = opener(store)
    documents = store.documents(indices)
    return os.getpid(), before, opener(store), documents, [facts(record) for record in store.read(indices)]


def read_in_child(connection: Connection, store: Store, opener: Any, indices: list[int]) -> None:
    connection.send(read_here(store, opener, indices))


def enter_in_child(connection: Connection, place: str, options: dict[str, bool]) -> None:
    """Report how another process fares that wants to write."""
    try:
        with create_store(place, **options):
            connection.send(None)
    except DBLoaderError as error:
        connection.send(error)


def write_and_die(
    place: str,
    records: list[Record],
    commits: int,
    *,
    stored: bool,
    options: dict[str, bool],
) -> None:
    """Write records one by one, each with its commit, and is killed when so many are to be or have been stored."""
    writer: Any = create_store(place, resumable=True, **options)
    with writer:
        store, count = writer._store, itertools.count(1)

        def store_and_die(*arguments: Any) -> None:
            number = next(count)
            if number == commits and not stored:
                os.kill(os.getpid(), signal.SIGKILL)
            store(*arguments)
            if number == commits:
                os.kill(os.getpid(), signal.SIGKILL)

        writer._store = store_and_die
        write_one_by_one(writer, records)
        writer.finish()


def write_and_tell(connection: Connection, place: str, records: list[Record]) -> None:
    """Go on with a store, and tells when it begins to write."""
    with create_store(place, resume=True, resumable=True) as writer:
        connection.send(writer.length)
        write_one_by_one(writer, records)
        writer.finish(created="then")


def write_one_by_one(writer: Writer, records: list[Record]) -> None:
    """Write what is not there yet."""
    for position in range(writer.position, len(records)):
        record = records[position]
        writer.write(
            [encode(record)],
            events=[{"name": record.name or "", "event": "repaired", "reason": f"number {position}"}]
            if position % 3
            else [],
            outcome={"repaired": int(position % 3 > 0)},
            position=position + 1,
        )


class Samples:
    """A dataset, for torch's DataLoader, of what ``read_here`` gives of a batch."""

    def __init__(self, store: Store, opener: Any) -> None:
        self.store = store
        self.opener = opener

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(indices, *read_here(self.store, self.opener, indices))]


def first(batch: list[Any]) -> Any:
    return batch[0]


class StoreContract:
    """The tests. A backend's class inherits them and says where its stores are and how to get at them.

    Attributes:
        opener: Gives the id of the process that opened the handle which a store object holds, or None. A function of
            a module, since it is sent to spawned processes.
    """

    opener: Any

    def place(self, tmp_path: Path, name: str = "store") -> str:
        """Return a place where nothing is."""
        raise NotImplementedError

    def what_is_at(self, place: str) -> list[str]:
        """List everything, finished or not, that belongs to a place."""
        raise NotImplementedError

    def remove(self, place: str) -> None:
        """Remove the store at a place."""
        raise NotImplementedError

    def put_something_else(self, place: str) -> None:
        """Put something at a place that is of the backend's kind, but no store."""
        raise NotImplementedError

    def replace_documents(self, place: str, documents: dict[int, bytes | None]) -> None:
        """Put other bytes in the place of the documents at some indices, or removes them."""
        raise NotImplementedError

    def can_hold(self, place: str, index: int, document: bytes) -> bool:
        """Return whether the backend can have such bytes at an index; a server refuses what is no BSON, say."""
        return True

    def open(self, place: str) -> Store:
        return open_store(place)

    def create(self, place: str, **options: bool) -> Writer:
        return create_store(place, **options)

    def write(self, place: str, records: Iterable[Record], **options: Any) -> Manifest:
        """Make a store of records; options that are not create_store's are finish's."""
        finishing = {name: options.pop(name) for name in ("classes", "source", "created") if name in options}
        with self.create(place, **options) as writer:
            writer.write(encode(record) for record in records)
            return writer.finish(**finishing)

    def write_partial(self, place: str, records: list[Record], **options: bool) -> None:
        """Leave an unfinished writer at a place, with all of the records committed."""
        with self.create(place, resumable=True, **options) as writer:
            write_one_by_one(writer, records)
            writer.commit()

    @pytest.fixture
    def many_commits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writing, "COMMIT_BYTES", 1)

    # ---- Store: constructing, processes, threads, pickling

    def test_constructing_a_store_opens_nothing(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.open(place) as store:
            assert self.opener(store) is None
            assert repr(store) == f"{type(store).__name__}({store.place!r})"
            self.write(place, make_records(3))
            assert self.opener(store) is None
            assert len(store) == 3
            assert self.opener(store) == os.getpid()

    def test_the_first_use_of_a_store_that_is_not_there_says_so(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.open(place) as store, pytest.raises(StoreNotFoundError, match="does not exist"):
            len(store)

    @pytest.mark.parametrize("opened", [False, True], ids=["unopened", "opened"])
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("method", METHODS)
    def test_each_process_reads_through_a_handle_of_its_own(
        self, tmp_path: Path, method: str, workers: int, opened: bool
    ) -> None:
        records = make_records(20)
        place = self.place(tmp_path)
        self.write(place, records)
        expected = documents_of(records)
        indices = [19, 0, 3, 3, 7]
        with self.open(place) as store:
            if opened:
                store.read([1])
            results = self._in_processes(method, workers, store, indices) or [read_here(store, self.opener, indices)]
            for pid, before, after, documents, read in results:
                inherited = opened and (method == "fork" or pid == os.getpid())
                assert before == (os.getpid() if inherited else None)
                assert after == pid
                assert documents == [expected[index] for index in indices]
                assert read == [facts(records[index]) for index in indices]
            assert len({pid for pid, *_ in results} - {os.getpid()}) == workers
            # The children have left the parent's handle alone.
            assert store.documents(indices) == [expected[index] for index in indices]
            assert self.opener(store) == os.getpid()

    def _in_processes(self, method: str, workers: int, store: Store, indices: list[int]) -> list[Any]:
        context: Any = multiprocessing.get_context(method)
        pipes = [context.Pipe(duplex=False) for _ in range(workers)]
        processes = [
            context.Process(target=read_in_child, args=(sender, store, self.opener, indices)) for _, sender in pipes
        ]
        try:
            for process in processes:
                process.start()
            results = []
            for receiver, sender in pipes:
                sender.close()
                assert receiver.poll(WAIT_S), "a process reads for ever"
                results.append(receiver.recv())
            return results
        finally:
            for process, (receiver, _) in zip(processes, pipes, strict=True):
                process.join(WAIT_S)
                process.close()
                receiver.close()

    @pytest.mark.parametrize("opened", [False, True], ids=["unopened", "opened"])
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("method", METHODS)
    def test_each_dataloader_worker_reads_through_a_handle_of_its_own(
        self, tmp_path: Path, method: str, workers: int, opened: bool
    ) -> None:
        from torch.utils.data import DataLoader

        records = make_records(23)
        place = self.place(tmp_path)
        self.write(place, records)
        expected = documents_of(records)
        with self.open(place) as store:
            if opened:
                store.read([1])
            loader: Any = DataLoader(
                Samples(store, self.opener),  # type: ignore[arg-type]  # Dataset's methods are all that is needed
                batch_size=5,
                shuffle=True,
                num_workers=workers,
                multiprocessing_context=method if workers else None,
                collate_fn=first,
                timeout=WAIT_S if workers else 0,
            )
            seen: Counter[int] = Counter()
            pids = set()
            for indices, pid, _, after, documents, read in loader:
                assert after == pid
                assert documents == [expected[index] for index in indices]
                assert read == [facts(records[index]) for index in indices]
                seen.update(indices)
                pids.add(pid)
            assert seen == Counter(range(23))
            assert pids.isdisjoint({os.getpid()}) if workers else pids == {os.getpid()}
            assert len(pids) == max(1, workers)
            assert self.opener(store) == os.getpid()

    def test_a_process_can_be_forked_while_threads_read(self, tmp_path: Path) -> None:
        records = make_records(50)
        place = self.place(tmp_path)
        self.write(place, records)
        expected = documents_of(records)
        started, stop = threading.Barrier(5), threading.Event()
        context = multiprocessing.get_context("fork")

        def read_on(start: int) -> None:
            started.wait(WAIT_S)
            while not stop.is_set():
                assert store.documents([start, 7]) == [expected[start], expected[7]]
                with self.open(place) as other:
                    assert other.name(start) == records[start].name

        def read_once() -> None:
            receiver.close()
            sender.send(read_here(store, self.opener, [9, 8]))

        with self.open(place) as store, ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read_on, 10 * number) for number in range(4)]
            try:
                started.wait(WAIT_S)
                for _ in range(40):
                    receiver, sender = context.Pipe(duplex=False)
                    process = context.Process(target=read_once)
                    process.start()
                    sender.close()
                    try:
                        assert receiver.poll(WAIT_S / 4), "the child hangs"
                        pid, _, after, documents, _ = receiver.recv()
                    finally:
                        receiver.close()
                        process.kill()
                        process.join()
                    assert pid == after == process.pid
                    assert documents == [expected[9], expected[8]]
            finally:
                stop.set()
            for reader in readers:
                reader.result()

    def test_threads_share_a_store(self, tmp_path: Path) -> None:
        records = make_records(200)
        place = self.place(tmp_path)
        self.write(place, records)
        expected = documents_of(records)
        barrier = threading.Barrier(16)

        def read(seed: int) -> None:
            rng = random.Random(seed)
            barrier.wait(WAIT_S)  # all are the first to use it
            for _ in range(30):
                indices = rng.choices(range(200), k=8)
                assert [facts(record) for record in store.read(indices)] == [facts(records[i]) for i in indices]
                assert store.documents(indices) == [expected[index] for index in indices]
                assert store.name(indices[0]) == records[indices[0]].name
                assert store.find(str(records[100].name)) == 100
                assert store.column("label")[indices[1]] in (indices[1] % 3, NO_LABEL)

        with self.open(place) as store, ThreadPoolExecutor(16) as pool:
            for future in [pool.submit(read, seed) for seed in range(16)]:
                future.result()

    def test_one_thread_may_close_a_store_while_others_read(self, tmp_path: Path) -> None:
        records = make_records(60)
        place = self.place(tmp_path)
        self.write(place, records)
        expected = documents_of(records)
        barrier, stop = threading.Barrier(5), threading.Event()

        def read(start: int) -> None:
            barrier.wait(WAIT_S)
            for _ in range(200):
                assert store.documents([start]) == [expected[start]]
                assert store.find(str(records[start].name)) == start
                assert len(store.names()) == len(store.column("width")) == 60

        def close_often() -> None:
            barrier.wait(WAIT_S)
            while not stop.is_set():
                store.close()

        with self.open(place) as store, ThreadPoolExecutor(5) as pool:
            closing = pool.submit(close_often)
            try:
                for future in [pool.submit(read, 5 * number) for number in range(2, 6)]:
                    future.result()
            finally:
                stop.set()
            closing.result()

    def test_pickling_a_store_pickles_its_place_and_never_a_handle(self, tmp_path: Path) -> None:
        records = make_records(4)
        place = self.place(tmp_path)
        self.write(place, records)
        with self.open(place) as store:
            unopened = pickle.dumps(store)
            store.read([0])
            assert self.opener(store) is not None
            opened = pickle.dumps(store)
            assert opened == unopened
            assert len(opened) < 1000
            with pickle.loads(opened) as copy:  # noqa: S301 - our own
                assert type(copy) is type(store)
                assert copy.place == store.place
                assert self.opener(copy) is None
                assert copy.documents([2]) == documents_of(records)[2:3]

    def test_a_closed_store_opens_again_when_it_is_used(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(3))
        with self.open(place) as store:
            before = store.documents([0])
            store.close()
            assert self.opener(store) is None
            store.close()
            assert store.documents([0]) == before
            assert self.opener(store) == os.getpid()

    def test_the_records_of_an_open_store_do_not_change_when_it_is_replaced(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        old, new = make_records(5, seed=1), make_records(9, seed=2)
        self.write(place, old)
        with self.open(place) as store, self.open(place) as unopened:
            assert len(store) == 5
            self.write(place, new, overwrite=True)
            assert store.documents(range(5)) == documents_of(old)
            assert len(store) == len(store.names()) == len(store.column("crc32")) == 5
            assert store.verify() == store.manifest.digest
            assert unopened.documents(range(9)) == documents_of(new)
            store.close()
            assert store.documents(range(9)) == documents_of(new)

    # ---- Store: reading records

    def test_every_kind_of_record_comes_back_as_it_was_written(self, tmp_path: Path) -> None:
        records = make_records(100)
        records.append(Record())
        place = self.place(tmp_path)
        manifest = self.write(place, records)
        with self.open(place) as store:
            read = store.read(range(101))
            assert [facts(record) for record in read] == [facts(record) for record in records]
            assert [record.index for record in read] == list(range(101))
            assert store.manifest == manifest

    def test_read_gives_records_in_the_order_asked_with_repeats(self, tmp_path: Path) -> None:
        records = make_records(30)
        place = self.place(tmp_path)
        self.write(place, records)
        with self.open(place) as store:
            indices = [29, 0, 0, 17, 29, 3]
            assert [record.index for record in store.read(indices)] == indices
            assert [facts(record) for record in store.read(indices)] == [facts(records[index]) for index in indices]
            twice = store.read([5, 5])
            twice[0].fields["changed"] = True
            assert twice[1].fields == records[5].fields

    def test_lent_records_are_those_that_are_read(self, tmp_path: Path) -> None:
        records = make_records(30)
        place = self.place(tmp_path)
        self.write(place, records)

        def facts_of(record: Record) -> Any:
            if isinstance(record.image, memoryview):
                return facts(replace(record, image=bytes(record.image)))
            return facts(record)

        with self.open(place) as store:
            indices = [29, 0, 0, 17, 29, 3]
            with store.borrow(indices) as lent:
                assert [facts_of(record) for record in lent] == [facts(records[index]) for index in indices]
            with pytest.raises(lmdb.Error, match="of the caller"), store.borrow([2]) as lent:
                raise lmdb.Error("of the caller")
            with pytest.raises(RecordIndexError, match="no record 30 in"), store.borrow([30]) as lent:
                next(lent)

    def test_read_takes_any_sequence_of_indices(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(5))
        with self.open(place) as store:
            for indices in ((3, 1), range(3, -1, -2), np.array([3, 1])):
                read = store.read(indices)  # type: ignore[arg-type]  # an array is a sequence to everybody but typing
                assert [(record.index, type(record.index)) for record in read] == [(3, int), (1, int)]

    def test_reading_no_record_gives_none(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(3))
        with self.open(place) as store:
            assert store.read([]) == []
            assert store.documents([]) == []

    @pytest.mark.parametrize("index", [5, 6, -1, -5, 2**31, 2**63, 2**64, -(2**63)])
    def test_an_index_out_of_range_raises(self, tmp_path: Path, index: int) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(5))
        with self.open(place) as store:
            message = f"^no record {index} in .*store.*, which has 5$"
            uses: list[Callable[[], object]] = [
                lambda: store.read([0, index]),
                lambda: store.documents([index]),
                lambda: store.name(index),
            ]
            for use in uses:
                with pytest.raises(RecordIndexError, match=message):
                    use()

    def test_square_brackets_count_from_the_end_too(self, tmp_path: Path) -> None:
        records = make_records(5)
        place = self.place(tmp_path)
        self.write(place, records)
        with self.open(place) as store:
            for index in range(-5, 5):
                assert facts(store[index]) == facts(records[index])
                assert store[index].index == index % 5
            for index in (5, -6, 2**70):
                with pytest.raises(RecordIndexError, match=f"^no record {index} in .*, which has 5$"):
                    store[index]

    def test_iterating_gives_every_record_once_and_in_order(self, tmp_path: Path) -> None:
        records = make_records(150)  # more than are read at a time
        place = self.place(tmp_path)
        self.write(place, records)
        with self.open(place) as store:
            assert [facts(record) for record in store] == [facts(record) for record in records]

    def test_documents_are_the_bson_that_was_written(self, tmp_path: Path) -> None:
        records = make_records(40)
        place = self.place(tmp_path)
        self.write(place, records)
        with self.open(place) as store:
            indices = [39, *range(39)]
            documents = store.documents(indices)
            assert documents == [documents_of(records)[index] for index in indices]
            for index, document in zip(indices, documents, strict=True):
                assert type(document) is bytes
                values = bson.decode(document)
                first_key, *_, last_key = values
                assert (first_key, last_key) == ("_id", "crc32")
                assert values["_id"] == index

    def test_nothing_that_was_read_points_into_the_store(self, tmp_path: Path) -> None:
        records = make_records(40)
        place = self.place(tmp_path)
        self.write(place, records)
        store = self.open(place)
        read, documents, names = store.read(range(40)), store.documents(range(40)), store.names()
        columns = {name: store.column(name) for name in ("label", "width", "height", "nbytes", "crc32")}
        for array in (names.data, names.offsets, *columns.values()):
            assert owner_of(array) is None or isinstance(owner_of(array), bytearray)
        for record in read:
            assert isinstance(record.image, (bytes, np.ndarray))
            for value in (record.image, record.fields.get("mask")):
                if isinstance(value, np.ndarray):
                    assert owner_of(value) is None
                    assert value.flags.writeable
        store.close()
        del store
        self.remove(place)
        gc.collect()
        assert [facts(record) for record in read] == [facts(record) for record in records]
        assert documents == documents_of(records)
        assert list(names) == [record.name or "" for record in records]
        assert columns["nbytes"].sum() == sum(encode(record).nbytes for record in records)

    # ---- Store: columns and names

    def test_columns_hold_the_facts_of_all_records(self, tmp_path: Path) -> None:
        records = [
            Record(name="a", label=2**63 - 1, image=b"12345", width=2**32 - 1, height=1),
            Record(name="b"),
            Record(name="c", label=-(2**63) + 1, image=np.zeros(3), width=0, height=0),
            Record(label=0, image=b"", height=2**32 - 1),
        ]
        place = self.place(tmp_path)
        self.write(place, records)
        encoded = [encode(record) for record in records]
        with self.open(place) as store:
            expected = {
                "label": (np.int64, [2**63 - 1, NO_LABEL, -(2**63) + 1, 0]),
                "width": (np.uint32, [2**32 - 1, 0, 0, 0]),
                "height": (np.uint32, [1, 0, 0, 2**32 - 1]),
                "nbytes": (np.uint64, [5, 0, encoded[2].nbytes, 0]),
                "crc32": (np.uint32, [record.crc32 for record in encoded]),
            }
            assert encoded[2].nbytes == len(bson.decode(store.documents([2])[0])["image"]) > 24
            for name, (dtype, values) in expected.items():
                column = store.column(name)
                assert column.dtype == dtype
                assert column.shape == (4,)
                assert column.tolist() == values
                assert column.flags.owndata
                assert column.flags.writeable
                column[:] = 0
                assert store.column(name).tolist() == values

    def test_an_unknown_column_is_refused(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(3))
        with self.open(place) as store, pytest.raises(ValueError, match=r"^a column is one of label, .*, got 'name'$"):
            store.column("name")

    def test_names_are_packed_and_empty_where_there_is_none(self, tmp_path: Path) -> None:
        records = small_records(5, ["a/ü.jpg", None, "日本/🐈.png", "x", None].__getitem__)
        place = self.place(tmp_path)
        self.write(place, records)
        with self.open(place) as store:
            names = store.names()
            assert names.data.tobytes() == "a/ü.jpg日本/🐈.pngx".encode()
            assert names.offsets.tolist() == [0, 8, 8, 23, 24, 24]
            assert list(names) == ["a/ü.jpg", "", "日本/🐈.png", "x", ""]
            assert [store.name(index) for index in range(5)] == ["a/ü.jpg", None, "日本/🐈.png", "x", None]

    def test_find_gives_the_least_index_of_a_name(self, tmp_path: Path) -> None:
        names = ["same", "other", "same", "ü/日本 🐈.png", "same", None, "other"]
        place = self.place(tmp_path)
        self.write(place, small_records(7, names.__getitem__))
        with self.open(place) as store:
            assert [store.find(name) for name in ("same", "other", "ü/日本 🐈.png")] == [0, 1, 3]

    @pytest.mark.parametrize("name", ["absent", "", "SAME", "same ", "sam", "\0", "\ud800", "a" * 100_000, "ü"])
    def test_find_says_when_no_record_has_a_name(self, tmp_path: Path, name: str) -> None:
        place = self.place(tmp_path)
        self.write(place, small_records(3, ["same", None, "u\u0308"].__getitem__))
        with self.open(place) as store, pytest.raises(RecordNotFoundError, match=r"^no record of .*store.* is named '"):
            store.find(name)

    def test_names_of_the_same_hash_are_told_apart(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        names = ["plumless", "buckeroo", "plumless"]  # a known collision of CRC-32
        self.write(place, small_records(3, names.__getitem__))
        with self.open(place) as store:
            assert (store.find("plumless"), store.find("buckeroo")) == (0, 1)

    @pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1])
    def test_stores_at_the_edge_of_a_chunk_are_whole(self, tmp_path: Path, count: int) -> None:
        records = small_records(count)
        place = self.place(tmp_path)
        manifest = self.write(place, records)
        with self.open(place) as store:
            assert len(store) == manifest.length == count
            assert store.column("label").tolist() == [number % 10 for number in range(count)]
            assert list(store.names()) == [record.name for record in records]
            for index in (0, 1, CHUNK - 2, count - 1):
                assert store.find(f"{index}.jpg") == index
                assert store.name(index) == f"{index}.jpg"
            with pytest.raises(RecordNotFoundError, match="is named"):
                store.find(f"{count}.jpg")
            assert store.verify() == manifest.digest

    def test_each_of_ten_thousand_names_is_found(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, small_records(10_000, lambda number: f"folder {number % 17}/{number}.jpeg"))
        with self.open(place) as store:
            for index in range(10_000):
                assert store.find(f"folder {index % 17}/{index}.jpeg") == index
            with pytest.raises(RecordNotFoundError, match="is named"):
                store.find("folder 1/2.jpeg")

    def test_a_store_of_no_records_is_a_store(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        manifest = self.write(place, [])
        with self.open(place) as store:
            assert len(store) == manifest.length == 0
            assert [*store, *store.names(), *store.read([])] == []
            assert store.column("label").shape == (0,)
            assert store.verify() == manifest.digest
            with pytest.raises(RecordIndexError, match=r"no record 0 in .*, which has 0"):
                store[0]
            with pytest.raises(RecordNotFoundError, match="is named"):
                store.find("a")

    # ---- Store: events, verification, damage

    def test_events_come_in_the_order_in_which_they_were_written(self, tmp_path: Path, many_commits: None) -> None:
        place = self.place(tmp_path)
        events = [{"name": f"{n}.jpg", "event": "rejected", "reason": "ü"} for n in range(5)]
        with self.create(place) as writer:
            writer.write([], events=events[:2])
            writer.write([encode(Record(name="a"))], events=events[2:3])
            writer.commit()
            writer.write([], events=iter(events[3:]))
            writer.finish()
        with self.open(place) as store:
            assert list(store.events()) == events
            assert list(store.events()) == events
            iterators = store.events(), store.events()
            assert [next(iterator)["name"] for iterator in iterators] == ["0.jpg", "0.jpg"]
            for iterator in iterators:
                iterator.close()  # type: ignore[attr-defined]  # it is a generator

    def test_a_store_without_events_yields_none(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(2))
        with self.open(place) as store:
            assert list(store.events()) == []

    @pytest.mark.parametrize("count", [0, 1, 64, 65, 200])
    def test_verifying_a_whole_store_gives_its_digest_and_tells_its_progress(self, tmp_path: Path, count: int) -> None:
        place = self.place(tmp_path)
        manifest = self.write(place, make_records(count))
        steps: list[int] = []
        with self.open(place) as store:
            assert store.verify(steps.append) == manifest.digest == store.manifest.digest
            assert sum(steps) == count
            assert all(steps)
            assert len(steps) >= count // 100

    def test_every_flipped_bit_of_a_record_is_noticed(self, tmp_path: Path) -> None:
        record = Record(name="kept/name.jpg", label=3, image=b"the image", fields={"n": np.arange(2, dtype="<u1")})
        size = len(encode(record).document(0))
        place = self.place(tmp_path)
        self.write(place, [record] * (8 * size))
        damaged = {}
        for index, document in enumerate(documents_of([record] * (8 * size))):
            position, bit = divmod(index, 8)
            changed = document[position] ^ 1 << bit
            new = document[:position] + bytes([changed]) + document[position + 1 :]
            if self.can_hold(place, index, new):
                damaged[index] = new
        assert len(damaged) > size
        self.replace_documents(place, damaged)  # type: ignore[arg-type]  # no value is None, which would be possible
        with self.open(place) as store:
            for index in damaged:
                with pytest.raises(
                    DamagedRecordError, match=rf"^record {index} \(kept/name.jpg\) of .*store.* is damaged: i"
                ):
                    store.read([index])
            assert store.documents(list(damaged)) == list(damaged.values())

    @pytest.mark.parametrize("change", ["shorter", "longer", "empty", "another record", "missing"])
    def test_a_damaged_record_raises_and_the_others_are_still_read(self, tmp_path: Path, change: str) -> None:
        records = make_records(5)
        documents = documents_of(records)
        place = self.place(tmp_path)
        self.write(place, records)
        new = {
            "shorter": documents[2][:-1],
            "longer": documents[2] + b"\0",
            "empty": b"",
            "another record": documents[3],
            "missing": None,
        }[change]
        if new is not None and not self.can_hold(place, 2, new):
            pytest.skip("this backend cannot have such a record")
        self.replace_documents(place, {2: new})
        with self.open(place) as store:
            message = r"^record 2 \(class 2/ä 2\.jpg\) of .*store.* is damaged: it .*; convert again, or copy"
            uses: list[Callable[[], object]] = [lambda: store.read([0, 2]), lambda: store[2], store.verify]
            for use in uses:
                with pytest.raises(DamagedRecordError, match=message):
                    use()
            assert [facts(record) for record in store.read([0, 1, 3, 4])] == [facts(records[i]) for i in (0, 1, 3, 4)]

    def test_a_damaged_record_without_a_name_is_told_by_its_index(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(3))
        self.replace_documents(place, {1: None})
        with self.open(place) as store, pytest.raises(DamagedRecordError, match=r"^record 1 \(without a name\) of "):
            store[1]

    def test_verifying_notices_a_record_that_was_exchanged_for_a_whole_one(self, tmp_path: Path) -> None:
        records = make_records(70)
        place = self.place(tmp_path)
        self.write(place, records)
        records[66].label = 2
        self.replace_documents(place, {66: documents_of(records)[66]})
        with self.open(place) as store:
            assert store[66].label == 2
            with pytest.raises(DamagedStoreError, match=r"its column .* does not tell of the 70 records from 0 on"):
                store.verify()

    # ---- Writer: what is at the place, and when

    def test_the_manifest_tells_of_the_records(self, tmp_path: Path) -> None:
        records = make_records(50)
        place = self.place(tmp_path)
        before = datetime.now(timezone.utc).replace(microsecond=0)
        with self.create(place) as writer:
            writer.write([encode(record) for record in records], outcome={"repaired": 2})
            writer.write([], outcome={"repaired": 1, "rejected": 4})
            manifest = writer.finish(classes=("a", "b", "c"), source={"path": "/ü", "shuffle": None})
        encoded = [encode(record) for record in records]
        widths = [record.width for record in records if record.width]
        heights = [record.height for record in records if record.height]
        with self.open(place) as store:
            assert store.manifest == manifest
        assert manifest.length == 50
        assert manifest.classes == ("a", "b", "c")
        assert manifest.label_counts == dict(
            sorted(Counter(r.label for r in records if r.label is not None).items()),
        )
        assert manifest.labelled == sum(record.label is not None for record in records) < 50
        assert manifest.named == 49
        assert manifest.image_bytes == sum(record.nbytes for record in encoded)
        assert manifest.width == (min(widths), max(widths))
        assert manifest.height == (min(heights), max(heights))
        assert manifest.formats == dict(Counter(record.format for record in records if record.format))
        assert manifest.fields == {"boxes": 12, "caption": 12, "mask": 12}
        assert manifest.outcome == {"repaired": 3, "rejected": 4}
        assert manifest.source == {"path": "/ü", "shuffle": None}
        assert manifest.created_by == f"dbloader {VERSION}"
        created = datetime.fromisoformat(manifest.created)
        assert before <= created <= datetime.now(timezone.utc)

    def test_nothing_can_be_read_before_the_store_is_finished(self, tmp_path: Path, many_commits: None) -> None:
        place = self.place(tmp_path)
        with self.create(place) as writer:
            self._check_unreadable(place)
            writer.write([encode(record) for record in make_records(5)])
            writer.commit()
            self._check_unreadable(place)
            writer.finish()
            with self.open(place) as store:
                assert len(store) == 5

    def _check_unreadable(self, place: str) -> None:
        with self.open(place) as store, pytest.raises((StoreNotFoundError, NotAStoreError), match=r"store"):
            len(store)

    @pytest.mark.parametrize("committed", [False, True])
    @pytest.mark.parametrize("fails", [False, True])
    def test_leaving_without_finishing_leaves_nothing(self, tmp_path: Path, committed: bool, fails: bool) -> None:
        place = self.place(tmp_path)

        def leave() -> None:
            with self.create(place) as writer:
                writer.write([encode(record) for record in make_records(5)])
                if committed:
                    writer.commit()
                if fails:
                    raise ZeroDivisionError("of the caller")

        if fails:
            with pytest.raises(ZeroDivisionError, match="of the caller"):
                leave()
        else:
            leave()
        assert self.what_is_at(place) == []

    def test_leaving_without_finishing_leaves_the_old_store(self, tmp_path: Path, many_commits: None) -> None:
        place = self.place(tmp_path)
        old = make_records(4, seed=1)
        self.write(place, old)
        there = self.what_is_at(place)
        with self.create(place, overwrite=True) as writer:
            writer.write([encode(record) for record in make_records(9, seed=2)])
            writer.commit()
            with self.open(place) as store:
                assert store.documents(range(4)) == documents_of(old)
        assert self.what_is_at(place) == there
        with self.open(place) as store:
            assert store.verify() == store.manifest.digest
            assert len(store) == 4

    def test_overwriting_replaces_the_store_only_when_the_new_one_is_finished(
        self, tmp_path: Path, many_commits: None
    ) -> None:
        place = self.place(tmp_path)
        old, new = make_records(4, seed=1), make_records(9, seed=2)
        self.write(place, old)
        there = self.what_is_at(place)
        with self.create(place, overwrite=True) as writer:
            writer.write([encode(record) for record in new])
            writer.commit()
            with self.open(place) as store:
                assert store.documents(range(4)) == documents_of(old)
            writer.finish()
            with self.open(place) as store:
                assert store.documents(range(9)) == documents_of(new)
        assert self.what_is_at(place) == there

    def test_nothing_can_be_written_after_finishing(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        record = encode(Record(name="a"))
        with self.create(place) as writer:
            writer.write([record])
            writer.finish()
            uses: list[Callable[[], object]] = [lambda: writer.write([record]), writer.commit, writer.finish]
            for use in uses:
                with pytest.raises(StoreError, match="is finished: nothing can be written to it any more"):
                    use()
        with self.open(place) as store:
            assert len(store) == 1

    @pytest.mark.parametrize("options", [{}, {"resumable": True}, {"resume": True}])
    def test_a_finished_store_is_not_written_to(self, tmp_path: Path, options: dict[str, bool]) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(2))
        there = self.what_is_at(place)
        message = "is finished already: there is nothing to resume" if "resume" in options else "exists already; overwr"
        with pytest.raises(StoreExistsError, match=message), self.create(place, **options):
            pass
        assert self.what_is_at(place) == there

    def test_overwriting_where_nothing_is_makes_a_store(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(2), overwrite=True)
        with self.open(place) as store:
            assert len(store) == 2

    def test_what_is_not_a_store_is_never_replaced(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.put_something_else(place)
        there = self.what_is_at(place)
        with (
            pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"),
            self.create(place, overwrite=True),
        ):
            pass
        assert self.what_is_at(place) == there

    def test_what_is_not_a_store_is_not_replaced_by_a_resumed_writer_either(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(2))
        self.write_partial(place, make_records(3), overwrite=True)
        self.remove(place)
        self.put_something_else(place)
        there = self.what_is_at(place)
        with (
            pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"),
            self.create(place, resume=True, resumable=True) as writer,
        ):
            writer.finish()
        assert self.what_is_at(place) == there

    def test_a_store_that_appears_meanwhile_is_not_replaced(self, tmp_path: Path) -> None:
        place, elsewhere = self.place(tmp_path), self.place(tmp_path, "elsewhere")
        theirs = make_records(3, seed=1)
        with self.create(place, resumable=True) as writer:
            write_one_by_one(writer, make_records(2))
            self.write(elsewhere, theirs)
            self.move(elsewhere, place)
            with pytest.raises(StoreExistsError, match="exists already; overwrite"):
                writer.finish()
        with self.open(place) as store:
            assert store.documents(range(3)) == documents_of(theirs)
        # One that is resumed learns it at once, not after hours of work.
        with (
            pytest.raises(StoreExistsError, match="has been made by somebody else meanwhile; move it away and resume"),
            self.create(place, resume=True, resumable=True),
        ):
            pass
        self.remove(place)
        with self.create(place, resume=True) as writer:
            assert writer.length == 2
            writer.finish()

    def move(self, place: str, to: str) -> None:
        """Move the store at a place."""
        raise NotImplementedError

    # ---- Writer: two at a time

    def test_a_second_writer_in_the_same_process_is_refused(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.create(place) as writer:
            for options in ({}, {"resume": True}, {"overwrite": True}):
                with pytest.raises(StoreLockedError, match=r"is writing .*store.* now"), self.create(place, **options):
                    pass
            writer.write([encode(record) for record in make_records(2)])
            writer.finish()
        with self.open(place) as store:
            assert len(store) == 2

    def test_a_second_writer_in_another_process_is_refused(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.create(place) as writer:
            for options in ({}, {"resume": True}, {"overwrite": True}):
                error = self._enter_elsewhere(place, options)
                assert isinstance(error, StoreLockedError)
                assert "another process is writing" in str(error)
            writer.write([encode(record) for record in make_records(2)])
            writer.finish()
        with self.open(place) as store:
            assert len(store) == 2

    def test_the_place_is_free_for_another_process_after_the_writer(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.create(place):
            pass
        assert self._enter_elsewhere(place, {}) is None

    def _enter_elsewhere(self, place: str, options: dict[str, bool]) -> Exception | None:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=enter_in_child, args=(sender, place, options))
        process.start()
        sender.close()
        try:
            assert receiver.poll(WAIT_S)
            return receiver.recv()  # type: ignore[no-any-return]
        finally:
            receiver.close()
            process.join(WAIT_S)
            process.close()

    def test_a_process_that_was_forked_meanwhile_does_not_keep_the_place(self, tmp_path: Path) -> None:
        # A DataLoader worker, say, that outlives the writer it was forked beside.
        place = self.place(tmp_path)
        context = multiprocessing.get_context("fork")
        may_end = context.Event()
        process = context.Process(target=may_end.wait)
        try:
            with self.create(place, resumable=True) as writer:
                write_one_by_one(writer, make_records(3))
                writer.commit()
                process.start()
            with self.create(place, resume=True) as writer:
                assert writer.length == 3
        finally:
            may_end.set()
            process.join(WAIT_S)
            process.close()

    @pytest.mark.parametrize(
        "told",
        [
            {"classes": ["a", 3]},
            {"classes": ["a", "\ud800"]},
            {"source": {"path": b"x"}},
            {"source": {"path": object()}},
            {"source": {"at": datetime.now(timezone.utc)}},
            {"created": 3},
        ],
    )
    def test_what_a_manifest_cannot_say_is_refused_before_a_store_is_published(
        self, tmp_path: Path, told: dict[str, Any]
    ) -> None:
        place = self.place(tmp_path)
        with (
            self.create(place) as writer,
            pytest.raises(FieldError, match=r"cannot be finished: "),
        ):
            writer.finish(**told)
        self._check_unreadable(place)

    # ---- Writer: resuming

    def test_resuming_where_nothing_is_begins(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.create(place, resume=True) as writer:
            assert not writer.resumed
            assert writer.length == writer.position == 0
            write_one_by_one(writer, make_records(3))
            writer.finish()
        with self.open(place) as store:
            assert len(store) == 3

    def test_an_unfinished_store_is_neither_lost_nor_taken_for_another_by_mistake(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write_partial(place, make_records(3))
        there = self.what_is_at(place)
        assert there
        self._check_unreadable(place)
        with (
            pytest.raises(StoreExistsError, match=r"unfinished .*: resume \(--resume\) .* overwrite \(--overwrite\)"),
            self.create(place),
        ):
            pass
        assert self.what_is_at(place) == there

    def test_overwriting_an_unfinished_store_begins_anew(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write_partial(place, make_records(30, seed=1))
        records = make_records(4, seed=2)
        with self.create(place, overwrite=True) as writer:
            assert not writer.resumed
            assert writer.length == writer.position == 0
            write_one_by_one(writer, records)
            manifest = writer.finish()
        assert manifest.length == 4
        with self.open(place) as store:
            assert store.documents(range(4)) == documents_of(records)
            assert len(list(store.events())) == 2
            assert store.verify() == manifest.digest

    @pytest.mark.parametrize("cuts", [[1], [0, 0, 3], [5, 6, 7, 19], list(range(1, 20)), [20]])
    def test_a_resumed_store_is_the_same_as_one_written_at_once(
        self, tmp_path: Path, cuts: list[int], many_commits: None
    ) -> None:
        records = make_records(20)
        whole, place = self.place(tmp_path, "whole"), self.place(tmp_path)
        with self.create(whole) as writer:
            write_one_by_one(writer, records)
            expected = writer.finish(created="then")
        for number, cut in enumerate(cuts):
            with self.create(place, resume=number > 0, resumable=True) as writer:
                assert writer.resumed == (number > 0)
                assert writer.length == writer.position == (cuts[number - 1] if number else 0)
                write_one_by_one(writer, records[:cut])
                writer.commit()
        with self.create(place, resume=True) as writer:
            write_one_by_one(writer, records)
            assert writer.finish(created="then") == expected
        self._check_same(place, whole)

    @pytest.mark.parametrize("cut", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1])
    def test_a_store_resumed_in_the_middle_of_a_chunk_is_the_same(self, tmp_path: Path, cut: int) -> None:
        records = [encode(record) for record in small_records(2 * CHUNK + 10)]
        place = self.place(tmp_path)
        with self.create(place, resumable=True) as writer:
            for start in range(0, cut, 1000):  # some commits within the first chunk
                writer.write(records[start : min(start + 1000, cut)])
                writer.commit()
        with self.create(place, resume=True) as writer:
            assert writer.length == cut
            writer.write(records[cut:])
            manifest = writer.finish()
        with self.open(place) as store:
            assert store.verify() == manifest.digest
            assert store.column("crc32").tolist() == [record.crc32 for record in records]
            assert store.name(cut) == f"{cut}.jpg"
            assert store.find(f"{cut}.jpg") == cut

    def test_only_what_was_committed_is_kept(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.create(place, resumable=True) as writer:
            write_one_by_one(writer, make_records(3))
            writer.commit()
            write_one_by_one(writer, make_records(10))
        with self.create(place, resume=True) as writer:
            assert writer.length == writer.position == 3
            assert writer.outcome == {"repaired": 2}

    def test_a_writer_keeps_its_position_until_another_is_given(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.create(place, resumable=True) as writer:
            writer.write([encode(Record(name="a"))], position=7)
            writer.write([encode(Record(name="b"))])
            writer.commit()
            assert (writer.length, writer.position) == (2, 7)
        with self.create(place, resume=True) as writer:
            assert (writer.length, writer.position) == (2, 7)

    def test_a_resumable_writer_that_committed_nothing_leaves_nothing(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.create(place, resumable=True):
            pass
        assert self.what_is_at(place) == []

    def test_a_resumed_writer_that_is_not_resumable_leaves_nothing(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write_partial(place, make_records(3))
        with self.create(place, resume=True):
            pass
        assert self.what_is_at(place) == []

    def test_a_resumed_writer_overwrites_if_that_was_asked_for_at_the_beginning(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(2, seed=1))
        records = make_records(5, seed=2)
        self.write_partial(place, records[:3], overwrite=True)
        with self.create(place, resume=True) as writer:
            write_one_by_one(writer, records)
            writer.finish()
        with self.open(place) as store:
            assert store.documents(range(5)) == documents_of(records)

    def test_a_writer_that_is_killed_before_its_first_commit_may_still_overwrite_when_resumed(
        self, tmp_path: Path
    ) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(2, seed=1))

        def begin() -> None:
            with self.create(place, overwrite=True, resumable=True):
                os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(begin) == -signal.SIGKILL
        with self.open(place) as store:
            assert len(store) == 2
        records = make_records(5, seed=2)
        with self.create(place, resume=True) as writer:
            assert writer.resumed
            writer.check_settings({"quality": 90})
            write_one_by_one(writer, records)
            writer.finish()
        with self.open(place) as store:
            assert store.documents(range(5)) == documents_of(records)

    def test_a_writer_that_may_overwrite_and_writes_nothing_leaves_nothing_new(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(2, seed=1))
        there = self.what_is_at(place)
        with self.create(place, overwrite=True, resumable=True):
            pass
        assert self.what_is_at(place) == there

    @pytest.mark.parametrize("begun", [False, True])
    def test_overwriting_and_resuming_together_go_on_where_they_can_and_replace(
        self, tmp_path: Path, begun: bool
    ) -> None:
        place = self.place(tmp_path)
        self.write(place, make_records(2, seed=1))
        records = make_records(5, seed=2)
        if begun:
            self.write_partial(place, records[:3], overwrite=True)
        with self.create(place, overwrite=True, resume=True) as writer:
            assert writer.resumed == begun
            assert writer.length == 3 * begun
            write_one_by_one(writer, records)
            writer.finish()
        with self.open(place) as store:
            assert store.documents(range(5)) == documents_of(records)

    @pytest.mark.parametrize(
        ("now", "named"),
        [
            ({"quality": 90, "source": "abc"}, r"another quality \(95, now 90\)"),
            ({"quality": 95}, r"another source \(abc, now None\)"),
            ({"quality": 95, "source": "abc", "seed": 3}, r"another seed \(None, now 3\)"),
        ],
    )
    def test_resuming_with_other_settings_is_refused_and_names_the_setting(
        self, tmp_path: Path, now: dict[str, Any], named: str
    ) -> None:
        place = self.place(tmp_path)
        settings = {"quality": 95, "source": "abc"}
        with self.create(place, resumable=True) as writer:
            writer.check_settings(settings)
            write_one_by_one(writer, make_records(3))
            writer.commit()
        there = self.what_is_at(place)
        with (
            pytest.raises(StoreExistsError, match=rf"was begun with {named}: resume with the same, or begin again"),
            self.create(place, resume=True, resumable=True) as writer,
        ):
            writer.check_settings(now)
        assert self.what_is_at(place) == there
        with self.create(place, resume=True) as writer:
            writer.check_settings(settings)
            assert writer.settings == settings
            writer.finish()

    def test_settings_are_compared_as_they_are_stored(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        settings = {"size": (3, 4), "factor": np.float64(0.5), "nested": {"a": (1,)}}
        for resume in (False, True):
            with self.create(place, resume=resume, resumable=True) as writer:
                writer.check_settings(settings)
                write_one_by_one(writer, make_records(2))
                writer.commit()

    # ---- Writer: failing

    def test_a_label_without_a_class_is_refused_when_the_store_is_finished(self, tmp_path: Path) -> None:
        for number, (label, classes) in enumerate([(3, "abc"), (-1, "abc"), (2**62, "a")]):
            place = self.place(tmp_path, f"store {number}")
            records = [Record(name="a", label=0), Record(name="b", label=label), Record(name="c")]
            with self.create(place, resumable=True) as writer:
                writer.write([encode(record) for record in records])
                with pytest.raises(
                    FieldError, match=rf"^label {label} is not one of the {len(classes)} classes \(0 to "
                ):
                    writer.finish(classes=tuple(classes))
            self._check_unreadable(place)
            with self.create(place, resume=True) as writer:
                assert writer.finish().length == 3

    def test_a_label_without_a_class_is_refused_among_very_many_labels_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dbloader.records.manifest.MAX_COUNTED_LABELS", 3)
        with self.create(self.place(tmp_path)) as writer:
            writer.write([encode(Record(label=label)) for label in range(6)])
            with pytest.raises(FieldError, match=r"^label 5 is not one of the 5 classes \(0 to 4\)$"):
                writer.finish(classes=tuple("abcde"))
            manifest = writer.finish(classes=tuple("abcdef"))
        assert manifest.label_counts is None
        assert manifest.labelled == 6

    def test_records_that_cannot_be_made_are_not_written(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)

        def failing() -> Iterator[Any]:
            yield encode(Record(name="a"))
            raise ZeroDivisionError("of the source")

        def write() -> None:
            with self.create(place, resumable=True) as writer:
                writer.write([encode(Record(name="before"))], position=1)
                writer.commit()
                writer.write(failing(), position=2)

        with pytest.raises(ZeroDivisionError, match="of the source"):
            write()
        with self.create(place, resume=True) as writer:
            assert (writer.length, writer.position) == (1, 1)

    def test_after_a_commit_that_failed_no_later_record_is_stored(self, tmp_path: Path, many_commits: None) -> None:
        # Else the store would lack the records of the commit that failed, and nobody would know.
        place = self.place(tmp_path)
        records = make_records(6)
        uses: list[Callable[[Writer], object]] = [
            lambda writer: write_one_by_one(writer, records),
            lambda writer: writer.commit(),
            lambda writer: writer.finish(),
            lambda writer: None,
        ]

        def full(*arguments: Any) -> None:
            raise StoreFullError("no room is left")

        def write(use: Callable[[Writer], object]) -> None:
            writer: Any = self.create(place, resume=True, resumable=True)
            with writer:
                write_one_by_one(writer, records[:2])
                writer.commit()
                store = writer._store
                writer._store = full
                write_one_by_one(writer, records[:3])
                with pytest.raises(StoreFullError, match="no room is left"):
                    writer.commit()
                writer._store = store  # there is room again
                use(writer)

        for use in uses:
            with pytest.raises(StoreFullError, match="no room is left"):
                write(use)
            self._check_unreadable(place)
        with self.create(place, resume=True) as writer:
            assert writer.length == writer.position == 2
            write_one_by_one(writer, records)
            manifest = writer.finish()
        assert manifest.length == 6
        with self.open(place) as store:
            assert store.documents(range(6)) == documents_of(records)

    def test_the_first_error_is_the_one_that_is_told(self, tmp_path: Path, many_commits: None) -> None:
        def full(*arguments: Any) -> None:
            raise StoreFullError("no room is left")

        def write() -> None:
            writer: Any = self.create(self.place(tmp_path))
            with writer:
                writer._store = full
                writer.write([encode(Record(name="a"))])
                raise ZeroDivisionError("of the caller")

        with pytest.raises(ZeroDivisionError, match="of the caller"):
            write()

    @pytest.mark.parametrize("stored", [False, True], ids=["before the commit", "after the commit"])
    @pytest.mark.parametrize("commits", [1, 2, 9, 20])
    def test_what_a_killed_writer_committed_is_resumed(
        self, tmp_path: Path, commits: int, stored: bool, many_commits: None
    ) -> None:
        records = make_records(20)
        whole, place = self.place(tmp_path, "whole"), self.place(tmp_path)
        with self.create(whole) as writer:
            write_one_by_one(writer, records)
            expected = writer.finish(created="then")
        context = multiprocessing.get_context("fork")
        process = context.Process(
            target=write_and_die, args=(place, records, commits), kwargs={"stored": stored, "options": {}}
        )
        process.start()
        process.join(WAIT_S)
        assert process.exitcode == -signal.SIGKILL
        process.close()
        self._check_unreadable(place)
        with self.create(place, resume=True) as writer:
            assert writer.length == writer.position == (commits if stored else commits - 1)
            write_one_by_one(writer, records)
            assert writer.finish(created="then") == expected
        self._check_same(place, whole)

    def test_a_writer_that_is_killed_again_and_again_comes_to_the_same_store(
        self, tmp_path: Path, many_commits: None
    ) -> None:
        records = make_records(400)
        whole, place = self.place(tmp_path, "whole"), self.place(tmp_path)
        with self.create(whole) as writer:
            write_one_by_one(writer, records)
            writer.finish(created="then")
        context = multiprocessing.get_context("fork")
        killed, lengths = 0, [0]
        while killed < 6:  # wherever in a commit that is
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=write_and_tell, args=(sender, place, records))
            process.start()
            sender.close()
            assert receiver.poll(WAIT_S)
            lengths.append(receiver.recv())
            receiver.close()
            process.join(0.005 * killed)
            process.kill()
            process.join(WAIT_S)
            finished = process.exitcode == 0
            process.close()
            if finished:
                break
            killed += 1
        assert killed
        assert lengths == sorted(lengths)
        if not finished:
            with self.create(place, resume=True) as writer:
                write_one_by_one(writer, records)
                writer.finish(created="then")
        self._check_same(place, whole)

    def _check_same(self, place: str, other: str) -> None:
        """Check that two stores are the same in everything but their places."""
        with self.open(place) as store, self.open(other) as expected:
            assert store.manifest == expected.manifest
            assert store.documents(range(len(store))) == expected.documents(range(len(store)))
            assert list(store.names()) == list(expected.names())
            for name in DTYPES:
                assert store.column(name).tolist() == expected.column(name).tolist()
            assert list(store.events()) == list(expected.events())
            assert store.verify() == expected.verify()
            for name in set(expected.names()) - {""}:
                assert store.find(name) == expected.find(name)
