"""Text from copied stores and from listings never reaches the terminal as an escape sequence."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_text import HOSTILE, NOT_UTF8, Safe, damage, run, write_hostile  # noqa: F401 - run is a fixture
from tests.support.images import photo, plant


def test_hostile_store_is_copied_without_escape_sequences(run: Safe) -> None:  # noqa: F811
    name = write_hostile()
    run("copy", name, f"m{HOSTILE}.lmdb")
    run("copy", name, f"m{HOSTILE}.lmdb", status=2)
    damage(name)
    assert "is damaged" in run("copy", name, "other.lmdb", status=2)


def test_hostile_listing_is_printed_without_escape_sequences(run: Safe, tmp_path: Path) -> None:  # noqa: F811
    name = HOSTILE
    root = plant(tmp_path / f"images{name}", {f"k{NOT_UTF8}/0.jpg": photo()}).name
    listing = Path(f"l{name}.csv")
    listing.write_text(f'path,label,"{name}"\nk{NOT_UTF8}/none.jpg,"{name}",1\n', errors="surrogateescape")
    run("convert", root, "l.lmdb", "--listing", str(listing), status=2)
