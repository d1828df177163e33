"""LMDB files with random damage: `dbloader verify` reports it and never crashes."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
from collections import Counter
from collections.abc import Callable
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
_BRANCH, _LEAF, _OVERFLOW, _META = 1, 2, 4, 8  # P_BRANCH and other page flags of mdb.c


def pages_of(content: bytes | bytearray, *kinds: int) -> list[int]:
    """Return the offsets of the pages of these kinds whose header LMDB reads."""
    found, at = [], 0
    while at < len(content):
        flags, count = struct.unpack_from("<10xHI", content, at)
        if flags in kinds:
            found.append(at)
        at += PAGE * (count if flags == _OVERFLOW else 1)
    return found


def cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def flip(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def wipe(content: bytearray, rng: random.Random) -> None:
    at = rng.randrange(0, len(content), PAGE)
    content[at : at + PAGE] = rng.choice([bytes(PAGE), rng.randbytes(PAGE)])


def flip_in(*kinds: int) -> Callable[[bytearray, random.Random], None]:
    """Return a fault in the headers of pages and nodes, whose numbers LMDB follows."""

    def fault(content: bytearray, rng: random.Random) -> None:
        at = rng.choice(pages_of(content, *kinds))
        spots = [*range(152 if _META in kinds else 16)]
        if _BRANCH in kinds or _LEAF in kinds:
            (lower,) = struct.unpack_from("<12xH", content, at)
            for node in struct.unpack_from(f"<{(lower - 16) // 2}H", content, at + 16):
                spots += range(node, min(node + 24, PAGE))
        for _ in range(rng.choice([1, 1, 4])):
            content[at + rng.choice(spots)] ^= 1 << rng.randrange(8)

    return fault


FAULTS = {
    "cut short": cut,
    "bit flipped anywhere": flip,
    "page wiped": wipe,
    "bits flipped in a meta page": flip_in(_META),
    "bits flipped in branch pages": flip_in(_BRANCH),
    "bits flipped in leaf pages": flip_in(_LEAF),
    "bits flipped in heads of large values": flip_in(_OVERFLOW),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 400 records. Small records share leaf pages, and large records have overflow pages."""
    place = tmp_path_factory.mktemp("faults") / "whole.lmdb"
    images = [photo(number % 10, 30 + number % 3 * 200, 40) for number in range(400)]
    store_records(place, (Record(f"class/{number}.jpg", number % 7, image) for number, image in enumerate(images)))
    return place


IN_CI = ("cut short", "bits flipped in leaf pages")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault in IN_CI else pytest.mark.nightly) for fault in FAULTS]
)
def test_random_fault_is_reported_or_changes_nothing(
    fault: str, whole: Path, tmp_path: Path, shell: Shell, record_property: Callable[[str, object], None]
) -> None:
    place, rng, found = tmp_path / "faulty.lmdb", random.Random(fault), Counter[str]()
    with open_store(whole) as store:
        undamaged = f"{place}: 400 records, all undamaged; digest {store.manifest.digest}\n"
    content = whole.read_bytes()
    for _ in range(TRIALS):
        faulty = bytearray(content)
        FAULTS[fault](faulty, rng)
        place.write_bytes(faulty)
        outcome = shell("verify", place)
        lines = outcome.stderr.splitlines()
        if outcome.status == 0:
            assert (outcome.stdout, outcome.stderr) == (undamaged, "")
            found["changed nothing that is read"] += 1
            continue
        assert outcome.status in (1, 2)
        assert outcome.stdout == ""
        assert 1 <= len(lines) <= 11
        assert all(re.match(r"Error: .*faulty\.lmdb", line) for line in lines)
        crash = re.search("the process that read it crashed with (SIG[A-Z]+)", lines[-1])
        found[crash[1] if crash else f"status {outcome.status}"] += 1
    record_property(fault, dict(found))
    assert found.total() == TRIALS


def test_file_that_crashes_the_process_is_reported_as_damaged(whole: Path, tmp_path: Path) -> None:
    place = tmp_path / "faulty.lmdb"
    content = bytearray(whole.read_bytes())
    for page in pages_of(content, _BRANCH):
        content[page + 12] = 18  # the header now claims one node, and LMDB asserts at least two
    place.write_bytes(content)
    other = ["verify", whole, "--against", place]
    copy = ["copy", place, tmp_path / "new.lmdb", "--skip-damaged"]
    for arguments, status in ((["verify", place], 1), (other, 1), (copy, 2)):
        outcome = run(*map(str, arguments))
        assert outcome.status == status
        assert outcome.stdout == ""
        assert re.fullmatch(
            r"Error: .*lmdb is damaged: .*the process that read it crashed with SIG\w+; copy it again .*\n",
            outcome.stderr,
        )
    shutil.copy(whole, place)
    assert run("verify", place).status == 0


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
        r"Error: record 4 \(class/4.jpg\) .*\nError: .*: after 256 of 400 records the process .* SIG.*\n",
        outcome.stderr,
    )
