"""An image folder in a zip: what becomes a record, and what is damaged, encrypted or ill meant."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from dbloader import convert, open_store
from dbloader.errors import SourceError
from dbloader.sources import zip as zips
from dbloader.sources.base import Entries, Entry, Problem
from dbloader.sources.shards import find_shards
from dbloader.sources.zip import read_zips
from tests.support.conversion import events, interrupt, records
from tests.support.images import photo, plant_photos
from tests.support.tallies import tally_of, warnings_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dbloader.sources.zip import ZipSource


def pack(path: Path, files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED, **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", compression, **options) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return path


def source_of(*paths: Path) -> ZipSource:
    return read_zips(paths[0], paths)


def entries(source: ZipSource) -> list[Entry]:
    return [item for item in source.entries() if isinstance(item, Entry)]


def problems(source: ZipSource) -> list[Problem]:
    return [item for item in source.entries() if isinstance(item, Problem)]


def contents(source: ZipSource) -> list[bytes | Problem]:
    return list(source.read(entries(source), lambda _: None))


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_of_an_image_folder_gives_the_store_of_the_folder(tmp_path: Path, compression: int) -> None:
    root = plant_photos(tmp_path / "images", 40)
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    packed = pack(tmp_path / "x.zip", {name: (root / name).read_bytes() for name in names}, compression)
    report = convert(packed, tmp_path / "z", workers=3)
    assert report.digest == convert(root, tmp_path / "f").digest
    with open_store(tmp_path / "z") as store:
        assert store.manifest.classes == ("cat", "dog")
        assert store.manifest.source["path"] == str(packed)


def test_the_class_is_the_folder_below_the_one_that_all_share(tmp_path: Path) -> None:
    names = (
        "./data/dog/x/1.jpg",
        "data/cat/2.JPG",
        "data/3.jpg",
        "data/cat/",
        "__MACOSX/data/._3.jpg",
        "data/README.md",
    )
    source = source_of(pack(tmp_path / "x.zip", dict.fromkeys(names, b"j")))
    assert source.classes == ("cat", "dog")
    assert [(entry.name, entry.label) for entry in source.entries() if isinstance(entry, Entry)] == [
        ("data/dog/x/1.jpg", 1),
        ("data/cat/2.JPG", 0),
        ("data/3.jpg", None),
    ]
    assert (tally_of(source).skipped, tally_of(source).hidden) == ({".md": 1}, 1)
    assert warnings_of(source) == ("1 of 3 images have no label",)


def test_several_zips_are_named_by_a_range_or_a_folder(tmp_path: Path) -> None:
    paths = [pack(tmp_path / f"{n:02}.zip", {f"{n % 2}/{n}.jpg": photo(n)}) for n in range(9, 12)]
    assert find_shards(tmp_path / "{09..11}.zip", (".zip",)) == find_shards(tmp_path, (".zip",)) == paths
    convert(tmp_path / "{09..11}.zip", tmp_path / "out.lmdb")
    found = [(record.name, record.label, record.image) for record in records(tmp_path / "out.lmdb")]
    assert found == [(f"{n % 2}/{n}.jpg", n % 2, photo(n)) for n in range(9, 12)]


def test_a_folder_that_holds_other_images_too_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "x.zip", {"a/1.jpg": photo(1)})
    (tmp_path / "x.tar").touch()
    with pytest.raises(SourceError, match="holds tar files and zip files: put each kind into a folder"):
        convert(tmp_path, tmp_path.parent / "out.lmdb")
    (tmp_path / "x.tar").rename(tmp_path / "2.jpg")
    with pytest.raises(SourceError, match=r"there are no folders in it.*\(1 image lies directly in it\)"):
        convert(tmp_path, tmp_path.parent / "out.lmdb")


@pytest.mark.parametrize("place", ["x-{0..99999999999}.zip", "x-{5..3}.tar", "x-{000..1000000}.zip"])
def test_a_range_that_no_memory_holds_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(SourceError, match=r"its range names [\d,]+ files: give one of 1 to 1,000,000"):
        convert(tmp_path / place, tmp_path / "out.lmdb")


def test_a_conversion_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    packed = pack(tmp_path / "x.zip", {f"{n % 3}/{n:02}.jpg": photo(n) for n in range(60)})
    whole = convert(packed, tmp_path / "whole.lmdb", shuffle_seed=1)
    interrupt(packed, tmp_path / "again.lmdb", 20, shuffle_seed=1)
    assert convert(packed, tmp_path / "again.lmdb", resume=True, shuffle_seed=1, workers=3).digest == whole.digest


def test_zips_of_over_4_gb_and_behind_a_program_are_read(tmp_path: Path) -> None:
    image = photo(1)
    with (
        zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("1/streamed.jpg", "w", force_zip64=True) as member,  # with its sizes in 64 bits
    ):
        member.write(image)
    data = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "x.zip").write_bytes(b"#!/bin/sh\n" * 50 + data)
    assert contents(source_of(tmp_path / "x.zip")) == [image]
    for sizes in (True, False):
        long = _with_zip64_directory(data, sizes=sizes)
        with zipfile.ZipFile(io.BytesIO(long)) as file:
            assert file.testzip() is None
        (tmp_path / "x.zip").write_bytes(long)
        assert contents(source_of(tmp_path / "x.zip")) == [image]


def _with_zip64_directory(data: bytes, *, sizes: bool) -> bytes:
    """Return a zip of one file with a directory as it is where counts and offsets, or sizes too, have over 32 bits."""
    end = data.rindex(b"PK\5\6")
    size, start = struct.unpack_from("<2L", data, end + 12)
    entry = bytearray(data[start : start + size])
    (name,) = struct.unpack_from("<H", entry, 28)
    packed, whole = struct.unpack_from("<2L", entry, 20)
    entry[42:46] = b"\xff" * 4
    numbers = (whole, packed, 0) if sizes else (0,)
    if sizes:
        entry[20:28] = b"\xff" * 8
    extra = struct.pack("<2HH", 7, 2, 0) + struct.pack(f"<2H{len(numbers)}Q", 1, 8 * len(numbers), *numbers)
    entry[30:32] = struct.pack("<H", len(extra))
    entry = entry[: 46 + name] + extra
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(entry), start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, start + len(entry), 1)
    return data[:start] + entry + end64 + locator + b"PK\5\6" + b"\0" * 4 + b"\xff" * 12 + b"\0\0"


def test_names_are_read_in_the_encoding_that_they_have(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", {"caf\u00e9/1.jpg": b"j", "b/2.jpg": b"j", "c/3.jpg": b"j"})
    data = path.read_bytes()
    data = data.replace(b"b/2.jpg", b"\x82/2.jpg")  # é in code page 437, which no flag says
    path.write_bytes(data)
    assert [entry.name for entry in entries(source_of(path))] == ["caf\u00e9/1.jpg", "\u00e9/2.jpg", "c/3.jpg"]
    path.write_bytes(data.replace("caf\u00e9".encode(), b"caf\xff\xff"))  # with the flag of UTF-8
    with pytest.raises(SourceError, match="is damaged or cut short, and none of its files is read: 'utf-8' codec"):
        source_of(path)


def test_unsafe_names_are_only_names(tmp_path: Path) -> None:
    names = ["/etc/1.jpg", "../../2.jpg", "a/../../3.jpg", "C:\\4.jpg", "\x1b[2J5.jpg"]
    convert(pack(tmp_path / "x.zip", dict.fromkeys(names, photo(1))), tmp_path / "out.lmdb")
    found = [record.name for record in records(tmp_path / "out.lmdb")]
    assert found == ["etc/1.jpg", "../../2.jpg", "../3.jpg", "C:\\4.jpg", "\x1b[2J5.jpg"]


# --- damage -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/0.jpg", photo(0))
        file.writestr("a/1.jpg", photo(1), zipfile.ZIP_LZMA)
        link = zipfile.ZipInfo("a/2.jpg")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        file.writestr(link, "0.jpg")
        file.writestr("a/3.jpg", photo(3))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"a/3.jpg") - 46
    data[at + 8] |= 1
    path.write_bytes(data)
    report = convert(path, tmp_path / "out.lmdb")
    assert (report.records, report.rejected) == (1, 3)
    assert {event["name"]: event["reason"].split(" (")[0] for event in events(tmp_path / "out.lmdb")} == {
        "a/1.jpg": "is compressed by method 14, and only deflate is read: pack it again",
        "a/2.jpg": "is a link, not a plain file",
        "a/3.jpg": "is encrypted: unpack it with its password, and convert the folder",
    }


def test_a_zip_that_is_all_encrypted_says_so(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", {"1.jpg": photo(1)})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"there is not one image in it.*; 1\.jpg: is encrypted"):
        convert(tmp_path / "x.zip", tmp_path / "out.lmdb")


def test_a_bomb_is_not_unpacked_beyond_the_size_that_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "x.zip", {"1.jpg": bytes(10**7), "2.jpg": photo(2)})
    data = bytearray(path.read_bytes())
    size = data.index(struct.pack("<L", 10**7), data.index(b"PK\1\2"))
    data[size : size + 4] = struct.pack("<L", 1000)
    path.write_bytes(data)
    tracemalloc.start()
    bomb, other = contents(source_of(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**6
    assert bomb == ("1.jpg", f"is damaged in {path}: its size or its CRC-32 is wrong")
    assert other == photo(2)
    held: list[int] = []
    list(source_of(path).read(entries(source_of(path))[:1], held.append))
    assert 1000 in held
    assert sum(held) < 20_000
    monkeypatch.setattr(zips, "MAX_BYTES", 999)
    assert contents(source_of(path))[0] == ("1.jpg", "has 1,000 bytes, more than a record can hold (999)")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_bit_never_changes_or_hides_a_file(tmp_path: Path, compression: int) -> None:
    files = {f"a/{n}.jpg": bytes([n]) * 300 + photo(n)[:60] for n in range(3)}
    path = pack(tmp_path / "x.zip", files, compression)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        try:
            source = source_of(path)
        except SourceError:
            continue
        found = [*Entries(source)]
        assert len(found) + sum(tally_of(source).skipped.values()) + tally_of(source).hidden >= len(files)
        assert {data for data in contents(source) if isinstance(data, bytes)} <= {*files.values()}


def test_a_length_that_hides_the_files_behind_it_is_found(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", {f"a/{n}.jpg": photo(n) for n in range(3)})
    data = bytearray(path.read_bytes())
    first = data.index(b"PK\1\2")
    data[first + 33] = 0x80  # of a comment
    path.write_bytes(data)
    with zipfile.ZipFile(path) as file:
        assert file.namelist() == ["a/0.jpg"]
    with pytest.raises(SourceError, match="its directory has 1 files, and its end says 3"):
        source_of(path)


def test_a_zip_that_is_cut_short_or_none_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", {f"a/{n}.jpg": photo(n) for n in range(3)})
    data = path.read_bytes()
    for length in range(0, len(data) - 1, 101):
        path.write_bytes(data[:length])
        with pytest.raises(
            SourceError,
            match=r"not one image in it.*is damaged or cut short, and none of its files is read: File is not",
        ):
            source_of(path)
    path.write_bytes(data[len(data) // 2 :])  # the first half is missing
    assert problems(source_of(path))[0] == ("a/0.jpg", f"is not there: the beginning of the zip is missing ({path})")
    with pytest.raises(SourceError, match=r"none\.zip: cannot be read: No such file"):
        convert(tmp_path / "none.zip", tmp_path / "out.lmdb")


def test_a_damaged_zip_among_others_is_a_problem(tmp_path: Path) -> None:
    pack(tmp_path / "1.zip", {"a/1.jpg": photo(1)})
    pack(tmp_path / "2.zip", {"b/2.jpg": photo(2)})
    data = bytearray((tmp_path / "2.zip").read_bytes())
    end = data.rindex(b"PK\5\6")
    data[end + 8 : end + 12] = struct.pack("<2H", 9, 9)
    (tmp_path / "2.zip").write_bytes(data)
    assert convert(tmp_path, tmp_path.parent / "out.lmdb").records == 1
    (event,) = events(tmp_path.parent / "out.lmdb")
    assert event["reason"].endswith("none of its files is read: its directory has 1 files, and its end says 9")


def test_a_file_without_a_name_is_no_image(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", {"b": b"x", "a/1.jpg": b"y"})
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2")
    data[at + 28], data[at + 32] = 0, 1  # the name becomes a comment
    path.write_bytes(data)
    source = source_of(path)
    assert [entry.name for entry in entries(source)] == ["a/1.jpg"]


def test_a_directory_that_names_a_start_beyond_all_files_is_a_problem(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", {"a/0.jpg": b"x", "b.jpg": b"y"})
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2")
    extra = struct.pack("<2HQ", 1, 8, 2**64 - 1)
    data[at + 53 : at + 53] = extra
    struct.pack_into("<H", data, at + 30, len(extra))
    struct.pack_into("<L", data, at + 42, 2**32 - 1)
    struct.pack_into("<L", data, len(data) - 10, len(data) - 22 - at)
    path.write_bytes(data)
    broken, whole = contents(source_of(path))
    assert isinstance(broken, Problem)
    assert "is cut short" in broken.reason
    assert whole == b"y"
