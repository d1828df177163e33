"""LMDB files with damaged pages: `dbloader verify` reports the damage and never crashes.

tests/stores/lmdb/test_hostile.py damages any bytes of a file.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
from pathlib import Path

import pytest

from dbloader import Record, open_store
from dbloader.stores.lmdb.keys import record_key
from tests.support.images import photo, run
from tests.support.lmdb_files import tamper_with_records
from tests.support.shell import Shell
from tests.support.stores import store_records

TRIALS = int(os.environ.get("DBLOADER_TRIALS", "4"))  # trials of each fault; a trial takes about half a second
PAGE = 4096
BRANCH, _LEAF, _OVERFLOW, _META = 1, 2, 4, 8  # PBRANCH and other page flags of mdb.c


def pages_of(content: bytes | bytearray, kind: int) -> list[int]:
    """Return the offsets of the pages of a kind whose header LMDB reads."""
    found, at = [], 0
    while at < len(content):
        flags, count = struct.unpack_from("<10xHI", content, at)
        if flags == kind:
            found.append(at)
        at += PAGE * (count if flags == _OVERFLOW else 1)
    return found


def flip_bits(content: bytearray, kind: int, rng: random.Random) -> None:
    """Flip bits in the header of a page and its nodes, whose numbers LMDB follows."""
    at = rng.choice(pages_of(content, kind))
    spots = [*range(152 if kind == _META else 16)]
    if kind in (BRANCH, _LEAF):
        (lower,) = struct.unpack_from("<12xH", content, at)
        for node in struct.unpack_from(f"<{(lower - 16) // 2}H", content, at + 16):
            spots += range(node, min(node + 24, PAGE))
    for _ in range(rng.choice([1, 1, 4])):
        content[at + rng.choice(spots)] ^= 1 << rng.randrange(8)


FAULTS = {"meta pages": _META, "branch pages": BRANCH, "leaf pages": _LEAF, "heads of large values": _OVERFLOW}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 400 records. Small records share leaf pages, and large records have overflow pages."""
    place = tmp_path_factory.mktemp("faults") / "whole.lmdb"
    images = [photo(number % 10, 30 + number % 3 * 200, 40) for number in range(400)]
    store_records(place, (Record(f"class/{number}.jpg", number % 7, image) for number, image in enumerate(images)))
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault == "leaf pages" else pytest.mark.nightly) for fault in FAULTS]
)
def test_verify_reports_damage_unless_no_record_changed(fault: str, whole: Path, tmp_path: Path, shell: Shell) -> None:
    place, rng = tmp_path / "faulty.lmdb", random.Random(fault)
    with open_store(whole) as store:
        undamaged = f"{place}: 400 records, all undamaged; digest {store.manifest.digest}\n"
    content = whole.read_bytes()
    for _ in range(TRIALS):
        faulty = bytearray(content)
        flip_bits(faulty, FAULTS[fault], rng)
        place.write_bytes(faulty)
        outcome = shell("verify", place)
        if outcome.status == 0:
            assert (outcome.stdout, outcome.stderr) == (undamaged, "")
            continue
        assert (outcome.status in (1, 2), outcome.stdout) == (True, "")
        lines = outcome.stderr.splitlines()
        assert 1 <= len(lines) <= 11
        assert all(re.match(r"Error: .*faulty\.lmdb", line) for line in lines)


def test_problems_found_before_a_crash_are_printed(whole: Path, tmp_path: Path) -> None:
    place = tmp_path / "faulty.lmdb"
    shutil.copy(whole, place)
    tamper_with_records(place, {4: b"x"})
    content = bytearray(place.read_bytes())
    # the node of a value in overflow pages; the value's length is before these bytes
    at = content.index(b"\1\0\10\0" + record_key(302))
    content[at - 4 : at] = b"\xff\xff\xff\x3f"  # a length that ends far beyond the end of the file
    place.write_bytes(content)
    outcome = run("verify", str(place))
    assert outcome.status == 1
    assert re.fullmatch(
        r"Error: record 4 \(class/4.jpg\) .*\nError: .*: the process .* SIG.*\n",
        outcome.stderr,
    )
