"""The contenders, the images that they are compared on, and how their data is made."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from dbloader import ImageFormat, convert, open_store

SHORT_SIDE, QUALITY = 256, 90
CONTENDER = Path(__file__).with_name("contender.py")
REFERENCE, LIMIT = "ImageFolder", "decode limit"

# {name in words: NAME of the module peer_NAME.py}
PEERS = {
    REFERENCE: "imagefolder",
    "pickled LMDB": "pickled_lmdb",
    "WebDataset": "webdataset",
    "MosaicML Streaming": "streaming",
    "LitData": "litdata",
    "Grain": "grain",
    "SPDL": "spdl",
    "FFCV": "ffcv",
    LIMIT: "decode_limit",
}
OURS = {"dbloader, threads": "dbloader_threads", "dbloader, processes": "dbloader_processes"}
# Contenders that need only dbloader's own environment.
WITHOUT_PEERS = (REFERENCE, "pickled LMDB", LIMIT)


class Row(NamedTuple):
    """One contender on one set of images.

    Attributes:
        images: Description of the images: a heading.
        name: Name of the contender, in words.
        module: The contender's module peer_NAME.py.
        source: The folder of images.
        place: The data that is made of the images for this contender.
        form: How dbloader stores the images; None where the contender makes its own form.
    """

    images: str
    name: str
    module: str
    source: Path
    place: Path
    form: ImageFormat | None = None

    @property
    def key(self) -> str:
        return f"{self.images}: {self.name}"


def all_rows(corpus: Path, made: Path) -> list[Row]:
    """Return all contenders.

    Args:
        corpus: Folder of images.
        made: Folder for the data that is made of them.
    """
    short = made / "short"
    small = f"short side {SHORT_SIDE}, quality {QUALITY}"
    rows = []
    for images, folder, key in (("full size", corpus, "full"), (small, short, "short")):
        rows += [Row(images, name, module, folder, made / f"{key}.{module}") for name, module in PEERS.items()]
        for suffix, words, form in (("", "", ImageFormat()), ("-tiled", ", tiled", ImageFormat(tile=True))):
            rows += _ours(images, words, folder, made / f"{key}{suffix}.lmdb", form)
    rows.append(Row(small, "FFCV, raw", "ffcv_raw", short, made / "short.ffcv_raw"))
    return [*rows, *_ours(small, ", raw", short, made / "short-raw.lmdb", ImageFormat(raw=True))]


def _ours(images: str, words: str, source: Path, place: Path, form: ImageFormat) -> list[Row]:
    return [Row(images, name + words, module, source, place, form) for name, module in OURS.items()]


def make_short(corpus: Path, made: Path) -> None:
    """Make a folder of smaller images, the same for all contenders."""
    folder, store = made / "short", made / "short-source.lmdb"
    if folder.exists():
        return
    convert(corpus, store, images=ImageFormat(short_side=SHORT_SIDE, quality=QUALITY), overwrite=True)
    aside = made / "short.partial"
    shutil.rmtree(aside, ignore_errors=True)
    with open_store(store) as records:
        for record in records:
            path = aside / str(record.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(record.image or b""))
    for path in (store, Path(f"{store}.report.jsonl")):
        path.unlink(missing_ok=True)
    aside.rename(folder)


def prepare(row: Row, python: Path) -> str | None:
    """Convert the images to a contender's format, unless this is done. Return the error message, if any."""
    if row.place.exists():
        return None
    if row.form is not None:
        # No form encodes JPEGs again, so all contenders give the same pixels.
        report = convert(row.source, row.place, images=row.form)
        return f"{report.rejected} files were rejected" if report.rejected else None
    aside = row.place.with_name(row.place.name + ".partial")
    _remove(aside)
    done = subprocess.run(
        [python, CONTENDER, row.module, "prepare", row.source, aside], stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        return last_line(done.stderr)
    aside.rename(row.place)
    return None


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "ended without a word"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def told(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
