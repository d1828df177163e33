"""The fields and files of a record that the page receives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from dbloader import Record, open_store
from dbloader.errors import NotAnImageError, OptionError, RecordIndexError
from dbloader.ext.images.preview import media_type
from dbloader.ext.viewing.app import ViewerState, create_app
from dbloader.ext.viewing.record import show_record, stored_file
from dbloader.stores.base import Store
from tests.support import jpegs
from tests.support.damaged import flip
from tests.support.images import encoded, multi_picture, photo
from tests.support.stores import store_records

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
HTML = b"<html><script>alert(1)</script></html>"


def store_of(place: Path | str, *records: Record, file_fields: tuple[str, ...] = ()) -> Store:
    store_records(place, records, classes=("cat", "dog"), source={"file_fields": list(file_fields)})
    return open_store(place)


def shown(place: Path, record: Record, **options: Any) -> dict[str, Any]:
    with store_of(place, record, **options) as store:
        facts = show_record(store, 0)
    return dict(json.loads(json.dumps(facts, allow_nan=False)))  # as the page receives the record


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (photo(), "image/jpeg"), (multi_picture(), "image/jpeg"), (encoded(jpegs.draw(9, 9), "PNG"), "image/png"),
        (encoded(jpegs.draw(9, 9), "GIF"), "image/gif"), (encoded(jpegs.draw(9, 9), "WEBP"), "image/webp"),
        (encoded(jpegs.draw(9, 9), "TIFF"), None), (encoded(jpegs.draw(9, 9), "BMP"), None), (SVG, None), (HTML, None),
        (b"\xef\xbb\xbf" + SVG, None), (b"", None), (b"\xff\xd8", None), (b"GIF89", None), (b"RIFFwxyzWAVE", None),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "image/avif"), (b"\0\0\0\x1cftypheic\0\0\0\0", None),
    ],
)  # fmt: skip
def test_browser_shows_only_formats_of_pixels(data: bytes, expected: str | None, tmp_path: Path) -> None:
    assert media_type(data) == expected
    with store_of(tmp_path / "a.lmdb", Record(image=data)) as store:
        file, headers = stored_file(store, 0, None, download=False)
        _, saved = stored_file(store, 0, None, download=True)
    assert file == data
    assert headers["Content-Type"] == (expected or "application/octet-stream")
    assert headers["Content-Disposition"].startswith("inline;" if expected else "attachment;")
    assert (saved["Content-Type"], saved["Content-Disposition"][:11]) == ("application/octet-stream", "attachment;")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cat/a b.jpg", "a b.jpg"), ("кот/ж.png", "ж.png"), (None, "0"), ("a/..", ".."),
        ('x"; y=\r\nSet-Cookie: 1', None),
        ("evil\u202egpj.exe", "evil_gpj.exe"), ("c:\\windows\\x.jpg", "c__windows_x.jpg"), ("n" * 4000, "n" * 100),
    ],
)  # fmt: skip
def test_file_name_cannot_break_out_of_its_header(name: str | None, expected: str | None, tmp_path: Path) -> None:
    with store_of(tmp_path / "a.lmdb", Record(name=name, image=photo())) as store:
        value = stored_file(store, 0, None, download=True)[1]["Content-Disposition"]
    assert value.isascii()
    assert value.isprintable()
    kind, _, encoded_name = value.partition("; filename*=UTF-8''")
    assert kind == "attachment"
    assert not set(encoded_name) & set('"; /\\')
    assert expected is None or unquote(encoded_name) == expected


def test_file_of_a_field_is_requested_by_number(tmp_path: Path) -> None:
    mask = encoded(jpegs.draw(9, 9), "PNG")
    record = Record(name="cat/0.jpg", image=photo(), fields={"mask": mask, "depth": None})
    with store_of(tmp_path / "a.lmdb", record, Record(image=np.zeros((2, 2))), file_fields=("mask", "depth")) as store:
        assert stored_file(store, 0, 0, download=False)[0] == mask
        assert "mask-0.jpg" in stored_file(store, 0, 0, download=False)[1]["Content-Disposition"]
        assert show_record(store, 0)["files"] == [{"field": 0, "name": "mask", "legend": [], "range": None}]
        with pytest.raises(NotAnImageError, match="record 0 has no depth"):
            stored_file(store, 0, 1, download=False)
        with pytest.raises(OptionError, match="has 2 file fields, numbered from 0; got field=2"):
            stored_file(store, 0, 2, download=False)
        with pytest.raises(NotAnImageError, match="the image of record 1 is an array"):
            stored_file(store, 1, None, download=False)
        with pytest.raises(RecordIndexError):
            stored_file(store, 2, None, download=False)


def test_boxes_have_class_names_and_at_most_2000_are_sent(tmp_path: Path) -> None:
    boxes = np.array([[1, 2, 3, 4.5], [np.nan, 0, np.inf, 1]], np.float32)
    fields = {"boxes": boxes, "box_labels": np.array([1, 7]), "caption": "two"}
    facts = shown(tmp_path / "a.lmdb", Record(image=photo(), label=0, fields=fields))
    assert facts["boxes"][0] == [1, 2, 3, 4.5]
    assert all(isinstance(value, float) for value in facts["boxes"][1])
    assert facts["box_labels"] == ["dog", "7"]
    fields = {"boxes": [[1, 2, 3, 4.5]] * 9000, "box_labels": [1] * 9000}  # boxes as lists, as from a listing
    facts |= shown(tmp_path / "b.lmdb", Record(image=photo(), label=0, fields=fields))
    assert (facts["boxes"], facts["box_labels"]) == ([[1, 2, 3, 4.5]] * 2000, ["dog"] * 2000)
    assert (facts["class"], facts["crc"], facts["rendered"]) == ("cat", "verified", None)


@pytest.mark.parametrize(
    "boxes", ["none", np.zeros((2, 3)), np.zeros(4), np.array(5.0), [[1]], [[1, 2, 3, 4], [5]]], ids=repr
)
def test_field_with_another_shape_is_not_treated_as_boxes(boxes: Any, tmp_path: Path) -> None:
    facts = shown(tmp_path / "a.lmdb", Record(fields={"boxes": boxes, "box_labels": np.zeros((2, 2))}))
    assert (facts["boxes"], facts["box_labels"], facts["rendered"]) == ([], [], None)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (photo(), None), (encoded(jpegs.draw(9, 9), "TIFF"), "browsers do not show TIFF"),
        (np.zeros((2, 2)), "it is an array"),
        (encoded(Image.new("I;16", (4, 4)), "PNG"), "browsers show only a part of its 16-bit values"),
        (SVG, "the image is in no known image format"),
    ],
)  # fmt: skip
def test_image_that_browsers_cannot_show_is_rendered(image: Any, reason: str | None, tmp_path: Path) -> None:
    rendered = shown(tmp_path / "a.lmdb", Record(image=image))["rendered"]
    assert rendered is None if reason is None else rendered.startswith(reason)


def hostile_exif() -> bytes:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0112] = "Came\x1b[2Jra\u202e", "<img src=x onerror=alert(1)>", 6
    exif.get_ifd(0x8769).update({0x9286: bytes(range(256)) * 100, 0x829A: (1, 0), 0xA405: 2**32 - 1})
    return exif.tobytes()


@pytest.mark.parametrize(
    ("exif", "orientation"),
    [
        *((hostile_exif(), 6), (b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", 1), (b"Exif\0\0" + b"\xff" * 9000, 1), (b"", 1)),
        *((jpegs.turned_exif(value).tobytes(), 1) for value in (0, 9, 65_535)),
    ],
    ids=["texts, bytes and fractions of 0", "cut", "no EXIF", "empty", "0", "9", "65535"],
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_hostile_exif_becomes_plain_json(exif: bytes, orientation: int, tmp_path: Path) -> None:
    facts = shown(tmp_path / "a.lmdb", Record(image=encoded(jpegs.draw(24, 18), "JPEG", exif=exif)))
    assert facts["orientation"] == orientation
    assert isinstance(facts["exif"], dict)
    if orientation == 6:
        assert facts["exif"]["Model"] == "<img src=x onerror=alert(1)>"
        assert facts["exif"]["UserComment"] == "25.6 kB"


def test_damaged_record_shows_only_its_index_name_and_error(tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    store_of(place, Record(name="cat/0.jpg", image=photo(1)), Record(name="b", image=photo(2))).close()
    flip(place, photo(1))
    with open_store(place) as store:
        facts = show_record(store, 0)
        assert (facts["index"], facts["name"], [*facts]) == (0, "cat/0.jpg", ["index", "name", "error"])
        assert "record 0 (cat/0.jpg)" in facts["error"]
        assert show_record(store, 1)["name"] == "b"
        with pytest.raises(RecordIndexError):
            show_record(store, 2)


def test_browsers_may_cache_pictures_of_this_viewer(tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    store_of(place, Record(name="0.jpg", image=photo(1)), Record(image=SVG), Record(image=photo(3))).close()
    flip(place, photo(3))
    with open_store(place) as store:
        client = TestClient(create_app(ViewerState([store])))
        (viewer_id,) = (each["viewer_id"] for each in client.get("/api/stores").json())
        assert TestClient(create_app(ViewerState([store]))).get("/api/stores").json()[0]["viewer_id"] != viewer_id
        for path in ("/thumb/0/0?px=160", "/image/0/0?"):
            answer = client.get(f"{path}&v={viewer_id}")
            assert (answer.status_code, answer.content) == (200, photo(1))
            assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
            assert client.get(f"{path}&v=12345678").headers["cache-control"] == "private, no-cache"
        svg = client.get("/image/0/1")
        assert (svg.headers["content-type"], svg.content) == ("application/octet-stream", SVG)
        for path in ("/thumb/0/1", "/thumb/0/2", "/image/0/2", "/thumb/0/3", "/thumb/0/0?px=7", "/thumb/0/0?field=0"):
            answer = client.get(path)
            assert (answer.status_code, [*answer.json()]) == (400, ["error"]), path
        assert client.get("/api/0/record/2").json()["error"].startswith("record 2 ")
        assert client.get("/api/0/report").json() == {"total": 0, "counts": {}, "rows": []}
