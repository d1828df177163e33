"""An export is complete or absent, and replaces nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dbloader.conversion.convert import convert
from dbloader.errors import DamagedRecordError, ExportError, OptionError, StoreNotFoundError
from dbloader.ext.exports.base import new_file
from dbloader.ext.exports.export import export_store
from tests.support.images import plant_photos


@pytest.fixture
def place(tmp_path: Path) -> Path:
    convert(plant_photos(tmp_path / "images", 100, width=16, height=12), tmp_path / "out.lmdb")
    shutil.rmtree(tmp_path / "images")
    return tmp_path / "out.lmdb"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("what", ["folder", "link"])
def test_existing_partial_folder_or_link_is_not_replaced(place: Path, what: str) -> None:
    partial, other = place.with_name("folder.partial"), place.with_name("other")
    other.mkdir()
    if what == "folder":
        (partial / "mine").mkdir(parents=True)
    else:
        partial.symlink_to(other)
    with pytest.raises(ExportError, match=r"folder\.partial exists already: .*; remove it if no export to .* is"):
        export_store(place, place.with_name("folder"))
    assert partial.is_symlink() or names(partial) == ["mine"]
    assert names(other) == []


def test_destination_must_be_absent_or_an_empty_folder(place: Path) -> None:
    for name in ("file", "folder", "dangling link"):
        target = place.with_name(name)
        if name == "folder":
            (target / "mine").mkdir(parents=True)
        else:
            target.touch() if name == "file" else target.symlink_to("nowhere")
        with pytest.raises(ExportError, match=r" exists already: move it away, or choose another destination$"):
            export_store(place, target)
    target = place.with_name("empty")
    target.mkdir()
    export_store(place, target)
    assert names(target) == ["cat", "dog"]


def test_failed_export_leaves_nothing(place: Path) -> None:
    with place.open("r+b") as file:
        data = file.read()
        file.seek(data.rindex(b"\xff\xd8\xff") + 100)
        file.write(b"\0\0\0\0")
    with pytest.raises(DamagedRecordError, match="is damaged"):
        export_store(place, place.with_name("folder"))
    with pytest.raises(StoreNotFoundError, match=r"nowhere\.lmdb"):
        export_store(place.with_name("nowhere.lmdb"), place.with_name("folder"))
    with pytest.raises(OptionError, match="format must be one of folder, "):
        export_store(place, place.with_name("folder"), format="zip")
    with pytest.raises(ExportError, match=r"/folder cannot be written: Not a directory; choose another destination$"):
        export_store(place, place / "folder")
    assert names(place.parent) == ["out.lmdb"]


@pytest.mark.parametrize("elsewhere", ["mongodb://user:password@server/images.train", "s3://bucket", "gs://b/key"])
def test_destination_in_a_remote_place_is_refused(place: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.parent)  # as a path, the place would be a folder here
    with pytest.raises(ExportError, match="export makes a folder on this machine: give its path, or copy the store"):
        export_store(place, elsewhere)
    assert names(place.parent) == ["out.lmdb"]


def test_full_disk_is_one_clear_error(place: Path, small_disk: Path) -> None:
    with pytest.raises(ExportError, match=r"folder cannot be written: No space left on device; free some space, or"):
        export_store(place, small_disk / "folder")
    assert names(small_disk) == []


def test_new_file_never_follows_a_link_or_replaces_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "b").write_text("mine")
    for name in ("a", "b"):
        with pytest.raises(FileExistsError, match="File exists"):
            new_file(tmp_path, name)
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "b").read_text() == "mine"
