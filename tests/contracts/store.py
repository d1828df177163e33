"""The promises of stores/base.py and stores/writer.py. Each backend's tests inherit this class."""

from __future__ import annotations

from tests.contracts.processes import ProcessesContract
from tests.contracts.reading import ReadingContract
from tests.contracts.writing import WritingContract


class StoreContract(ProcessesContract, ReadingContract, WritingContract):
    """All contracts of a store and its writer."""
