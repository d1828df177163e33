"""A file beside one that is written without syncing: it tells whether the machine has been restarted since.

What a process has written is safe when the process is killed, synced or not; a crash of the machine may lose any part
of what was not synced.
"""

from __future__ import annotations

import os
from pathlib import Path

# No longer than the suffix of the file itself, so that a name that is short enough for that is for these.
SUFFIX, MAKING = ".nosync", ".nosync~"


def boot_id() -> str:
    """Name this start of the machine; empty where the system does not tell, as only Linux does."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - nothing else is wanted
            return file.read().strip()
    except OSError:
        return ""


class Unsynced:
    """The mark beside a file that is not synced.

    Args:
        path: Where the file will be when it is finished.
    """

    def __init__(self, path: Path) -> None:
        self._mark, self._making = (Path(f"{path}{suffix}") for suffix in (SUFFIX, MAKING))

    def set(self) -> None:
        """Mark the file as one of this start of the machine; lasts from here on."""
        if self.is_set() and not self.may_be_broken():
            return  # a mark that is being written anew would for a moment be of no start at all
        with self._making.open("w", encoding="ascii") as file:
            file.write(boot_id())
            file.flush()
            os.fsync(file.fileno())
        self._making.replace(self._mark)
        sync_folder(self._mark.parent)

    def is_set(self) -> bool:
        """Return whether the file is marked."""
        return self._mark.exists()

    def may_be_broken(self) -> bool:
        """Return whether the machine has been restarted since the file was marked."""
        return self.is_set() and self._mark.read_text("ascii", "replace") != boot_id()

    def clear(self) -> None:
        """Take the mark away: the file is synced, or gone."""
        self._mark.unlink(missing_ok=True)
        self._making.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
