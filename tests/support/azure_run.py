"""Make, replace, copy and read a store in Azurite, Microsoft's emulator of Azure Storage.

``scripts/engines azure`` runs this program.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from PIL import Image

from dbloader import convert, copy_store, open_store
from dbloader.errors import StoreExistsError
from dbloader.ext.caching.store import CachedStore
from dbloader.ext.parts.part import convert_part
from dbloader.ext.parts.publish import publish
from dbloader.ext.remote.bucket import Bucket
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE
from tests.support.object_store import HOST, free_ports
from tests.support.parts import plan_conversion

# The account that Azurite's documentation names.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURITE, CONTAINER, API = "azurite-blob", "images", "2021-08-06"
PARTS = 3


@contextmanager
def azurite() -> Iterator[None]:
    """Run Azurite with one container, and set the environment variables of its clients."""
    (port,) = free_ports(1)
    os.environ |= {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": f"http://{HOST}:{port}"}
    options = ["--inMemoryPersistence", "--disableTelemetry", "--blobHost", HOST, "--blobPort", str(port)]
    with subprocess.Popen([AZURITE, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            while "successfully listens" not in (line := process.stdout.readline()):
                assert line, "Azurite does not start"
            make_container(port)
            yield
        finally:
            process.kill()


def make_container(port: int) -> None:
    """Make the container, with a request that is signed as Azure's documentation describes ("Shared Key")."""
    date, path = formatdate(usegmt=True), f"/{ACCOUNT}/{CONTAINER}"
    text = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{API}\n/{ACCOUNT}{path}\nrestype:container"
    signed = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers = {"x-ms-date": date, "x-ms-version": API, "Authorization": f"SharedKey {ACCOUNT}:{signed}"}
    url = f"http://{HOST}:{port}{path}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)):
        pass


def by_azure(root: Path, folder: Path) -> str:
    """Use a container as source, destination and origin of a cache, and compare digests with a store in one file."""
    Image.new("RGB", (2000, 1600)).save(root / "cat" / "large.bmp")  # too large for one request
    digest = convert(root, folder / "one.lmdb").digest
    images, place = f"az://{CONTAINER}/files", f"az://{CONTAINER}/train.lmdb"
    with azurite():
        source, target = Bucket(images), Bucket(place)
        for path in root.rglob("*.*"):
            source.put_file(str(path.relative_to(root)), path)
        plan_conversion(images, place, PARTS)
        for part in range(PARTS):
            convert_part(place, part)
        made = [publish(place).digest]
        made.append(copy_store(place, folder / "copy.lmdb").digest)
        old = target.head(MANIFEST_FILE)
        made.append(copy_store(folder / "one.lmdb", place, overwrite=True).digest)
        for replaces in (None, old):
            try:
                target.put_if(MANIFEST_FILE, b"", replaces)
            except StoreExistsError:
                continue
            raise AssertionError("a conditional put has replaced a newer manifest")
        for store in (CachedStore(place, folder / "cache"), open_store(folder / "copy.lmdb")):
            with store:
                made.append(store.verify())
    if {*made} != {digest}:
        raise AssertionError(f"the digests {made} are not all {digest}")
    return "the digest of one file, whole or in parts"
