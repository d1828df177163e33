"""Measure a mixture of 50 sources of 1 to 1,000,000 records: its order, its states, its speed and its memory.

python scripts/bench/mixture.py BENCH [--parts order kills speed memory] [--kills 100] [--samples 1000000]

``order`` compares the global batches of 1, 3 and 8 ranks with 0, 2 and 5 workers of both types. ``kills`` trains until
the training is killed at a random moment, then resumes the last state with another number of ranks, and so on, a
hundred times. ``kills`` compares all samples with the computed order, and checks each source's share in all windows.
``speed`` loads photographs from 50 stores and from one of the same size, in turn. ``memory`` starts a process with one
source and with 50. The program makes 600 MB of stores in BENCH/mixture. The exit status is 1 if a sample or a share is
wrong.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import random
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from dbloader import Record, create_loader, mix, write_store

LENGTHS = [round(10 ** (6 * number / 49)) for number in range(50)]
PHOTOS, BATCH = 3200, 64
RANKS, WORKERS = (1, 3, 8), (0, 2, 5)
PLAIN: dict[str, Any] = {"transform": None, "normalize": None, "device": None, "is_training": True}


def make_stores(folder: Path) -> None:
    """Write the 50 stores of records without images. Also write the photographs to one store and to 50 stores."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, length in enumerate(LENGTHS):
        if not (folder / f"{number:02}.lmdb").exists():
            records = (Record(f"{index}", index % 10) for index in range(length))
            write_store(records, folder / f"{number:02}.lmdb")
    rng = np.random.default_rng(0)
    photos = []
    for _ in range(64):
        coarse = Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).resize(
            (465, 394), Image.Resampling.BICUBIC
        )
        noisy = np.clip(np.asarray(coarse, np.int16) + rng.integers(-12, 13, (394, 465, 3)), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, "JPEG", quality=90)
        photos.append(file.getvalue())
    for count in (1, 50):
        for number in range(count):
            place = folder / f"photos{count}-{number:02}.lmdb"
            if not place.exists():
                length = PHOTOS // count
                write_store([Record(f"{index}", index % 10, photos[index % 64]) for index in range(length)], place)


def mixture_of(folder: Path, weighted: str = "roots") -> Any:
    """Return the mixture of the 50 stores, weighted by the roots of their lengths, or by 1, 2, 3, 1, 2 and so on."""
    weights = [length**0.5 if weighted == "roots" else 1 + number % 3 for number, length in enumerate(LENGTHS)]
    places = [folder / f"{number:02}.lmdb" for number in range(50)]
    return mix(dict(zip(places, weights, strict=True)), fields=("index", "source"))


def rows_of(mixture: Any, batch: Any) -> np.ndarray[Any, Any]:
    """Return the source and the index of each sample of a batch: int64, shape (samples, 2)."""
    numbers = {source.name: number for number, source in enumerate(mixture.sources)}
    return np.stack([np.array([numbers[name] for name in batch["source"]]), batch["index"].numpy()], 1)


def expected_rows(mixture: Any, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the rows at some positions of the order of all epochs, like ``rows_of`` but without a loader."""
    order = mixture.sampler().order(0, 0)
    indices = order(positions) - len(mixture)
    starts = np.cumsum([0, *LENGTHS])
    sources = np.searchsorted(starts, indices, "right") - 1
    return np.stack([sources, indices - starts[sources]], 1)


def compare_orders(folder: Path) -> int:
    """Print how many samples of all combinations of ranks, workers and types differ; return their number."""
    wrong = count = 0
    kinds: tuple[Literal["threads", "processes"], ...] = ("threads", "processes")
    mixture = mixture_of(folder)
    expected = expected_rows(mixture, np.arange(40 * 24))
    for ranks, workers, kind in itertools.product(RANKS, WORKERS, kinds):
        columns = []
        for rank in range(ranks):
            sampler = mixture.sampler(ranks, rank)
            loader = create_loader(
                mixture, None, 24 // ranks, sampler=sampler, num_workers=workers, worker_type=kind, **PLAIN
            )
            batches = iter(loader)
            columns.append(np.concatenate([rows_of(mixture, next(batches)) for _ in range(40)]))
            loader.close()
        found = np.stack(columns, 1).reshape(-1, 2)
        wrong += int((found != expected).any(1).sum())
        count += len(found)
    print(f"order: {wrong} of {count:,} samples differ, in 18 combinations of ranks, workers and types", flush=True)
    return wrong


def train(folder: Path, log: Path, ranks: int, kind: Any) -> None:
    """Train with a number of ranks from the last state in a log, until this process is killed."""
    mixture = mixture_of(folder)
    loaders = []
    lines = log.read_bytes().splitlines() if log.exists() else []
    for rank in range(ranks):
        sampler = mixture.sampler(ranks, rank)
        loader = create_loader(mixture, None, 840 // ranks, sampler=sampler, num_workers=2, worker_type=kind, **PLAIN)
        if lines:
            loader.load_state_dict(json.loads(lines[-1])["state"])
        loaders.append(loader)
    iterators = [iter(loader) for loader in loaders]
    with log.open("ab", 0) as file:
        while True:
            rows = np.stack([rows_of(mixture, next(iterator)) for iterator in iterators], 1).reshape(-1, 2)
            states = {json.dumps(loader.state_dict()) for loader in loaders}
            assert len(states) == 1, "ranks have different states"
            file.write(json.dumps({"rows": rows.tolist(), "state": json.loads(states.pop())}).encode() + b"\n")


def kill_trainings(folder: Path, kills: int, samples: int) -> int:
    """Print how many samples of a training that is killed and resumed differ, and return their number."""
    log, rng = folder / "log.jsonl", random.Random(0)
    log.unlink(missing_ok=True)
    batches = done = world = 0
    while done < kills or batches * 840 < samples:
        world = rng.choice([one for one in (1, 2, 3, 5, 7, 8) if one != world])
        kind = rng.choice(["threads", "processes"])
        command = [sys.executable, __file__, str(folder), "--train", str(log), str(world), kind]
        with (folder / "errors.txt").open("ab") as errors:  # workers report that they lost their parent
            child = subprocess.Popen(command, stderr=errors)
        wanted, begin = batches + -(-samples // 840 // kills), log.stat().st_size if log.exists() else 0
        until = time.monotonic() + 600
        while child.poll() is None and time.monotonic() < until:
            time.sleep(rng.uniform(0.005, 0.05))
            if log.exists() and batches + log.read_bytes()[begin:].count(b"\n") >= wanted:
                break
        assert child.poll() is None, f"the training ended by itself: see {folder}/errors.txt"
        child.send_signal(signal.SIGKILL)
        child.wait()
        done += 1
        whole = log.read_bytes().rpartition(b"\n")[0] + b"\n"  # an incomplete line was never a checkpoint
        log.write_bytes(whole)
        batches = whole.count(b"\n")
    entries = [json.loads(line) for line in log.read_bytes().splitlines()]
    found = [row for entry in entries for row in entry["rows"]]
    state_nbytes = max(len(json.dumps(entry["state"])) for entry in entries)
    mixture = mixture_of(folder)
    rows = np.array(found[:samples])
    wrong = int((rows != expected_rows(mixture, np.arange(len(rows)))).any(1).sum())
    print(f"kills: {wrong} of {len(rows):,} samples differ after {done} kills and resumes of resumes; a state has "
          f"{state_nbytes} bytes", flush=True)  # fmt: skip
    weights = np.sqrt(LENGTHS)
    windows = rows[: len(rows) // 1024 * 1024, 0].reshape(-1, 1024)
    error = max(
        float(np.abs(np.bincount(window, minlength=50) - 1024 * weights / weights.sum()).max()) for window in windows
    )
    print(f"shares: at most {error:.3f} samples off in each of {len(windows)} windows of 1,024, with roots as weights")
    whole = mixture_of(folder, "whole")
    shares = np.array([1 + number % 3 for number in range(50)])
    windows = expected_rows(whole, np.arange(samples // shares.sum() * shares.sum()))[:, 0].reshape(-1, shares.sum())
    off = sum(int((np.bincount(window, minlength=50) != shares).any()) for window in windows)
    print(f"shares: {off} of {len(windows)} windows of {shares.sum()} are not exact, with whole weights", flush=True)
    return wrong + off + int(error >= 1)


def measure_epoch(folder: Path, count: int, kind: Any) -> dict[str, float]:
    """Return the seconds and the CPU seconds per image, from the second batch on, with one source or 50."""
    places = [folder / f"photos{count}-{number:02}.lmdb" for number in range(count)]
    options: dict[str, Any] = {"is_training": True, "device": None, "normalize": None}
    loader = create_loader(mix(dict.fromkeys(places, 1)), 224, BATCH, num_workers=2, worker_type=kind, **options)
    batches = iter(loader)
    next(batches)
    began, cpu = time.perf_counter(), time.process_time()
    taken = sum(1 for _ in batches)
    seconds = time.perf_counter() - began
    loader.close()
    del batches, loader  # ends the workers
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = time.process_time() - cpu + children.ru_utime + children.ru_stime
    return {"s": seconds / taken / BATCH, "cpu": cpu / taken / BATCH}


def compare_speeds(folder: Path, rounds: int) -> None:
    """Print the speed of 50 sources / the speed of one source of the same photographs, by time and by CPU time."""
    for kind in ("threads", "processes"):
        ratios: dict[str, list[float]] = {"s": [], "cpu": []}
        for number in range(rounds):
            runs = {}
            for count in (1, 50) if number % 2 else (50, 1):
                command = [sys.executable, __file__, str(folder), "--epoch", str(count), kind]
                runs[count] = json.loads(subprocess.check_output(command))
            for key, values in ratios.items():
                values.append(runs[1][key] / runs[50][key])
        speed, cpu = (
            f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})" for values in ratios.values()
        )
        print(f"speed: 50 sources have {speed} of one source's speed with {kind}, by CPU time {cpu}", flush=True)


def measure_opening(folder: Path, count: int) -> dict[str, float]:
    """Return the seconds to the first batch, private memory and threads with the ``count`` largest sources."""
    places = [folder / f"{number:02}.lmdb" for number in range(50 - count, 50)]
    began = time.perf_counter()
    mixture = mix(dict.fromkeys(places, 1), fields=("index",))
    loader = create_loader(mixture, None, BATCH, num_workers=0, **PLAIN)
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - began
    for _ in range(200):
        next(batches)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"s": seconds, "kB": int(status["RssAnon"].split()[0]), "threads": threading.active_count()}


def compare_openings(folder: Path, rounds: int) -> None:
    """Print what each further source costs: memory, threads, and time to the first batch."""
    found: dict[int, list[dict[str, float]]] = {1: [], 50: []}
    for _ in range(rounds):
        for count, runs in found.items():
            command = [sys.executable, __file__, str(folder), "--opening", str(count)]
            runs.append(json.loads(subprocess.check_output(command)))
    one, many = ({key: statistics.median(run[key] for run in found[count]) for key in found[1][0]} for count in (1, 50))
    more = {key: (many[key] - one[key]) / 49 for key in one}
    print(f"memory: {more['kB'] / 1000:.3f} MB and {more['threads']:g} threads for each further source")
    print(f"first batch: {1000 * more['s']:.1f} ms for each further source; with one, {1000 * one['s']:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a mixture of 50 sources.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--parts", nargs="+", default=["order", "kills", "speed", "memory"])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--epoch", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--opening", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        log, ranks, kind = options.train
        train(options.bench, Path(log), int(ranks), kind)
    if options.epoch:
        json.dump(measure_epoch(options.bench, int(options.epoch[0]), options.epoch[1]), sys.stdout)
        return
    if options.opening:
        json.dump(measure_opening(options.bench, options.opening), sys.stdout)
        return
    folder = options.bench / "mixture"
    make_stores(folder)
    wrong = 0
    if "order" in options.parts:
        wrong += compare_orders(folder)
    if "kills" in options.parts:
        wrong += kill_trainings(folder, options.kills, options.samples)
    if "speed" in options.parts:
        compare_speeds(folder, options.rounds)
    if "memory" in options.parts:
        compare_openings(folder, options.rounds)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
