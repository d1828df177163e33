"""``copy`` finds exactly the records of a selection in the selection's listing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dbloader import Record, copy_store, open_store
from dbloader.errors import OptionError
from dbloader.ext.viewing.selection import Selections
from tests.ext.viewing.stores import CLASSES, random_query, some_records, write_records

ODD_NAMES = (
    *("a,b.jpg", 'q"q".jpg', "two\nlines.jpg", "cr\r.jpg", "  blank ", "ü/é.jpg", "back\\xe9.jpg", "\ufeffmark.jpg"),
    *("\u202eright.jpg", "é.jpg", "e\u0301.jpg", "./dot//a.jpg", "dot/a.jpg", "nul\0.jpg", "-x", "#", "x" * 4_000),
)


def write_listing(place: Path, query: str, listing: Path) -> list[int]:
    """Write the listing of a selection, and return the indices of the selected records."""
    with open_store(place) as store:
        selections = Selections(store)
        listing.write_bytes(b"".join(selections.list_csv(query)))
        return [*selections.select(query)]


def check_copies(place: Path, listing: Path, chosen: list[int], records: list[Record]) -> None:
    """Check that a copy with this listing selects or drops exactly the chosen records."""
    others = [index for index in range(len(records)) if index not in {*chosen}]
    for option, wanted in (("select", chosen), ("drop", others)):
        target = place.with_name("copy.lmdb")
        options: dict[str, Any] = {"overwrite": True, option: listing}
        if not wanted:
            with pytest.raises(OptionError, match="nothing to copy"):
                copy_store(place, target, **options)
            continue
        copy_store(place, target, **options)
        with open_store(target) as copy:
            assert [(one.name, one.label, one.image) for one in copy] == [
                (records[index].name, records[index].label, records[index].image) for index in wanted
            ]


def test_listing_selects_and_drops_exactly_the_records_of_a_query(tmp_path: Path) -> None:
    records = some_records(2_000, seed=1)  # some records have no name, and some share the name of another record
    write_records(tmp_path / "s.lmdb", records)
    rng = random.Random(2)
    for query in ("-label:none", "cat", "index:0-99,1090-1100", *(random_query(rng, 2_000, [])[0] for _ in range(3))):
        if "odd" in query:
            continue
        listing = tmp_path / "listing.csv"
        chosen = write_listing(tmp_path / "s.lmdb", query, listing)
        if chosen:
            check_copies(tmp_path / "s.lmdb", listing, chosen, records)


def test_odd_names_are_listed_unchanged(tmp_path: Path) -> None:
    records = [Record(name=name, label=at % 7, image=bytes([at])) for at, name in enumerate(ODD_NAMES)]
    records += [Record(name="other", label=1, image=b"other")]
    write_records(tmp_path / "s.lmdb", records)
    listing = tmp_path / "listing.csv"
    chosen = write_listing(tmp_path / "s.lmdb", "-other", listing)
    assert len(chosen) == len(ODD_NAMES)
    check_copies(tmp_path / "s.lmdb", listing, chosen, records)


def test_labels_of_a_listing_are_class_names_or_integers(tmp_path: Path) -> None:
    for classes in (CLASSES, ()):
        write_records(tmp_path / f"{len(classes)}.lmdb", [Record(name="a", label=1), Record(name="b")], classes=classes)
        write_listing(tmp_path / f"{len(classes)}.lmdb", "", tmp_path / "s.csv")
        label = "maine coon" if classes else "1"
        assert (tmp_path / "s.csv").read_bytes() == f"index,path,label\r\n0,a,{label}\r\n1,b,\r\n".encode()
