"""LMDB files that other programs made, written here as those programs do."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from typing import TYPE_CHECKING

import lmdb
import pytest

from dbloader import convert, open_store
from dbloader.errors import SourceError
from dbloader.sources.base import Entry, Problem
from dbloader.sources.other_lmdb import find_lmdb, read_lmdb
from tests.support.images import photo, picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dbloader.sources.other_lmdb import LMDBSource

    SourceOf = Callable[[Mapping[bytes, bytes]], LMDBSource]


def pack(path: Path, values: Mapping[bytes, bytes], *, subdir: bool = False) -> Path:
    with lmdb.open(str(path), subdir=subdir, map_size=2**28) as env, env.begin(write=True) as txn:
        for key, value in values.items():
            txn.put(key, value)
    return path


@pytest.fixture
def source_of(tmp_path: Path) -> Iterator[Callable[[Mapping[bytes, bytes]], LMDBSource]]:
    opened = []

    def source(values: Mapping[bytes, bytes]) -> LMDBSource:
        path = pack(tmp_path / f"{len(opened)}.lmdb", values)
        opened.append(read_lmdb(path, path))
        return opened[-1]

    yield source
    for one in opened:
        one.close()


def entries(source: LMDBSource) -> list[Entry]:
    return [item for item in source.entries() if isinstance(item, Entry)]


def problems(source: LMDBSource) -> list[Problem]:
    return [item for item in source.entries() if isinstance(item, Problem)]


def contents(source: LMDBSource) -> list[bytes | Problem]:
    return list(source.read(entries(source), lambda _: None))


# --- image files ------------------------------------------------------------------------------------------------------


def test_the_name_of_an_image_file_is_its_key(source_of: SourceOf) -> None:
    values = {b"b-key": photo(1), "k\u00e4y".encode(): picture("PNG"), b"\0\1": photo(2), b"\xff": b"no image"}
    source = source_of(values)
    assert [entry.name for entry in entries(source)] == ["0001", "b-key", "k\u00e4y", "ff"]
    assert contents(source) == [values[key] for key in sorted(values)]
    assert source.warnings == ()


@pytest.mark.parametrize("subdir", [False, True])
def test_a_file_and_a_folder_are_converted(tmp_path: Path, *, subdir: bool) -> None:
    images = {b"%03d" % number: photo(number) for number in range(40)}
    old = pack(tmp_path / "old", {**images, b"bad": b"no image"}, subdir=subdir)
    report = convert(old, tmp_path / "new.lmdb", workers=3)
    assert (report.records, report.rejected) == (40, 1)
    with open_store(tmp_path / "new.lmdb") as store:
        assert {record.name.encode(): record.image for record in store} == images
        assert store.manifest.source["path"] == str(old)
        assert all(record.label is None for record in store)


def test_more_keys_than_a_block_are_all_found_in_order(source_of: SourceOf) -> None:
    for count in (999, 1000, 1001, 1002, 2001):
        values = {b"%05d" % number: b"\xff\xd8\xff" for number in range(count)}
        assert [entry.path for entry in entries(source_of(values))] == sorted(values)


def test_a_source_is_read_in_a_forked_child_and_after_pickling(source_of: SourceOf) -> None:
    source = source_of({b"a": photo(1), b"b": photo(2)})
    expected = contents(source)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(contents, (source,)) == expected
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - its own
    assert contents(copy) == expected
    copy.close()


def test_hold_is_called_with_the_size(source_of: SourceOf) -> None:
    source, held = source_of({b"a": photo(1)}), []
    assert list(source.read(entries(source), held.append)) == [photo(1)]
    assert held == [len(photo(1))]


def test_what_is_no_lmdb_file_is_left_to_others(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"1")
    os.mkfifo(tmp_path / "pipe")
    assert [find_lmdb(tmp_path / name) for name in ("", "short", "pipe", "none", "n\0")] == [None] * 5


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "old.lmdb", {b"%d" % number: photo(number) for number in range(20)})
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    with pytest.raises(SourceError, match=r"is cut short: it has .* copy it again"):
        read_lmdb(path, path)


@pytest.mark.parametrize(
    ("values", "message"),
    [({}, "without any value"), ({b"k": b"value"}, r"no known layout: its first key is b'k', .* with b'value'")],
)
def test_an_unknown_layout_is_refused(source_of: SourceOf, values: Mapping[bytes, bytes], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        source_of(values)


# --- texts ------------------------------------------------------------------------------------------------------------


def ocr(count: int, said: int | None = None) -> dict[bytes, bytes]:
    """As create_dataset of CRNN does."""
    cache = {}
    for number in range(1, count + 1):
        cache[b"image-%09d" % number] = photo(number)
        cache[b"label-%09d" % number] = f"w\u00f6rd {number}".encode()
    cache[b"num-samples"] = str(said or count).encode()
    return cache


def test_texts_become_a_field(source_of: SourceOf) -> None:
    source = source_of(ocr(12))
    assert [(entry.name, entry.label, entry.fields) for entry in entries(source)] == [
        (f"image-{number:09}", None, {"text": f"w\u00f6rd {number}"}) for number in range(1, 13)
    ]
    assert contents(source) == [photo(number) for number in range(1, 13)]
    assert source.warnings == ()


def test_images_without_text_other_values_and_missing_images_are_told(source_of: SourceOf) -> None:
    values = {**ocr(4), b"lexicon-000000001": b"a,b", b"label-000000003": b"\xff"}
    del values[b"image-000000002"], values[b"label-000000004"]
    source = source_of(values)
    assert problems(source) == [
        ("image-000000002", "is not in the file"),
        ("image-000000003", "its text is not valid UTF-8"),
    ]
    assert [entry.fields for entry in entries(source)] == [{"text": "w\u00f6rd 1"}, {}]
    assert source.warnings == (
        "2 other values of the file left out: it was read as images with texts "
        "(num-samples, image-000000001, label-000000001)",
    )


def test_a_number_of_samples_that_lies_ends(source_of: SourceOf) -> None:
    found = problems(source_of(ocr(2, said=10**17)))
    assert found[-1] == ("num-samples", "says 100,000,000,000,000,000, but the file has only 5 values")
    assert len(found) == 4
