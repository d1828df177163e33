"""Run the tests that any MongoDB server must pass on the one of $DBLOADER_TEST_MONGO_URI; print a table.

    scripts/mongo check mongodb://host:27017/

The exit status is 1 if a test failed, and 2 if the server cannot be used.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, defaultdict

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

TESTS = (
    "tests/stores/mongo/test_store.py",
    "tests/stores/mongo/test_any_server.py",
    "tests/crash/test_mongo.py::test_a_conversion_killed_at_any_moment_can_be_resumed",
)
KINDS = ("passed", "failed", "skipped")


class Table:
    """A plugin of pytest that counts what came of the tests of each kind."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._rows: dict[str, str] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note in which row a test is counted."""
        name = item.name.partition("[")[0]
        test_class = getattr(item.parent, "cls", None) or object
        classes = [one for one in test_class.__mro__ if name in vars(one)]
        contract = re.sub("(Contract)?$", "", classes[-1].__name__).lower() if classes else ""
        kills = "kills of converters" if "crash" in item.nodeid else "indexes and shards"
        self._rows[item.nodeid] = f"store contract: {contract}" if contract else kills

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: at its call, or where it failed or was skipped before or after that."""
        if report.when == "call" or report.outcome != "passed":
            self.counts[self._rows[report.nodeid]][report.outcome] += 1


def main() -> int:
    """Run the tests and print the table."""
    uri = os.environ["DBLOADER_TEST_MONGO_URI"]
    try:
        client: MongoClient[dict[str, object]]
        with MongoClient(uri, serverSelectionTimeoutMS=10_000) as client:
            hello, version = client.admin.command("hello"), client.server_info()["version"]
    except (PyMongoError, ValueError) as error:
        reason = str(error).partition(" (configured")[0]
        sys.stderr.write(f"scripts/mongo: this server cannot be used: {reason:.300}\n")
        return 2
    table = Table()
    status = pytest.main([*TESTS, "-q", "--tb=short", "-p", "no:cacheprovider", "-rf"], plugins=[table])
    kind = f"replica set of {len(hello['hosts'])}" if "hosts" in hello else "standalone server"
    kind = "sharded cluster" if hello.get("msg") == "isdbgrid" else kind
    lines = [f"{f'MongoDB {version}, {kind}':32}" + "".join(f"{name:>9}" for name in KINDS)]
    for row, counts in sorted(table.counts.items()):
        lines.append(f"{row:32}" + "".join(f"{counts[name]:9}" for name in KINDS))
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
    return int(status != 0)


if __name__ == "__main__":
    sys.exit(main())
