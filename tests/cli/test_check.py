"""`dbloader verify` on stores that are undamaged, damaged, or cannot be opened."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dbloader import convert, open_store
from dbloader.cli.isolated import isolated
from dbloader.errors import DamagedStoreError, StoreError
from tests.support.images import Outcome, photo, plant
from tests.support.shell import Shell, check_error


def test_undamaged_store_gives_status_0(shell: Shell, store: Path) -> None:
    with open_store(store) as opened:
        digest = opened.manifest.digest
    assert shell("verify", store) == Outcome(0, f"{store}: 12 records, all undamaged; digest {digest}\n", "")
    assert shell("verify", store, "--quiet") == Outcome(0, "", "")


def test_damaged_record_is_named_and_gives_status_1(shell: Shell, root: Path, store: Path) -> None:
    data = bytearray(store.read_bytes())
    data[data.index((root / "cat" / "0002.jpg").read_bytes()[-100:])] ^= 1
    store.write_bytes(data)
    check_error(shell("verify", store), r"record 1 \(cat/0002.jpg\) of .*out.lmdb is damaged: its CRC-32 is \w{8}", 1)


def test_truncated_store_gives_status_1_and_a_missing_store_gives_2(shell: Shell, store: Path) -> None:
    check_error(shell("verify", store.with_name("none.lmdb")), "does not exist", 2)
    check_error(shell("verify", store.parent), "is a folder", 2)
    check_error(shell("verify", "mongodb://127.0.0.1:1/images"), "has the form mongodb://host/database.collection", 2)
    store.write_bytes(store.read_bytes()[:-1])
    check_error(shell("verify", store), "is cut short", 1)


def test_image_that_does_not_decode_gives_status_1(shell: Shell, root: Path, place: Path) -> None:
    plant(root, {"dog/half.jpg": photo(1)[:-200]})
    convert(root, place, check="none")
    assert shell("verify", place).status == 0
    message = r"record 12 \(dog/half.jpg\) of .*out.lmdb is damaged: more than its end marker is missing"
    check_error(shell("verify", place, "--decode"), message, 1)


def test_verify_refuses_a_listing_alone_and_outputs_that_exist(shell: Shell, store: Path) -> None:
    check_error(shell("verify", store, "--listing", "x.csv"), r"give the source too \(--against\)", 2)
    before = store.read_bytes()
    check_error(shell("verify", store, "--output", store), r"must be a new file, but .*out\.lmdb exists", 2)
    assert store.read_bytes() == before
    assert not store.with_name("out.lmdb.partial").exists()


def test_verification_that_is_killed_is_an_error_but_not_damage(store: Path) -> None:
    def kill() -> None:
        while not (started := multiprocessing.active_children()):
            pass
        started[0].kill()  # while it still imports dbloader

    with ThreadPoolExecutor(1) as killer:
        killer.submit(kill)
        with pytest.raises(StoreError, match=r"the process that read .*out.lmdb was killed by SIGKILL") as caught:
            isolated("checking.verify_store.verify_store", str(store))
    assert not isinstance(caught.value, DamagedStoreError)
