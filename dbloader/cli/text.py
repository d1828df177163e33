"""How numbers and names are written for people."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Gives "1 record", "2,000 records"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def size(nbytes: float) -> str:
    """Gives "17 bytes", "1.3 MB"; a kB has 1,000 bytes."""
    if nbytes < 1000:
        return counted(int(nbytes), "byte")
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 999.95:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1000:,.1f} TB"


def printable(text: str) -> str:
    r"""Gives a text for the terminal: of a file's name in it, ``\x1b`` and the like are written so, not sent."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
