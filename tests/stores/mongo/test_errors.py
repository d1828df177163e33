"""How errors of the driver are classified."""

import pytest
from pymongo.errors import BulkWriteError, OperationFailure

from dbloader.errors import StoreError, StoreFullError
from dbloader.stores.mongo.errors import has_only_duplicates, is_transient, translate
from dbloader.stores.mongo.uri import parse

PLACE = parse("mongodb://host/db.a")


@pytest.mark.parametrize(
    ("text", "code", "kind"),
    [
        ("namespace not found", 26, StoreError),
        ("28: No space left on device", 8000, StoreFullError),
        ("you are over your space quota, using 513 MB of 512 MB", 8000, StoreFullError),
    ],
)
def test_full_disk_is_recognized(text: str, code: int, kind: type[Exception]) -> None:
    assert type(translate(OperationFailure(text, code), PLACE)) is kind


@pytest.mark.parametrize("code", [6, 64, 89, 91, 133, 134, 150, 175, 189, 202, 262, 9001, 10107, 11600, 11602, 13388])
def test_error_code_of_a_failover_is_temporary(code: int) -> None:
    assert is_transient(BulkWriteError({"writeErrors": [{"code": code}]}))


@pytest.mark.parametrize(
    ("codes", "transient", "duplicates"),
    [((11000,), False, True), ((91,), True, False), ((11000, 189), True, False), ((91, 8), False, False)],
)
def test_bulk_write_is_temporary_if_all_its_failures_are(
    codes: tuple[int, ...], transient: bool, duplicates: bool
) -> None:
    error = BulkWriteError({"writeErrors": [{"code": code, "errmsg": "the whole record"} for code in codes]})
    assert (is_transient(error), has_only_duplicates(error)) == (transient, duplicates)
    late = BulkWriteError({"writeErrors": [], "writeConcernErrors": [{"code": codes[-1]}]})
    assert not has_only_duplicates(late)
