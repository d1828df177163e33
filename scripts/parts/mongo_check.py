"""Run the tests that any MongoDB server must pass on the server at $DBLOADER_TEST_MONGO_URI.

    scripts/mongo check mongodb://host:27017/

The exit status is 1 if a test failed, and 2 if the server cannot be used.
"""

from __future__ import annotations

import os
import secrets
import sys
import warnings

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

TESTS = (
    "tests/stores/mongo/test_store.py",
    "tests/stores/mongo/test_any_server.py",
    "tests/crash/test_mongo.py::test_conversion_killed_at_any_moment_is_resumed",
)


def main() -> int:
    """Print the kind of the server, and run the tests."""
    warnings.simplefilter("error", UserWarning)  # the driver warns of a wrong option in the connection string
    try:
        client: MongoClient[dict[str, object]]
        with MongoClient(os.environ["DBLOADER_TEST_MONGO_URI"], serverSelectionTimeoutMS=10_000) as client:
            hello, version = client.admin.command("hello"), client.server_info()["version"]
            # Check that the user may do what the tests do.
            name = f"dbloader_test_{secrets.token_hex(4)}"
            client[name].create_collection("check")
            client.drop_database(name)
    except (PyMongoError, ValueError, UserWarning) as error:
        reason = str(error).partition(" (configured")[0].partition(", full error")[0]
        sys.stderr.write(f"scripts/mongo: this server cannot be used: {reason:.300}\n")
        return 2
    kind = f"a replica set of {len(hello['hosts'])}" if "hosts" in hello else "a standalone server"
    kind = "a sharded cluster" if hello.get("msg") == "isdbgrid" else kind
    sys.stdout.write(f"MongoDB {version}, {kind}; a test that failed or could not be run is named at the end\n")
    sys.stdout.flush()
    return int(pytest.main([*TESTS, "-m", "", "-q", "--tb=short", "-p", "no:cacheprovider", "-rfEs"]) != 0)


if __name__ == "__main__":
    sys.exit(main())
