"""Every kind of file is stored, or rejected and named."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dbloader.conversion.convert import convert
from dbloader.conversion.report import Report
from dbloader.decoding import DecodeTensor, decode_pil
from dbloader.errors import ConversionError
from dbloader.sources.folder import FolderSource
from dbloader.stores.open import open_store
from tests.support.conversion import events, records, report_lines, verified
from tests.support.images import BAD, DAMAGED, END, KINDS, REPAIRED, UNSEEN, encoded, photo, picture, plant, plant_kinds


def expected(kind: str, check: str, on_damaged: str) -> str:
    """Return the expected event of a file, or "" if it has none."""
    outcome = KINDS[kind].outcome(check)
    if outcome == DAMAGED:
        return "damaged" if on_damaged == "keep" else "rejected"
    return {BAD: "rejected", REPAIRED: "repaired"}.get(outcome, "")


def check_accounts(root: Path, report: Report, kinds: dict[str, str], check: str, on_damaged: str = "reject") -> None:
    """Compare a conversion with the expected outcome of each file."""
    seen = {name: kind for name, kind in kinds.items() if KINDS[kind].outcome(check) != UNSEEN}
    wanted = {name: expected(kind, check, on_damaged) for name, kind in seen.items()}
    counts = Counter(wanted.values())
    stored = {record.name: record for record in records(report.place)}
    reported = {event["name"]: event for event in events(report.place)}
    assert report.files == len(seen)
    assert report.records == len(stored) == len(seen) - counts["rejected"]
    with open_store(report.place) as store:
        outcome = store.manifest.outcome
    for what in ("repaired", "damaged", "rejected"):
        assert getattr(report, what) == outcome.get(what, 0) == counts[what]
    # No file is lost: the store or the report contains each file.
    assert stored.keys() | {name for name, event in reported.items() if event["event"] == "rejected"} == seen.keys()
    assert {name: event["event"] for name, event in reported.items()} == {n: e for n, e in wanted.items() if e}
    assert report_lines(report) == events(report.place)
    assert [*reported] == [item.name for item in FolderSource(root).entries() if item.name in reported]
    for name, event in reported.items():
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


@pytest.mark.parametrize("check", ["decode", "structure", "none"])
def test_every_file_is_stored_or_reported(root: Path, place: Path, check: str) -> None:
    kinds = plant_kinds(root, *KINDS)
    for on_damaged in ("reject", "keep") if check != "none" else ("reject",):
        report = convert(root, place, check=check, on_damaged=on_damaged, overwrite=True)
        check_accounts(root, report, kinds, check, on_damaged)


@pytest.mark.parametrize(
    ("on_bad", "on_damaged", "check"),
    [("fail", "reject", "none"), ("fail", "keep", "decode"), ("reject", "fail", "structure")],
)
def test_bad_or_damaged_file_ends_the_conversion_on_request(
    root: Path, place: Path, on_bad: str, on_damaged: str, check: str
) -> None:
    plant_kinds(root, *KINDS)
    with pytest.raises(
        ConversionError,
        match=r"\w+/\d+\.\w+: .*; fix .* again .*, or choose on_(bad|damaged)='reject' \(--on-\1 reject\) and convert",
    ):
        convert(root, place, check=check, on_bad=on_bad, on_damaged=on_damaged)
    assert not place.exists()


JP2 = b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 "  # the first box and a piece of the second box


@pytest.mark.parametrize("data", [b"RIFF", picture("WEBP")[:-9], b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\x00", JP2])
def test_image_with_a_truncated_header_is_damaged(root: Path, place: Path, data: bytes) -> None:
    plant(root, {"cat/0.png": photo(), "cat/1.png": data})
    with pytest.raises(ConversionError, match=r"cat/1.png: is damaged(: its header is|, or a TIFF of a kind)"):
        convert(root, place, on_damaged="fail")
    assert convert(root, place, on_damaged="keep", overwrite=True).damaged == 1
    kept = records(place)[1]
    assert (bool(kept.damaged), kept.width, kept.height, kept.format) == (True, None, None, None)


@pytest.mark.slow
def test_header_that_claims_gigapixels_is_rejected(root: Path, place: Path) -> None:
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


def test_transparent_pixels_are_a_remark(root: Path, place: Path) -> None:
    flat = Image.new("RGB", (24, 18), "red")
    flat.paste("blue", (0, 0, 12, 18))
    palette = flat.convert("P", palette=Image.Palette.ADAPTIVE)
    seen = {
        "rgba.png": encoded(Image.new("RGBA", (24, 18), (9, 9, 9, 254)), "PNG"),
        "palette.png": encoded(palette, "PNG", transparency=0),
        "bytes.png": encoded(palette, "PNG", transparency=b"\xff\x7f"),
        "gray.png": encoded(Image.new("LA", (24, 18), (9, 0)), "PNG"),
        "color.png": encoded(flat, "PNG", transparency=(0, 0, 255)),
    }
    opaque = {
        "opaque.png": encoded(Image.new("RGBA", (24, 18), (9, 9, 9, 255)), "PNG"),
        "unused.png": encoded(palette, "PNG", transparency=200),
        "photo.jpg": photo(),
    }
    plant(root, {f"cat/{name}": data for name, data in {**seen, **opaque}.items()})
    report = convert(root, place)
    assert (report.records, report.transparent, report.warnings) == (8, 5, ())
    assert {event["name"] for event in events(place) if event["event"] == "transparent"} == {
        f"cat/{name}" for name in seen
    }


def test_palette_with_opacity_decodes_without_a_warning_to_pillows_pixels() -> None:
    palette = Image.radial_gradient("L").convert("P", palette=Image.Palette.ADAPTIVE)
    data = encoded(palette, "PNG", transparency=bytes(range(256)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = np.asarray(palette.convert("RGB"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = decode_pil(data)
        tensor = DecodeTensor()(data)
    assert not caught
    assert np.array_equal(np.asarray(found), right)
    assert np.array_equal(tensor.permute(1, 2, 0).numpy(), right)
