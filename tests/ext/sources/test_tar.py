"""Tar files: records, labels and fields of their images, and damage."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import resource
import signal
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbloader import convert
from dbloader.checking.verify_store import verify_store
from dbloader.conversion.settings import Settings
from dbloader.errors import SourceError
from dbloader.ext.sources.options import Reading
from dbloader.ext.sources.recognize import find_archives
from dbloader.ext.sources.tar import TarSource
from dbloader.sources.base import Entry, Problem
from tests.support.children import from_child
from tests.support.conversion import records, report_lines
from tests.support.images import photo
from tests.support.layouts.base import write_zip
from tests.support.sources import pack
from tests.support.tallies import contents, entries, problems, tally_of, warnings_of


def source_of(*paths: Path) -> TarSource:
    return TarSource(paths[0], paths)


def test_webdataset_sample_becomes_one_record(tmp_path: Path) -> None:
    image = photo(1)
    first = {"a/1.jpg": image, "a/1.cls": b"7\n", "a/1.json": b'{"width": 3}', "a/1.txt": " a c\u00e4t\n".encode()}
    second = {"a/2.seg.png": b"mask", "a/2.PNG": image, "a/2.cls": b"0", "a/2.npy": b"\0\1"}
    source = source_of(pack(tmp_path / "x.tar", {**first, **second, "README.md": b"read"}))
    one, two = entries(source)
    assert (one.name, one.label, one.fields) == ("a/1.jpg", 7, {"json": {"width": 3}, "txt": " a c\u00e4t\n"})
    assert (two.name, two.label, two.fields) == ("a/2.PNG", 0, {"npy": b"\0\1", "seg_png": b"mask"})
    assert list(source.read([one, two], lambda _: None)) == [image, image]
    assert source.classes == ()
    assert tally_of(source).skipped == {".md": 1}


def test_extensions_in_capital_letters_are_read(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {"1.JPG": photo(1), "1.CLS": b"7", "1.TXT": b"a", "1.Mask.png": photo(2)})
    (found,) = entries(TarSource(path, [path], ("Mask",)))
    assert (found.name, found.label, found.fields, [*found.files]) == ("1.JPG", 7, {"txt": "a", "Mask": None}, ["Mask"])


def test_class_is_the_first_path_component_that_differs(tmp_path: Path) -> None:
    names = ("./data/train/dog/x/1.jpg", "./data/train/cat/2.jpg", "./data/train/cat/2.b.jpg", "./data/train/3.jpg")
    source = source_of(pack(tmp_path / "x.tar", dict.fromkeys(names, b"j")))
    assert source.classes == ("cat", "dog")
    assert [(entry.name, entry.label) for entry in entries(source)] == [
        ("data/train/dog/x/1.jpg", 1),
        ("data/train/cat/2.jpg", 0),
        ("data/train/cat/2.b.jpg", 0),
        ("data/train/3.jpg", None),
    ]


def test_name_of_an_inner_tar_is_the_class(tmp_path: Path) -> None:
    tars = [pack(tmp_path / f"{name}.tar", {"1.JPEG": name.encode(), "2.JPEG": b"2"}) for name in ("n2", "n1")]
    source = source_of(pack(tmp_path / "x.tar", {path.name: path.read_bytes() for path in tars}))
    found = entries(source)
    assert [entry.name for entry in found] == ["n2/1.JPEG", "n2/2.JPEG", "n1/1.JPEG", "n1/2.JPEG"]
    assert [entry.label for entry in found] == [1, 1, 0, 0]
    assert list(source.read(found, lambda _: None)) == [b"n2", b"2", b"n1", b"2"]


def test_shards_may_be_given_as_a_range_or_a_folder(tmp_path: Path) -> None:
    shards = [pack(tmp_path / f"s-{n:03}.tar", {f"{n}.jpg": b"j"}) for n in (9, 8, 10)]
    shards.sort()
    assert find_archives(tmp_path / "s-{008..010}.tar", (".tar",)) == shards
    assert find_archives(tmp_path, (".tar",)) == shards
    assert find_archives(shards[0], (".tar",)) == [shards[0]]
    (tmp_path / "folder").mkdir()
    assert find_archives(tmp_path, (".tar",)) == []  # in an image folder, a tar is skipped
    assert find_archives(tmp_path / "nothing", (".tar",)) == []
    assert [entry.name for entry in entries(source_of(*shards))] == ["8.jpg", "9.jpg", "10.jpg"]


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "tar.gz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.xz": lzma.compress,
    "tar.zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def compressed(path: Path, files: Mapping[str, bytes]) -> Path:
    """Make a tar that is compressed in the format of its extension."""
    plain = pack(path.with_name("plain"), files)
    path.write_bytes(COMPRESSORS[path.name.partition(".")[2]](plain.read_bytes()))
    plain.unlink()
    return path


def test_every_tar_of_a_folder_is_read(tmp_path: Path) -> None:
    folder, plain = tmp_path / "compressed", tmp_path / "plain"
    folder.mkdir()
    plain.mkdir()
    for number, kind in enumerate(["tar", *COMPRESSORS]):
        files = {f"{name}/{number}-{n}.jpg": photo(n + 10 * number) for n in range(4) for name in ("cat", "dog")}
        pack(plain / f"{number}.tar", files)
        pack(folder / f"{number}.tar", files) if kind == "tar" else compressed(folder / f"{number}.{kind}", files)
    expected = convert(plain, tmp_path / "plain.lmdb")
    report = convert(folder, tmp_path / "out.lmdb")
    assert (report.records, report.rejected, report.warnings, report.digest) == (40, 0, (), expected.digest)
    assert convert(plain / "*.tar", tmp_path / "named.lmdb").digest == expected.digest
    assert convert(folder, tmp_path / "shuffled.lmdb", shuffle_seed=1).records == 40
    assert verify_store(tmp_path / "out.lmdb", against=folder).problems == {}


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_truncated_compressed_tar_is_refused(tmp_path: Path, kind: str) -> None:
    path = compressed(tmp_path / f"x.{kind}", {"a/1.jpg": os.urandom(2**10)})
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(SourceError, match=rf"x\.{kind}: is damaged: .*; copy it again$"):
        source_of(path)


def test_compressed_tar_without_room_for_its_content_is_refused(tmp_path: Path) -> None:
    path = compressed(tmp_path / "x.tar.gz", {"a/1.jpg": bytes(2**20)})

    def opened() -> object:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, 2**19))
        return source_of(path)

    error = from_child(opened)
    assert isinstance(error, SourceError)
    assert re.search(r"x\.tar\.gz: decompressed, it does not fit into .*; set TMPDIR to another folder$", str(error))


def test_compressed_tar_is_not_converted_in_parts(tmp_path: Path) -> None:
    path = compressed(tmp_path / "x.tar.xz", {f"a/{n}.jpg": photo(n) for n in range(4)})
    with pytest.raises(SourceError, match=r"x\.tar\.xz: is compressed, and each part .*: decompress it first"):
        convert(path, tmp_path / "out.lmdb", shards=2)


def test_files_beside_the_tars_are_counted(tmp_path: Path) -> None:
    """The folder contains the files that img2dataset writes."""
    for number in range(2):
        pack(tmp_path / f"{number:05}.tar", {f"{number}.jpg": photo(number), f"{number}.txt": b"a cat"})
        pq.write_table(pa.table({"url": ["http://x"], "caption": ["a cat"]}), tmp_path / f"{number:05}.parquet")
        (tmp_path / f"{number:05}_stats.json").write_text("{}")
    (tmp_path / "._0.tar").write_bytes(b"macOS")
    report = convert(tmp_path, tmp_path / ".out.lmdb")
    assert (report.records, report.skipped, report.hidden) == (2, {".json": 2, ".parquet": 2}, 1)


def test_files_of_several_kinds_are_not_mixed(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", {"a/1.jpg": photo(1)})
    pq.write_table(pa.table({"image": [photo(1)]}), tmp_path / "b.parquet")
    with pytest.raises(SourceError, match="holds Parquet files with images and tar files: put each kind into a folder"):
        convert(tmp_path, tmp_path / "out.lmdb")
    (tmp_path / "b.parquet").unlink()
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as file:
        file.writestr("a/2.jpg", photo(2))
    with pytest.raises(SourceError, match="holds tar files and zip files: put each kind into a folder of its own"):
        convert(tmp_path, tmp_path / "out.lmdb")


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return pack(tmp_path / "x.tar", {f"{n}.jpg": bytes([n]) * 1000 for n in range(5)})


def test_truncated_tar_is_a_problem(shard: Path) -> None:
    data = shard.read_bytes()
    for length in range(512, 5 * 1536, 768):
        shard.write_bytes(data[:length])
        source = source_of(shard)
        found = contents(source)
        read = [data for data in found if isinstance(data, bytes)]
        assert read == [bytes([n]) * 1000 for n in range(len(read))]
        assert problems(source) or len(read) < len(found), length


def test_wrong_size_in_a_header_allocates_no_memory(tmp_path: Path) -> None:
    member = tarfile.TarInfo("0.jpg")
    member.size = 2**31 - 2**17
    path = tmp_path / "x.tar"
    path.write_bytes(member.tobuf() + b"x")
    source = source_of(path)
    held: list[int] = []
    problem, entry = source.entries()
    assert isinstance(entry, Entry)
    assert isinstance(problem, Problem)
    assert "is damaged, and files after the damage are missing" in problem.reason
    (content,) = source.read([entry], held.append)
    assert content == ("0.jpg", f"is cut short: {path} ends after 1 of its 2,147,352,576 bytes")
    assert held == [1]


def test_truncated_label_or_field_is_a_problem(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {"0.jpg": b"j", "1.jpg": b"j", "1.cls": b"12"})
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"12") + 1])
    source = source_of(path)
    assert [entry.name for entry in entries(source)] == ["0.jpg"]
    assert ("1.jpg", "a file beside it cannot be a field or label: 1.cls is cut short") in problems(source)


def test_damaged_header_is_a_problem_and_does_not_end_the_reading(shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    data[2 * 1536 + 3] ^= 1
    shard.write_bytes(data)
    source = source_of(shard)
    ((where, reason),) = problems(source)
    assert (where, reason[:36]) == (str(shard), "has no end mark at byte 3,072: it is")
    assert len(entries(source)) == 2


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"1.json": b"{"}, "a file beside it cannot be a field or label: Expecting property name"),
        ({"1.big": bytes(2**20 + 1)}, "a file beside it cannot be a field or label: 1.big has 1,048,577 bytes, more"),
        ({"1.image": b"x"}, "a file beside it cannot be a field or label: 'image' is a reserved field"),
        ({"1.a.b": b"1", "1.a_b": b"2"}, "a file beside it cannot be a field or label: two files would be the fiel"),
        ({"1.png": b"p", "1.cls": b"3"}, "is one of several images in its sample (jpg, png)"),
    ],
)
def test_sample_with_a_wrong_file_is_a_problem(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    source = source_of(pack(tmp_path / "x.tar", {"1.jpg": b"j", **files, "2.jpg": b"j"}))
    (problem,) = problems(source)
    assert problem.name == "1.jpg"
    assert problem.reason.startswith(reason)
    assert [entry.name for entry in entries(source)] == ["2.jpg"]


def test_both_files_with_the_same_name_are_kept(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for data in (b"first", b"second"):
            member = tarfile.TarInfo("1.jpg")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    source = source_of(tmp_path / "x.tar")
    assert contents(source) == [b"first", b"second"]


def test_tar_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"no tar" * 400)
    with pytest.raises(SourceError, match=r"there is not one image in it: looked for \.jpg"):
        source_of(tmp_path / "x.tar")


def test_missing_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"x-1\.tar: cannot be read: No such file"):
        convert(tmp_path / "x-{1..2}.tar", tmp_path / "out.lmdb")


def test_hard_link_is_the_file_that_it_names(tmp_path: Path) -> None:
    inner = pack(tmp_path / "in.tar", {"1.jpg": photo(1), "1.txt": b"a cat"})
    link(inner, {"2.jpg": "1.jpg", "2.txt": "1.txt", "3.jpg": "gone.jpg"})
    pack(tmp_path / "x.tar", {"0.jpg": photo(0), "in.tar": inner.read_bytes()})
    link(tmp_path / "x.tar", {"./9.jpg": "0.jpg"})
    source = source_of(tmp_path / "x.tar")
    assert [entry.name for entry in entries(source)] == ["0.jpg", "in/1.jpg", "in/2.jpg", "9.jpg"]
    assert contents(source) == [photo(0), photo(1), photo(1), photo(0)]
    assert [entry.fields for entry in entries(source)] == [{}, {"txt": "a cat"}, {"txt": "a cat"}, {}]
    assert [problem.name for problem in problems(source)] == ["in/3.jpg"]


def link(path: Path, links: Mapping[str, str]) -> None:
    """Add hard links to a tar."""
    with tarfile.open(path, "a") as tar:
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.LNKTYPE, target
            tar.addfile(member)


def test_links_to_folders_and_texts_in_archives_that_are_not_read_give_a_warning(tmp_path: Path) -> None:
    pack(tmp_path / "x.tar", {"a/0.jpg": photo(0), "c/1.jpg": photo(1)})
    with tarfile.open(tmp_path / "x.tar", "a") as tar, zipfile.ZipFile(tmp_path / "x.zip", "w") as zipped:
        for name in ("a/0.jpg", "c/1.jpg"):
            zipped.writestr(name, photo(0))
        for name, target in (("b", "a"), ("a/0.txt", "../text"), ("__MACOSX/b", "a")):
            member, link = tarfile.TarInfo(name), zipfile.ZipInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            link.create_system, link.external_attr = 3, 0o120777 << 16
            tar.addfile(member)
            zipped.writestr(link, target)
    way = "extract the file, and convert the folder"
    text = f"not read, such as b: if it leads to a folder of images, or to an image's text, {way}"
    for kind in ("tar", "zip"):
        source = Settings(source=tmp_path / f"x.{kind}").open()
        assert tally_of(source).warnings == [f"2 links {text}"]
        assert source.classes == ("a", "c")


def test_hidden_and_system_folders_in_a_tar_are_left_out(tmp_path: Path) -> None:
    files = ("cat/1.jpg", "dog/2.jpg", "cat/@eaDir/1.jpg/T.jpg", ".git/3.jpg", "dog/.@__thumb/4.jpg", "#recycle/5.jpg")
    source = source_of(pack(tmp_path / "x.tar", {name: photo(n) for n, name in enumerate(files)}))
    assert [entry.name for entry in entries(source)] == ["cat/1.jpg", "dog/2.jpg"]
    assert source.classes == ("cat", "dog")
    tally = tally_of(source)
    assert (tally.hidden, tally.system) == (2, {"cat/@eaDir", "#recycle"})


def test_backslashes_of_windows_separate_folders(tmp_path: Path) -> None:
    source = source_of(pack(tmp_path / "x.tar", {"cat\\1.jpg": photo(1), "dog\\2.jpg": photo(2)}))
    assert [(entry.name, entry.label) for entry in entries(source)] == [("cat/1.jpg", 0), ("dog/2.jpg", 1)]
    assert (source.classes, tally_of(source).backslashes) == (("cat", "dog"), 2)


def test_hostile_members_are_named_and_nothing_is_extracted(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    pack(folder / "x.tar", {"../../1.jpg": photo(1), "/etc/2.jpg": photo(2), "c/../../../3.jpg": photo(3)})
    with tarfile.open(folder / "x.tar", "a") as tar:
        member = tarfile.TarInfo("4.jpg")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    report = convert(folder / "x.tar", folder / "out.lmdb")
    assert {path.name for path in tmp_path.rglob("*")} == {"a", "b", "x.tar", "out.lmdb", "out.lmdb.report.jsonl"}
    assert [record.name for record in records(folder / "out.lmdb")] == ["../../1.jpg", "etc/2.jpg", "../../3.jpg"]
    reason = f"is a link, device or sparse file in {folder / 'x.tar'}: extract it, and convert the folder"
    assert report_lines(report) == [{"name": "4.jpg", "event": "rejected", "reason": reason}]


@pytest.mark.parametrize(("encoding", "name"), [("latin-1", "B\u00e4r"), ("gbk", "\u732b\u72d7")])
def test_names_in_another_encoding_give_a_warning_until_it_is_given(tmp_path: Path, encoding: str, name: str) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT, encoding=encoding) as tar:
        for number in range(2):
            member = tarfile.TarInfo(f"{name}{number}/1.jpg")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"j"))
        link = tarfile.TarInfo("b/1.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, f"{name}0/1.jpg"
        tar.addfile(link)
    (warning,) = source_of(tmp_path / "x.tar").warnings
    assert "x.tar has 2 names whose encoding is not UTF-8, such as " in warning
    assert "(--encoding gbk" in warning
    source = TarSource(tmp_path / "x.tar", [tmp_path / "x.tar"], reading=Reading(encoding=encoding))
    assert source.warnings == ()
    assert [entry.name for entry in entries(source)] == [f"{name}0/1.jpg", f"{name}1/1.jpg", "b/1.jpg"]
    assert Settings(source=tmp_path / "x.tar", encoding=encoding).open().classes[-1] == max("b", f"{name}1")


@pytest.mark.parametrize("extension", [".tar", ".zip"])
def test_folder_with_shards_of_several_splits_is_refused(tmp_path: Path, extension: str) -> None:
    write = pack if extension == ".tar" else write_zip
    (tmp_path / "shards").mkdir()
    for number, name in enumerate(("pets-train-0", "pets-train-1", "pets_val")):
        write(tmp_path / "shards" / f"{name}{extension}", {f"a/{number}.jpg": photo(number), f"b/{number}.jpg": b"j"})
    way = rf"\*train\*\{extension}' \('.*shards/\*\{extension}' for all\)"
    with pytest.raises(SourceError, match=rf"has several splits \(train, val\): .*{way}"):
        Settings(source=tmp_path / "shards").open()
    for pattern, count in (("*train*", 4), ("*", 6)):
        source = Settings(source=tmp_path / "shards" / f"{pattern}{extension}").open()
        assert len([*source.entries()]) == count


@pytest.mark.parametrize("by", ["first", "last", "path"])
def test_only_folder_is_the_class_if_the_user_says_so(tmp_path: Path, by: str) -> None:
    path = pack(tmp_path / "x.tar", {f"val/cat/{number}.jpg": photo(number) for number in range(2)})
    source = Settings(source=path).open()
    assert (source.classes, "--class-folder last makes it" in source.understood[1]) == ((), True)
    assert Settings(source=path, class_folder=by).open().classes == ("cat",)
    source = Settings(source=path, class_folder=by, classes="cat,dog").open()
    assert [entry.label for entry in entries(source)] == [0, 0]
    assert "--class-folder" not in Settings(source=pack(tmp_path / "y.tar", {"1.jpg": b"j"})).open().understood[1]


def test_class_names_in_cls_files_become_labels(tmp_path: Path) -> None:
    files = {
        f"{n}.{kind}": data
        for n, name in enumerate(("dog", "cat", "dog"))
        for kind, data in (("jpg", b"j"), ("cls", name.encode()))
    }
    source = source_of(pack(tmp_path / "x.tar", {**files, "9.jpg": b"j"}))
    assert source.classes == ("cat", "dog")
    assert [entry.label for entry in entries(source)] == [1, 0, 1, None]
    (warning,) = warnings_of(source)
    assert (
        warning
        == "1 of 4 images have no label; write one for each, or leave them out of the training: where='-label:none'"
    )


def test_empty_name_of_a_file_field_is_ignored(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {"1.jpg": b"j", "1.mask.png": b"mask", "2.jpg": b"j"})
    (tmp_path / "file_fields.json").write_text('["", "mask"]')
    source = source_of(path)
    assert source.file_fields == ("mask",)
    assert [(entry.name, [*entry.files]) for entry in entries(source)] == [("1.jpg", ["mask"]), ("2.jpg", [])]


def test_label_changed_after_opening_is_an_error(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {"0.jpg": b"j", "0.cls": b"cat"})
    source = source_of(path)
    pack(path, {"0.jpg": b"j", "0.cls": b"cow"})
    with pytest.raises(SourceError, match=r"x\.tar, 0\.jpg: was changed since it was first read$"):
        list(source.entries())


def test_path_that_a_tar_has_twice_gives_a_warning(tmp_path: Path) -> None:
    # As tar -r appends a newer version of a file.
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for seed, name in enumerate(("a/0.jpg", "b/0.jpg", "a/0.jpg")):
            member = tarfile.TarInfo(name)
            member.size = len(data := photo(seed))
            tar.addfile(member, io.BytesIO(data))
    (warning,) = convert(tmp_path / "x.tar", tmp_path / "x.lmdb", progress=None).warnings
    assert warning.startswith("1 image with the path of an earlier image in the same file: each becomes a record")
