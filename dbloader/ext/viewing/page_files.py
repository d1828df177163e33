"""The files of the page.

The HTML contains the style sheet and names all modules, so that a browser can draw the page after one response and
requests all modules at once. Over a slow connection, each further round trip would be visible. The font is Inter, for
Latin letters; the licence beside it is the SIL Open Font License.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

_FOLDER = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")
# Hash of the style sheet, for a Content-Security-Policy. With this policy, a browser applies no other style sheet.
STYLE_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'"
# File name -> (content, media type). All files are read at import, so no text of a request is used as a path.
STATIC = {
    path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES
}

_preloads = "\n".join(f'<link rel="modulepreload" href="/static/{name}">' for name in STATIC if name.endswith(".js"))
_html, _kind = STATIC["index.html"]
_html = _html.replace(b"<style></style>", f"<style>{STYLE}</style>\n{_preloads}".encode())
STATIC["index.html"] = _html, _kind
