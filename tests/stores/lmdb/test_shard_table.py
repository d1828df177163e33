"""The manifest of a folder of shards: its bytes. A false manifest raises a one-line error and opens no other file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import numpy as np
import pytest

from dbloader import open_store
from dbloader.errors import StoreError
from dbloader.records.document import open_sealed, seal
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER
from tests.contracts.records import make_records
from tests.support.shards import write_shards


def numbers(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


NAMES = ["00000.lmdb", "00001.lmdb"]
HOSTILE: dict[str, dict[str, Any]] = {
    "lengths that do not sum": {"lengths": numbers(2, 3)},
    "a negative length": {"lengths": numbers(6, -2)},
    "lengths that are text": {"lengths": "many"},
    "a name with a folder": {"names": ["00000.lmdb", "a/b.lmdb"]},
    "a name above": {"names": ["00000.lmdb", "../../outside.lmdb"]},
    "an empty name": {"names": ["00000.lmdb", ""]},
    "a name with a line break": {"names": ["00000.lmdb", "a\n"]},
    "a name that is a number": {"names": ["00000.lmdb", 1]},
    "a name twice": {"names": ["00000.lmdb", "00000.lmdb"]},
    "an index above": {"index": "../outside.lmdb"},
    "a previous store above": {"previous": "../outside"},
    "a previous store that is the manifest": {"previous": MANIFEST_FILE},
    "an index that is the manifest": {"index": MANIFEST_FILE},
    "one digest for two": {"digests": bytes(32)},
    "a manifest that is no BSON": {"manifest": b"text"},
    "a version of text": {"version": "new"},
    "a later version": {"version": 2**31},
    "another format": {"format": "other"},
    "a million shards of nothing": {"names": ["x.lmdb"] * 10**5, "lengths": bytes(8 * 10**5)},
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_shards(str(tmp_path / "store.lmdb"), make_records(4), [2])
    write_shards(str(tmp_path / "other.lmdb"), make_records(4, seed=9), [2])
    (tmp_path / "other.lmdb" / SHARD_FOLDER / "00000.lmdb").rename(tmp_path / "outside.lmdb")
    return tmp_path / "store.lmdb"


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_false_manifest_is_refused_without_opening_other_files(
    place: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / MANIFEST_FILE
    path.write_bytes(seal({**open_sealed(path.read_bytes()), **change}))
    opened = []
    real = os.open

    def watched(name: Any, *arguments: Any, **options: Any) -> int:
        opened.append(os.fspath(name))
        return real(name, *arguments, **options)

    monkeypatch.setattr(os, "open", watched)
    with pytest.raises(StoreError) as caught, open_store(place) as store:
        store.read(range(4))
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)
    assert not [name for name in opened if not str(name).startswith(str(place))]


@pytest.mark.parametrize("data", [b"", b"text", bson.encode({}), bytes(10**5)])
def test_manifest_file_of_another_kind_is_refused(place: Path, data: bytes) -> None:
    (place / MANIFEST_FILE).write_bytes(data)
    with open_store(place) as store, pytest.raises(StoreError):
        len(store)


@pytest.mark.parametrize(
    ("nbytes", "read"), [((1, 1), lambda store: store.read([3])), ((-5, 2**62), lambda store: store.verify())]
)
def test_false_sizes_of_shards_raise(place: Path, nbytes: tuple[int, int], read: Callable[[Any], object]) -> None:
    path = place / MANIFEST_FILE
    path.write_bytes(seal({**open_sealed(path.read_bytes()), "nbytes": numbers(*nbytes)}))
    with open_store(place) as store, pytest.raises(StoreError, match=r"0000\d.lmdb has .* bytes, not"):
        read(store)


def test_shard_may_be_a_link_only_to_its_own_file(place: Path, tmp_path: Path) -> None:
    shard = place / SHARD_FOLDER / NAMES[1]
    shard.rename(tmp_path / "moved.lmdb")
    shard.symlink_to(tmp_path / "moved.lmdb")
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest
    shard.unlink()
    shard.symlink_to(tmp_path / "outside.lmdb")  # another shard
    with open_store(place) as store, pytest.raises(StoreError, match="is not the file that the manifest of"):
        store.read([3])
    shard.unlink()
    shard.mkdir()
    with open_store(place) as store, pytest.raises(StoreError, match="not an ordinary file"):
        store.read([3])
