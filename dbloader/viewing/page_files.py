"""The files of the page. The style sheet is sent inside the HTML, so the first paint waits for a single answer."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_STYLE = (_FOLDER / "style.css").read_bytes()
# The source of the style sheet in a Content-Security-Policy. A browser applies no other style sheet.
STYLE_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE).digest()).decode()}'"
# Name in /static/NAME -> content and type. The files are read here, so no path is made from a request.
STATIC = {
    path.name: (path.read_bytes().replace(b"<style></style>", b"<style>%b</style>" % _STYLE), _TYPES[path.suffix])
    for path in _FOLDER.glob("*")
    if path.suffix in _TYPES
}
