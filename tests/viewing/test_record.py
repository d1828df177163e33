"""What the page shows of a record, its files, and the report of the conversion."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from dbloader import Record, convert, open_store
from dbloader.errors import NotAnImageError, OptionError, RecordIndexError
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from dbloader.viewing.app import create_app
from dbloader.viewing.files import media_type, shown_orientation, stored_file
from dbloader.viewing.record import show_record
from dbloader.viewing.report import ConversionReport
from dbloader.viewing.request import Shared
from tests.support import jpegs
from tests.support.damaged import flip
from tests.support.images import encoded, multi_picture, photo, plant, plant_kinds

if TYPE_CHECKING:
    from pathlib import Path

    from dbloader.stores.base import Store

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
HTML = b"<html><script>alert(1)</script></html>"


def store_of(place: Path | str, *records: Record, file_fields: tuple[str, ...] = ()) -> Store:
    with create_store(place) as writer:
        writer.write(map(encode, records))
        writer.finish(classes=("cat", "dog"), source={"file_fields": list(file_fields)})
    return open_store(place)


def shown(place: Path, record: Record, **options: Any) -> dict[str, Any]:
    with store_of(place, record, **options) as store:
        facts = show_record(store, 0)
    return dict(json.loads(json.dumps(facts, allow_nan=False)))  # as the page gets it


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
def test_only_formats_of_pixels_are_shown_by_the_browser(data: bytes, expected: str | None, tmp_path: Path) -> None:
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
def test_a_file_name_cannot_break_out_of_its_header(name: str | None, expected: str | None, tmp_path: Path) -> None:
    with store_of(tmp_path / "a.lmdb", Record(name=name, image=photo())) as store:
        value = stored_file(store, 0, None, download=True)[1]["Content-Disposition"]
    assert value.isascii()
    assert value.isprintable()
    kind, _, encoded_name = value.partition("; filename*=UTF-8''")
    assert kind == "attachment"
    assert not set(encoded_name) & set('"; /\\')
    assert expected is None or unquote(encoded_name) == expected


def test_the_files_of_fields_are_given_by_their_number(tmp_path: Path) -> None:
    mask = encoded(jpegs.draw(9, 9), "PNG")
    record = Record(name="cat/0.jpg", image=photo(), fields={"mask": mask, "depth": None})
    with store_of(tmp_path / "a.lmdb", record, Record(image=np.zeros((2, 2))), file_fields=("mask", "depth")) as store:
        assert stored_file(store, 0, 0, download=False)[0] == mask
        assert "mask-0.jpg" in stored_file(store, 0, 0, download=False)[1]["Content-Disposition"]
        assert show_record(store, 0)["files"] == [{"field": 0, "name": "mask"}]
        with pytest.raises(NotAnImageError, match="record 0 has no depth"):
            stored_file(store, 0, 1, download=False)
        with pytest.raises(OptionError, match="has 2 file fields, numbered from 0; got field=2"):
            stored_file(store, 0, 2, download=False)
        with pytest.raises(NotAnImageError, match="the image of record 1 is an array"):
            stored_file(store, 1, None, download=False)
        with pytest.raises(RecordIndexError):
            stored_file(store, 2, None, download=False)


def test_boxes_have_the_names_of_their_classes(tmp_path: Path) -> None:
    boxes = np.array([[1, 2, 3, 4.5], [np.nan, 0, np.inf, 1]], np.float32)
    fields = {"boxes": boxes, "box_labels": np.array([1, 7]), "caption": "two"}
    facts = shown(tmp_path / "a.lmdb", Record(image=photo(), label=0, fields=fields))
    assert facts["boxes"][0] == [1, 2, 3, 4.5]
    assert all(isinstance(value, float) for value in facts["boxes"][1])
    assert facts["box_labels"] == ["dog", "7"]
    assert (facts["class"], facts["crc"], facts["rendered"]) == ("cat", "verified", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"boxes": "none"},
        {"boxes": np.zeros((2, 3))},
        {"boxes": np.zeros(4)},
        {"boxes": np.array(5.0)},
        {"boxes": [[1]]},
        {"boxes": [[1, 2, 3, 4], [5]]},
    ],
    ids=repr,
)
def test_fields_that_are_no_boxes_are_not_drawn(fields: dict[str, Any], tmp_path: Path) -> None:
    facts = shown(tmp_path / "a.lmdb", Record(fields={**fields, "box_labels": np.zeros((2, 2))}))
    assert (facts["boxes"], facts["box_labels"], facts["rendered"]) == ([], [], None)


def test_the_lists_of_a_listing_are_boxes_too(tmp_path: Path) -> None:
    facts = shown(tmp_path / "a.lmdb", Record(fields={"boxes": [[1, 2, 3, 4.5]], "box_labels": [1]}))
    assert (facts["boxes"], facts["box_labels"]) == ([[1, 2, 3, 4.5]], ["dog"])


def test_thousands_of_boxes_are_cut(tmp_path: Path) -> None:
    assert len(shown(tmp_path / "a.lmdb", Record(fields={"boxes": np.ones((9000, 4))}))["boxes"]) == 2000


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (photo(), None), (encoded(jpegs.draw(9, 9), "TIFF"), "browsers do not show TIFF"),
        (np.zeros((2, 2)), "it is an array"),
        (encoded(Image.new("I;16", (4, 4)), "PNG"), "browsers show only a part of its 16-bit values"),
        (SVG, "the image is in no known image format"),
    ],
)  # fmt: skip
def test_a_picture_is_made_of_what_browsers_do_not_show(image: Any, reason: str | None, tmp_path: Path) -> None:
    rendered = shown(tmp_path / "a.lmdb", Record(image=image))["rendered"]
    assert rendered is None if reason is None else rendered.startswith(reason)


def hostile_exif() -> bytes:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0112] = "Came\x1b[2Jra\u202e", "<img src=x onerror=alert(1)>", 6
    exif.get_ifd(0x8769).update({0x9286: bytes(range(256)) * 100, 0x829A: (1, 0), 0xA405: 2**32 - 1})
    return exif.tobytes()


@pytest.mark.parametrize(
    ("exif", "orientation"),
    [(hostile_exif(), 6), (b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", 1), (b"Exif\0\0" + b"\xff" * 9000, 1), (b"", 1)],
    ids=["texts, bytes and fractions of 0", "cut", "no EXIF", "empty"],
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_hostile_exif_is_json_that_every_browser_reads(exif: bytes, orientation: int, tmp_path: Path) -> None:
    facts = shown(tmp_path / "a.lmdb", Record(image=encoded(jpegs.draw(24, 18), "JPEG", exif=exif)))
    assert facts["orientation"] == orientation
    assert isinstance(facts["exif"], dict)
    if orientation == 6:
        assert facts["exif"]["Model"] == "<img src=x onerror=alert(1)>"
        assert facts["exif"]["UserComment"] == "25.6 kB"


def test_an_orientation_beyond_8_is_none(tmp_path: Path) -> None:
    exif = Image.Exif()
    for value in (0, 9, 65_535):
        exif[0x0112] = value
        assert shown_orientation(encoded(jpegs.draw(24, 18), "JPEG", exif=exif)) == 1
    assert shown_orientation(b"no image") == shown_orientation(None) == 1


def test_a_damaged_record_is_its_name_and_the_damage(tmp_path: Path) -> None:
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


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    root = folder / "images"
    root.mkdir()
    plant_kinds(root, "photo", "no end marker", "half", "text", "empty")
    plant(root, {f"cat/cut {n:03}.jpg": photo(n)[:-2] for n in range(30)})
    convert(root, folder / "a.lmdb", on_damaged="keep")
    return folder / "a.lmdb"


def test_the_report_is_filtered_counted_and_paged(reported: Path) -> None:
    with open_store(reported) as store:
        report = ConversionReport(store)
        whole = report.read()
        assert whole["counts"] == {"repaired": 31, "damaged": 1, "rejected": 2}
        assert (whole["total"], len(whole["rows"])) == (34, 34)
        for row in whole["rows"]:
            assert (row["index"] is None) == (row["event"] == "rejected")
            assert row["index"] is None or store[row["index"]].name == row["name"]
        rejected = report.read("rejected")
        assert [row["event"] for row in rejected["rows"]] == ["rejected"] * 2
        assert rejected["counts"] == whole["counts"]
        assert [row["name"] for row in report.read(text="CUT 02")["rows"]] == [f"cat/cut 02{n}.jpg" for n in range(10)]
        assert report.read(text="is empty")["total"] == 1
        paged = [row for start in range(0, 34, 10) for row in report.read(start=start, count=10)["rows"]]
        assert paged == whole["rows"]
        assert report.read(start=99)["rows"] == []
        assert report.read("none")["total"] == 0


@pytest.mark.slow
def test_a_server_says_the_same(reported: Path, mongo_uri: str) -> None:
    convert(reported.parent / "images", mongo_uri, on_damaged="keep")
    with open_store(reported) as one, open_store(mongo_uri) as other:
        assert ConversionReport(one).read() == ConversionReport(other).read()
        for index in (0, 5):
            first, second = show_record(one, index), show_record(other, index)
            assert {**first, "place": ""} == {**second, "place": ""}


def test_the_routes_give_pictures_that_browsers_keep(tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    store_of(place, Record(name="0.jpg", image=photo(1)), Record(image=SVG), Record(image=photo(3))).close()
    flip(place, photo(3))
    with open_store(place) as store:
        client = TestClient(create_app(Shared([store])))
        (started,) = (each["started"] for each in client.get("/api/stores").json())
        assert TestClient(create_app(Shared([store]))).get("/api/stores").json()[0]["started"] != started
        for path in ("/thumb/0/0?px=160", "/image/0/0?"):
            answer = client.get(f"{path}&v={started}")
            assert (answer.status_code, answer.content) == (200, photo(1))
            assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
            assert client.get(f"{path}&v=12345678").headers["cache-control"] == "private, no-cache"
        svg = client.get("/image/0/1")
        assert (svg.headers["content-type"], svg.content) == ("application/octet-stream", SVG)
        for path, status in (
            ("/thumb/0/1", 422), ("/thumb/0/2", 422), ("/image/0/2", 422), ("/thumb/0/3", 404),
            ("/thumb/0/0?px=7", 400), ("/thumb/0/0?px=-1", 400),
            ("/thumb/0/0?field=0", 400), ("/image/1/0", 400), ("/image/0/-1", 400), ("/image/0/x", 400),
        ):  # fmt: skip
            answer = client.get(path)
            assert (answer.status_code, [*answer.json()]) == (status, ["error"]), path
        assert client.get("/api/0/record/2").json()["error"].startswith("record 2 ")
        assert client.get("/api/0/report").json() == {"total": 0, "counts": {}, "rows": []}
