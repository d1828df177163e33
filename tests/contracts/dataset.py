"""The promises of every dataset over a store, in one or many processes.

The tests of LMDB and MongoDB inherit this class.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from dbloader import Record
from dbloader.datasets.store import StoreDataset
from dbloader.errors import (
    DamagedRecordError,
    NotAStoreError,
    OptionError,
    RecordIndexError,
    RecordNotFoundError,
    StoreNotFoundError,
)
from dbloader.records.columns import NO_LABEL
from dbloader.records.manifest import CLASS_LISTS, TARGET
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from tests.contracts.records import opener_of
from tests.support.stores import store_samples

WAIT_S = 60.0  # only a failing test waits so long
LENGTH = 24
CLASSES = ("a", "b", "c", "d", "e", "f", "g")


def data_of(index: int) -> bytes:
    return bytes([index % 256]) * 500


def record_of(index: int) -> Record:
    further = {"caption": f"number {index}", "boxes": {"count": index % 4}} if index % 2 else {}
    return Record(f"{index}.x", index % 7, data_of(index), 100 + index, 50, "RAW", fields=further)


def make(place: str | Path, length: int = LENGTH, classes: Sequence[str] = CLASSES, **options: Any) -> str | Path:
    """Write a store; the content of each record depends on its index."""
    with create_store(place, **options) as writer:
        writer.write(encode(record_of(index)) for index in range(length))
        writer.finish(classes=classes)
    return place


EXPECTED = [(data_of(index), index % 7) for index in range(LENGTH)]


def read_all(dataset: Any) -> list[Any]:
    return dataset.__getitems__(range(len(dataset)))  # type: ignore[no-any-return]


def in_worker(dataset: Any) -> list[Any]:
    """Read all samples in a forked worker."""
    iterator = iter(DataLoader(dataset, 4, num_workers=1, multiprocessing_context="fork", collate_fn=list))
    try:
        return [sample for batch in iterator for sample in batch]
    finally:
        iterator._shutdown_workers()  # type: ignore[attr-defined]


class Witness:
    """Returns the id of this process, the id of the process that opened the store, and the first byte of the image."""

    dataset: StoreDataset

    def __call__(self, data: bytes) -> torch.Tensor:
        return torch.tensor([os.getpid(), opener_of(self.dataset.store), data[0]])


def fail_at_9(data: bytes) -> Any:
    if data[0] == 9:
        raise ZeroDivisionError("at nine")


# Python >= 3.12 warns about forks of a process with threads. Some of these tests fork such processes on purpose.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
class DatasetContract:
    """Subclasses have two fixtures: ``stored``, a store that ``make`` wrote, and ``fresh``, an empty place."""

    kind: ClassVar[Callable[..., Any]]

    def damage(self, place: Any, index: int) -> None:
        """Change the stored image of a record."""
        raise NotImplementedError

    # Samples

    def test_samples_are_the_records_in_order(self, stored: Any) -> None:
        with self.kind(stored, decode=None) as dataset:
            assert len(dataset) == LENGTH
            assert read_all(dataset) == list(dataset) == dataset[:] == EXPECTED
            assert [dataset[index] for index in (5, -1, -LENGTH)] == [EXPECTED[5], EXPECTED[-1], EXPECTED[0]]
            assert dataset[2:9:3] == EXPECTED[2:9:3]
            record = dataset.record(-1)
            assert (record.index, record.name, record.image) == (LENGTH - 1, f"{LENGTH - 1}.x", data_of(LENGTH - 1))
            assert [record.index for record in dataset.records([3, 0, 3])] == [3, 0, 3]

    @pytest.mark.parametrize("index", [LENGTH, 10**20, -LENGTH - 1])
    def test_index_out_of_range_raises(self, stored: Any, index: int) -> None:
        with self.kind(stored) as dataset:
            message = (
                f"^{re.escape(f'no record {index} in {dataset.root}, which has {LENGTH} records, numbered from 0')}$"
            )
            for use in (dataset.__getitem__, dataset.record, lambda index: dataset.__getitems__([0, index])):
                with pytest.raises(RecordIndexError, match=message):
                    use(index)

    def test_index_may_be_an_integer_of_python_numpy_or_torch(self, stored: Any) -> None:
        with self.kind(stored, decode=None) as dataset:
            for index in (np.int64(3), np.uint8(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)):
                assert dataset[index] == dataset.__getitems__([index])[0] == EXPECTED[3]
            for indices in (np.array([5, -1, 5]), torch.tensor([5, -1, 5]), iter([5, -1, 5])):
                assert dataset.__getitems__(indices) == [EXPECTED[5], EXPECTED[-1], EXPECTED[5]]
            assert dataset.__getitems__([]) == []
            for wrong in (1.0, "1", np.float32(1), [1], None, torch.tensor(1.0)):
                for use in (dataset.__getitem__, dataset.record):
                    with pytest.raises(TypeError, match=r"integer|index"):
                        use(wrong)

    def test_transforms_and_decode_are_called_once_per_sample(self, stored: Any) -> None:
        with self.kind(stored, lambda image: image[:1], lambda label: -label, decode=bytes.hex) as dataset:
            assert dataset[17] == ("1", -3)
            dataset.transform, dataset.target_transform, dataset.decode = None, None, len
            assert dataset[17] == (500, 3)

    def test_sample_is_a_dict_in_the_order_of_fields(self, stored: Any) -> None:
        fields = ("index", "caption", "label", "image", "boxes", "name", "width", "damaged")
        with self.kind(stored, len, str, decode=None, fields=iter(fields)) as dataset:
            samples = read_all(dataset)
            assert dataset.fields == fields
        assert [list(sample) for sample in samples] == [list(fields)] * LENGTH
        assert list(samples[3].values()) == [3, "number 3", "3", 500, {"count": 3}, "3.x", 103, None]
        assert list(samples[4].values()) == [4, None, "4", 500, None, "4.x", 104, None]
        with pytest.raises(
            OptionError, match=r"has a field 'captions'; the fields are name, .*(boxes, caption|caption, b)"
        ):
            self.kind(stored, fields=("captions",))

    def test_transform_error_names_the_record_in_any_process(self, stored: Any) -> None:
        with self.kind(stored, fail_at_9, decode=None) as dataset:
            for use in (read_all, in_worker):
                with pytest.raises(ZeroDivisionError, match="at nine") as raised:
                    use(dataset)
                note = f"in record 9 (9.x) of {dataset.root}"
                assert note in str(raised.value) or raised.value.__notes__ == [note]

    def test_damaged_record_raises_in_any_process(self, fresh: Any) -> None:
        make(fresh)
        self.damage(fresh, 6)
        with self.kind(fresh, decode=None) as dataset:
            message = rf"record 6 \(6\.x\) of {re.escape(dataset.root)} is damaged: its CRC-32 is "
            for use in (read_all, in_worker):
                with pytest.raises(DamagedRecordError, match=message):
                    use(dataset)
            assert dataset.__getitems__([5, 7]) == [EXPECTED[5], EXPECTED[7]]

    # Columns of all records

    def test_labels_and_names_are_packed_and_read_only(self, stored: Any) -> None:
        with self.kind(stored) as dataset:
            assert (dataset.targets.dtype, dataset.targets.tolist()) == (np.int64, [label for _, label in EXPECTED])
            assert not dataset.targets.flags.writeable
            assert dataset.targets is dataset.targets  # read once
            names = [f"{index}.x" for index in range(LENGTH)]
            assert list(dataset.names) == names
            for samples in (dataset.samples, dataset.imgs):
                assert isinstance(samples, Sequence)
                assert list(samples) == list(zip(names, dataset.targets.tolist(), strict=True))
                assert (samples[-1], samples[2:4]) == (("23.x", 2), [("2.x", 2), ("3.x", 3)])
                assert type(samples[0][1]) is type(samples[:1][0][1]) is int
                with pytest.raises(IndexError, match="range"):
                    samples[LENGTH]
            assert (dataset.classes, dataset.class_to_idx) == (list(CLASSES), dict(zip(CLASSES, range(7), strict=True)))
            for name in ("targets", "names", "samples", "imgs", "classes", "class_to_idx"):
                with pytest.raises(AttributeError, match=name):
                    setattr(dataset, name, [])
            targets = dataset.targets
        assert targets.sum() > 0  # the columns stay readable after the store is closed

    def test_find_returns_the_index_of_a_name_or_raises(self, stored: Any) -> None:
        with self.kind(stored) as dataset:
            assert [dataset.find(f"{index}.x") for index in range(LENGTH)] == list(range(LENGTH))
            for name in ("none", "", "a\0b", "\ud800"):
                with pytest.raises(RecordNotFoundError) as raised:
                    dataset.find(name)
                assert f"no record of {dataset.root} is named {name!r}" in str(raised.value)
            for wrong in ({"label": 3}, None, 3, b"3.x"):
                with pytest.raises(TypeError, match=r"find takes the name of a record, a str, got "):
                    dataset.find(wrong)

    def test_store_without_labels_needs_fields(self, fresh: Any) -> None:
        store_samples([Record("a", image=b"x", fields={"caption": "words"})], fresh)
        with pytest.raises(OptionError, match=r"has a label.*choose fields, such as fields=\('image',\)\. .* caption$"):
            self.kind(fresh)
        with self.kind(fresh, fields=("name", "label")) as dataset:
            assert dataset[0] == {"name": "a", "label": None}
            assert dataset.targets.tolist() == [NO_LABEL]
            assert (dataset.classes, dataset.class_to_idx) == ([], {})

    def test_target_is_a_field_that_the_store_or_the_user_names(self, fresh: Any) -> None:
        fields = [{"target": n / 2, CLASS_LISTS: [0, n % 2 + 1]} for n in range(5)]
        for target in ("target", CLASS_LISTS):
            with create_store(fresh, overwrite=True) as writer:
                writer.write(encode(Record(f"{n}", image=b"x", fields=fields[n])) for n in range(5))
                writer.finish(classes=("a", "b", "c"), source={TARGET: target})
            with self.kind(fresh, decode=None, target="index") as dataset:
                assert [index for _, index in read_all(dataset)] == [0, 1, 2, 3, 4]
            with self.kind(fresh, decode=None) as dataset:
                found = [np.asarray(value).tolist() for _, value in read_all(dataset)]
                assert found == dataset.targets.tolist()
                assert found[1] == (0.5 if target == "target" else [1, 0, 1])

    def test_empty_store_is_an_empty_dataset(self, fresh: Any) -> None:
        make(fresh, 0)
        with self.kind(fresh) as dataset:
            assert len(dataset) == len(dataset.targets) == len(dataset.names) == len(dataset.samples) == 0
            assert dataset.targets.dtype == np.int64
            assert list(DataLoader(dataset, 4)) == []
            for index in (0, -1):
                with pytest.raises(
                    RecordIndexError, match=f"no record {index} in .*, which has 0 records, numbered from 0"
                ):
                    dataset[index]

    # Errors when a dataset is made

    def test_place_without_a_finished_store_is_refused_at_once(self, fresh: Any) -> None:
        with pytest.raises(StoreNotFoundError, match="does not exist; dbloader convert makes a store"):
            self.kind(fresh)
        with create_store(fresh, resumable=True) as writer:
            writer.write([encode(record_of(0))])
            writer.commit()
        with pytest.raises(NotAStoreError, match=r"is not a finished store|its unfinished conversion does"):
            self.kind(fresh)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"transform": 3}, "^transform must be a callable or None, got 3$"),
            ({"target_transform": "x"}, "^target_transform must be a callable or None, got 'x'$"),
            ({"decode": "x"}, "^decode must be a callable or None, got 'x'$"),
            ({"fields": 3}, r"^fields must be names, such as \('image', 'label'\), or None, got 3$"),
            ({"fields": "image"}, r"^fields must be several names, such as \('image',\), got the one str 'image'$"),
        ],
    )
    def test_wrong_options_are_refused_at_once(self, stored: Any, options: dict[str, Any], message: str) -> None:
        with pytest.raises((TypeError, OptionError), match=message):
            self.kind(stored, **options)

    def test_place_of_another_type_is_refused_without_showing_its_value(self) -> None:
        for place in (3, None, ["mongodb://user:secret@host/db.images"]):
            with pytest.raises(TypeError, match=rf"^place must be .*, got {type(place).__name__}$"):
                self.kind(place)

    # Processes and threads

    @pytest.mark.parametrize(
        ("workers", "context", "opened"),
        [
            (0, None, False),
            (0, None, True),
            (2, "fork", False),
            (2, "fork", True),
            pytest.param(1, "spawn", True, marks=pytest.mark.slow),
        ],
    )
    def test_every_worker_opens_its_own_handle(
        self, stored: Any, workers: int, context: str | None, opened: bool
    ) -> None:
        witness = Witness()
        with self.kind(stored, decode=witness) as dataset:
            witness.dataset = dataset
            if opened:
                assert dataset[3][0].tolist() == [os.getpid(), os.getpid(), 3]
                assert dataset.targets[3] == 3
            else:
                dataset.close()
            loader = DataLoader(dataset, 4, num_workers=workers, multiprocessing_context=context)
            images, labels = (torch.cat(column) for column in zip(*loader, strict=True))
            assert images[:, 2].tolist() == list(range(LENGTH))
            assert labels.tolist() == [label for _, label in EXPECTED]
            assert images[:, 0].equal(images[:, 1])  # each process reads with its own handle
            pids = {int(pid) for pid in images[:, 0]}
            assert len(pids) == max(1, workers)
            assert (os.getpid() in pids) == (workers == 0)
            # The parent still reads with its own handle.
            assert dataset[-1][0].tolist() == [os.getpid(), os.getpid(), LENGTH - 1]

    def test_pickle_has_no_columns_and_opens_nothing(self, stored: Any) -> None:
        with self.kind(stored, decode=None, fields=("image", "label", "name")) as dataset:
            assert dataset.targets.sum() + len(dataset.names) + len(dataset.samples) > 0
            data = pickle.dumps(dataset)
            for module in (b"numpy", b"lmdb\n", b"Names", b"Handle", b"Environment", b"MongoClient"):
                assert module not in data
            with pickle.loads(data) as copy:  # noqa: S301 - our own
                assert (type(copy), len(copy), repr(copy)) == (type(dataset), LENGTH, repr(dataset))
                assert opener_of(copy.store) is None
                assert read_all(copy) == read_all(dataset)
                assert copy.targets.tolist() == dataset.targets.tolist()

    # Stores that are replaced

    def test_open_dataset_keeps_a_replaced_store_but_its_workers_raise(self, fresh: Any) -> None:
        make(fresh)
        with self.kind(fresh, decode=None) as dataset:
            make(fresh, overwrite=True, classes=CLASSES[::-1])  # the same records, with other classes
            with pytest.raises(NotAStoreError, match=r"replaced since .*: make the dataset again"):
                in_worker(dataset)
            assert read_all(dataset) == EXPECTED

    def test_unpickled_dataset_refuses_a_replaced_store(self, fresh: Any) -> None:
        uses: tuple[Callable[[Any], Any], ...] = (
            lambda dataset: dataset[0],
            lambda dataset: dataset.__getitems__([0]),
            lambda dataset: dataset.record(0),
            lambda dataset: dataset.find("0.x"),
            lambda dataset: dataset.targets,
            lambda dataset: dataset.names,
            lambda dataset: dataset.samples,
        )
        make(fresh, 5)
        data = pickle.dumps(self.kind(fresh))  # as a worker receives the dataset
        make(fresh, 6, overwrite=True)
        for use in uses:
            with (
                pickle.loads(data) as dataset,  # noqa: S301 - our own
                pytest.raises(NotAStoreError, match=r"has been replaced since .*: make the dataset again"),
            ):
                use(dataset)
