"""MongoStore and MongoWriter: the contract, and what is a server's own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from dbloader.stores.mongo.store import MongoStore
from tests.contracts.mongo import MongoBackend
from tests.contracts.store import StoreContract

if TYPE_CHECKING:
    from pathlib import Path


class TestMongoStore(MongoBackend, StoreContract):
    @pytest.mark.slow
    @override
    def test_one_thread_may_close_a_store_while_others_read(self, tmp_path: Path) -> None:
        # Closed without a pause, every read would make a client anew: 2,400 of them, in over 20 s.
        close = MongoStore.close

        def close_and_pause(store: MongoStore) -> None:
            close(store)
            time.sleep(0.01)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MongoStore, "close", close_and_pause)
            super().test_one_thread_may_close_a_store_while_others_read(tmp_path)
