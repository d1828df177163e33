"""dbloader contains every message that docs/troubleshooting.md explains."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2]
ANY = "…"
MESSAGES = re.findall(r"^### (.*)$", (HERE / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)


def texts() -> list[str]:
    """Return all texts in the package. In an f-string, an ellipsis replaces each value."""
    found = []
    for path in (HERE / "dbloader").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                values = [value.value if isinstance(value, ast.Constant) else ANY for value in node.values]
                found.append("".join(map(str, values)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


TEXTS = texts()


def pattern(message: str) -> re.Pattern[str]:
    return re.compile(".+".join(re.escape(part) for part in message.strip(f" {ANY}").split(ANY)))


@pytest.mark.parametrize("message", MESSAGES)
def test_explained_messages_exist_in_the_code(message: str) -> None:
    assert any(pattern(message).search(text) for text in TEXTS), "no text in dbloader/ matches this message"
