"""LMDBDataset and MongoDataset keep the contract of masks, boxes and other fields."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dbloader import LMDBDataset, MongoDataset
from tests.contracts.fields import FieldsContract, make_fields
from tests.support.mongo import Server


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_fields(tmp_path_factory.mktemp("stores") / "fields.lmdb")


@pytest.fixture(scope="module")
def collection(mongo_server: Server) -> Iterator[Any]:
    name = f"dbloader_test_{uuid.uuid4().hex[:12]}"
    yield make_fields(mongo_server.place(name))
    mongo_server.drop(name)


class TestFieldsOfLMDB(FieldsContract):
    kind = LMDBDataset

    @pytest.fixture
    def stored(self, file: Path) -> Path:
        return file

    @pytest.fixture
    def fresh(self, tmp_path: Path) -> Path:
        return tmp_path / "fresh.lmdb"


# Python >= 3.12 warns about every fork of a process with threads, and every MongoDB client has threads.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
class TestFieldsOfMongo(FieldsContract):
    kind = MongoDataset

    @pytest.fixture
    def stored(self, collection: str) -> str:
        return collection

    @pytest.fixture
    def fresh(self, mongo_uri: str) -> str:
        return mongo_uri
