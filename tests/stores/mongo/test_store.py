"""MongoStore and MongoWriter keep the promises of every store."""

from __future__ import annotations

from tests.contracts.mongo import MongoBackend
from tests.contracts.store import StoreContract


class TestMongoStore(MongoBackend, StoreContract):
    pass
