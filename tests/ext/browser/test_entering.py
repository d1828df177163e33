"""Links that open the viewer, pages of other sites, and a second browser."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, expect

from dbloader import convert
from tests.support.images import plant_photos
from tests.support.viewer import viewer


@contextmanager
def other_site(page: str) -> Iterator[str]:
    """Serve one page as a site other than 127.0.0.1, and yield the page's URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_other_site_may_link_to_the_viewer_but_gets_no_data(tmp_path: Path, chromium: Browser) -> None:
    place = tmp_path / "a.lmdb"
    convert(plant_photos(tmp_path / "images", 12), place)
    with viewer(place, "--port", "0", "--no-open") as running:
        address = running.link.partition("/?")[0]
        parts = f'<img src="{address}/image/0/0"><iframe src="{address}/"></iframe>'
        link = f'<a href="{running.link}&q=cat">notebook</a>'
        with other_site(f"{link}{parts}") as url, chromium.new_context() as context:
            for _ in range(2):  # an unused link, then a used link with the cookie
                page = context.new_page()
                page.goto(url)
                page.get_by_text("notebook").click()
                expect(page.locator("#note")).to_be_attached()
                expect(page).to_have_url(f"{address}/?q=cat")
                expect(page.locator(".tile").first).to_be_visible()
            page.reload()
            expect(page.locator(".tile").first).to_be_visible()
            answers: dict[str, int] = {}
            page = context.new_page()  # the other page may still receive responses
            page.on("response", lambda answer: answers.__setitem__(answer.url, answer.status))
            page.goto(url)
            expect(page.get_by_text("notebook")).to_be_visible()
            assert {status for url, status in answers.items() if url.startswith(address)} == {403}
            asking = "(url) => fetch(url, {credentials: 'include', mode: 'no-cors'}).catch((error) => error.name)"
            assert page.evaluate(asking, f"{address}/api/stores") == "TypeError"
