"""Folders provide files in all formats that Pillow opens safely."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from dbloader import LMDBDataset, convert, export_store
from dbloader.errors import SourceError
from dbloader.ext.exports.base import extension_of
from dbloader.ext.sources.open import open_source
from dbloader.images.pillow import FORMATS
from dbloader.sources.folder import EXTENSIONS
from tests.support import jpegs
from tests.support.conversion import events, records
from tests.support.images import encoded, photo, plant


def test_extensions_and_formats_match() -> None:
    Image.init()
    formats = {Image.EXTENSION.get(extension, "HEIF") for extension in EXTENSIONS}
    assert formats - {"JXL"} == {*FORMATS, "MPO", "HEIF"}  # a plug-in adds JXL when a file needs it
    assert {extension_of(name) for name in formats if name} <= {*EXTENSIONS}


@pytest.mark.parametrize("kind", ["zip", "tar", "folder"])
def test_folders_zips_tars_and_exports_accept_the_same_formats(tmp_path: Path, kind: str) -> None:
    names = [name for name in FORMATS if name != "ICO"]  # Pillow changes the size of an ICO image
    files = {f"cat/{name}{extension_of(name)}": encoded(jpegs.draw(24, 18), name) for name in names}
    before = convert(plant(tmp_path / "images", files), tmp_path / "a.lmdb")
    with LMDBDataset(tmp_path / "a.lmdb") as dataset:
        assert {image.size for image, _ in dataset[0 : len(names)]} == {(24, 18)}
    if kind in ("zip", "tar"):
        source = shutil.make_archive(str(tmp_path / "again"), kind, tmp_path / "images")
    else:
        source = export_store(tmp_path / "a.lmdb", tmp_path / "again", format=kind).destination
    after = convert(source, tmp_path / "b.lmdb")
    assert (after.records, after.skipped, after.rejected) == (len(names), {}, 0)
    assert {record.image for record in records(after.place)} == {*files.values()}
    if kind not in ("zip", "tar"):  # files in zips and tars may be in another order
        assert after.digest == before.digest


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    ("kind", "extension"),
    [("folder", "txt"), ("folder", "json"), ("zip", "txt"), ("tar", "txt"), ("tar", "json"), ("tar", "cls")],
)
def test_pointer_of_git_lfs_beside_an_image_is_no_text_or_label(tmp_path: Path, kind: str, extension: str) -> None:
    folder = plant(tmp_path / "images", {"cat/1.jpg": photo(1), f"cat/1.{extension}": POINTER, "cat/2.jpg": photo(2)})
    source = str(folder) if kind == "folder" else shutil.make_archive(str(tmp_path / "images"), kind, folder)
    report = convert(source, tmp_path / "a.lmdb")
    assert (report.records, report.rejected) == (1, 1)
    [event] = events(tmp_path / "a.lmdb")
    assert event["name"].endswith("cat/1.jpg")
    assert event["reason"].endswith("it is a pointer of Git LFS: run git lfs pull, and convert again")


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_metadata_that_are_a_pointer_of_git_lfs_are_refused(tmp_path: Path, name: str) -> None:
    plant(tmp_path, {"cat/1.jpg": photo(1), "dog/2.jpg": photo(2), name: POINTER})
    with pytest.raises(SourceError, match=rf"{name}: is a pointer of Git LFS: run git lfs pull, and convert again$"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.parquet", "x.csv", "x.json"])
def test_pointer_of_git_lfs_is_refused_with_the_remedy(tmp_path: Path, name: str) -> None:
    path = plant(tmp_path, {name: POINTER}) / name
    source, listing = (tmp_path, path) if path.suffix in (".csv", ".json") else (path, None)
    with pytest.raises(SourceError, match=rf"{name}: is a pointer of Git LFS: run git lfs pull, and convert again$"):
        open_source(source, listing)
