"""``verify_store`` compares a store with its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dbloader import convert, verify_store
from dbloader.conversion.transcode import ImageFormat
from tests.checking.test_verify_store import named
from tests.contracts.records import make_records, write
from tests.support.images import photo, picture, plant, plant_photos
from tests.support.lmdb_files import change_manifest, tamper, tamper_with_records


def test_failed_comparison_keeps_problems_found_earlier(tmp_path: Path) -> None:
    root, place = plant_photos(tmp_path / "images", 10), tmp_path / "store.lmdb"
    plant(root, {"cat/bad.jpg": b"no image"})
    convert(root, place)
    tamper_with_records(place, {2: b"x"})
    tamper(place, b"meta", {b"event/" + bytes(8): b"?"})
    found: list[dict[str, Any]] = []
    report = verify_store(place, against=root, found=found.append)
    assert found == report.first
    assert [row["index"] for row in found] == [2, None, None]
    assert f"could not be compared with {root}: " in found[2]["reason"]


def test_verify_reports_a_huge_length_in_the_manifest_once(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    write(place, make_records(20))
    change_manifest(place, length=10**12)
    report = verify_store(place, decode=True, against=plant_photos(tmp_path / "images", 1))
    assert [row["reason"].split(": ")[1][:12] for row in report.first] == ["its manifest"]


def test_store_is_compared_with_its_folder(tmp_path: Path) -> None:
    root = plant_photos(tmp_path / "images", 40)
    plant(root, {"cat/no end.jpg": photo(77)[:-2], "cat/bad.jpg": b"no image"})
    convert(root, tmp_path / "store.lmdb", shuffle_seed=1)
    report = verify_store(tmp_path / "store.lmdb", against=root)
    assert report.problems == {}
    assert report.compared == {"rejected": 1, "same": 40, "repaired": 1}
    (root / "cat" / "0000.jpg").unlink()
    plant(root, {"cat/0002.jpg": photo(78), "cat/new.jpg": photo(79)})
    (root / "cat" / "0004.jpg").rename(root / "dog" / "0004.jpg")
    (root / "ant").mkdir()  # the new class shifts the label of cat to 1 and of dog to 2
    report = verify_store(tmp_path / "store.lmdb", against=root)
    found = {(name, kind) for _, name, kind in named(report)}
    assert {("cat/0000.jpg", "extra"), ("cat/0004.jpg", "extra"), ("dog/0004.jpg", "missing")} <= found
    assert {("cat/new.jpg", "missing"), ("cat/0006.jpg", "label"), ("dog/0001.jpg", "label")} <= found
    (root / "ant").rmdir()
    found = {(name, kind) for _, name, kind in named(verify_store(tmp_path / "store.lmdb", against=root))}
    assert ("cat/0002.jpg", "bytes") in found
    assert len(found) == 5


def test_verify_compares_only_names_of_resized_images(tmp_path: Path) -> None:
    root = plant_photos(tmp_path / "images", 4)
    plant(root, {"cat/small.png": picture("PNG")})
    convert(root, tmp_path / "store.lmdb", images=ImageFormat(short_side=20))
    report = verify_store(tmp_path / "store.lmdb", against=root)
    assert (report.problems, report.compared) == ({}, {"changed": 4, "same": 1})
