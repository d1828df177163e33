"""The report in one HTML file."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from dbloader import Record, convert
from dbloader.errors import OptionError, StoreNotFoundError
from dbloader.ext.viewing.html_report import write_html
from tests.contracts.records import write
from tests.support.children import run_program
from tests.support.images import photo, plant, run
from tests.support.lmdb_files import tamper_with_records
from tests.support.stores import store_records

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "a\u202egpj.b",
    "</figure></style>&lt;",
    "x" * 3000,
)
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "tr", "th", "td", "div", "figure"),
    *("img", "figcaption", "svg", "rect", "span", "main"),
}


class Parsed(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.sources: list[str] = []
        self.names: set[str] = set()
        self.text = ""
        self.feed(page)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    @override
    def handle_data(self, data: str) -> None:
        self.text += data


def hostile_store(place: Path) -> Path:
    """Make a store whose names, classes and report contain markup, and one damaged record."""
    records = [Record(name=name, label=n, image=photo(n)) for n, name in enumerate(HOSTILE)]
    events = [{"name": name, "event": "rejected", "reason": f"is {name}"} for name in HOSTILE]
    store_records(place, records, events=events, classes=[*HOSTILE])
    tamper_with_records(place, {2: None})
    return place


def test_hostile_names_stay_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    write_html(hostile_store(tmp_path / "a.lmdb"), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    parsed = Parsed(page)
    assert parsed.tags <= ALLOWED
    assert not any(name.startswith("on") for name in parsed.names)
    assert len(parsed.sources) == 4
    assert all(source.startswith("data:image/jpeg;base64,") for source in parsed.sources)
    assert "default-src 'none'" in page
    assert "script-src" not in page
    assert "\u202e" not in page
    assert parsed.text.count("<script>alert(1)</script>") == 4  # a sample, a class, an event's name, and its reason
    assert r"a\u202egpj.b" in parsed.text
    assert "record 2 (a\\u202egpj.b)" in parsed.text  # this record is damaged
    assert "x" * 201 not in parsed.text


def test_samples_are_reproducible_and_spread_over_classes(tmp_path: Path) -> None:
    files = {f"{name}/{n}.jpg": photo(n) for name, count in (("a", 150), ("b", 4), ("c", 30)) for n in range(count)}
    convert(plant(tmp_path / "i", files), tmp_path / "a.lmdb")
    assert write_html(tmp_path / "a.lmdb", tmp_path / "one.html")[1] == 60
    write_html(tmp_path / "a.lmdb", tmp_path / "two.html")
    page = (tmp_path / "one.html").read_text()
    assert (tmp_path / "two.html").read_text() == page
    assert [len(re.findall(rf"<figcaption>\d+ {name}/", page)) for name in "abc"] == [28, 4, 28]
    assert "<h2>60 of 184 records</h2>" in page


def test_file_stays_small_with_large_pictures_of_all_classes(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (70, 120, 160, 3), np.uint8)
    records = [Record(image=pixels, name=f"{n // 35}/", label=n // 35) for n, pixels in enumerate(noise)]
    store_records(tmp_path / "a.lmdb", records)
    nbytes, samples = write_html(tmp_path / "a.lmdb", tmp_path / "report.html")
    assert nbytes == (tmp_path / "report.html").stat().st_size < 2_000_000
    assert 10 < samples < 60
    page = (tmp_path / "report.html").read_text()
    assert f"<h2>{samples} of 70 records</h2>" in page
    assert abs(page.count(" 0/</figcaption>") - page.count(" 1/</figcaption>")) <= 1


def test_long_report_is_shortened_and_begins_with_damaged_images(tmp_path: Path) -> None:
    events = [{"name": f"{n}", "event": "rejected", "reason": "is empty"} for n in range(300)]
    events += [{"name": "last.jpg", "event": "damaged", "reason": "is cut short"}]
    store_records(tmp_path / "a.lmdb", (), events=events)
    _, samples = write_html(tmp_path / "a.lmdb", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert samples == 0
    assert "<h2>Report of the conversion: 200 of 301 lines</h2><p class=muted>300 rejected, 1 damaged</p>" in page
    assert page.index("last.jpg") < page.index("is empty")


def test_existing_report_is_kept_and_a_failure_leaves_no_file(tmp_path: Path) -> None:
    place = hostile_store(tmp_path / "a.lmdb")
    with pytest.raises(OptionError, match=r"--html must be a new file, but .*a\.lmdb exists"):
        write_html(place, place)
    with pytest.raises(OptionError, match=r"--html must be a new file, but \. exists"):
        write_html(place, "")
    with pytest.raises(StoreNotFoundError, match="does not exist"):
        write_html(tmp_path / "none.lmdb", tmp_path / "report.html")
    with pytest.raises(OptionError, match=r"there is no folder .*none; make it first"):
        write_html(place, tmp_path / "none" / "report.html")
    assert {path.name for path in tmp_path.iterdir()} <= {"a.lmdb", "a.lmdb-lock"}


def test_histograms_end_with_the_least_and_the_greatest_value(tmp_path: Path) -> None:
    records = [Record(width=width, height=1000, image=bytes(width)) for width in (7, *range(100, 1990), 2000)]
    write(tmp_path / "a.lmdb", records)
    write_html(tmp_path / "a.lmdb", tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text()
    assert 'height="1.5"' in report  # the bar of the only record with width 7
    ends = re.findall(r"<div class=ends>(.*?)</div>", report)
    texts = [re.findall(r"<span>(.*?)</span>", each) for each in ends]
    assert texts == [["7", "2,000"], ["1,000", "1,000"], ["0.007", "2"], ["7", "2,000"]]


def test_report_of_a_search_covers_only_the_found_records(tmp_path: Path) -> None:
    records = [Record(name=f"r{n}", label=n % 2, width=n + 1, height=9) for n in range(100)]
    write(tmp_path / "a.lmdb", records)
    assert write_html(tmp_path / "a.lmdb", tmp_path / "report.html", "width<=10 label:0")[1] == 5
    parsed = Parsed((tmp_path / "report.html").read_text())
    # least and greatest value in the search; the axis covers all records
    aspect = "Width / height, 0.111 to 1, faint: all records"
    for text in (
        "Searchwidth<=10 label:0Found5 of 100 records",
        "5 of 5 records",
        aspect,
        "Height, 9 to 9, faint",
        "Classes with records: 1",
    ):
        assert text in parsed.text
    assert re.findall(r"(\d+) r\d", parsed.text) == ["0", "2", "4", "6", "8"]
    assert "conversion" not in parsed.text
    assert "Digest" not in parsed.text
    write_html(tmp_path / "a.lmdb", tmp_path / "none.html", "width>900")
    assert re.findall("<h2>.*?</h2>|No record matches", (tmp_path / "none.html").read_text()) == ["No record matches"]
    with pytest.raises(OptionError, match="query, letter 1"):
        write_html(tmp_path / "a.lmdb", tmp_path / "other.html", "size:3")


def test_command_prints_how_many_records_a_listing_lacks(tmp_path: Path) -> None:
    write(tmp_path / "a.lmdb", [Record(name=f"r{n}", label=0, width=9, height=9) for n in range(3)])
    (tmp_path / "p.csv").write_text("name,loss\nr0,1\ngone,2\n")
    done = run("view", "a.lmdb", "--with", "p.csv", "--html", "x.html", "--where", "loss=1", cwd=tmp_path)
    assert done.status == 0, done
    assert "p.csv: columns loss; 2 of 3 records have no row" in done.stdout
    assert done.stderr == "Warning: p.csv: 1 row has no record in a.lmdb: 'gone'\n"


BLOCKED = "import sys; sys.modules.update(dict.fromkeys(('starlette', 'uvicorn', 'torch')));"


@pytest.mark.slow
def test_command_needs_neither_server_nor_torch(tmp_path: Path, mongo_uri: str) -> None:
    store_records(f"{mongo_uri}.a", [Record(image=photo(), name="a")])
    done = run("view", f"{mongo_uri}.a", "--html", "report.html", cwd=tmp_path)
    assert re.fullmatch(r"report\.html: [0-9.]+ kB, with 1 sample\n", done.stdout), done
    assert run("view", f"{mongo_uri}.a", "b.lmdb", "--html", "x.html", cwd=tmp_path).status == 2
    code = f"{BLOCKED} from dbloader.cli import main; main()"
    arguments = ["view", hostile_store(tmp_path / "a.lmdb"), "--html", tmp_path / "b.html"]
    assert run_program(sys.executable, "-c", code, *arguments)[1] == ""
