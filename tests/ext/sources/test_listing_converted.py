"""Conversion of the files in a listing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbloader import ImageFormat, convert, open_store
from dbloader.conversion.report import Progress
from dbloader.errors import SourceError, SourceNotFoundError
from tests.conversion.test_resume import unreadable_file
from tests.support.conversion import events, records, report_lines, siblings
from tests.support.images import plant_photos


def test_missing_files_of_a_listing_are_rejected(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 2)
    listing = tmp_path / "all.csv"
    listing.write_text("path\ncat/0000.jpg\ncat/none.jpg\ncat/0000.jpg,too,many\n")
    report = convert(root, place, listing=listing)
    assert (report.records, report.files, report.rejected) == (1, 3, 2)
    assert [(event["name"], event["event"], event["reason"]) for event in events(place)] == [
        ("cat/none.jpg", "rejected", "cannot be read: No such file or directory"),
        ("row 4", "rejected", "the header has 1 field, but this row has 3"),
    ]


def test_unstorable_field_rejects_its_row(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 1)
    listing = tmp_path / "all.jsonl"
    good, *bad = ["1", "99999999999999999999", '"\\ud800"', '{"a\\u0000b": 1}', "[" * 300 + "]" * 300]
    listing.write_text("".join(f'{{"path": "cat/0000.jpg", "field": {value}}}\n' for value in (good, *bad)))
    report = convert(root, place, listing=listing)
    assert [record.fields for record in records(place)] == [{"field": 1}]
    assert [event["name"] for event in report_lines(report)] == ["cat/0000.jpg"] * len(bad)
    assert report_lines(report)[0]["reason"] == "its fields cannot be stored: an integer has more than 64 bits"
    for event in report_lines(report):
        assert event["reason"].startswith(("its fields cannot be stored: ", "field 'field' has more than"))


def test_source_and_listing_are_recorded_as_absolute_paths(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_photos(root, 3)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.csv").write_text("path,label\ncat/0000.jpg,cat\n")
    convert(".//images//.", "listed.lmdb", listing="./list.csv")
    with open_store(tmp_path / "listed.lmdb") as listed:
        assert listed.manifest.source["path"] == str(root)
        assert listed.manifest.source["listing"] == str(tmp_path / "list.csv")


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_missing_listing_is_refused_and_leaves_nothing(root: Path, place: Path, options: dict[str, Any]) -> None:
    (root / "cat").mkdir()
    with pytest.raises(SourceNotFoundError, match="the listing cannot be read: No such file"):
        convert(root, place, listing=root / "none.csv", **options)
    assert siblings(place) == set()


def test_unreadable_file_in_an_unreadable_folder_ends_the_conversion(root: Path, place: Path) -> None:
    # All other files are outside this folder, so only the file that fails with EIO is unreadable.
    photos = sorted(plant_photos(place.with_name("photos"), 20).rglob("*.jpg"))
    photos[10].unlink()
    photos[10].symlink_to(unreadable_file())
    listing = place.with_name("listing.csv")
    listing.write_text("".join(("path\n", *(f"{path}\n" for path in photos))))

    def remove(progress: Progress) -> None:
        if progress.done == 0:
            root.rmdir()

    with pytest.raises(SourceError, match=rf"Input/output error \(1 file in a row\): check the disk of {root}; when"):
        convert(root, place, listing=listing, progress=remove)
    assert not place.exists()
    root.mkdir()
    report = convert(root, place, listing=listing, resume=True)
    assert (report.records, report.rejected) == (19, 1)


def test_field_named_tiles_is_refused_in_a_tiled_store(root: Path, place: Path) -> None:
    plant_photos(root, 2)
    listing = place.with_name("all.jsonl")
    listing.write_text('{"path": "cat/0000.jpg", "tiles": 7}\n{"path": "dog/0001.jpg"}\n')
    report = convert(root, place, listing=listing, images=ImageFormat(tile=True, quality=90))
    reason = "tile stores the lengths of tiles in field 'tiles': give your field another name"
    assert report_lines(report) == [{"name": "cat/0000.jpg", "event": "rejected", "reason": reason}]
    convert(root, place, listing=listing, overwrite=True)
    assert records(place)[0].fields == {"tiles": 7}
