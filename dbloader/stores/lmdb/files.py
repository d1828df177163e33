"""Warn of files that the manifest of a sharded store does not name, and write files that appear only when complete."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from dbloader._describe import counted, size
from dbloader.errors import StoreError
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def unnamed_warning(target: Path) -> list[str]:
    """Return [warning] if a store's folder contains files that its manifest does not name; otherwise []."""
    with suppress(OSError, StoreError):  # a failed search for such files must not stop the program
        table = ShardTable.read(target)
        patterns = f"{SHARD_FOLDER}/*", "index-*", f"{MANIFEST_FILE}.*"
        found = [path for pattern in patterns for path in sorted(target.glob(pattern))]
        named = {target / name for name in (*table.files, *table.older_files)}
        if unnamed := [path for path in found if path not in named]:
            nbytes = size(sum(path.stat().st_size for path in unnamed))
            what = f"{counted(len(unnamed), 'file')} ({nbytes}) that its manifest does not name"
            names = [str(path.relative_to(target)) for path in unnamed[:5]]
            if len(unnamed) > 5:
                names.append("…")
            return [
                f"{target} has {what}: {', '.join(names)}; a killed process has probably made these files: if no other "
                "process is publishing there now, remove them"
            ]
    return []


def copy_durably(path: Path, to: Path) -> None:
    """Copy a file. The copy gets its name when it is complete and on the disk."""
    with path.open("rb") as source, durable(to) as copy:
        shutil.copyfileobj(source, copy, 2**20)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file. The file gets its name when it is complete and on the disk."""
    with durable(path) as file:
        file.write(data)


@contextmanager
def durable(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file with a temporary name. After the block, sync the file to the disk, and rename it to ``path``."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
