"""Parts and publishers in real processes that SIGKILL ends at random moments."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbloader import convert
from dbloader.errors import NotAStoreError, StoreExistsError, StoreNotFoundError
from dbloader.ext.parts.part import convert_part, list_parts
from dbloader.ext.parts.publish import publish
from dbloader.stores.lmdb.files import unnamed_warning
from dbloader.stores.lmdb.shard_table import ShardTable
from dbloader.stores.open import open_store
from tests.contracts.records import stored
from tests.support.children import descendants
from tests.support.crash import Whole, check_whole, kill, trials
from tests.support.images import WAIT_S
from tests.support.parts import plan_conversion

PARTS = 7
pytestmark = pytest.mark.slow


def run(function: Callable[..., object], *arguments: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


@pytest.mark.parametrize("replacing", [False, True], ids=["fresh", "overwrite"])
@pytest.mark.parametrize("number", trials(8, 0, 1, share=2))
def test_killed_publisher_leaves_a_store_or_parts(whole: Whole, tmp_path: Path, number: int, replacing: bool) -> None:
    generator = random.Random(number)
    place = tmp_path / "out.lmdb"
    old = ""
    if replacing:
        plan_conversion(whole.root, place, 2, shuffle_seed=1)
        for part in range(2):
            convert_part(place, part)
        old = publish(place).digest
    plan_conversion(whole.root, place, PARTS)
    for part in range(PARTS):
        convert_part(place, part)
    for _ in range(4):
        publisher = run(lambda: publish(place, overwrite=replacing))
        publisher.join(generator.uniform(0, 0.1))
        kill(publisher)
        publisher.close()
        try:
            with open_store(place) as store:
                assert store.verify() == store.manifest.digest
                assert store.manifest.digest in (old, whole.digest)
        except (StoreNotFoundError, NotAStoreError):
            assert not replacing
    try:
        for part in list_parts(place).missing:  # a publisher that replaces a store may already have moved shards
            convert_part(place, part)
        publish(place, overwrite=replacing)
    except (StoreNotFoundError, StoreExistsError):
        pass  # it was finished
    check_whole(whole, place)


@pytest.mark.parametrize("number", trials(8, 0, 1, share=2))
def test_appended_store_is_always_entirely_old_or_new(whole: Whole, tmp_path: Path, number: int) -> None:
    generator = random.Random(number)
    place = tmp_path / "out.lmdb"
    plan_conversion(whole.root, place, 2)
    for part in range(2):
        convert_part(place, part)
    publish(place)
    with open_store(place) as reader:
        old = stored(reader, range(len(reader)))
        plan_conversion(whole.root, place, PARTS, append=True)
        for part in range(PARTS):
            convert_part(place, part)
        seen = set()
        for _ in range(6):
            publisher = run(lambda: publish(place))
            publisher.join(generator.uniform(0, 0.15))
            kill(publisher)
            publisher.close()
            with open_store(place) as store:
                assert store.verify() == store.manifest.digest
                assert stored(store, range(len(old))) == old
                assert len(store) in (len(old), 2 * len(old))
                seen.add(len(store))
        try:
            publish(place)
        except StoreNotFoundError:
            assert 2 * len(old) in seen  # it was finished
        assert stored(reader, range(len(old))) == old
        assert len([*reader.names()]) == len(old)
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest
        assert [record.image for record in store] == [record.image for record in store[: len(old)]] * 2
        assert [*store.events()] == [*store.events()][: store.manifest.events // 2] * 2
    assert len([*(place / "shards").iterdir()]) == 2 + PARTS
    table = ShardTable.read(place)
    files, named = {path.name for path in place.glob("index-*")}, {table.index_file, *table.older_files}
    assert len(named) == 3
    assert named <= files
    assert all(name in str(unnamed_warning(place)) for name in files - named)  # a kill may leave a file being written
    assert not Path(f"{place}.partial").exists()


def is_there(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_workers_of_a_killed_conversion_end(whole: Whole, tmp_path: Path) -> None:
    driver = run(lambda: convert(whole.root, tmp_path / "out.lmdb", shards=9, workers=2))
    deadline = time.monotonic() + WAIT_S
    workers: list[int] = []
    while len(workers) < 2:
        assert time.monotonic() < deadline
        started = descendants(driver.pid)
        workers = [pid for pid in started if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    kill(driver)
    while any(map(is_there, workers)):
        assert time.monotonic() < deadline, "the workers wait for a driver that no longer exists"
        time.sleep(0.01)
