"""`dbloader verify`: undamaged, damaged, or not to be opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader import open_store
from tests.support.images import Outcome
from tests.support.shell import check_error

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.shell import Shell


def test_an_undamaged_store_has_status_0(shell: Shell, store: Path) -> None:
    with open_store(store) as opened:
        digest = opened.manifest.digest
    assert shell("verify", store) == Outcome(0, f"{store}: 12 records, all undamaged; digest {digest}\n", "")
    assert shell("verify", store, "--quiet") == Outcome(0, "", "")


def test_a_damaged_record_is_named_with_status_1(shell: Shell, root: Path, store: Path) -> None:
    data = bytearray(store.read_bytes())
    data[data.index((root / "cat" / "0002.jpg").read_bytes()[-100:])] ^= 1
    store.write_bytes(data)
    check_error(shell("verify", store), r"record 1 \(cat/0002.jpg\) of .*out.lmdb is damaged: its CRC-32 is \w{8}", 1)


def test_a_store_that_is_cut_short_has_status_1_and_one_that_cannot_be_opened_2(shell: Shell, store: Path) -> None:
    check_error(shell("verify", store.with_name("none.lmdb")), "does not exist", 2)
    check_error(shell("verify", store.parent), "is a folder", 2)
    check_error(shell("verify", "mongodb://127.0.0.1:1/images"), "names no collection", 2)
    store.write_bytes(store.read_bytes()[:-1])
    check_error(shell("verify", store), "is cut short", 1)
