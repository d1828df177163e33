"""The cache of query results is bounded and computes each result once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dbloader.ext.queries.lru import LRUCache
from tests.contracts.records import WAIT_S


def test_concurrent_equal_requests_compute_the_result_once() -> None:
    calls, begun, go_on = [], threading.Event(), threading.Event()

    def make() -> str:
        calls.append(1)
        begun.set()
        assert go_on.wait(WAIT_S)
        return "made"

    cache = LRUCache[str](100, len)
    with ThreadPoolExecutor(2) as executor:
        first = executor.submit(cache.get, "key", make)
        assert begun.wait(WAIT_S)
        second = executor.submit(cache.get, "key", make)
        go_on.set()
        assert (first.result(WAIT_S), second.result(WAIT_S)) == ("made", "made")
    assert len(calls) == 1


def test_cache_limits_the_size_of_results_and_keeps_no_errors() -> None:
    cache = LRUCache[str](10, len)
    cache.get("a", lambda: "aaaa")
    cache.get("b", lambda: "bbbb")
    cache.get("a", lambda: "not made again")
    cache.get("c", lambda: "cccc")  # b is the least recently used result
    assert cache.get("a", lambda: "again") == "aaaa"
    assert cache.get("b", lambda: "again") == "again"
    with pytest.raises(ZeroDivisionError):
        cache.get("error", lambda: str(1 // 0))
    assert cache.get("error", lambda: "fine") == "fine"
    assert cache.get("large", lambda: "x" * 50) == "x" * 50
