"""Errors of LMDB name what the user can do."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import lmdb

from dbloader import open_store
from dbloader.stores.lmdb.errors import translate
from dbloader.stores.open import create_store
from tests.support.children import from_child


def test_file_larger_than_the_limit_of_addresses_is_an_error_that_names_ulimit(tmp_path: Path) -> None:
    place = tmp_path / "o.lmdb"
    with lmdb.open(str(place), subdir=False, map_size=2**28) as file, file.begin(write=True) as change:
        change.put(b"key", bytes(2**27))

    def use() -> int:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))
        with open_store(place) as store:
            return len(store)

    message = str(from_child(use))
    assert message.startswith(f"{place} cannot be read: ")
    assert "Cannot allocate memory" in message
    assert "ulimit -v" in message


def test_file_system_without_maps_is_an_error_that_names_a_local_disk() -> None:
    text = f"/mnt/x.lmdb: {os.strerror(errno.ENODEV)}"
    message = str(translate(lmdb.Error(text), "/mnt/x.lmdb"))
    assert message == f"/mnt/x.lmdb: this file system cannot map files ({text}): convert to a local disk"


def test_writer_without_free_descriptors_is_an_error_that_names_ulimit(tmp_path: Path) -> None:
    def use() -> None:
        writer = create_store(tmp_path / "o.lmdb")
        last = os.open(os.devnull, os.O_RDONLY)
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, last + 1))
        with writer:
            pass

    message = str(from_child(use))
    assert message.startswith(str(tmp_path / "o.lmdb"))
    assert message.endswith(": Too many open files: allow this process more open files (ulimit -n)")
