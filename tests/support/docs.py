"""The blocks of code in the documentation."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def block_with(page: str, text: str) -> str:
    """Return the only Python block of a page that contains a text."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [block for block in blocks if text in block]
    return str(found)
