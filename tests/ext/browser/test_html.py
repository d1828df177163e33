"""The HTML of notebooks and of reports, in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from dbloader import Record
from dbloader.ext.viewing.html_report import write_html
from dbloader.stores.open import open_store
from tests.support.images import photo
from tests.support.stores import store_records

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BROKEN = """() => [...document.querySelectorAll("th")].flatMap((cell) => {
  const text = cell.firstChild, words = [...text.data.matchAll(/[^\\s-]+/g)];
  return words.filter(({0: word, index}) => {
    const range = document.createRange();
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    return range.getClientRects().length > 1;
  }).map(([word]) => word);
})"""


@pytest.mark.parametrize("where", ["", "index<1", "index>9"])
def test_html_is_accessible_and_no_heading_breaks_within_a_word(
    tmp_path: Path, chromium: Browser, axe: str, where: str
) -> None:
    fields = {"subsampling_of_it": "x" * 300, "restart_interval": 2}
    records = [Record(f"{'y' * 90}{n}.jpg", n, photo(n), 40, 30, "JPEG", fields=fields) for n in range(3)]
    store_records(tmp_path / "a.lmdb", records, classes=["photographer", "cat", "maine coon"])
    write_html(tmp_path / "a.lmdb", tmp_path / "a.html", where)
    with open_store(tmp_path / "a.lmdb") as store:
        parts = [part._repr_html_() or "" for part in (store, store[0])]
    notebook = f'<html lang="en"><title>notebook</title><body><main><h1>notebook</h1>{"".join(parts)}</main>'
    page = chromium.new_page(viewport={"width": 360, "height": 800}, bypass_csp=True)
    try:
        for html in ((tmp_path / "a.html").read_text(), notebook):
            page.set_content(html)
            assert page.evaluate(BROKEN) == []
            page.evaluate(axe)
            found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            assert [each["id"] for each in found] == []
    finally:
        page.close()
