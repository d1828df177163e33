"""Find calls that make the host wait for a CUDA device."""

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def synchronizing_is_an_error() -> Iterator[None]:
    """Let calls that wait for the device raise RuntimeError, in all threads of this process.

    At its first use, the mode warns that it does not detect all such calls. If warnings are errors, the warning is
    raised after the mode has changed. So even then the mode must be reset.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature", UserWarning)
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
