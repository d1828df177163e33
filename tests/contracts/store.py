"""What stores/base.py and stores/writer.py promise, sentence by sentence: tests that each backend's tests inherit."""

from __future__ import annotations

from tests.contracts.failing import FailingContract
from tests.contracts.locking import LockingContract
from tests.contracts.processes import ProcessesContract
from tests.contracts.reading import ReadingContract
from tests.contracts.resuming import ResumingContract
from tests.contracts.threads import ThreadsContract
from tests.contracts.verifying import VerifyingContract
from tests.contracts.writing import WritingContract


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
