"""`dbloader cache` shows, checks, fills and clears a cache."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dbloader.ext.caching.store import CachedStore
from tests.support.caching import IMAGES, images_of, make_shards, shards_in, wait_until_ended
from tests.support.images import as_nobody
from tests.support.shell import Shell, check_error

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def facts(shell: Shell, *arguments: Any) -> dict[str, Any]:
    outcome = shell("cache", *arguments, "--json")
    assert outcome.stderr == ""
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def test_cache_in_use_is_described_and_not_cleared(shell: Shell, origin: Path, cache: Path) -> None:
    with CachedStore(origin, cache) as store:
        store.read([0, 8])
        outcome = shell("cache", cache)
        assert (outcome.status, outcome.stderr) == (0, "")
        assert outcome.stdout.startswith(f"{cache}: cache of {origin}\n  shards      2 of 6, ")
        assert "  last use    now\n  readers     1\n  damaged     0 shards, fetched again\n" in outcome.stdout
        check_error(shell("cache", cache, "--clear"), "is used by 1 processes, so nothing was removed")
        assert images_of(store) == IMAGES
    wait_until_ended(cache)
    assert re.search("last use    [0-9]+ seconds? ago\n  readers     0\n", shell("cache", cache).stdout)


def test_filled_cache_is_read_without_its_origin(shell: Shell, origin: Path, cache: Path, tmp_path: Path) -> None:
    found = facts(shell, cache, "--fill", origin)
    assert (found["shards"], found["of"], found["stats"]["fetches"]) == (6, 6, 6)
    wait_until_ended(cache)
    for file in (origin / "shards").iterdir():
        file.unlink()
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES


def test_fill_stops_at_the_limit(shell: Shell, origin: Path, cache: Path) -> None:
    nbytes = (origin / "shards" / "00000.lmdb").stat().st_size
    assert facts(shell, cache, "--fill", origin, "--cache-bytes", 3 * nbytes)["shards"] == 3
    assert shards_in(cache) == ["00000.lmdb", "00001.lmdb", "00002.lmdb"]


def test_fill_uses_a_cache_in_use_only_with_the_same_limit(shell: Shell, origin: Path, cache: Path) -> None:
    limit = 10 * (origin / "shards" / "00000.lmdb").stat().st_size
    with CachedStore(origin, cache, max_bytes=limit) as store:
        store.read([0])
        assert facts(shell, cache, "--fill", origin, "--cache-bytes", limit)["shards"] == 6
        check_error(shell("cache", cache, "--fill", origin), f"is in use with cache_bytes={limit}")


def test_verify_removes_damaged_files_and_readers_fetch_them(shell: Shell, origin: Path, cache: Path) -> None:
    facts(shell, cache, "--fill", origin)
    wait_until_ended(cache)
    assert shell("cache", cache, "--verify").status == 0
    (index,) = cache.glob("index-*.lmdb")
    for file in (cache / "shards" / "00002.lmdb", index):
        data = bytearray(file.read_bytes())
        data[-9] ^= 4
        file.write_bytes(data)
    outcome = shell("cache", cache, "--verify")
    assert (outcome.status, outcome.stderr) == (1, "")
    assert outcome.stdout.startswith(
        f"{cache}: 00002.lmdb was damaged, and was removed\n{cache}: {index.name} was damaged, and was removed\n"
    )
    assert shards_in(cache) == [f"0000{number}.lmdb" for number in (0, 1, 3, 4, 5)]
    with CachedStore(origin, cache) as store:
        assert images_of(store) == IMAGES
        assert store.column("label").tolist() == [index % 3 for index in range(24)]
    wait_until_ended(cache)
    assert facts(shell, cache, "--verify", "--fill", origin)["damaged"] == []


def test_cleared_cache_is_filled_from_another_store(shell: Shell, origin: Path, cache: Path, tmp_path: Path) -> None:
    found = facts(shell, cache, "--fill", origin)
    wait_until_ended(cache)
    outcome = shell("cache", cache, "--clear")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith(f"{cache}: {found['nbytes'] / 1000:.1f} kB were removed\n")
    assert shards_in(cache) == []
    make_shards(tmp_path / "other.lmdb", base=100)
    assert facts(shell, cache, "--fill", tmp_path / "other.lmdb")["origin"] == str(tmp_path / "other.lmdb")


def test_cache_is_shown_to_a_user_who_cannot_write_it(shell: Shell, origin: Path, open_path: Path) -> None:
    cache = open_path / "cache"
    facts(shell, cache, "--fill", origin)
    wait_until_ended(cache)
    for path in (cache / "fetcher.lock", cache / "stats.json", cache):
        path.chmod(0o555)
    with as_nobody():
        assert facts(shell, cache)["shards"] == 6
    cache.chmod(0o755)


def test_folder_that_is_no_cache_and_wrong_options_are_refused(shell: Shell, origin: Path, tmp_path: Path) -> None:
    for option in ((), ("--verify",), ("--clear",)):
        check_error(shell("cache", origin, *option), f"{origin} is not a cache: it has no cache.json")
        check_error(shell("cache", tmp_path / "none", *option), "none is not a cache: it has no cache.json")
    check_error(shell("cache", origin, "--clear", "--verify"), "--clear cannot be combined with --verify or --fill")
    check_error(shell("cache", origin, "--cache-bytes", "5"), "--cache-bytes needs --fill")
    assert (origin / "manifest.bson").exists()
