"""How errors of the driver are classified."""

import pytest
from pymongo.errors import BulkWriteError, OperationFailure

from dbloader.errors import StoreError, StoreFullError
from dbloader.stores.mongo.errors import has_only_duplicates, is_transient, translate
from dbloader.stores.mongo.uri import parse

# Codes of a restart, an election, a moving shard, and a write that is not on a majority yet.
TEMPORARY = (6, 46, 64, 89, 91, 133, 134, 150, 175, 189, 202, 262, 9001, 10107, 11600, 11602, 13388)


@pytest.mark.parametrize(
    ("text", "code", "kind"),
    [
        ("namespace not found", 26, StoreError),
        ("28: No space left on device", 8000, StoreFullError),
        ("you are over your space quota, using 513 MB of 512 MB", 8000, StoreFullError),
    ],
)
def test_error_about_a_full_disk_is_recognized(text: str, code: int, kind: type[Exception]) -> None:
    assert type(translate(OperationFailure(text, code), parse("mongodb://host/db.a"))) is kind


@pytest.mark.parametrize(
    ("codes", "transient", "duplicates"),
    [
        *(((code,), True, False) for code in TEMPORARY),
        ((11000,), False, True),
        ((11000, 189), True, False),
        ((91, 8), False, False),
    ],
)
def test_bulk_write_error_is_temporary_only_if_all_its_failures_are(
    codes: tuple[int, ...], transient: bool, duplicates: bool
) -> None:
    error = BulkWriteError({"writeErrors": [{"code": code, "errmsg": "the whole record"} for code in codes]})
    assert (is_transient(error), has_only_duplicates(error)) == (transient, duplicates)
    if len(codes) == 1:
        assert is_transient(OperationFailure("text", codes[0])) == transient
    late = BulkWriteError({"writeErrors": [], "writeConcernErrors": [{"code": codes[-1]}]})
    assert not has_only_duplicates(late)
