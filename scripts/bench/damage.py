"""Damage the files of dbloader and other loaders, and count the trials that silently give wrong samples.

bench/peers/bin/python scripts/bench/damage.py [--trials 20] [--loaders dbloader webdataset streaming litdata]

scripts/bench/install-peers makes that environment. Each trial damages a copy of a loader's files, and reads all samples
in a separate process: the bytes of each image, undecoded, and its label. The trial is silently wrong if a sample was
read that was not stored, or if samples are missing and no error was raised.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from dbloader import LMDBDataset, convert

sys.path.insert(0, str(Path(__file__).parent / "peers"))

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

IMAGES, CLASSES, PAGE = 60, 3, 4096
SECONDS = 60.0  # time limit of one reading, which takes a second without damage
FORK = multiprocessing.get_context("fork")
LOADERS = ("dbloader", "webdataset", "streaming", "litdata")


def draw(folder: Path) -> list[bytes]:
    """Write a folder of JPEGs that all differ, and return their bytes."""
    images = []
    for number in range(IMAGES):
        spots = np.random.default_rng(number).integers(0, 256, (24, 24, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(spots).resize((320, 240), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        images.append(file.getvalue())
        path = folder / str(number % CLASSES) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images[-1])
    return images


def prepare(loader: str, source: Path, place: Path) -> None:
    """Convert a folder of JPEGs to a loader's own format, in a folder."""
    if loader == "dbloader":
        place.mkdir()
        convert(source, place / "store.lmdb")
    else:
        import_module(f"peer_{loader}").prepare(source, place)


def samples(loader: str, place: Path) -> Iterator[tuple[bytes, int]]:
    """Yield all samples in their order: the bytes of each image, and its label."""
    if loader == "dbloader":
        dataset = LMDBDataset(place / "store.lmdb", decode=None)
        yield from (dataset[index] for index in range(len(dataset)))
        return
    peer: Any = import_module(f"peer_{loader}")
    if loader == "webdataset":
        shards = sorted(map(str, place.glob("*.tar")))
        for image, label in peer.wds.WebDataset(shards, shardshuffle=False).to_tuple("jpg", "cls"):
            yield image, int(label)
        return
    if loader == "streaming":
        peer.clean_stale_shared_memory()  # of the previous process
        found = peer.StreamingDataset(local=str(place), shuffle=False, batch_size=1)
    else:
        found = peer.StreamingDataset(str(place))
    yield from ((sample["image"], int(sample["label"])) for sample in found)


def read(loader: str, place: Path, sender: Connection) -> None:
    """Send a digest of each sample, then "whole" or "error"."""
    os.setpgrp()  # killing the group also ends its children
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    try:
        for image, label in samples(loader, place):
            sender.send(hashlib.sha256(b"%d %b" % (label, image)).digest())
    except Exception:  # any error informs the user
        sender.send("error")
    else:
        sender.send("whole")


def run(loader: str, place: Path) -> tuple[Counter[bytes], str]:
    """Read a place in a process of its own. Return its samples and how it ended: "whole", "error" or "hangs"."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=read, args=(loader, place, sender))
    process.start()
    assert process.pid is not None
    sender.close()
    found, ended, deadline = Counter[bytes](), "hangs", time.monotonic() + SECONDS
    try:
        while ended == "hangs" and receiver.poll(max(0.0, deadline - time.monotonic())):
            message = receiver.recv()
            if isinstance(message, str):
                ended = message
            else:
                found[message] += 1
    except EOFError:  # a signal has ended it
        ended = "error"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return found, ended


# ---- Faults: each gets the files of a place, the images, and a random generator


def bit_in_an_image(files: list[Path], images: list[bytes], rng: random.Random) -> None:
    image = rng.choice(images)
    file, at = next((file, at) for file in files if (at := file.read_bytes().find(image)) >= 0)
    _flip(file, rng.randrange(8 * at, 8 * (at + len(image))))


def bit_anywhere(files: list[Path], _: list[bytes], rng: random.Random) -> None:
    file = _by_size(files, rng)
    _flip(file, rng.randrange(8 * file.stat().st_size))


def page_zeroed(files: list[Path], _: list[bytes], rng: random.Random) -> None:
    file = _by_size(files, rng)
    data = file.read_bytes()
    begin = PAGE * rng.randrange(-(-len(data) // PAGE))
    file.write_bytes(data[:begin] + bytes(len(data[begin : begin + PAGE])) + data[begin + PAGE :])


def file_cut(files: list[Path], _: list[bytes], rng: random.Random) -> None:
    file = _by_size(files, rng)
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def _flip(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def _by_size(files: list[Path], rng: random.Random) -> Path:
    return rng.choices(files, [file.stat().st_size for file in files])[0]


FAULTS: dict[str, Callable[[list[Path], list[bytes], random.Random], None]] = {
    "one bit in an image": bit_in_an_image,
    "one bit anywhere": bit_anywhere,
    "a page zeroed": page_zeroed,
    "the file cut": file_cut,
}


def try_one(loader: str, fault: str, seed: int, whole: Path, images: list[bytes], stored: Counter[bytes]) -> str:
    """Damage a copy and read it. Return "wrong" if the trial was silently wrong, otherwise how the reading ended."""
    place = whole.with_name("damaged")
    shutil.copytree(whole, place)
    try:
        files = sorted(path for path in place.rglob("*") if path.is_file())
        FAULTS[fault](files, images, random.Random(f"{fault} {seed}"))
        found, ended = run(loader, place)
    finally:
        shutil.rmtree(place)
    return "wrong" if found - stored or (ended == "whole" and found != stored) else ended


def main() -> None:
    parser = argparse.ArgumentParser(description="Count silently wrong samples of damaged files.")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--loaders", nargs="+", default=LOADERS, choices=LOADERS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # what peers say of newer versions of their dependencies
    print(f"\nTrials of {options.trials} with silently wrong samples:\n\n| loader | {' | '.join(FAULTS)} |")
    print("| --- |" + " ---: |" * len(FAULTS), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        images = draw(Path(folder) / "images")
        for loader in options.loaders:
            whole = Path(folder) / loader / "whole"
            whole.parent.mkdir()
            prepare(loader, Path(folder) / "images", whole)
            stored, ended = run(loader, whole)
            assert (stored.total(), ended) == (IMAGES, "whole"), (loader, stored.total(), ended)
            cells = []
            for fault in FAULTS:
                results = Counter(try_one(loader, fault, seed, whole, images, stored) for seed in range(options.trials))
                hangs = f" ({results['hangs']} hang)" if results["hangs"] else ""
                cells.append(f"{results['wrong']}{hangs}")
            print(f"| {loader} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
