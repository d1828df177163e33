"""Training reads object storage through a cache. Only the fetcher uses obstore."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, get_worker_info

from dbloader import LMDBDataset
from dbloader.errors import NotAStoreError, OptionError, PlaceError, StoreAccessError, StoreNotFoundError
from dbloader.ext.caching.folder import read_stats
from dbloader.ext.caching.store import CachedStore
from dbloader.ext.copying.copy_store import copy_store
from tests.support.caching import image_of, images_of, make_shards, wait_until_ended
from tests.support.http_proxy import SLOW_DOWN, HTTPProxy
from tests.support.object_store import ObjectStore, Outside, read_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("object_store"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.fixture
def place(object_store: ObjectStore, outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of six shards and 24 records, with credentials in the environment."""
    make_shards(tmp_path / "origin.lmdb")
    place = object_store.place("train.lmdb")
    outside(copy_store, tmp_path / "origin.lmdb", place)
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    return place


def image_and_modules(image: bytes) -> tuple[bytes, bool, bool]:
    return image, "obstore" in sys.modules, get_worker_info() is not None


def test_workers_read_all_images_without_obstore(place: str, tmp_path: Path) -> None:
    train = LMDBDataset(place, cache=tmp_path / "cache", decode=None, transform=image_and_modules)
    loader = DataLoader(train, batch_size=None, num_workers=2, multiprocessing_context="fork")
    samples = [image for image, _ in loader]
    assert [image for image, _, _ in samples] == [image_of(index) for index in range(24)]
    assert {loaded for _, loaded, _ in samples} == {False}
    assert {in_worker for _, _, in_worker in samples} == {True}
    assert "obstore" not in sys.modules
    assert read_stats(tmp_path / "cache").fetches == 6
    train.close()
    wait_until_ended(tmp_path / "cache")


def test_shards_are_fetched_once_in_requests_of_8_mib(
    object_store: ObjectStore, outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, place = make_shards(tmp_path / "origin.lmdb", (5, 6), size=4 * 2**20), object_store.place("train.lmdb")
    outside(copy_store, tmp_path / "origin.lmdb", place)
    shards = {f"shards/{shard.name}": shard.nbytes for shard in outside(read_table, place).shards}
    requests, cache = Counter[tuple[str, str]](), tmp_path / "cache"

    def decide(method: str, path: str) -> None:
        requests[method, path.partition("/train.lmdb/")[2]] += 1

    with HTTPProxy(object_store.port, decide) as proxy:
        for name, value in object_store.environment(endpoint=proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        with CachedStore(place, cache) as store:
            assert images_of(store, range(11)) == images
        wait_until_ended(cache)
        fetched = requests.copy()
        with CachedStore(place, cache) as store:
            assert images_of(store, range(11)) == images
        wait_until_ended(cache)
    sent = {path.partition("/train.lmdb/")[2]: nbytes for path, nbytes in proxy.sent.items()}
    for key, nbytes in shards.items():
        assert 20 * 2**20 < nbytes <= sent[key] <= 1.05 * nbytes
        assert requests["GET", key] <= math.ceil(nbytes / (8 * 2**20))
        assert requests["HEAD", key] <= 1
    others = [(method, key) for method, key in fetched.elements() if key not in shards]
    assert len(others) <= 3, others  # the manifest and the index
    assert [*(requests - fetched).elements()] == [("GET", "manifest.bson")]  # the second reader finds the shards


def test_fetcher_repeats_refused_requests(
    place: str, object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def decide(method: str, path: str) -> tuple[int, str] | None:
        if "/00003" in path and len(refused) < 3:
            refused.append(method)
            return SLOW_DOWN
        return None

    with HTTPProxy(object_store.port, decide) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with CachedStore(place, tmp_path / "cache") as store:
            assert store.read([12])[0].image == image_of(12)
        wait_until_ended(tmp_path / "cache")
    stats = read_stats(tmp_path / "cache")
    assert (stats.fetches, stats.last_error, len(refused)) == (1, "", 3)


def test_missing_shard_of_a_replaced_store_is_an_error_that_names_the_remedy(
    place: str, outside: Outside, tmp_path: Path
) -> None:
    with CachedStore(place, tmp_path / "cache") as store:
        assert images_of(store, [0]) == [image_of(0)]
        make_shards(tmp_path / "new.lmdb", base=100)
        outside(copy_store, tmp_path / "new.lmdb", place, overwrite=True)
        with pytest.raises(
            StoreNotFoundError, match=r"00005-.*\.lmdb does not exist: if the store was replaced, open it"
        ):
            store.read([20])
    wait_until_ended(tmp_path / "cache")


def test_error_says_why_a_store_in_object_storage_cannot_be_opened(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(PlaceError, match=r"is in object storage, .*cache=FOLDER"):
        LMDBDataset(place)
    with pytest.raises(OptionError, match=r"cache_bytes must be at least .*, the size of the largest shard, got 1000"):
        LMDBDataset(place, cache=cache, cache_bytes=1000)
    wait_until_ended(cache)
    with pytest.raises(NotAStoreError, match=r"has no store: there is no manifest\.bson"):
        LMDBDataset(f"{place}.none", cache=tmp_path / "none")
    wait_until_ended(tmp_path / "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    with pytest.raises(StoreAccessError, match=r"access is refused \(403, SignatureDoesNotMatch\)") as caught:
        LMDBDataset(place, cache=tmp_path / "wrong")
    assert "hidden" not in str(caught.value)
    wait_until_ended(tmp_path / "wrong")
