"""Measure reading, writing and epochs on a separate mongod, over loopback.

python scripts/bench/mongo.py BENCH [reading writing epochs ...]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import random
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pymongo
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from torch.utils.data import DataLoader

from dbloader import LMDBDataset, MongoDataset, Record, convert, copy_store, open_store
from dbloader.records.record import encode
from dbloader.stores.open import create_store

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.mongo import HOST, Mongod, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from dbloader.records.record import EncodedRecord

ROUNDS = 7
NBYTES = 100_000
BATCHES = 4  # in a turn
WRITTEN = 4000
RECORDS = 1000  # these fit the server's cache of 0.25 GB, so the disk has no influence
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)


def interleaved(contenders: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median seconds of each contender. They take turns, after a first round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    turns = list(contenders.items())
    for number in range(rounds + 1):
        for name, contender in turns:
            started = time.perf_counter()
            contender()
            if number:
                seconds[name].append(time.perf_counter() - started)
        turns.append(turns.pop(0))  # each round begins with a different contender
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(title: str, medians: dict[str, float], count: int, unit: str, reference: str) -> None:
    print(f"\n| {title} | {unit}/s | / {reference} |")
    print("| --- | ---: | ---: |")
    for name, seconds in medians.items():
        print(f"| {name} | {count / seconds:,.0f} | {medians[reference] / seconds:.2f} |")


def noise(count: int) -> Iterator[EncodedRecord]:
    rng = np.random.default_rng(0)
    return (encode(Record(f"{number:08d}.jpg", number % 10, rng.bytes(NBYTES))) for number in range(count))


def relay(port: int, delay_s: float, pipe: Connection) -> None:
    """Forward connections to a port, and send the port of the relay. Each direction adds half of the delay."""

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await source.read(1 << 18):
            loop.call_later(delay_s / 2, target.write, data)
        loop.call_later(delay_s / 2, target.close)

    async def connect(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(HOST, port)
        await asyncio.gather(carry(client, to_server), carry(server, to_client))

    async def serve() -> None:
        server = await asyncio.start_server(connect, HOST, 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def slowed(port: int, delay_s: float) -> Iterator[int]:
    """Yield a port from which a separate process forwards connections to another port, with a delay."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=relay, args=(port, delay_s, there))
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def one_by_one(collection: Any, indices: list[int]) -> None:
    for index in indices:
        assert collection.find_one({"name": f"{index:08d}.jpg"})["_id"] == index


def plain(collection: Any, indices: list[int]) -> None:
    assert len(list(collection.find({"_id": {"$in": indices}}, batch_size=len(indices)))) == len(indices)


def raw_batches(collection: Any, indices: list[int]) -> None:
    assert sum(map(len, collection.find_raw_batches({"_id": {"$in": indices}}, batch_size=len(indices)))) > 0


def in_threads(collection: Any, indices: list[int], executor: ThreadPoolExecutor) -> None:
    half = len(indices) // 2
    list(executor.map(lambda part: plain(collection, part), (indices[:half], indices[half:])))


def reading(server: Mongod, _: Path) -> None:
    place = f"{server.uri}bench.records"
    with create_store(place, overwrite=True) as writer:
        for record in noise(RECORDS):
            writer.write([record])
        writer.finish()
    for delay_ms in (0, 2):
        with slowed(server.port, delay_ms / 1000) as port:
            through = place.replace(str(server.port), str(port)) if delay_ms else place
            for size in (64, 256):
                batch_of(through, size, delay_ms)


def batch_of(place: str, size: int, delay_ms: int) -> None:
    numbers = random.Random(0)
    client: pymongo.MongoClient[Any]
    with pymongo.MongoClient(place) as client, open_store(place) as store, ThreadPoolExecutor(2) as executor:
        collection: Any = records_of(client, place)
        raw = collection.with_options(codec_options=RAW)

        def batches(read: Callable[[list[int]], object]) -> Callable[[], None]:
            def turn() -> None:
                for _ in range(BATCHES):
                    read(numbers.sample(range(RECORDS), size))

            return turn

        medians = interleaved({
            "one find_one by name a sample": batches(lambda indices: one_by_one(collection, indices)),
            "`store.read`, CRC-32 verified": batches(store.read),
            "bare find, decoded": batches(lambda indices: plain(collection, indices)),
            "bare find, RawBSONDocument": batches(lambda indices: plain(raw, indices)),
            "bare find_raw_batches": batches(lambda indices: raw_batches(collection, indices)),
            "bare find, decoded, in two threads": batches(lambda indices: in_threads(collection, indices, executor)),
        }, 12)  # fmt: skip
    title = f"batch of {size} of {NBYTES:,} bytes" + (f", round trips {delay_ms} ms longer" if delay_ms else "")
    table(title, medians, BATCHES * size, "records", "one find_one by name a sample")


def writing(server: Mongod, _: Path) -> None:
    encoded = list(noise(WRITTEN))
    documents = [record.document(index, 0) for index, record in enumerate(encoded)]
    numbers = itertools.count()

    def bare(documents: list[Any], **concern: Any) -> None:
        client: pymongo.MongoClient[Any]
        with pymongo.MongoClient(server.uri, **concern) as client:
            database = client["bench_writing"]
            database[f"bare{next(numbers)}"].insert_many(documents, ordered=False)

    def ours() -> None:
        with create_store(f"{server.uri}bench_writing.ours{next(numbers)}") as writer:
            for start in range(0, WRITTEN, 16):
                writer.write(encoded[start : start + 16])
            writer.finish()

    def clean() -> None:
        client: pymongo.MongoClient[Any]
        with pymongo.MongoClient(server.uri) as client:
            client.drop_database("bench_writing")
            client.admin.command("fsync")

    medians = interleaved({
        "insert_many, unordered, raw": lambda: bare([RawBSONDocument(document) for document in documents]),
        "the same, journaled": lambda: bare([RawBSONDocument(document) for document in documents], journal=True),
        "`create_store` to `finish`": ours,
        "(clearing up)": clean,
    })  # fmt: skip
    del medians["(clearing up)"]
    table(f"{WRITTEN:,} records of {NBYTES:,} bytes", medians, WRITTEN, "records", "insert_many, unordered, raw")


def epochs(server: Mongod, bench: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir=bench))
    source = folder / "images"
    for number, path in enumerate(sorted((bench / "corpus").glob("*/*.jpg"))[:1000]):
        (source / str(number % 5)).mkdir(parents=True, exist_ok=True)
        (source / str(number % 5) / path.name).symlink_to(path.resolve())
    local, place = folder / "local.lmdb", f"{server.uri}bench.images"
    try:
        convert(source, local)
        copy_store(local, place, overwrite=True)
        for method in ("fork", "spawn"):
            datasets = {
                "LMDBDataset": LMDBDataset(local, transform=pixels),
                "MongoDataset": MongoDataset(place, transform=pixels),
                "MongoDataset with a cache, filled": MongoDataset(place, transform=pixels, cache=folder / "cache.lmdb"),
            }
            medians = interleaved({name: epoch_of(dataset, method) for name, dataset in datasets.items()}, 5)
            table(
                f"epoch of 1,000 photographs, decoded, two workers ({method})", medians, 1000, "images", "LMDBDataset"
            )
            for dataset in datasets.values():
                dataset.close()
    finally:
        shutil.rmtree(folder)


def pixels(image: Any) -> np.ndarray[Any, Any]:
    return np.asarray(image.resize((224, 224)))


def epoch_of(dataset: Any, method: str) -> Callable[[], None]:
    # Persistent workers, because starting workers has nothing to do with the store.
    loader = DataLoader(
        dataset,
        64,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=method,
        collate_fn=len,
        persistent_workers=True,
    )

    def epoch() -> None:
        assert sum(loader) == len(dataset)

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description="Time MongoDB.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("parts", nargs="*", default=["reading", "writing", "epochs"])
    options = parser.parse_args()
    with Mongod() as server:
        for part in options.parts:
            {"reading": reading, "writing": writing, "epochs": epochs}[part](server, options.bench)


if __name__ == "__main__":
    main()
