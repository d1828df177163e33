"""find_duplicates finds the same pairs as a brute-force search, and keeps fingerprints in a file."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dbloader import Record, copy_store, find_duplicates
from dbloader.errors import OptionError
from dbloader.ext.duplicates.fingerprints import BYTES_ONLY, FINGERPRINT, HASHED, NO_IMAGE, UNREADABLE
from dbloader.ext.duplicates.search import find_originals
from tests.contracts.records import write
from tests.support.children import in_child
from tests.support.images import encoded, photo, scene
from tests.support.jpegs import draw
from tests.support.lmdb_files import fill_disk, tamper_with_records

Array = np.ndarray[Any, Any]


def brute_force(values: Array, distance: int, others: int) -> list[int]:
    """Compare all pairs, as the docstring of find_originals describes."""
    bits = np.unpackbits(np.ascontiguousarray(values["seen"]).view("u1").reshape(len(values), 16), axis=1).astype(int)
    hashed = values["kind"] == HASHED
    apart = np.where(hashed[:, None] & hashed, np.abs(bits[:, None] - bits).sum(axis=2), 0)
    equal = (values["content"][:, None] == values["content"]).all(axis=2) & values["content"].any(axis=1)
    alike = np.where(hashed[:, None], hashed & (apart <= distance), ~hashed & equal)
    found = list(range(len(values)))
    for i in range(len(values)):
        if others and i >= others and alike[:others, i].any():
            found[i] = min(np.flatnonzero(alike[:others, i]).tolist(), key=lambda of: (apart[of, i], of))
        elif not others and found[i] == i:
            for j in range(i + 1, len(values)):
                found[j] = i if alike[i, j] and found[j] == j else found[j]
    return found


@pytest.mark.parametrize("distance", [0, 7, 8, 15])
@pytest.mark.parametrize("others", [0, 70])
def test_search_finds_what_brute_force_finds(distance: int, others: int) -> None:
    rng = np.random.default_rng(distance)
    for changed in range(0, 18, 3):
        values = np.zeros(160, FINGERPRINT)
        values["seen"] = rng.integers(0, 2**64, (12, 2), np.uint64)[rng.integers(0, 12, 160)]
        for _ in range(changed):
            flipped = np.uint64(1) << rng.integers(0, 64, 160, np.uint64)
            values["seen"][np.arange(160), rng.integers(0, 2, 160)] ^= flipped
        values["content"] = rng.integers(0, 20, (160, 1))
        values["kind"] = rng.choice([NO_IMAGE, HASHED, HASHED, HASHED, BYTES_ONLY, UNREADABLE], 160)
        assert find_originals(values, distance, others).tolist() == brute_force(values, distance, others)


@pytest.mark.slow
def test_search_of_many_images_compares_few_pairs() -> None:
    values = np.zeros(100_000, FINGERPRINT)
    values["seen"] = np.random.default_rng(0).integers(0, 2**64, (100_000, 2), np.uint64)
    values["seen"][77_777] = values["seen"][5] ^ np.uint64(2**63 + 2**40 + 1)
    values["kind"] = HASHED
    found = find_originals(values, 10)  # comparing all 5,000,000,000 pairs would exceed the time limit of a test
    assert np.flatnonzero(found != np.arange(100_000)).tolist() == [77_777]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "a.lmdb"


def test_changed_copies_are_near_duplicates_and_other_images_are_not(place: Path, tmp_path: Path) -> None:
    images = [scene(seed) for seed in range(8)]
    changed: list[Any] = [
        encoded(images[0], "JPEG", quality=50),
        encoded(images[1].resize((120, 90)), "JPEG"),
        encoded(images[2].crop((2, 2, 238, 178)), "JPEG"),
        encoded(images[3].point(lambda value: min(255, int(value * 1.05))), "PNG"),
        np.asarray(images[4]),
    ]
    originals = [encoded(image, "JPEG", quality=95) for image in images]
    files = [*originals, *changed, originals[7]]
    write(place, [Record(name=f"{n}", image=file) for n, file in enumerate(files)])
    report = find_duplicates(place, output=tmp_path / "twice.jsonl")
    found = [(row["index"], row["name"], row["of"], row["of_name"], row["difference"]) for row in report.first]
    pairs = [(8, 0), (9, 1), (10, 2), (11, 3), (12, 4), (13, 7)]
    assert found == [(index, f"{index}", of, f"{of}", "same" if of == 7 else "near") for index, of in pairs]
    assert (report.groups, report.duplicates, report.bytes_only, report.unreadable) == (6, {"near": 5, "same": 1}, 0, 0)
    assert all(row["bits"] <= 10 for row in report.first)
    copy_store(place, tmp_path / "clean.lmdb", drop=tmp_path / "twice.jsonl")
    assert find_duplicates(tmp_path / "clean.lmdb").first == []
    with pytest.raises(OptionError, match=r"twice\.jsonl exists"):
        find_duplicates(place, output=tmp_path / "twice.jsonl")
    with pytest.raises(OptionError, match="distance must be from 0 to 15, got 16"):
        find_duplicates(place, distance=16)


def test_duplicates_between_an_lmdb_and_a_mongodb_store_are_found(
    place: Path, tmp_path: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images = [encoded(image, "JPEG") for image in map(scene, range(9))]
    write(place, [Record(image=image) for image in [*images[:5], images[0]]])
    write(f"{mongo_uri}.train", [Record(image=image) for image in [*images[3:], images[8]]])
    report = find_duplicates(place, f"{mongo_uri}.train")
    assert [(row["index"], row["of"], row["difference"]) for row in report.first] == [(0, 3, "same"), (1, 4, "same")]
    assert report.records == (6, 7)
    database = mongo_uri.rpartition("/")[2]
    kept = {path.name for path in tmp_path.glob("*.duplicates")}
    assert kept == {"a.lmdb.duplicates", f"{database}.train.duplicates"}
    copy_store(f"{mongo_uri}.train", tmp_path / "clean.lmdb", drop=listing(report.first, tmp_path))
    assert find_duplicates(place, tmp_path / "clean.lmdb").first == []


def listing(rows: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def find_pixels(place: Path, *images: Array) -> int:
    write(place, [Record(image=encoded(Image.fromarray(image), "PNG")) for image in images], overwrite=True)
    return len(find_duplicates(place).first)


def test_images_that_cannot_be_compared_are_named_or_counted(place: Path) -> None:
    gray = encoded(draw(40, 40).point(lambda value: 7), "PNG")
    floats = np.zeros((4, 4), "<f4")
    right, left = (np.broadcast_to(np.arange(256, dtype="u1")[::step], (64, 256)) for step in (1, -1))
    # fingerprints of all gradients are alike, so gradients are never reported as near duplicates
    assert find_pixels(place, right, right // 2) == find_pixels(place, left, left // 2) == 0
    some = encoded(scene(0), "JPEG")
    images: list[Any] = [some, photo(2), b"no image", b"no image", gray, gray, None, None, floats, floats]
    write(place, [Record(name=f"n{n}", image=image) for n, image in enumerate(images)], overwrite=True)
    tamper_with_records(place, {1: b"damaged"})
    report = find_duplicates(place)
    assert [(row["index"], row["of"]) for row in report.first] == [(3, 2), (5, 4), (9, 8)]
    assert {row["difference"] for row in report.first} == {"same"}
    assert (report.bytes_only, report.unreadable) == (4, 3)
    assert "record 1 (n1)" in report.problems[0]
    assert "record 2 (n2) is in no known image format" in report.problems[1]


def test_fingerprints_are_kept_until_the_records_change(place: Path) -> None:
    images = [encoded(image, "JPEG") for image in map(scene, range(3))]
    write(place, [Record(image=image) for image in images])
    done: list[int] = []

    def search() -> list[int]:
        done.clear()
        report = find_duplicates(place, progress=lambda title, number, total: done.append(total))
        return [row["index"] for row in report.first]

    assert (search(), done) == ([], [3])
    assert (search(), done) == ([], [])
    write(place, [Record(image=image) for image in [*images, images[1]]], overwrite=True)
    assert (search(), done) == ([3], [4])
    kept = place.with_name("a.lmdb.duplicates")
    data = bytearray(kept.read_bytes())
    for broken in (data[:-1], data[:40], b"", b"\xff\xfe", b"[]\n", data[:-5] + b"12345"):
        kept.write_bytes(broken)
        assert (search(), done) == ([3], [4])
        assert kept.read_bytes() == data


def test_killed_search_leaves_the_old_fingerprints(place: Path) -> None:
    images = [encoded(image, "JPEG") for image in map(scene, range(3))]
    write(place, [Record(image=image) for image in images])
    find_duplicates(place)
    kept = place.with_name("a.lmdb.duplicates")
    before = kept.read_bytes()
    write(place, [Record(image=image) for image in [*images, images[0]]], overwrite=True)

    def die() -> None:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        find_duplicates(place)

    assert in_child(die) == -signal.SIGKILL
    assert kept.read_bytes() == before
    assert [row["index"] for row in find_duplicates(place).first] == [3]


@pytest.mark.parametrize("stores", [1, 2])
def test_full_disk_beside_the_store_keeps_the_result_of_the_search(small_disk: Path, stores: int) -> None:
    place = small_disk / "a.lmdb"
    images = [encoded(scene(seed), "JPEG") for seed in (0, 1, 0)]
    write(place, [Record(name=f"{number}.jpg", image=image) for number, image in enumerate(images)])
    fill_disk(small_disk)
    other = None if stores == 1 else small_disk.with_name("b.lmdb")
    if other:
        copy_store(place, other)
    with pytest.warns(UserWarning, match=r"a\.lmdb\.duplicates cannot be written: No space left on device; the next"):
        report = find_duplicates(place, other)
    assert report.duplicates == {"same": 1 if stores == 1 else 3}
    assert report.files == (() if stores == 1 else (f"{other}.duplicates",))
    assert sorted(path.name for path in small_disk.iterdir()) == ["a.lmdb", "other"]
