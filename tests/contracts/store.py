"""What stores/base.py and stores/writer.py promise, sentence by sentence: tests that each backend's tests inherit."""

from __future__ import annotations

from tests.contracts.failing import FailingContract
from tests.contracts.locking import LockingContract
from tests.contracts.processes import ProcessesContract, read_in_child
from tests.contracts.reading import ReadingContract
from tests.contracts.records import (
    DIED,
    WAIT_S,
    documents_of,
    facts,
    make_records,
    small_records,
    write_one_by_one,
)
from tests.contracts.resuming import ResumingContract
from tests.contracts.threads import ThreadsContract
from tests.contracts.verifying import VerifyingContract
from tests.contracts.writing import WritingContract

__all__ = [
    "DIED",
    "WAIT_S",
    "StoreContract",
    "documents_of",
    "facts",
    "make_records",
    "read_in_child",
    "small_records",
    "write_one_by_one",
]


class StoreContract(
    ProcessesContract,
    ThreadsContract,
    ReadingContract,
    VerifyingContract,
    WritingContract,
    LockingContract,
    ResumingContract,
    FailingContract,
):
    """All contracts of a store and its writer."""
