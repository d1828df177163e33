"""LMDB files in the layouts of other programs, written here as those programs write them."""

from __future__ import annotations

import datetime
import io
import os
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import numpy as np
import pytest
from PIL import Image

from dbloader import convert, open_store
from dbloader.errors import SourceError
from dbloader.ext.sources.lmdb_files import find_lmdb
from dbloader.ext.sources.open import open_source
from dbloader.ext.sources.other_lmdb import LMDBSource
from dbloader.sources.base import Entry, Problem
from tests.support.children import traced_peak
from tests.support.images import as_nobody, photo, picture
from tests.support.tallies import contents, entries, problems, warnings_of

SourceOf = Callable[[Mapping[bytes, bytes]], LMDBSource]


def pack(path: Path, values: Mapping[bytes, bytes], *, subdir: bool = False) -> Path:
    with lmdb.open(str(path), subdir=subdir, map_size=2**28) as env, env.begin(write=True) as txn:
        for key, value in values.items():
            txn.put(key, value)
    return path


@pytest.fixture
def source_of(tmp_path: Path) -> Iterator[Callable[[Mapping[bytes, bytes]], LMDBSource]]:
    opened: list[LMDBSource] = []

    def source(values: Mapping[bytes, bytes]) -> LMDBSource:
        path = pack(tmp_path / f"{len(opened)}.lmdb", values)
        opened.append(LMDBSource(path, path))
        return opened[-1]

    yield source
    for one in opened:
        one.close()


def test_name_of_an_image_is_its_key(source_of: SourceOf) -> None:
    many = {b"%05d" % number: b"\xff\xd8\xff" for number in range(1001)}  # more values than one block
    assert [entry.location[0] for entry in entries(source_of(many))] == [*many]
    values = {b"b-key": photo(1), "k\u00e4y".encode(): picture("PNG"), b"\0\1": photo(2), b"\xff": b"no image"}
    source = source_of(values)
    assert [entry.name for entry in entries(source)] == ["0001", "b-key", "k\u00e4y", "ff"]
    assert contents(source) == [values[key] for key in sorted(values)]
    assert warnings_of(source) == ()


@pytest.mark.parametrize("subdir", [False, True])
def test_lmdb_file_and_folder_are_converted(tmp_path: Path, *, subdir: bool) -> None:
    images = {b"%03d" % number: photo(number) for number in range(40)}
    old = pack(tmp_path / "old", {**images, b"bad": b"no image"}, subdir=subdir)
    report = convert(old, tmp_path / "new.lmdb", workers=3)
    assert (report.records, report.rejected) == (40, 1)
    with open_store(tmp_path / "new.lmdb") as store:
        assert {(record.name or "").encode(): record.image for record in store} == images
        assert store.manifest.source["path"] == str(old)
        assert all(record.label is None for record in store)


def test_layout_is_found_without_all_values_in_memory(tmp_path: Path) -> None:
    size = 2**20
    values = {b"%02d" % number: bytes(size) for number in range(15)} | {b"image": b"\xff\xd8\xff" + bytes(size)}
    path = pack(tmp_path / "old.lmdb", values)
    assert traced_peak(lambda: LMDBSource(path, path).close()) < 6 * size


def test_folder_that_may_not_be_listed_is_read(open_path: Path) -> None:
    old = pack(open_path / "old", {b"%d" % number: photo(number) for number in range(3)}, subdir=True)
    old.chmod(0o311)  # neither the owner nor others may list it
    with as_nobody(), closing(open_source(old)) as source:
        assert [entry.name for entry in entries(source)] == ["0", "1", "2"]
        assert (source.beside.hidden, source.beside.skipped) == (0, {})
    old.chmod(0o755)


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "old.lmdb", {b"%d" % number: photo(number) for number in range(20)})
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    with pytest.raises(SourceError, match=r"is cut short: it has .* copy it again"):
        LMDBSource(path, path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "without any value"),
        ({b"k": b"value"}, r"no known layout: its first key is b'k', .* with b'value'"),
        ({b"__len__": b""}, r"no known layout: its first key is b'__len__', and the value begins with b''"),
        ({b"0": b"\x92\xc4\x01\xff", b"__keys__": b"\x91\xa10"}, "no known layout: .*dbloader.write_store$"),  # msgpack
    ],
)
def test_unknown_layout_is_refused(source_of: SourceOf, values: Mapping[bytes, bytes], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        source_of(values)


def ocr(count: int, said: int | None = None) -> dict[bytes, bytes]:
    """Return the keys and values that create_dataset of CRNN writes."""
    cache = {}
    for number in range(1, count + 1):
        cache[b"image-%09d" % number] = photo(number)
        cache[b"label-%09d" % number] = f"w\u00f6rd {number}".encode()
    cache[b"num-samples"] = str(said or count).encode()
    return cache


def test_ocr_texts_become_a_field(source_of: SourceOf) -> None:
    source = source_of(ocr(12))
    assert [(entry.name, entry.label, entry.fields) for entry in entries(source)] == [
        (f"image-{number:09}", None, {"text": f"w\u00f6rd {number}"}) for number in range(1, 13)
    ]
    assert contents(source) == [photo(number) for number in range(1, 13)]
    assert warnings_of(source) == ()


def test_missing_images_and_texts_are_named(source_of: SourceOf) -> None:
    values = {**ocr(4), b"lexicon-000000001": b"a,b", b"label-000000003": b"\xff"}
    del values[b"image-000000002"], values[b"label-000000004"]
    source = source_of(values)
    reasons = {"image-000000002": "is not in the file", "image-000000003": "its text is not valid UTF-8"}
    assert problems(source) == [*reasons.items()]
    assert [entry.fields for entry in entries(source)] == [{"text": "w\u00f6rd 1"}, {}]
    assert warnings_of(source) == (
        "2 other values of the file left out: it was read as images with texts "
        "(num-samples, image-000000001, label-000000001)",
    )


def folder2lmdb(items: list[Any], protocol: int = 4, key: str = "{}") -> dict[bytes, bytes]:
    """Return values as tutorials with ImageFolder and folder2lmdb.py write them. A Pickle is written unchanged."""
    keys = [key.format(number).encode("ascii") for number in range(len(items))]
    dumps = partial(pickle.dumps, protocol=protocol)
    values = {
        name: item.data if isinstance(item, Pickle) else dumps(item) for name, item in zip(keys, items, strict=True)
    }
    return {**values, b"__keys__": dumps(keys), b"__len__": dumps(len(keys))}


class Pickle(NamedTuple):
    data: bytes


@pytest.mark.parametrize(("protocol", "key"), [(2, "{:08}"), (4, "image_{:03}"), (5, "{}")])
def test_pickled_images_and_labels_are_read(source_of: SourceOf, key: str, protocol: int) -> None:
    values = folder2lmdb([(photo(n), n % 5) for n in range(12)], protocol, key)
    source = source_of(values)
    assert [(entry.name, entry.label) for entry in entries(source)] == [(key.format(n), n % 5) for n in range(12)]
    assert contents(source) == [photo(n) for n in range(12)]
    assert warnings_of(source) == ()


def test_pickled_arrays_become_png(source_of: SourceOf) -> None:
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    file = np.frombuffer(photo(3), np.uint8)
    items: list[Any] = [
        *((pixels, np.int64(-3)), [np.asfortranarray(pixels), 1], pixels[:, :, 0], pixels[:, :, :1]),
        *((pixels.transpose(2, 0, 1), "a text"), (file, None), file[:, None]),
    ]
    source = source_of(folder2lmdb(items))
    found = entries(source)
    assert [entry.label for entry in found] == [-3, 1, None, None, None, None, None]
    assert [entry.fields for entry in found if entry.fields] == [{"text": "a text"}]
    *images, last, first = [content for content in contents(source) if isinstance(content, bytes)]
    assert last == first == photo(3)
    for data, expected in zip(images, (pixels, pixels, pixels[:, :, 0], pixels[:, :, 0], pixels), strict=True):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), expected)


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = function, arguments

    def __reduce__(self) -> Any:
        return self.what


HUGE = b"\xff" * 7 + b"\x0f"
ENCODE = b"c_codecs\nencode\nh\0\x8c\x06latin1\x86R"
SCALAR = b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n"
HOSTILE = [
    (pickle.dumps(Call(os.system, "touch hostile")), "it asks for 'posix.system', which may run any code"),
    (pickle.dumps(Call(eval, "1"), protocol=2), "it asks for '__builtin__.eval', which may run any code"),
    (pickle.dumps((photo(1), Call(getattr, "", "join"))), "it asks for 'builtins.getattr', which may run any code"),
    (b"\x80\x04\x8c\x05numpy\x8c\x0ff2py.diagnose.x\x93.", "it asks for 'numpy.f2py.diagnose.x', which may run"),
    (pickle.dumps({1, 2}), "it has the instruction EMPTY_SET, which plain values and arrays do not need"),
    (pickle.dumps({"image": np.zeros((2, 2), np.uint8)}), "it has both a dict and an array"),
    (b"\x80\x04(" + b")" + b"\x85" * 10**6 + b"t.", "it has more than 1,000 instructions"),
    (b"\x80\x04r\xff\xff\xff\x7f.", "it has more than 1,000 instructions"),  # memo index 2**31 - 1
    (b"\x80\x04\x8e" + HUGE + b"\x01.", "expected"),
    (b"\x80\x04cnumpy.core.multiarray\nscalar\n(K\x01K\x02tR.", "has no attribute 'code'"),
    (b"\x80\x04cnumpy.core.multiarray\n_reconstruct\nN(K\x01K\x02tb.", "state is not a dictionary"),
    (pickle.dumps((np.zeros((2, 2, 3), np.float32), 1)), "its array is of type 'f4', not uint8"),
    (b"\x80\x04.", "stack underflow"),
    # A text of 1 MiB that becomes bytes 150 times, and a dtype whose repr has 2**60 elements.
    (b"\x80\x04(X" + struct.pack("<I", 2**20) + b"a" * 2**20 + b"\x94" + ENCODE * 150 + b"t.", "would make more"),
    (b"\x80\x04" + SCALAR + b")" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(60)) + b"\x85R.", "code is not text"),
    (b"\x80\x04K\x01", "pickle exhausted before seeing STOP"),
]


@pytest.mark.parametrize(("data", "reason"), HOSTILE, ids=lambda value: value if isinstance(value, str) else "")
def test_hostile_pickle_is_refused(
    source_of: SourceOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source = source_of(folder2lmdb([(photo(1), 1), Pickle(data), (photo(2), 2)]))
    ((name, said),) = problems(source)
    assert name == "1"
    assert said.startswith("cannot be read: its pickle is refused: ")
    assert reason in said
    assert [entry.label for entry in entries(source)] == [1, 2]
    entry = Entry("1", (b"1",), None, {})
    (refused,) = source.read([entry], lambda _: None)
    assert isinstance(refused, Problem)
    assert reason in refused.reason
    assert not (tmp_path / "hostile").exists()


def test_pickle_cannot_change_how_later_pickles_are_read(source_of: SourceOf) -> None:
    pixels = np.zeros((2, 2), np.uint8)
    # BUILD with a pair (None, state) sets attributes of any object, even of a function.
    for target in (b"numpy.core.multiarray\n_reconstruct\n", b"numpy\ndtype\n", b"numpy\nndarray\n"):
        for state in (b"(\x8c\x0c__defaults__K\x01t", b"}\x8c\x0c__defaults__K\x01s"):
            attack = b"\x80\x04c" + target + b"N" + state + b"\x86b."
            source = source_of(folder2lmdb([Pickle(attack), (pixels, 1)]))
            assert [name for name, _ in problems(source)] == ["0"]
            assert [entry.label for entry in entries(source)] == [1]


def test_images_in_meta_info_are_read(tmp_path: Path) -> None:
    images = {b"baboon": picture("PNG"), b"a b_s001": picture("PNG", 2), b"extra": photo(1)}
    place = pack(tmp_path / "sr.lmdb", images, subdir=True)
    # Write the file as make_lmdb_from_imgs does.
    (place / "meta_info.txt").write_text("baboon.png (18,24,3) 1\na b_s001.png (18,24,3) 1\nnone.png (1,1,3) 1\n")
    path = find_lmdb(place)
    assert path is not None
    source = LMDBSource(place, path)
    assert [entry.name for entry in entries(source)] == ["baboon.png", "a b_s001.png"]
    assert problems(source) == [("none.png", "is not in the file")]
    assert contents(source) == [images[b"baboon"], images[b"a b_s001"]]
    assert warnings_of(source) == (
        "1 other value of the file left out: it was read as the images that meta_info.txt names",
    )
    source.close()


def test_missing_pickles_are_named(source_of: SourceOf) -> None:
    values = folder2lmdb([(photo(n), n) for n in range(4)])
    del values[b"2"]
    source = source_of({**values, b"other": pickle.dumps(1)})
    assert problems(source) == [("2", "is not in the file")]
    assert warnings_of(source) == ("1 other value of the file left out: it was read as pickled images and labels",)
    del values[b"1"]
    assert problems(source_of(values))[-1] == ("__len__", "is 4, but the file has only 2 values")


def test_pickled_dicts_become_images_labels_and_fields(source_of: SourceOf) -> None:
    items = [
        {"image": photo(1), "label": 3, "caption": "a cat", "tags": ["x", {"y": None}]},
        {"data": photo(2), "class": "cat"},
        {"image": photo(1), "name": "x.jpg"},
        {"label": 1},
        {"image": photo(1), "when": datetime.date(2020, 1, 1)},
    ]
    source = source_of({b"%d" % n: pickle.dumps(item) for n, item in enumerate(items)})
    found = [(entry.label, entry.fields) for entry in entries(source)]
    assert found == [(3, {"caption": "a cat", "tags": ["x", {"y": None}]}), (None, {"text": "cat"}), (1, {})]
    first, second, nothing = contents(source)
    assert (first, second) == (photo(1), photo(2))
    assert isinstance(nothing, Problem)
    reserved, refused = problems(source)
    assert "'name' is a reserved field" in reserved.reason
    assert refused.reason.endswith("load it yourself, and hand its image to dbloader.write_store")
