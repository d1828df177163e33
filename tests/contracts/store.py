"""What stores/base.py and stores/writer.py promise, sentence by sentence. Each backend's tests inherit it."""

from __future__ import annotations

from tests.contracts.processes import ProcessesContract
from tests.contracts.reading import ReadingContract
from tests.contracts.writing import WritingContract


class StoreContract(ProcessesContract, ReadingContract, WritingContract):
    """All contracts of a store and its writer."""
