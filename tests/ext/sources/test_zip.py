"""Zip files: records and labels of their images, and damaged, encrypted and hostile files."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dbloader import convert, open_store
from dbloader.conversion.settings import Settings
from dbloader.errors import SourceError
from dbloader.ext.sources import zip as zips
from dbloader.ext.sources.open import open_source
from dbloader.ext.sources.options import Reading
from dbloader.ext.sources.zip import ZipSource
from dbloader.sources.base import Entries
from tests.support.conversion import events, records
from tests.support.images import photo, plant, plant_photos
from tests.support.layouts.base import write_tar, write_zip
from tests.support.tallies import contents, entries, problems, tally_of


def pack(path: Path, files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED, **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", compression, **options) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return path


def source_of(*paths: Path) -> ZipSource:
    return ZipSource(paths[0], paths)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_of_a_folder_gives_the_same_store_as_the_folder(tmp_path: Path, compression: int) -> None:
    root = plant_photos(tmp_path / "images", 40)
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    packed = pack(tmp_path / "x.zip", {name: (root / name).read_bytes() for name in names}, compression)
    report = convert(packed, tmp_path / "z", workers=3)
    assert report.digest == convert(root, tmp_path / "f").digest
    with open_store(tmp_path / "z") as store:
        assert store.manifest.classes == ("cat", "dog")
        assert store.manifest.source["path"] == str(packed)


def test_masks_and_boxes_of_yolo_beside_images_give_warnings(tmp_path: Path) -> None:
    names = ("a/1_mask.png", "a/1.png", "b/1.png", "b/2.jpg")
    packed = pack(tmp_path / "x.zip", {**dict.fromkeys(names, photo(1)), "b/2.txt": b"0 .5 .5 0.25 .25"})
    boxes, masks = tally_of(source_of(packed)).warnings
    assert boxes.startswith("b/2.txt looks like boxes of YOLO, but becomes a text: give the data.yaml")
    assert masks.startswith("1 image called like a mask of another image, such as a/1_mask.png: each becomes a record")


@pytest.mark.parametrize("place", ["x-{5..3}.tar", "x-{000..1000000}.zip"])
def test_range_of_too_few_or_too_many_files_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(SourceError, match=r"its range names [\d,]+ files: give a range of 1 to 1,000,000"):
        convert(tmp_path / place, tmp_path / "out.lmdb")


@pytest.mark.slow
def test_zip64_and_a_zip_appended_to_a_program_are_read(tmp_path: Path) -> None:
    image = photo(1)
    with (
        zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("1/streamed.jpg", "w", force_zip64=True) as member,  # with 64-bit sizes
    ):
        member.write(image)
    data = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "x.zip").write_bytes(b"#!/bin/sh\n" * 50 + data)
    assert contents(source_of(tmp_path / "x.zip")) == [image]
    # more files than 16 bits can count
    many = pack(tmp_path / "many.zip", {"1.jpg": image, **{f"{n}.txt": b"" for n in range(2**16)}})
    assert contents(source_of(many)) == [image]
    data = many.read_bytes()
    end = data.rindex(b"PK\6\6") + 32
    many.write_bytes(data[:end] + bytes([data[end] + 1]) + data[end + 1 :])
    with pytest.raises(SourceError, match="its directory has 65,537 files, but its end record counts 65,538"):
        source_of(many)


def test_names_are_read_in_their_encoding(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", {"caf\u00e9/1.jpg": b"j", "b/2.jpg": b"j", "c/3.jpg": b"j"})
    data = path.read_bytes()
    data = data.replace(b"b/2.jpg", b"\x82/2.jpg")  # é in code page 437, without the UTF-8 flag
    path.write_bytes(data)
    assert [entry.name for entry in entries(source_of(path))] == ["caf\u00e9/1.jpg", "\u00e9/2.jpg", "c/3.jpg"]
    # invalid UTF-8 in a name that has the UTF-8 flag
    path.write_bytes(data.replace("caf\u00e9".encode(), b"caf\xff\xff"))
    with pytest.raises(SourceError, match="is damaged or cut short, and none of its files is read: 'utf-8' codec"):
        source_of(path)


OLD = [("gbk", "\u72d7"), ("shift_jis", "\u8868"), ("cp866", "\u043a\u043e\u0442")]


@pytest.mark.parametrize(("encoding", "name"), OLD)
def test_encoding_decodes_names_without_the_flag_for_utf8(tmp_path: Path, encoding: str, name: str) -> None:
    path = pack(tmp_path / "x.zip", {"pppp/1.jpg": b"j", "\u00e9/2.jpg": b"j", "c/3.jpg": b"j"})
    coded = name.encode(encoding)
    path.write_bytes(path.read_bytes().replace(b"pppp", coded.ljust(4, b"x")))
    (warning,) = source_of(path).warnings
    assert "1 name whose encoding is not UTF-8" in warning
    assert "--encoding" in warning
    source = ZipSource(path, [path], Reading(encoding=encoding))
    assert source.warnings == ()
    assert sorted(source.classes) == sorted([name + "x" * (4 - len(coded)), "\u00e9", "c"])
    with pytest.raises(SourceError, match="is not in the encoding 'ascii': give another"):
        ZipSource(path, [path], Reading(encoding="ascii"))


def test_unicode_path_in_the_extra_field_is_the_name(tmp_path: Path) -> None:
    names = ["B\u00e4r/1.jpg", "b/2.jpg"]
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for name, raw in zip(names, (b"X\x8er/1.jpg", b"b/2.jpg"), strict=True):
            member = zipfile.ZipInfo(name.replace("B\u00e4r", "XXr"))
            known = struct.pack("<HHBI", 0x7075, 5 + len(name.encode()), 1, zlib.crc32(raw)) + name.encode()
            member.extra = struct.pack("<HH4x", 0x5455, 4) + known
            file.writestr(member, b"j")
    data = (tmp_path / "x.zip").read_bytes().replace(b"XXr/", b"X\x8er/")
    (tmp_path / "x.zip").write_bytes(data)
    source = source_of(tmp_path / "x.zip")
    assert ([entry.name for entry in entries(source)], source.warnings) == (names, ())
    (tmp_path / "x.zip").write_bytes(data.replace(b"\x8er/", b"\x84r/"))  # renamed by a program without this field
    source = source_of(tmp_path / "x.zip")
    assert [entry.name for entry in entries(source)] == ["X\u00e4r/1.jpg", "b/2.jpg"]
    assert "whose encoding is not UTF-8" in source.warnings[0]


@pytest.mark.parametrize(
    ("name", "flat", "folders"),
    [
        ("labels.csv", "give it as the listing", "give it as the listing"),
        ("metadata.jsonl", "give it as the listing", ""),
        ("_annotations.coco.json", "give it as the listing", ""),
        ("labels/1.txt", "give the data.yaml", ""),
        ("README.txt", "", ""),
        ("a/x.csv", "give it as the listing", ""),
    ],
)
@pytest.mark.parametrize("extension", [".zip", ".tar"])
def test_file_that_may_have_labels_gives_a_warning_in_an_archive(
    tmp_path: Path, name: str, flat: str, folders: str, extension: str
) -> None:
    write = write_zip if extension == ".zip" else write_tar
    for warning, images in ((flat, ("1.jpg", "2.jpg")), (folders, ("a/1.jpg", "b/2.jpg"))):
        path = write(tmp_path / f"x{extension}", {**{image: photo(1) for image in images}, name: b"x"})
        found = tally_of(Settings(source=path).open()).warnings
        assert [text.startswith(f"{name} in x{extension} is not read") and warning in text for text in found] == (
            [True] * bool(warning)
        )


def test_first_of_the_files_that_may_have_labels_is_named(tmp_path: Path) -> None:
    labels = {f"labels/{number}.txt": b"x" for number in range(50)}
    found = tally_of(Settings(source=write_zip(tmp_path / "x.zip", {"images/1.jpg": photo(1), **labels})).open())
    assert found.warnings[0].startswith("labels/0.txt in x.zip is not read")


def test_windows_separators_in_names_are_read_as_slashes(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", {"a\\cat\\1.jpg": b"j", "a\\dog\\2.jpg": b"j", "a\\dog\\": b""})
    source = source_of(path)
    assert [(entry.name, entry.label) for entry in entries(source)] == [("a/cat/1.jpg", 0), ("a/dog/2.jpg", 1)]
    assert "names: \\ was read as / in 3" in source.in_words(tally_of(source))


def test_zip_of_a_folder_with_files_beside_images_gives_the_same_records(tmp_path: Path) -> None:
    files = {
        "cat/1.jpg": photo(1),
        "cat/1.txt": b"a cat",
        "cat/1.JSON": b"[1]",
        "dog/2.jpg": photo(2),
        "dog/x.txt": b"x",
    }
    files |= {"__MACOSX/cat/3.jpg": photo(3), "dog/.@__thumb/2.jpg": photo(4), "dog/@eaDir/2.jpg/S.jpg": photo(5)}
    report = convert(pack(tmp_path / "x.zip", files), tmp_path / "z.lmdb")
    folder = convert(plant(tmp_path / "folder", files), tmp_path / "f.lmdb")
    assert (report.digest, report.records, report.skipped) == (folder.digest, 2, {".txt": 1})
    assert report.hidden == folder.hidden == 1
    assert report.understood[1:] == folder.understood[1:]
    assert records(tmp_path / "z.lmdb")[0].fields == {"json": [1], "txt": "a cat"}


CHOSEN = [("first", ("a", "b")), ("last", ("x", "y")), ("path", ("a/x", "a/y", "b/x"))]


@pytest.mark.parametrize(("by", "classes"), CHOSEN)
def test_class_folder_chooses_the_class_in_a_zip(tmp_path: Path, by: str, classes: tuple[str, ...]) -> None:
    path = pack(tmp_path / "x.zip", {f"all/{name}/1.jpg": b"j" for name in ("a/x", "a/y", "b/x")})
    source = ZipSource(path, [path], Reading(class_folder=by))
    assert source.classes == classes
    assert [source.classes[entry.label or 0] in entry.name for entry in entries(source)] == [True] * 3
    assert tally_of(source).warnings == []
    (warning,) = tally_of(source_of(path)).warnings
    assert "contain only folders, such as 'a/x', 'a/y'" in warning


def test_listing_names_the_files_of_zips_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    pack(tmp_path / "all" / "one.zip", {"1.jpg": photo(1)})
    pack(tmp_path / "all" / "two.zip", {"2.jpg": photo(2)})
    (tmp_path / "all" / "l.csv").write_text("path,label\n2.jpg,cat\n1.jpg,dog\n")
    convert(tmp_path / "all", tmp_path / "o.lmdb", listing=tmp_path / "all" / "l.csv", progress=None)
    assert [(record.name, record.label) for record in records(tmp_path / "o.lmdb")] == [("2.jpg", 0), ("1.jpg", 1)]


@pytest.mark.parametrize("listed", ["pets/1.jpg", "1.jpg", "photos/1.jpg", "photos/pets/1.jpg", "./pets//1.jpg"])
def test_listing_names_the_files_of_a_zip(tmp_path: Path, listed: str) -> None:
    path = pack(tmp_path / "photos.zip", {"pets/1.jpg": photo(1), "pets/m/1.png": photo(9), "pets/2.jpg": photo(2)})
    (tmp_path / "l.csv").write_text(f"path,label,mask\n{listed},cat,pets/m/1.png\nno.jpg,dog,\n")
    report = convert(path, tmp_path / "o.lmdb", listing=tmp_path / "l.csv", file_fields=["mask"])
    (record,) = records(tmp_path / "o.lmdb")
    assert (record.image, record.fields["mask"], record.label) == (photo(1), photo(9), 0)
    assert [event["reason"] for event in events(tmp_path / "o.lmdb")] == ["no.jpg is missing or twice in photos.zip"]
    assert report.warnings == ()


def test_metadata_beside_zips_name_their_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pack(tmp_path / "data/a.zip", {"1.jpg": photo(1), "3.jpg": photo(3)})
    pack(tmp_path / "data/b.zip", {"caf\u00e9.jpg": photo(2), "3.jpg": photo(4)})
    (tmp_path / "data/metadata.csv").write_text(
        "file_name,text\n1.jpg,one\ncafe\u0301.jpg,two\nb/3.jpg,three\n3.jpg,?\n"
    )
    report = convert(tmp_path / "data", tmp_path / "o.lmdb")
    assert [(record.image, record.fields["text"]) for record in records(tmp_path / "o.lmdb")] == [
        (photo(1), "one"), (photo(2), "two"), (photo(4), "three"),
    ]  # fmt: skip
    [event] = events(tmp_path / "o.lmdb")
    assert (event["name"], event["reason"]) == (
        "row 5",
        "3.jpg may be a/3.jpg or b/3.jpg: write the path below the folder",
    )
    assert report.warnings == ("1 image of a.zip and b.zip in no row of the metadata: left out",)


@pytest.mark.parametrize("extension", [".zip", ".tar"])
def test_table_beside_archives_that_is_not_read_gives_a_warning(tmp_path: Path, extension: str) -> None:
    write = write_zip if extension == ".zip" else write_tar
    for number in (1, 2):
        write(tmp_path / "data" / f"part{number}{extension}", {f"{number}.jpg": photo(number)})
    plant(tmp_path / "data", {"ham.csv": b"id,label\n1,nv\n", "0_stats.json": b"{}"})
    rows = b'{"file_name": "1.jpg", "label": "nv"}\n'
    plant(tmp_path / "lines", {"labels.jsonl": rows, "labels.json": b"[" + rows + b"]", "0_stats.json": b"{}"})
    write(tmp_path / "lines" / f"0{extension}", {"1.jpg": photo(1)})
    of_json, of_lines = sorted(Settings(source=tmp_path / "lines").open().warnings)
    assert of_json.startswith("labels.json beside the archives is not read")
    assert of_lines.startswith("labels.jsonl beside the archives is not read")
    (warning,) = Settings(source=tmp_path / "data").open().warnings
    assert warning.startswith("ham.csv beside the archives is not read")
    assert warning.endswith(f"(--listing {tmp_path}/data/ham.csv)")
    listed = Settings(source=tmp_path / "data", listing=tmp_path / "data" / "ham.csv")
    if extension == ".zip":
        assert listed.open().classes == ("nv",)
    else:
        with pytest.raises(SourceError, match="convert reads no tar: extract the tar"):
            listed.open()


def test_zip_with_annotations_of_coco_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", {"1.jpg": photo(1)})
    (tmp_path / "c.json").write_text('{"images": [], "annotations": [], "categories": []}')
    with pytest.raises(SourceError, match="extract the zip"):
        convert(path, tmp_path / "o.lmdb", listing=tmp_path / "c.json")


def test_hostile_names_are_kept_and_nothing_is_extracted(tmp_path: Path) -> None:
    names = ["/etc/1.jpg", "../../2.jpg", "a/../../3.jpg", "C:\\4.jpg", "\x1b[2J5.jpg"]
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    convert(pack(folder / "x.zip", dict.fromkeys(names, photo(1))), folder / "out.lmdb")
    assert {path.name for path in tmp_path.rglob("*")} == {"a", "b", "x.zip", "out.lmdb"}
    found = [record.name for record in records(folder / "out.lmdb")]
    assert found == ["etc/1.jpg", "../../2.jpg", "../3.jpg", "C:/4.jpg", "\x1b[2J5.jpg"]


def test_unreadable_images_are_rejected_with_the_reason(tmp_path: Path) -> None:
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
        "a/2.jpg": "is a link: extract the zip, and convert the folder",
        "a/3.jpg": "is encrypted: unpack it with its password, and convert the folder",
    }


def test_zip_bomb_is_unpacked_only_to_its_stated_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_flipped_bit_never_changes_or_hides_a_file(tmp_path: Path, compression: int) -> None:
    files = {f"a/{n}.jpg": bytes([n]) * 300 + photo(n)[:60] for n in range(3)}
    path = pack(tmp_path / "x.zip", files, compression)
    data = path.read_bytes()
    for at in range(0, len(data), 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        try:
            source = source_of(path)
        except SourceError:
            continue
        found = [*Entries(source.entries())]
        assert len(found) + sum(tally_of(source).skipped.values()) + tally_of(source).hidden >= len(files)
        assert {data for data in contents(source) if isinstance(data, bytes)} <= {*files.values()}


def test_truncated_or_missing_zip_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", {f"a/{n}.jpg": photo(n) for n in range(3)})
    data = path.read_bytes()
    for length in range(0, len(data) - 1, 101):
        path.write_bytes(data[:length])
        with pytest.raises(SourceError, match=r"not one image in it.*is damaged or cut short, and none of its files"):
            source_of(path)
    path.write_bytes(data[len(data) // 2 :])  # only the second half is left
    assert problems(source_of(path))[0] == ("a/0.jpg", f"is not there: the beginning of the zip is missing ({path})")
    with pytest.raises(SourceError, match=r"none\.zip: cannot be read: No such file"):
        convert(tmp_path / "none.zip", tmp_path / "out.lmdb")


def test_zip_whose_directory_hides_files_is_a_problem(tmp_path: Path) -> None:
    pack(tmp_path / "1.zip", {"a/1.jpg": photo(1)})
    path = pack(tmp_path / "2.zip", {f"b/{n}.jpg": photo(n) for n in range(3)})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 33] = 0x80  # length of a comment
    path.write_bytes(data)
    with zipfile.ZipFile(path) as file:
        assert file.namelist() == ["b/0.jpg"]
    assert convert(tmp_path, tmp_path / ".out.lmdb").records == 1
    (event,) = events(tmp_path / ".out.lmdb")
    assert event["reason"].endswith("none of its files is read: its directory has 1 file, but its end record counts 3")


def test_ids_of_a_listing_find_files_in_a_zip(tmp_path: Path) -> None:
    place = pack(tmp_path / "train.zip", {"train/x/01.jpg": photo(1), "train/y/02.jpg": photo(2)})
    (tmp_path / "list.csv").write_text("id,label\n02,cat\n01,dog\n")
    convert(place, tmp_path / "s.lmdb", listing=tmp_path / "list.csv")
    assert [(record.name, record.label) for record in records(tmp_path / "s.lmdb")] == [
        ("y/02.jpg", 0),
        ("x/01.jpg", 1),
    ]


def test_metadata_beside_zips_has_no_warning_about_other_files_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        pack(tmp_path / "data" / f"{name}.zip", {f"x/{name}.jpg": photo(), f"y/{name}.jpg": photo()})
    rows = "".join(f"{folder}/{name}.jpg\n" for name in "ab" for folder in "xy")
    (tmp_path / "data" / "metadata.csv").write_text("file_name\n" + rows)
    report = convert(tmp_path / "data", tmp_path / "s.lmdb", progress=None)
    assert (report.records, report.warnings) == (4, ())


def test_listed_path_in_the_other_unicode_form_is_not_called_missing(tmp_path: Path) -> None:
    images = {"caf\u00e9/0.jpg": photo(0), "caf\u00e9/1.jpg": photo(1)}
    (tmp_path / "x.csv").write_text("path,label\ncafe\u0301/0.jpg,a\ncafe\u0301/1.jpg,b\n", encoding="utf-8")
    source = open_source(write_zip(tmp_path / "x.zip", images), tmp_path / "x.csv")
    assert [entry.label for entry in entries(source)] == [0, 1]
    assert "is not there" not in " ".join(source.understood)
