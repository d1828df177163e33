"""Spread the records of a new store over the shards of a sharded cluster, before the first one is written."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from pymongo.errors import OperationFailure

from dbloader.stores.mongo.errors import is_transient, reason

if TYPE_CHECKING:
    from pymongo.collection import Collection

    from dbloader.stores.mongo.connection import Connection


def shard_records(connection: Connection, records: Collection[Any]) -> None:
    """Shard an empty collection by a hashed ``_id``, if the server is a router of a sharded cluster.

    The server makes as many chunks as it wants for each shard: two up to version 7.1, then one. It does so only for an
    empty collection. Records that are there already would have to be moved.

    Warn if the server refuses: all records go to one shard then. May be called again.
    """
    if not connection.client.is_mongos:
        return
    refused = None
    # The first command is needed before version 6.0. A user may have the right to the second one only, which decides.
    for command in (
        {"enableSharding": records.database.name},
        {"shardCollection": records.full_name, "key": {"_id": "hashed"}},
    ):
        try:
            connection.client.admin.command(command)
            refused = None
        except OperationFailure as error:
            if is_transient(error):
                raise
            refused = error
    if refused is not None:
        warnings.warn(
            f"{connection.place.redacted}: the new records cannot be spread over the shards of the cluster "
            f"({reason(refused)}); they all go to one shard, unless you begin again as a user "
            "with the role enableSharding or clusterManager",
            UserWarning,
            stacklevel=2,
        )
