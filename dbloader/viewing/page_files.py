"""The files of the page. The HTML contains the style sheet, so a browser can draw the page after one response."""

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
# Hash of the style sheet, for a Content-Security-Policy. With this policy, a browser applies no other style sheet.
STYLE_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE).digest()).decode()}'"
# File name -> (content, media type). All files are read at import, so no text of a request is used as a path.
STATIC = {
    path.name: (path.read_bytes().replace(b"<style></style>", b"<style>%b</style>" % _STYLE), _TYPES[path.suffix])
    for path in _FOLDER.glob("*")
    if path.suffix in _TYPES
}
