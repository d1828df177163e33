"""Stores on a sharded cluster, through a stand-in for its router. This tests dbloader, not MongoDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dbloader import convert
from dbloader.stores.mongo.store import MongoStore
from tests.contracts.mongo import MongoBackend
from tests.contracts.reading import ReadingContract
from tests.contracts.records import check_is, check_resumes, documents_of, make_records, stored, write, write_partial
from tests.stores.mongo.stand_in_router import StandInRouter
from tests.support.images import plant_photos
from tests.support.mongo import records_of
from tests.support.servers import needing_a_server

UNAUTHORIZED = 13
RECORDS = make_records(60)

pytestmark = pytest.mark.xdist_group("router")  # the server and the router start only once


@pytest.fixture(scope="session")
def session_router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInRouter]:
    """Only fixtures use this one. Tests use `router`, which undoes their changes."""
    with needing_a_server(), StandInRouter(tmp_path_factory.mktemp("router")) as servers:
        yield servers


@pytest.fixture
def router(session_router: StandInRouter) -> Iterator[StandInRouter]:
    """A stand-in for the router of a sharded cluster, which the test may use in any way."""
    yield session_router
    session_router.restore()


@pytest.fixture
def router_uri(router: StandInRouter) -> Iterator[str]:
    """The place of a store behind `router`, in a database that is dropped at the end."""
    with router.fresh_place() as place:
        yield place


class TestThroughTheStandInRouter(MongoBackend, ReadingContract):
    @pytest.fixture
    def mongo_uri(self, router_uri: str) -> str:
        return router_uri


def is_sharded(router: StandInRouter, place: str) -> bool:
    """Return whether the records of a store are sharded: only the stand-in makes a hashed index."""
    with router.client() as client:
        return "_id_hashed" in records_of(client, place).index_information()


def test_stand_in_router_shuffles_and_doubles_documents(router: StandInRouter, router_uri: str) -> None:
    write(router_uri, RECORDS)
    with router.client() as client:
        records = records_of(client, router_uri)
        keys = [document["_id"] for document in records.find({}, {"_id": 1})]
        assert sorted(keys) == list(range(60))
        assert keys != sorted(keys)
        with router.behaving(double=True):
            assert len(list(records.find({}, {"_id": 1}))) == 120


def test_conversion_shards_its_records(
    router: StandInRouter, router_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the report is written to the working directory
    root = plant_photos(tmp_path / "images", 40, width=32, height=24)
    file, cluster = convert(root, tmp_path / "train.lmdb"), convert(root, router_uri)
    assert (cluster.digest, cluster.warnings) == (file.digest, ())
    assert is_sharded(router, router_uri)
    with MongoStore(router_uri) as store:
        assert store.verify() == file.digest


def test_missing_right_to_shard_warns_and_uses_one_shard(router: StandInRouter, router_uri: str) -> None:
    message = "all new records go to one shard .*shardCollection fails.* enableSharding or clusterManager"
    with router.behaving(code=UNAUTHORIZED), pytest.warns(UserWarning, match=message):
        write(router_uri, RECORDS)
    assert not is_sharded(router, router_uri)
    check_is(router_uri, RECORDS)


@pytest.mark.parametrize("sharded", [True, False])
def test_resumed_writer_does_not_shard(router: StandInRouter, router_uri: str, sharded: bool) -> None:
    if sharded:
        write_partial(router_uri, RECORDS[:20])
    else:
        with router.behaving(code=UNAUTHORIZED), pytest.warns(UserWarning, match="one shard"):
            write_partial(router_uri, RECORDS[:20])
    check_resumes(router_uri, RECORDS, {20})
    assert is_sharded(router, router_uri) == sharded


def test_records_that_the_router_returns_twice_count_once(router: StandInRouter, router_uri: str) -> None:
    write(router_uri, RECORDS)
    with router.behaving(double=True), MongoStore(router_uri) as store:
        assert stored(store, range(60)) == documents_of(RECORDS)
        assert [record.index for record in store.read([7, 3, 7])] == [7, 3, 7]
        assert store.matching({"label": 1}).tolist() == [n for n in range(60) if RECORDS[n].label == 1]
