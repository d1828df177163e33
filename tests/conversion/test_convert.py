"""Source -> store: whole, in order, the same for any number of workers, with every file accounted for."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import lmdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

import dbloader.conversion.prepare
import dbloader.stores.writer
from dbloader.conversion.convert import convert
from dbloader.conversion.memory_budget import MemoryBudget
from dbloader.conversion.prepare import FilePreparer, Prepared
from dbloader.conversion.report import Progress
from dbloader.conversion.transcode import ImageFormat
from dbloader.decoding import decode_pil
from dbloader.errors import (
    ConversionError,
    OptionError,
    PlaceError,
    SourceError,
    SourceNotFoundError,
    StoreAccessError,
    StoreExistsError,
    StoreLockedError,
)
from dbloader.sources.base import Entry
from dbloader.sources.folder import scan
from dbloader.stores.open import create_store, open_store
from tests.support import jpegs
from tests.support.images import (
    BAD,
    DAMAGED,
    END,
    KINDS,
    REPAIRED,
    UNSEEN,
    as_nobody,
    encoded,
    hand_all_over,
    photo,
    picture,
    plant,
    plant_kinds,
    plant_photos,
    running,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.conversion.report import Report
    from dbloader.records.record import Record

ALL_KINDS = tuple(KINDS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


def records(place: str | os.PathLike[str]) -> list[Record]:
    with open_store(place) as store:
        return list(store)


def documents(place: str | os.PathLike[str]) -> list[bytes]:
    with open_store(place) as store:
        return store.documents(range(len(store)))


def events(place: str | os.PathLike[str]) -> list[dict[str, Any]]:
    with open_store(place) as store:
        return list(store.events())


def report_lines(report: Report) -> list[dict[str, Any]]:
    if not report.report_file:
        assert not Path(f"{report.place}.report.jsonl").exists()
        return []
    return [json.loads(line) for line in Path(report.report_file).read_text().splitlines()]


def siblings(place: Path) -> set[str]:
    return {path.name for path in place.parent.iterdir() if path.name != "images"}


def verified(place: str | os.PathLike[str]) -> str:
    with open_store(place) as store:
        return store.verify()


# What is stored


def test_records_are_the_files_in_the_order_of_the_source_byte_for_byte(root: Path, place: Path) -> None:
    plant_photos(root, 100, ("b", "a", "c"))
    report = convert(root, place)
    names = [entry.name for entry in scan(root).entries()]
    assert [record.name for record in records(place)] == names
    for record in records(place):
        assert record.name is not None
        assert record.image == (root / record.name).read_bytes()
        assert record.label == ("a", "b", "c").index(record.name[0])
        assert (record.width, record.height, record.format) == (40, 30, "JPEG")
        assert (record.resized_from, record.damaged) == (None, None)
    size = sum(path.stat().st_size for path in root.rglob("*.jpg"))
    assert report.records == report.files == 100
    assert report.bytes_read == report.image_bytes == size
    assert report.digest == verified(place)
    assert report.place == str(place)
    assert report.seconds > 0
    with open_store(place) as store:
        assert store.manifest.classes == ("a", "b", "c")
        assert store.manifest.label_counts == {0: 33, 1: 34, 2: 33}
        assert store.manifest.source["path"] == str(root)


@pytest.mark.parametrize("options", [{}, {"shuffle": 5}, {"max_side": 16}, {"check": "none"}])
def test_the_number_of_workers_changes_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    plant_photos(root, 150)
    plant_kinds(root, *ALL_KINDS)
    alone = convert(root, tmp_path / "alone.lmdb", **options)
    hand_all_over(monkeypatch)
    for workers in (1, 2, 5):
        report = convert(root, tmp_path / f"{workers}.lmdb", workers=workers, **options)
        assert documents(report.place) == documents(alone.place)
        assert events(report.place) == events(alone.place)
        assert report.digest == verified(report.place) == alone.digest


def test_a_seed_shuffles_the_records_and_loses_none(root: Path, tmp_path: Path) -> None:
    plant_photos(root, 60)
    stores = {
        seed: records(convert(root, tmp_path / f"{seed}.lmdb", shuffle=seed).place) for seed in (0, 1, -1, 2**63 - 1)
    }
    plain = records(convert(root, tmp_path / "plain.lmdb").place)
    orders = {seed: [record.name for record in store] for seed, store in stores.items()}
    assert len({tuple(order) for order in orders.values()}) == 4
    for store in stores.values():
        assert sorted(store, key=str) != store
        assert {(r.name, r.label, r.image) for r in store} == {(r.name, r.label, r.image) for r in plain}
        assert [record.index for record in store] == [*range(60)]
    again = convert(root, tmp_path / "again.lmdb", shuffle=0)
    assert [record.name for record in records(again.place)] == orders[0]


def test_the_order_of_a_small_folder_and_seed_is_always_this(root: Path, place: Path) -> None:
    plant(root, {f"cat/{letter}.jpg": photo() for letter in "abcdefghij"})
    convert(root, place, shuffle=0)
    assert [record.name for record in records(place)] == [f"cat/{letter}.jpg" for letter in "jhaifbgced"]


def test_a_listing_gives_order_labels_and_fields(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 3)
    listing = tmp_path / "captions.jsonl"
    rows = [
        {"path": "dog/0001.jpg", "label": "dog", "caption": "a dog", "boxes": [[1, 2.5], []], "none": None},
        {"path": "cat/0000.jpg", "label": "cat", "caption": "une tête"},
        {"path": "dog/0001.jpg", "label": None},
    ]
    listing.write_text("\n".join(map(json.dumps, rows)))
    report = convert(root, place, listing=listing)
    first, second, third = records(place)
    assert (first.name, first.label) == ("dog/0001.jpg", 1)
    assert first.fields == {"caption": "a dog", "boxes": [[1, 2.5], []], "none": None}
    assert (second.name, second.label, second.fields) == ("cat/0000.jpg", 0, {"caption": "une tête"})
    assert (third.name, third.label, third.fields) == ("dog/0001.jpg", None, {})
    assert third.image == first.image
    assert report.warnings == ("1 of 3 rows have no label",)
    with open_store(place) as store:
        assert store.manifest.classes == ("cat", "dog")
        assert store.manifest.fields == {"boxes": 1, "caption": 2, "none": 1}
        assert store.manifest.source["listing"] == str(listing)


def test_a_row_that_cannot_be_used_is_not_something_to_resume_after(root: Path, place: Path, tmp_path: Path) -> None:
    # The list of files, which a resumed conversion compares, would be another once the row is mended.
    listing = tmp_path / "listing.json"
    listing.write_text(json.dumps([{"path": ""}, {"path": "a.jpg"}]))
    with pytest.raises(
        ConversionError, match=r"^row 1: it has no path; mend that and begin again, or resume with --on-bad reject$"
    ):
        convert(root, place, listing=listing, on_bad="fail")


def test_a_listing_may_name_what_is_not_there_or_no_file(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 2)
    listing = tmp_path / "all.csv"
    os.mkfifo(root / "pipe")
    listing.write_text("path\ncat/0000.jpg\ncat/none.jpg\ncat\npipe\n\ncat/0000.jpg,too,many\ncat/0000.jpg/x\n")
    report = convert(root, place, listing=listing)
    assert (report.records, report.files, report.rejected) == (1, 6, 5)
    assert [(event["name"], event["event"], event["reason"]) for event in events(place)] == [
        ("cat/none.jpg", "rejected", "cannot be read: No such file or directory"),
        ("cat", "rejected", "is a folder, not a file"),
        ("pipe", "rejected", "is not a regular file"),
        ("row 7", "rejected", "the header has 1 fields, it has 3"),
        ("cat/0000.jpg/x", "rejected", "cannot be read: Not a directory"),
    ]


def test_a_field_that_no_record_can_hold_rejects_its_row(root: Path, place: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["out.lmdb", "out", "o u t.db", "aus-ü.lmdb"])
def test_a_destination_may_have_any_name(root: Path, tmp_path: Path, name: str) -> None:
    plant_photos(root, 2)
    report = convert(root, tmp_path / name)
    assert verified(tmp_path / name) == report.digest
    assert siblings(tmp_path / name) == {name}


def test_source_and_destination_may_be_relative_or_within_each_other(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_photos(root, 3)
    monkeypatch.chdir(tmp_path)
    first = convert("images", "out.lmdb")
    second = convert("images/", "images/cat/out.lmdb")
    monkeypatch.chdir(root)
    third = convert(".", "out.lmdb")
    assert first.digest == second.digest == third.digest
    with open_store(tmp_path / "out.lmdb") as store:
        assert store.manifest.source["path"] == str(root)


def test_source_and_listing_are_told_the_same_however_they_are_written(
    root: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_photos(root, 2)
    (tmp_path / "list.csv").write_text("path,label\ncat/0000.jpg,cat\n")
    (tmp_path / "link").symlink_to(root / "cat")
    monkeypatch.chdir(tmp_path)
    for source in (
        "images",
        "images/",
        "./images",
        ".//images//.",
        root,
        f"/{root}",
        "images/cat/..",
        "link/../../images",
    ):
        for listing in (None, "list.csv", "./list.csv", "link/../../list.csv"):
            convert(source, place, listing=listing, overwrite=True)
            with open_store(place) as store:
                assert store.manifest.source["path"] == str(root)
                assert store.manifest.source["listing"] == (str(tmp_path / "list.csv") if listing else None)


def test_names_that_are_not_utf8_are_converted(root: Path, place: Path) -> None:
    folder = os.fsencode(root) + b"/caf\xe9"
    os.mkdir(folder)  # noqa: PTH102 - bytes
    Path(os.fsdecode(folder + b"/\xff.jpg")).write_bytes(photo())
    report = convert(root, place)
    assert [record.name for record in records(place)] == ["caf\\xe9/\\xff.jpg"]
    assert "not valid UTF-8" in report.warnings[0]


# What becomes of each kind of file


def expected(kind: str, check: str, on_damaged: str) -> str:
    """Return the event of a file, or "" for none."""
    outcome = KINDS[kind].outcome(check)
    if outcome == DAMAGED:
        return "damaged" if on_damaged == "keep" else "rejected"
    return {BAD: "rejected", REPAIRED: "repaired"}.get(outcome, "")


@pytest.mark.parametrize("on_damaged", ["reject", "keep", "fail"])
@pytest.mark.parametrize("on_bad", ["reject", "fail"])
@pytest.mark.parametrize("check", ["decode", "structure", "none"])
def test_every_file_is_accounted_for(root: Path, place: Path, check: str, on_bad: str, on_damaged: str) -> None:
    kinds = plant_kinds(root, *ALL_KINDS)
    if check == "none" and on_damaged == "keep":
        pytest.skip("these exclude each other")
    options = {"check": check, "on_bad": on_bad, "on_damaged": on_damaged}
    fails = {BAD: on_bad == "fail", DAMAGED: on_damaged == "fail"}
    ending = [kind for kind in kinds.values() if fails.get(KINDS[kind].outcome(check))]
    if ending:
        with pytest.raises(
            ConversionError,
            match=r"\w+/\d+\.\w+: .*; mend (the file and resume \(--resume\)|that and begin again), or resume",
        ):
            convert(root, place, **options)  # type: ignore[arg-type]
        assert not place.exists()
        return
    report = convert(root, place, **options)  # type: ignore[arg-type]
    check_accounts(root, report, kinds, check, on_damaged)


def check_accounts(root: Path, report: Report, kinds: dict[str, str], check: str, on_damaged: str = "reject") -> None:
    """Compare a conversion with what ought to have become of each file."""
    seen = {name: kind for name, kind in kinds.items() if KINDS[kind].outcome(check) != UNSEEN}
    wanted = {name: expected(kind, check, on_damaged) for name, kind in seen.items()}
    counts = Counter(wanted.values())
    stored = {record.name: record for record in records(report.place)}
    told = {event["name"]: event for event in events(report.place)}
    assert report.files == len(seen)
    assert report.records == len(stored) == len(seen) - counts["rejected"]
    assert (report.repaired, report.damaged, report.rejected) == tuple(
        counts[event] for event in ("repaired", "damaged", "rejected")
    )
    # Nothing is lost: what the source names is in the store or in the report.
    assert stored.keys() | {name for name, event in told.items() if event["event"] == "rejected"} == seen.keys()
    assert {name: event["event"] for name, event in told.items()} == {n: e for n, e in wanted.items() if e}
    assert report_lines(report) == events(report.place)
    assert [event["name"] for event in told.values()] == [
        item.name for item in scan(root).entries() if item.name in told
    ]
    with open_store(report.place) as store:
        outcome = store.manifest.outcome
        assert len(store) == report.records
    assert {event: outcome.get(event, 0) for event in ("repaired", "damaged", "rejected")} == {
        event: counts[event] for event in ("repaired", "damaged", "rejected")
    }
    for name, event in told.items():
        assert KINDS[kinds[name]].reason in event["reason"]
    for name, record in stored.items():
        assert name is not None
        data = (root / name).read_bytes()
        assert record.image == (data + END if wanted[name] == "repaired" else data)
        assert bool(record.damaged) == (wanted[name] == "damaged")
        if check == "decode" and not record.damaged:
            assert isinstance(record.image, bytes)
            assert decode_pil(record.image).size == (record.width, record.height)
    assert verified(report.place) == report.digest


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(ALL_KINDS), max_size=25),
    check=st.sampled_from(["decode", "structure", "none"]),
    keep=st.booleans(),
    workers=st.none() | st.integers(1, 4),
    shuffle=st.none() | st.integers(-5, 5),
)
def test_any_mixture_of_files_is_accounted_for(
    kinds: list[str], check: str, keep: bool, workers: int | None, shuffle: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        if workers:
            hand_all_over(monkeypatch)
        root = Path(folder) / "images"
        planted = plant_kinds(root, *kinds)
        on_damaged = "keep" if keep and check != "none" else "reject"
        report = convert(root, Path(folder) / "out.lmdb", check=check, on_damaged=on_damaged, workers=workers)
        check_accounts(root, report, planted, check, on_damaged)
        if shuffle is not None:
            shuffled = convert(root, Path(folder) / "s.lmdb", check=check, on_damaged=on_damaged, shuffle=shuffle)
            assert sorted(map(str, events(shuffled.place))) == sorted(map(str, events(report.place)))
            assert {r.name for r in records(shuffled.place)} == {r.name for r in records(report.place)}


def test_a_file_that_may_not_be_read_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = plant_photos(Path(folder) / "images", 3)
        (root / "cat" / "0002.jpg").chmod(0)
        (root / "owl").mkdir(mode=0)
        Path(folder).chmod(0o777)
        with as_nobody():
            report = convert(root, Path(folder) / "out.lmdb")
            assert report_lines(report) == [
                {"name": "cat/0002.jpg", "event": "rejected", "reason": "cannot be read: Permission denied"},
                {"name": "owl", "event": "rejected", "reason": "the folder cannot be read: Permission denied"},
            ]
            assert (report.records, report.files) == (2, 4)
        (root / "owl").chmod(0o755)


def test_a_file_larger_than_a_record_is_named_and_not_read(root: Path, place: Path) -> None:
    plant_photos(root, 1)
    with (root / "cat" / "huge.jpg").open("wb") as file:
        file.truncate(2**31)
    report = convert(root, place)
    assert report.bytes_read < 10_000
    assert [event["reason"] for event in report_lines(report)] == [
        "has 2,147,483,648 bytes, more than a record can hold (2,147,418,112)"
    ]


JP2 = b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 "  # the first box, and a piece of the second


@pytest.mark.parametrize(
    "data", [jpegs.draw(2, 2).tobytes() * 99, b"RIFF", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\x00", JP2]
)
def test_an_image_without_its_header_is_damaged_and_what_is_no_image_is_bad(
    root: Path, place: Path, data: bytes
) -> None:
    plant(root, {"cat/0.png": photo(), "cat/1.png": data})
    is_image = data[:2] in (b"RI", b"\x89P", b"GI", b"II") or data is JP2
    told = r"cat/1.png: is damaged(: its header is|, or a TIFF of a kind)" if is_image else r"no known image"
    with pytest.raises(ConversionError, match=told):
        convert(root, place, on_damaged="fail", on_bad="reject" if is_image else "fail")
    report = convert(root, place, on_damaged="keep", overwrite=True)
    assert report.damaged == is_image
    assert report.rejected == (not is_image)


def test_a_palette_image_without_its_palette_is_stored_as_pillow_decodes_it(root: Path, place: Path) -> None:
    data = encoded(jpegs.draw(20, 10).convert("P"), "PNG")
    at = data.index(b"PLTE") - 4
    length = int.from_bytes(data[at : at + 4], "big") + 12
    plant(root, {"cat/0.png": data[:at] + data[at + length :]})
    assert convert(root, place).records == 1


def test_a_cut_webp_is_damaged(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": photo(), "cat/1.webp": picture("WEBP")[:-9]})
    report = convert(root, place, on_damaged="keep")
    kept = records(place)[1]
    assert report.damaged == 1
    assert kept.damaged == "is damaged: its header is cut short or wrong"
    assert (kept.width, kept.height, kept.format) == (None, None, None)


def test_a_header_that_claims_gigapixels_is_rejected(root: Path, place: Path) -> None:
    bomb = bytearray(photo())
    start = bomb.index(b"\xff\xc0") + 5
    bomb[start : start + 4] = b"\xea\x60\xea\x60"
    large = encoded(Image.new("1", (14_000, 14_000)), "PNG", compress_level=1)
    plant(root, {"cat/0.jpg": photo(), "cat/1.jpg": bytes(bomb), "cat/2.png": large})
    for check in ("decode", "structure"):
        report = convert(root, place, check=check, overwrite=True)
        for event, name in zip(report_lines(report), ("cat/1.jpg", "cat/2.png"), strict=True):
            assert (event["name"], event["event"]) == (name, "rejected")
            assert event["reason"].startswith("is too large to be decoded: ")


def test_damage_is_found_although_the_program_lets_pillow_pass_over_it(
    root: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_kinds(root, "half a png")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert convert(root, place).rejected == 1
    assert ImageFile.LOAD_TRUNCATED_IMAGES


def test_warnings_of_pillow_are_no_ones_business(root: Path, place: Path) -> None:
    data = photo()
    start = data.index(b"\xff\xdb")
    odd = data[:start] + jpegs.segment(0xE1, b"Exif\x00\x00II*\x00\xff\xff\xff\xff") + data[start:]
    plant(root, {"cat/0.jpg": odd})
    assert convert(root, place).records == 1  # in the tests, a warning is an error


def test_too_many_open_files_are_not_the_fault_of_the_next_file(
    root: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_photos(root, 3)

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "0000.jpg")

    monkeypatch.setattr(dbloader.conversion.prepare, "_read", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        convert(root, place)
    assert not place.exists()


def test_a_file_that_grows_while_it_is_read_is_read_as_it_was(root: Path) -> None:
    path = root / "0.jpg"
    path.write_bytes(photo())

    def grow(_: int) -> None:
        with path.open("ab") as file:
            file.write(bytes(10))

    prepared = FilePreparer(root=os.fsencode(root)).prepare(Entry("0.jpg", b"0.jpg", None, {}), grow)
    assert prepared.outcome == ""
    assert prepared.nbytes == len(photo())


def test_a_file_that_comes_in_parts_is_read_to_its_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = photo()
    plant(root, {"0.jpg": data})
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 100)))
    prepared = FilePreparer(root=os.fsencode(root)).prepare(Entry("0.jpg", b"0.jpg", None, {}), lambda _: None)
    assert (prepared.outcome, prepared.nbytes) == ("", len(data))


def test_a_file_that_shrinks_while_it_is_read_is_cut_short(root: Path) -> None:
    path = root / "0.jpg"
    path.write_bytes(photo())
    prepared = FilePreparer(root=os.fsencode(root)).prepare(
        Entry("0.jpg", b"0.jpg", None, {}), lambda _: os.truncate(path, 600)
    )
    assert prepared.outcome == "rejected"
    assert not prepared.bad
    assert prepared.nbytes == 600


def test_memory_is_asked_for_before_it_is_used(root: Path) -> None:
    files = {
        "0.jpg": photo(width=160, height=120),
        "1.jpg": photo(width=160, height=120, progressive=True),
        "2.png": encoded(jpegs.draw(160, 120), "PNG"),
        "3.webp": encoded(jpegs.draw(160, 120), "WEBP"),
    }
    plant(root, files)
    held: dict[str, list[int]] = {}
    for name, data in files.items():
        held[name] = []
        FilePreparer(root=os.fsencode(root)).prepare(Entry(name, name.encode(), None, {}), held[name].append)
        assert held[name][0] == len(data)
    coefficients, pixels, copies = 2 * 3 * 160 * 120, 4 * 160 * 120, 16 * 160 * 120
    wanted = [[], [coefficients, -coefficients], [pixels, -pixels], [copies, -copies]]
    assert [sizes[1:] for sizes in held.values()] == wanted


def test_memory_that_is_asked_for_to_make_an_image_smaller_is_what_that_takes(root: Path) -> None:
    plant(root, {"0.jpg": photo(width=160, height=120), "1.png": encoded(jpegs.draw(160, 120), "PNG")})
    sizes: list[int] = []
    shrinking = FilePreparer(check="none", root=os.fsencode(root), form=ImageFormat(max_side=20))
    for name in ("0.jpg", "1.png"):
        shrinking.prepare(Entry(name, name.encode(), None, {}), sizes.append)
    # From a JPEG, libjpeg makes one of less than 80 x 60 pixels. Each becomes 20 pixels wide first, then 15 high.
    jpeg, png = 5 * 80 * 60 + 4 * 20 * (60 + 15), 5 * 160 * 120 + 4 * 20 * (120 + 15)
    assert [size for size in sizes if size < 0] == [-jpeg, -png]


# Smaller images


def test_images_that_are_made_smaller_say_so_and_all_others_are_the_files(root: Path, place: Path) -> None:
    plant(
        root,
        {
            "cat/0 wide.jpg": photo(width=400, height=100),
            "cat/1 small.jpg": photo(width=64, height=48),
            "cat/2 high.png": encoded(jpegs.draw(100, 300), "PNG"),
            "cat/3 no end.jpg": photo(width=65, height=65)[:-2],
            "cat/4 trailing.jpg": photo(width=64, height=64) + b"more",
        },
    )
    report = convert(root, place, max_side=64)
    wide, small, high, no_end, trailing = records(place)
    assert (wide.width, wide.height, wide.resized_from) == (64, 16, (400, 100))
    assert (high.width, high.height, high.format, high.resized_from) == (21, 64, "PNG", (100, 300))
    assert (no_end.width, no_end.height, no_end.resized_from) == (64, 64, (65, 65))
    for record in (small, trailing):
        assert record.name is not None
        assert record.image == (root / record.name).read_bytes()
        assert record.resized_from is None
    for record in (wide, high, no_end):
        assert isinstance(record.image, bytes)
        assert decode_pil(record.image).size == (record.width, record.height)
    assert (report.resized, report.repaired, report.rejected) == (3, 1, 0)
    with open_store(place) as store:
        assert store.manifest.outcome == {"repaired": 1, "resized": 3}
        assert store.manifest.source["max_side"] == 64


def test_the_shorter_side_may_be_the_limit(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": photo(width=400, height=100), "cat/1.jpg": photo(width=40, height=500)})
    convert(root, place, short_side=50)
    assert [(record.width, record.height) for record in records(place)] == [(200, 50), (40, 500)]


def test_quality_makes_smaller_files(root: Path, tmp_path: Path) -> None:
    plant_photos(root, 5, width=200, height=150)
    low, default, same = (
        convert(root, tmp_path / f"{quality}.lmdb", max_side=100, quality=quality) for quality in (20, None, 95)
    )
    assert low.image_bytes < default.image_bytes == same.image_bytes
    assert default.digest == same.digest


@pytest.mark.parametrize(("on_damaged", "outcome"), [("reject", "rejected"), ("keep", "damaged")])
def test_an_image_that_cannot_be_made_smaller_is_damaged(
    root: Path, place: Path, on_damaged: str, outcome: str
) -> None:
    data = encoded(jpegs.draw(24, 18), "PNG")[:-60]  # the header is whole, so its structure is
    plant(root, {"cat/0.jpg": photo(), "cat/1.png": data})
    report = convert(root, place, check="structure", on_damaged=on_damaged, max_side=10)
    (event,) = report_lines(report)
    assert (event["name"], event["event"]) == ("cat/1.png", outcome)
    assert event["reason"].startswith("cannot be resized: ")
    if outcome == "damaged":
        kept = records(place)[1]
        assert (kept.image, kept.width, kept.height, kept.resized_from) == (data, 24, 18, None)
        assert kept.damaged is not None
        assert report.resized == 1


def test_what_is_no_image_is_not_made_smaller(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": b"text", "cat/1.jpg": photo()})
    report = convert(root, place, check="none", max_side=10)
    assert [record.width for record in records(place)] == [None, 10]
    assert report.resized == 1


# Nothing stored, and errors before anything is


def test_if_no_file_can_be_stored_nothing_is_left(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": b"text", "cat/1.jpg": b""})
    with pytest.raises(ConversionError, match=r"none of the 2 files could be stored; the first is cat/0.jpg: is in no"):
        convert(root, place)
    assert siblings(place) == set()


def test_if_no_file_can_be_stored_the_old_store_stays(root: Path, place: Path) -> None:
    plant_photos(root, 2)
    digest = convert(root, place).digest
    plant(root, {"cat/0000.jpg": b"text", "dog/0001.jpg": b""})
    with pytest.raises(ConversionError, match="none of the 2 files could be stored"):
        convert(root, place, overwrite=True)
    assert verified(place) == digest
    assert siblings(place) == {"out.lmdb"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check": "all"}, "check must be one of decode, structure, none, got 'all'"),
        ({"on_bad": "keep"}, "on_bad must be one of reject, fail, got 'keep'"),
        ({"on_damaged": "repair"}, "on_damaged must be one of reject, keep, fail, got 'repair'"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"workers": -3}, "workers must be at least 1, got -3"),
        ({"max_side": 0}, r"max_side \(--max-side\) must be at least 1 pixel, got 0"),
        ({"short_side": -1}, r"short_side \(--short-side\) must be at least 1 pixel, got -1"),
        ({"max_side": 9, "short_side": 9}, "both say how small an image becomes: choose one"),
        ({"quality": 90}, r"made smaller or tiled: give max_side \(--max-side\) or short_side \(--short-side\) too"),
        ({"quality": 0}, r"quality \(--quality\) must be from 1 to 100, got 0"),
        ({"quality": 0, "max_side": 9}, r"quality \(--quality\) must be from 1 to 100, got 0"),
        ({"quality": 101, "max_side": 9}, r"quality \(--quality\) must be from 1 to 100, got 101"),
        ({"shuffle": 2**63}, f"shuffle must be a seed of 64 bits, got {2**63}"),
        ({"shuffle": -(2**63) - 1}, "shuffle must be a seed of 64 bits, got -9223372036854775809"),
        ({"check": "none", "on_damaged": "keep"}, "check='none' finds no damage that could be kept"),
    ],
)
def test_options_are_checked_before_anything_is_done(
    root: Path, place: Path, options: dict[str, Any], message: str
) -> None:
    plant_photos(root, 1)
    with pytest.raises(OptionError, match=message):
        convert(root, place, **options)
    assert siblings(place) == set()


@pytest.mark.parametrize("name", ["overwrite", "resume", "tile", "raw"])
def test_text_is_neither_true_nor_false(root: Path, place: Path, name: str) -> None:
    plant_photos(root, 1)
    digest = convert(root, place).digest
    with pytest.raises(TypeError, match=f"^{name} must be True or False, got 'no'$"):
        convert(root, place, **{"overwrite": True, name: "no"})  # type: ignore[arg-type]
    assert verified(place) == digest


@pytest.mark.parametrize("name", ["workers", "max_side", "short_side", "quality", "tile_width", "shuffle"])
def test_text_is_no_number(root: Path, place: Path, name: str) -> None:
    plant_photos(root, 1)
    with pytest.raises(TypeError, match=f"^{name} must be an int or None, got '2'$"):
        convert(root, place, **{name: "2"})  # type: ignore[arg-type]
    assert siblings(place) == set()


def test_numbers_of_numpy_do_as_well(root: Path, place: Path) -> None:
    plant_photos(root, 2)
    options: dict[str, Any] = {"max_side": np.int64(10), "shuffle": np.int32(1), "workers": np.int8(1)}
    report = convert(root, place, **options)
    assert report.resized == 2


def test_an_empty_source_is_not_the_working_directory(
    root: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_photos(root, 1)
    (tmp_path / "all.csv").write_text("path,label\ncat/0000.jpg,1\n")
    monkeypatch.chdir(root)
    for listing in (None, tmp_path / "all.csv"):
        with pytest.raises(
            SourceError, match=r"^the path of a folder is wanted, got '' \(the working directory is '.'"
        ):
            convert("", place, listing=listing)
    assert siblings(place) <= {"all.csv"}
    assert convert(".", place).records == 1


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_a_source_that_cannot_be_converted_leaves_nothing(root: Path, place: Path, options: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="there are no folders in it"):
        convert(root, place, **options)
    (root / "cat").mkdir()
    with pytest.raises(SourceError, match="there is not one image in its class folders"):
        convert(root, place, **options)
    with pytest.raises(SourceNotFoundError, match="there is no such folder"):
        convert(root / "none", place, **options)
    with pytest.raises(SourceNotFoundError, match="the listing cannot be read: No such file"):
        convert(root, place, listing=root / "none.csv", **options)
    assert siblings(place) == set()


def test_a_destination_that_cannot_be_written_is_refused_before_the_source_is_read(root: Path, tmp_path: Path) -> None:
    (root / "cat").mkdir()  # without an image, which reading the folders would find
    taken = tmp_path / "taken.txt"
    taken.write_text("not a store")
    for place, error, message in (
        (tmp_path / "none" / "out.lmdb", StoreAccessError, r"the folder .*none does not exist"),
        (tmp_path, StoreExistsError, "is a folder; a store is one file"),
        (taken, StoreExistsError, r"is not a dbloader store and will not be overwritten"),
        ("ftp://host/out", PlaceError, "ftp:// is no place that this version of dbloader knows"),
        ("", PlaceError, "a place is the path of an LMDB file"),
    ):
        with pytest.raises(error, match=message):
            convert(root, place)
    with pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"):
        convert(root, taken, overwrite=True)
    assert taken.read_text() == "not a store"


def test_a_store_is_replaced_only_when_asked(root: Path, place: Path) -> None:
    plant_photos(root, 2)
    old = convert(root, place).digest
    plant_photos(root, 4)
    with pytest.raises(StoreExistsError, match="exists already"):
        convert(root, place)
    assert verified(place) == old
    new = convert(root, place, overwrite=True).digest
    assert verified(place) == new != old
    assert siblings(place) == {"out.lmdb"}


def test_two_conversions_to_one_place_exclude_each_other(root: Path, place: Path) -> None:
    plant_photos(root, 2)
    with create_store(place), pytest.raises(StoreLockedError, match="another process is writing"):
        convert(root, place)


# The report


def test_a_report_that_cannot_be_written_is_a_warning_and_the_store_is_there(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": photo(), "cat/1.jpg": b"text"})
    Path(f"{place}.report.jsonl").mkdir()
    report = convert(root, place)
    assert report.report_file == ""
    assert report.warnings == (
        f"{place}.report.jsonl cannot be written: Is a directory; the report is in the store too "
        "(dbloader info with --report)",
    )
    assert verified(place) == report.digest
    assert len(events(place)) == 1
    assert siblings(place) == {"out.lmdb", "out.lmdb.report.jsonl"}


def test_a_report_without_events_is_no_file_and_an_older_one_is_removed(root: Path, place: Path) -> None:
    plant(root, {"cat/0.jpg": photo(), "cat/1.jpg": b"text"})
    assert convert(root, place).report_file == f"{place}.report.jsonl"
    (root / "cat/1.jpg").unlink()
    report = convert(root, place, overwrite=True)
    assert (report.report_file, report.warnings) == ("", ())
    assert siblings(place) == {"out.lmdb"}


def test_the_report_counts_what_is_no_image(root: Path, place: Path) -> None:
    plant_photos(root, 2)
    plant(root, {"cat/notes.txt": b"", "cat/b.TXT": b"", "cat/.hidden.jpg": b"", "loose.jpg": b"", "empty/README": b""})
    report = convert(root, place)
    assert report.skipped == {".txt": 2, "": 1}
    assert report.hidden == 1
    assert report.warnings == (
        f"1 image directly in {root} left out: outside of every class folder",
        "1 class has no images: 'empty'",
    )


# Progress


def test_progress_rises_to_the_number_of_files(root: Path, place: Path) -> None:
    plant_photos(root, 100)
    plant_kinds(root, *ALL_KINDS)
    told: list[Progress] = []
    report = convert(root, place, progress=told.append)
    done = [progress.done for progress in told if progress.done is not None]
    assert done == sorted(done)
    assert done[0] == 0
    assert told[-1] == Progress(report.files, report.files, report.bytes_read)
    assert [progress.nbytes for progress in told] == sorted(progress.nbytes for progress in told)
    assert {progress.found for progress in told} == {report.files}


def test_progress_counts_the_files_found_while_a_source_is_looked_at(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 1)
    listing = tmp_path / "all.csv"
    listing.write_text("path\n" + "cat/0000.jpg\n" * 2500)
    told: list[Progress] = []
    convert(root, place, listing=listing, check="none", progress=told.append)
    assert told[:3] == [Progress(1000, None, 0), Progress(2000, None, 0), Progress(2500, 0, 0)]


def test_progress_is_called_from_the_callers_thread(root: Path, place: Path) -> None:
    plant_photos(root, 20)
    threads: list[threading.Thread] = []
    convert(root, place, progress=lambda _: threads.append(threading.current_thread()))
    assert {*threads} == {threading.current_thread()}


# Interrupted and resumed


class StopError(Exception):
    """What a progress callback raises to end a conversion."""


def stop_after(files: int) -> Callable[[Progress], None]:
    def progress(progress: Progress) -> None:
        if (progress.done or 0) >= files:
            raise StopError(f"after {files} files")

    return progress


@pytest.fixture
def _frequent_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dbloader.stores.writer, "COMMIT_BYTES", 1)
    monkeypatch.setattr(dbloader.stores.writer, "COMMIT_SECONDS", 0.0)


def interrupt(root: Path, place: Path, files: int, **options: Any) -> None:
    with pytest.raises(StopError, match="after"):
        convert(root, place, progress=stop_after(files), **options)


@pytest.mark.usefixtures("_frequent_commits")
@pytest.mark.parametrize("options", [{}, {"shuffle": 3}, {"max_side": 20}, {"overwrite": True}])
def test_a_resumed_conversion_gives_the_same_store(root: Path, place: Path, options: dict[str, Any]) -> None:
    plant_photos(root, 200)
    kinds = plant_kinds(root, *ALL_KINDS)
    whole = convert(root, place.with_name("whole.lmdb"), **options)
    if options.get("overwrite"):
        old = convert(root, place, max_side=5).digest
    interrupt(root, place, 50, **options)
    if options.get("overwrite"):
        assert verified(place) == old
    else:
        assert not place.exists()
    resumed = {**options, "overwrite": False, "resume": True}
    interrupt(root, place, 120, **resumed)
    report = convert(root, place, **resumed)
    assert report.digest == whole.digest == verified(place)
    assert documents(place) == documents(whole.place)
    assert events(place) == events(whole.place) == report_lines(report)
    assert 0 < report.resumed_at < report.files
    assert report.bytes_read < whole.bytes_read
    same = ("records", "files", "repaired", "rejected", "damaged", "resized", "image_bytes", "warnings", "skipped")
    assert [getattr(report, name) for name in same] == [getattr(whole, name) for name in same]
    assert siblings(place) == {f"{name}.lmdb{end}" for name in ("out", "whole") for end in ("", ".report.jsonl")}
    assert len(kinds) > 10


@pytest.mark.usefixtures("_frequent_commits")
def test_progress_of_a_resumed_conversion_begins_where_it_goes_on(root: Path, place: Path) -> None:
    plant_photos(root, 100)
    interrupt(root, place, 40)
    told: list[Progress] = []
    report = convert(root, place, resume=True, progress=told.append)
    assert told[0] == Progress(100, report.resumed_at, 0)
    assert told[-1].done == 100


@pytest.mark.usefixtures("_frequent_commits")
def test_a_conversion_interrupted_before_its_first_record_can_be_resumed(root: Path, place: Path) -> None:
    plant_photos(root, 40)
    old = convert(root, place, max_side=5).digest
    interrupt(root, place, 0, overwrite=True)
    assert verified(place) == old
    report = convert(root, place, resume=True)
    assert report.resumed_at == 0
    assert report.digest == verified(place) != old


@pytest.mark.usefixtures("_frequent_commits")
def test_a_mistyped_source_does_not_end_an_unfinished_conversion(root: Path, place: Path) -> None:
    plant_photos(root, 60)
    interrupt(root, place, 30)
    with pytest.raises(SourceNotFoundError, match="there is no such folder"):
        convert(root / "none", place, overwrite=True)
    assert convert(root, place, resume=True).resumed_at > 0


def test_resuming_where_nothing_is_converts(root: Path, place: Path) -> None:
    plant_photos(root, 3)
    report = convert(root, place, resume=True)
    assert (report.records, report.resumed_at) == (3, 0)
    assert report.warnings == ("there was nothing to resume: the conversion began from the start",)
    assert verified(place) == report.digest


def test_a_finished_conversion_is_not_resumed(root: Path, place: Path) -> None:
    plant_photos(root, 3)
    digest = convert(root, place).digest
    with pytest.raises(StoreExistsError, match="is finished already: there is nothing to resume"):
        convert(root, place, resume=True)
    assert verified(place) == digest


@pytest.mark.usefixtures("_frequent_commits")
def test_an_unfinished_conversion_is_neither_read_nor_silently_begun_anew(root: Path, place: Path) -> None:
    plant_photos(root, 60)
    interrupt(root, place, 30)
    with pytest.raises(StoreExistsError, match=r"an unfinished conversion is at .*: resume \(--resume\) goes on"):
        convert(root, place)
    with pytest.raises(ValueError, match=r"its unfinished conversion is: dbloader convert with --resume goes on"):
        records(place)
    assert convert(root, place, overwrite=True).resumed_at == 0


@pytest.mark.usefixtures("_frequent_commits")
@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({}, {"check": "structure"}, r"another check \(--check\) \(decode, now structure\)"),
        ({}, {"max_side": 9}, r"another max_side \(--max-side\) \(None, now 9\)"),
        ({"max_side": 9}, {"max_side": 9, "quality": 50}, r"another quality \(--quality\) \(None, now 50\)"),
        ({"short_side": 9}, {"short_side": 10}, r"another short_side \(--short-side\) \(9, now 10\)"),
        ({}, {"shuffle": 1}, r"another shuffle \(--shuffle\) \(None, now 1\)"),
        ({"on_damaged": "keep"}, {}, r"another on_damaged \(--on-damaged\) \(keep, now not keep\)"),
    ],
)
def test_resuming_with_other_options_is_refused(
    root: Path, place: Path, before: dict[str, Any], after: dict[str, Any], message: str
) -> None:
    plant_photos(root, 60)
    interrupt(root, place, 30, **before)
    kept = Path(f"{place}.partial").read_bytes()
    with pytest.raises(StoreExistsError, match=f"was begun with {message}: resume with the same, or begin again"):
        convert(root, place, resume=True, **after)
    assert Path(f"{place}.partial").stat().st_size == len(kept)
    assert convert(root, place, resume=True, **before).resumed_at > 0


@pytest.mark.usefixtures("_frequent_commits")
def test_workers_and_what_fails_may_differ_when_resuming(
    root: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_photos(root, 60)
    interrupt(root, place, 30, workers=1, on_bad="fail", on_damaged="fail")
    hand_all_over(monkeypatch)
    assert convert(root, place, resume=True, workers=3).resumed_at > 0


@pytest.mark.usefixtures("_frequent_commits")
@pytest.mark.parametrize("change", ["added", "removed", "renamed"])
def test_resuming_with_another_source_is_refused(root: Path, place: Path, change: str) -> None:
    plant_photos(root, 60)
    interrupt(root, place, 30)
    first = root / "cat" / "0000.jpg"
    count = {"added": 61, "removed": 59, "renamed": 60}[change]
    if change == "added":
        plant(root, {"dog/new.jpg": photo()})
    elif change == "removed":
        first.unlink()
    else:
        first.rename(first.with_name("0000 new.jpg"))
    pattern = (
        rf"begun with another list of files \(60 files, SHA-256 \w+, now {count} files, SHA-256 \w+\): resume with"
    )
    with pytest.raises(StoreExistsError, match=pattern):
        convert(root, place, resume=True)
    assert not place.exists()


@pytest.mark.usefixtures("_frequent_commits")
@pytest.mark.parametrize(("on", "kind"), [("on_bad", "text"), ("on_damaged", "half")])
def test_a_conversion_that_ended_at_a_file_goes_on_when_it_is_mended(
    root: Path, place: Path, on: str, kind: str
) -> None:
    plant_photos(root, 60)
    KINDS[kind].plant(root / "dog" / "z.jpg", 0)
    option = on.replace("_", "-")
    with pytest.raises(ConversionError, match=rf"dog/z.jpg: .*, or resume with --{option} reject"):
        convert(root, place, **{on: "fail"})  # type: ignore[arg-type]
    assert not place.exists()
    (root / "dog" / "z.jpg").write_bytes(photo())
    report = convert(root, place, resume=True, **{on: "fail"})  # type: ignore[arg-type]
    assert (report.records, report.rejected) == (61, 0)
    assert 0 < report.resumed_at < 61


@pytest.mark.usefixtures("_frequent_commits")
def test_a_conversion_that_ended_at_a_file_goes_on_without_it(root: Path, place: Path) -> None:
    plant_photos(root, 60)
    plant(root, {"dog/z.jpg": b"text"})
    with pytest.raises(ConversionError, match="or resume with --on-bad reject"):
        convert(root, place, on_bad="fail")
    report = convert(root, place, resume=True)
    assert (report.records, report.rejected) == (60, 1)
    assert [event["name"] for event in report_lines(report)] == ["dog/z.jpg"]


@pytest.mark.usefixtures("_frequent_commits")
def test_if_all_was_rejected_before_the_interruption_the_message_still_stands(root: Path, place: Path) -> None:
    plant(root, {f"cat/{n:03}.jpg": b"text" for n in range(16)})
    interrupt(root, place, 16)
    with pytest.raises(ConversionError, match=r"none of the 16 files could be stored$"):
        convert(root, place, resume=True)
    assert siblings(place) == set()


def test_an_error_in_a_thread_comes_out_and_ends_the_others(
    root: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_photos(root, 300)
    hand_all_over(monkeypatch)
    prepare, count = FilePreparer.prepare, itertools.count()

    def failing(*arguments: Any) -> Any:
        if next(count) == 100:
            raise MemoryError("no more of it")
        return prepare(*arguments)

    monkeypatch.setattr(FilePreparer, "prepare", failing)
    with pytest.raises(MemoryError, match="no more of it"):
        convert(root, place, workers=4)
    assert next(count) < 300  # tasks that nobody waits for were not begun
    assert not place.exists()


def test_after_an_error_no_thread_begins_with_another_file(
    root: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_photos(root, 300)
    hand_all_over(monkeypatch)
    workers, seen, lock, all_begun, closed = 4, [], threading.Lock(), threading.Event(), threading.Event()

    def prepare(_: FilePreparer, entry: Entry, __: Any) -> Prepared:
        with lock:
            seen.append(entry.name)
            if len(seen) == workers:
                all_begun.set()
        assert all_begun.wait(60)
        if entry.name == "cat/0000.jpg":
            raise MemoryError("no more of it")
        assert closed.wait(60)
        return Prepared()

    close = MemoryBudget.close

    def close_and_tell(budget: MemoryBudget) -> None:
        close(budget)
        closed.set()

    monkeypatch.setattr(MemoryBudget, "close", close_and_tell)
    monkeypatch.setattr(FilePreparer, "prepare", prepare)
    with pytest.raises(MemoryError, match="no more of it"):
        convert(root, place, workers=workers)
    assert len(seen) <= workers + 1  # the thread that failed may have begun before the others were told


def _progressing(place: Path) -> bool:
    """Whether a conversion has committed some records."""
    try:
        with (
            lmdb.open(f"{place}.partial", subdir=False, lock=False, readonly=True, max_dbs=1) as env,
            env.begin(db=env.open_db(b"meta", create=False)) as txn,
        ):
            progress = txn.get(b"progress")
            return progress is not None and bson.decode(progress)["length"] > 0
    except lmdb.Error:
        return False


def test_ctrl_c_ends_a_real_conversion_with_one_line_and_can_be_resumed(root: Path, place: Path) -> None:
    plant_photos(root, 3000, width=160, height=120)
    code = "import dbloader.stores.writer as w; w.COMMIT_BYTES = 50_000; from dbloader.cli import main; main()"
    arguments = [sys.executable, "-c", code, "convert", root, place]
    with running(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert wait_until(process, lambda: _progressing(place))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == "Interrupted: what is committed is kept, and --resume goes on with it\n"
    assert stdout == ""
    assert not place.exists()
    report = convert(root, place, resume=True)
    assert 0 < report.resumed_at < 3000
    assert report.digest == convert(root, place.with_name("whole.lmdb")).digest


# Memory


def peak_memory(root: Path, place: Path, *options: str, task_files: int = 16) -> int:
    """Return the bytes of memory that a real conversion had at most."""
    # VmHWM begins with the program; ru_maxrss would begin with what the process had when it was forked from this one.
    code = (
        "import sys\nfrom dbloader.cli import main\nimport dbloader.conversion.parallel as tasks\n"
        f"tasks._TASK_FILES = {task_files}\n"
        "try:\n    main()\nfinally:\n"
        "    peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "    print(peak.split()[1], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "convert", root, place, "--quiet", *options],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    return int(done.stderr) * 1024


def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    files = [jpegs.encode(jpegs.draw(480, 360, seed=seed), quality=90) for seed in range(8)]
    assert 80_000 < len(files[0]) < 120_000
    used = {}
    for count in (1000, 3000):
        folder = tmp_path / f"{count}" / "cat"
        folder.mkdir(parents=True)
        for number in range(count):
            path = folder / f"{number}.jpg"
            if number < len(files):
                path.write_bytes(files[number])
            else:
                path.hardlink_to(folder / f"{number % len(files)}.jpg")
        used[count] = peak_memory(folder.parent, tmp_path / f"{count}.lmdb", "--workers", "4")
        (tmp_path / f"{count}.lmdb").unlink()
    assert max(used.values()) < 400 * 10**6
    assert used[3000] - used[1000] < 60 * 10**6


def test_memory_does_not_grow_with_the_number_of_large_images(tmp_path: Path) -> None:
    data = encoded(Image.new("RGB", (6000, 4000)), "PNG", compress_level=1)  # 96 MB of pixels
    folder = plant(tmp_path, {"images/cat/0.png": data}) / "images" / "cat"
    for number in range(1, 14):
        (folder / f"{number}.png").hardlink_to(folder / "0.png")
    assert peak_memory(folder.parent, tmp_path / "out.lmdb", "--workers", "12", task_files=1) < 350 * 10**6


@pytest.mark.parametrize(("options", "most"), [((), 300), (("--raw",), 1150), (("--max-side", "500"), 450)])
def test_a_small_file_of_many_pixels_takes_what_its_pixels_are(
    tmp_path: Path, options: tuple[str, ...], most: int
) -> None:
    data = encoded(Image.new("1", (13_000, 13_000)), "PNG")  # 169 megapixels, 507 MB in RGB
    root = plant(tmp_path / "images", {"cat/0.png": data})
    assert len(data) < 25_000
    assert peak_memory(root, tmp_path / "out.lmdb", *options) < most * 10**6


MEASURE = """
import ctypes, sys
from pathlib import Path
from dbloader.conversion.transcode import ImageFormat
from dbloader.images.info import check_decodes, read_facts
from dbloader.images.pillow import decoding_bytes

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024

data = Path(sys.argv[1]).read_bytes()
known, form = read_facts(data), ImageFormat(**eval(sys.argv[2]))
allowed = sum(form.memory(known)) if eval(sys.argv[2]) else decoding_bytes(known.format) * known.width * known.height
ctypes.CDLL(None).malloc_trim(0)
before = peak()
form.make(data, known) if eval(sys.argv[2]) else check_decodes(data, known)
print(peak() - before, allowed)
"""


def many_pixels(kind: str) -> bytes:
    size, file = (5000, 3000), io.BytesIO()
    if kind == "PGM":
        return b"P5\n5000 3000\n65535\n" + b"\x12\x34" * (5000 * 3000)
    if kind == "P":
        Image.new("P", size).save(file, "PNG", transparency=0)
    elif kind in ("RGB", "RGBA", "LA"):
        Image.new(kind, size).save(file, "PNG")
    elif kind == "one color is transparent":
        Image.new("RGB", size).save(file, "PNG", transparency=(0, 0, 0))
    elif kind == "JPEG":
        Image.new("RGB", size).save(file, "JPEG")
    elif kind in ("WebP", "WebP with alpha"):
        Image.new("RGBA" if "alpha" in kind else "RGB", size).save(file, "WEBP", method=0)
    elif kind == "JPEG 2000 with alpha":
        Image.new("RGBA", size).save(file, "JPEG2000")
    elif kind == "one strip":
        Image.new("RGBA", size).save(file, "TIFF", compression="tiff_adobe_deflate", strip_size=2**30)
    else:
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", size).save(file, "TIFF", compression="tiff_lzw", exif=exif)
    return file.getvalue()


OPTIONS: list[dict[str, Any]] = [{}, {"max_side": 1000}, {"raw": True}, {"raw": True, "max_side": 1000}]
MEASURED = [*itertools.product(["PGM", "P", "LA", "one strip", "turned"], OPTIONS), ("RGB", {"max_side": 1000})]
MEASURED += itertools.product(
    ["RGB", "RGBA", "one color is transparent", "JPEG"], [{"max_side": 4900}]
)  # hardly smaller
MEASURED += itertools.product(["WebP", "WebP with alpha"], [{"max_side": 1000}, {"max_side": 4900}])
MEASURED.append(("JPEG 2000 with alpha", {"max_side": 1000}))


@pytest.mark.parametrize(("kind", "options"), MEASURED, ids=str)
def test_an_image_takes_no_more_memory_than_it_asks_for(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    (tmp_path / "0").write_bytes(many_pixels(kind))
    line = [sys.executable, "-c", MEASURE, str(tmp_path / "0"), repr(options)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    taken, allowed = map(int, done.stdout.split())
    assert taken < allowed + 8 * 10**6  # modules that are imported meanwhile, and pieces
    if kind == "RGB":  # the commonest of them: to ask for much more would have other files wait
        assert allowed < 1.4 * taken


def test_memory_that_a_decoder_holds_beside_its_pixels_is_counted(tmp_path: Path) -> None:
    data = encoded(Image.new("RGB", (3000, 2000)), "WEBP", method=0)  # 24 MB of pixels, which take 96 to be decoded
    folder = plant(tmp_path, {"images/cat/0.webp": data}) / "images" / "cat"
    for number in range(1, 24):
        (folder / f"{number}.webp").hardlink_to(folder / "0.webp")
    assert peak_memory(folder.parent, tmp_path / "out.lmdb", "--workers", "12", task_files=1) < 300 * 10**6


def test_a_source_that_is_not_there_leaves_an_unfinished_conversion_alone(tmp_path: Path) -> None:
    place = tmp_path / "out.lmdb"
    partial = tmp_path / "out.lmdb.partial"
    partial.write_bytes(b"what was committed")
    with pytest.raises(SourceNotFoundError, match="typo"):
        convert(tmp_path / "typo", place, overwrite=True)
    assert partial.read_bytes() == b"what was committed"
