"""Run PyTorch's tests of DataLoader with ``PrefetchLoader(DataLoader(...))`` in place of the DataLoader.

    python scripts/parts/dataloader_tests.py CHECKOUT [TEST ...]

CHECKOUT is a checkout of torchdata, or of PyTorch of about the installed version. The tests are not part of dbloader.
Prints each test that fails, with the reason if it is known, and exits with 1 if a reason is not known.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import sys
import unittest
from pathlib import Path
from typing import Any, TypeVar

import torch.utils.data

from dbloader import PrefetchLoader

FILES = ("test/stateful_dataloader/test_dataloader.py", "test/test_dataloader.py")
# Reasons why a test fails, by the name of the test.
KNOWN = {
    "*.test_error": "an error ends the iterator, so a loop that continues after errors cannot lose batches unseen",
    "*.test_error_workers": "as test_error, with worker processes",
    "*.test_shuffler_iterdatapipe": "reads dl._iterator: private names are not taken from the DataLoader",
    "*.test_bulk_loading_nobatch": "reads dl._auto_collation: private names are not taken from the DataLoader",
    "*.test_partial_workers": "reads iterator._workers: private names are not taken from the DataLoader",
    "*.test_get_worker_info": "reads iterator._workers: private names are not taken from the DataLoader",
    "*.test_proper_exit": "reads iterator._workers: private names are not taken from the DataLoader",
    "*.test_iterable_style_dataset": "torch warns when a batch is made, which is before the training takes the batch",
    "*.test_out_of_order_index_ds": "with in_order=False, the order depends on when batches are asked for: here, ahead",
}

_DataLoader = torch.utils.data.DataLoader


T = TypeVar("T")


class Prefetched(PrefetchLoader[T]):
    """A PrefetchLoader with the arguments of a DataLoader."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(_DataLoader(*args, **options))


def replace() -> None:
    """Replace the class that the tests import, also in the processes that the tests spawn."""
    with contextlib.suppress(ImportError):
        module = importlib.import_module("torchdata.stateful_dataloader")
        vars(module)["StatefulDataLoader"] = Prefetched
    vars(torch.utils.data)["DataLoader"] = Prefetched


replace()


def main(checkout: str, *names: str) -> int:
    file = next((file for name in FILES if (file := Path(checkout, name)).exists()), None)
    if file is None:
        print(f"{checkout} has no {' or '.join(FILES)}", file=sys.stderr)
        return 2
    sys.path.insert(0, str(file.parent))
    module = importlib.import_module(file.stem)
    vars(module).pop("load_tests", None)  # refuses tests that are not in the main program
    vars(module)["JOIN_TIMEOUT"] = 300.0  # seconds; each process imports torch, on a machine that may be busy
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{name}*" for name in names] or None
    suite = loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = {test.id().partition(".")[2]: text for test, text in [*result.failures, *result.errors]}
    unknown = 0
    for test in sorted(failed):
        reason = next((why for pattern, why in KNOWN.items() if fnmatch.fnmatch(test, pattern)), None)
        unknown += reason is None
        print(f"differs  {test}: {reason or 'UNKNOWN REASON'}")
    print(
        f"{result.testsRun - len(failed) - len(result.skipped)} of {result.testsRun - len(result.skipped)} tests pass"
    )
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
