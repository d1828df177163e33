"""Tests that any server must pass besides the store contract; ``scripts/mongo check`` runs them on a user's server."""

from __future__ import annotations

import pytest

from dbloader.stores.mongo.schema import COLUMNS_INDEX
from dbloader.stores.mongo.store import MongoStore
from tests.contracts.records import make_records, write
from tests.support.mongo import Server, records_of

RECORDS = make_records(200)


def test_every_shard_of_a_cluster_gets_records(mongo_server: Server, mongo_uri: str) -> None:
    write(mongo_uri, RECORDS)
    with mongo_server.client() as client:
        if not client.is_mongos:
            pytest.skip("the server is not the router of a sharded cluster")
        shards = client.admin.command("listShards")["shards"]
        counts = [found["count"] for found in records_of(client, mongo_uri).aggregate([{"$collStats": {"count": {}}}])]
    assert len(counts) == len(shards)
    assert sum(counts) == len(RECORDS)
    assert min(counts) > 0


def test_covered_query_reads_no_documents(mongo_server: Server, mongo_uri: str) -> None:
    write(mongo_uri, RECORDS)
    with mongo_server.client() as client:
        records = records_of(client, mongo_uri)
        columns = records.find({"_id": {"$gte": 0}}, {"_id": 1, "crc32": 1}, hint=COLUMNS_INDEX)
        labels = records.find({"label": 1, "_id": {"$gte": 0}}, {"_id": 1})
        examined = [query.explain()["executionStats"]["totalDocsExamined"] for query in (columns, labels)]
    assert examined == [0, 0]
    with MongoStore(mongo_uri) as store:
        assert len(store.matching({"label": 1})) == sum(record.label == 1 for record in RECORDS)
