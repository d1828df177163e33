"""A new store never replaces one of its own sources."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Subset

from dbloader import LMDBDataset, convert, copy_store, write_store
from dbloader.errors import OptionError
from dbloader.ext.caching.store import CachedStore
from dbloader.stores.open import open_store
from tests.support.conversion import siblings, verified
from tests.support.images import plant_photos
from tests.support.parts import plan_conversion

REFUSED = r"the new store would replace or change its own source .*: name another place"
SHARD = "shards.lmdb/first"  # a placeholder for the first shard


def copy_several(source: str, place: str) -> object:
    return copy_store(["other.lmdb", source], place, overwrite=True)


def split(source: str, place: str) -> object:
    return copy_store(source, ["new.lmdb", place], split=(0.5, 0.5), overwrite=True)


def write_records(source: str, place: str) -> object:
    with open_store(source) as store:
        return write_store(store, place, overwrite=True)


def write_cached(source: str, place: str) -> object:
    with tempfile.TemporaryDirectory() as cache, CachedStore(source, cache) as store:
        return write_store(store, place, overwrite=True)


def write_loaded(source: str, place: str) -> object:
    with LMDBDataset(source, transform=lambda image: image) as dataset:
        return write_store(DataLoader(Subset(dataset, [0])), place, overwrite=True)


COPY = partial(copy_store, where="width>1", overwrite=True)
CONVERT = partial(convert, overwrite=True)
CASES: dict[str, tuple[Callable[[str, str], object], str, str]] = {
    "copy": (COPY, "one.lmdb", "one.lmdb"),
    "copy several": (copy_several, "one.lmdb", "one.lmdb"),
    "split": (split, "one.lmdb", "one.lmdb"),
    "convert": (CONVERT, "one.lmdb", "one.lmdb"),
    "resume": (partial(convert, resume=True), "one.lmdb", "one.lmdb"),
    "plan": (partial(plan_conversion, shards=2), "shards.lmdb", "shards.lmdb"),
    "append": (partial(convert, append=True), "shards.lmdb", "shards.lmdb"),
    "write a store": (write_records, "one.lmdb", "one.lmdb"),
    "write a cached store": (write_cached, "link.lmdb", "one.lmdb"),
    "write samples": (write_loaded, "one.lmdb", "one.lmdb"),
    "another spelling": (CONVERT, "one.lmdb", "./images/../one.lmdb"),
    "a link as the source": (CONVERT, "link.lmdb", "one.lmdb"),
    "a link as the destination": (COPY, "one.lmdb", "link.lmdb"),
    "a second name": (COPY, "one.lmdb", "second.lmdb"),
    "a folder of LMDB": (CONVERT, "folder", "folder/data.mdb"),
    "a shard of the source": (COPY, "shards.lmdb", SHARD),
    "a shard as the source": (partial(CONVERT, shards=1), SHARD, "shards.lmdb"),
    "a link to a shard": (partial(CONVERT, shards=1), "shard-link.lmdb", "shards.lmdb"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of stores that no test changes."""
    folder = tmp_path_factory.mktemp("stores")
    convert(plant_photos(folder / "images", 6), folder / "one.lmdb")
    copy_store(folder / "one.lmdb", folder / "other.lmdb")
    (folder / "folder").mkdir()
    copy_store(folder / "one.lmdb", folder / "folder/data.mdb")
    convert(folder / "images", folder / "shards.lmdb", shards=2)
    os.link(folder / "one.lmdb", folder / "second.lmdb")
    for link, target in (("link.lmdb", "one.lmdb"), ("shard-link.lmdb", first_shard(folder))):
        (folder / link).symlink_to(target)
    return folder


def first_shard(folder: Path) -> str:
    return str(min(folder.glob("shards.lmdb/shards/*")).relative_to(folder))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_new_store_never_replaces_its_source(folder: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(folder)
    make, *places = CASES[case]
    source, place = (first_shard(folder) if name == SHARD else name for name in places)
    before = siblings(folder / "one.lmdb")
    with pytest.raises(OptionError, match=REFUSED):
        make(source, place)
    assert siblings(folder / "one.lmdb") == before
    digest = verified("other.lmdb")
    assert [verified(name) for name in ("one.lmdb", "folder/data.mdb", "shards.lmdb")] == [digest] * 3


@pytest.mark.parametrize("make", [COPY, write_records])
def test_source_in_mongodb_is_recognized_by_another_name(
    tmp_path: Path, mongo_uri: str, make: Callable[[str, str], Any]
) -> None:
    convert(plant_photos(tmp_path / "images", 6), tmp_path / "one.lmdb")
    digest = copy_store(tmp_path / "one.lmdb", mongo_uri).digest
    with_options = f"{mongo_uri}{'&' if '?' in mongo_uri else '?'}w=majority"
    for place in (mongo_uri, with_options, mongo_uri.replace("127.0.0.1", "localhost")):
        with pytest.raises(OptionError, match=REFUSED):
            make(mongo_uri, place)
    assert verified(mongo_uri) == digest
    assert make(mongo_uri, f"{mongo_uri.partition('?')[0]}2").length == 6
