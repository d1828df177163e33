"""dbloader contains every message that docs/troubleshooting.md explains."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.images import photo, plant, plant_photos
from tests.support.shell import Shell

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


def explained(printed: str) -> set[str]:
    return {message for message in MESSAGES if pattern(message).search(printed)}


def test_common_messages_are_printed_as_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell(monkeypatch, capfd)
    plant_photos(tmp_path / "photos", 4)
    plant(tmp_path / "splits", {f"{part}/0.jpg": photo(0, 64, 48) for part in ("train", "val")} | {"1.jpg": b""})
    plant(tmp_path / "bad", {"cat/0.jpg": b"<html>", "cat/1.jpg": photo(0, 64, 48)[:-300]})
    shell("convert", "photos", "train.lmdb")
    whole = Path("train.lmdb").read_bytes()
    Path("short.lmdb").write_bytes(whole[: len(whole) // 2])
    commands = """
        convert bad new.lmdb
        convert splits new.lmdb
        info photos
        info short.lmdb
        show train.lmdb no.jpg
    """
    printed = [text for command in commands.strip().splitlines() for text in shell(*command.split())[1:]]
    assert explained("\n".join(printed)) == {
        "no file of … could be stored",
        "is in no known image format (it begins with …)",
        "the classes are called …: these look like splits",
        "is outside of all class folders",
        "… is a folder without …, so it is not a store",
        "… is cut short: it has … bytes of …",
        "no record of … is named …",
    }
