"""Tests that any server must pass besides the store contract; ``scripts/mongo check`` runs them on a user's server."""

from __future__ import annotations

import pytest

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
