"""Stop and resume trainings on a mixture of three sources with several loaders, and print a table.

It runs in an environment that has dbloader and the loaders to compare:

    pip install litdata mosaicml-streaming datasets torchdata webdataset grain absl-py megatron-energon
    python scripts/bench/mixture_peers.py

`peers/mixtures.py` has the loaders. Each rank is a process of its own, with torch.distributed. The exit status is 1 if
dbloader gives other samples than an uninterrupted training, gives inexact shares, or resumes although data was changed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import mixtures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PEERS = {
    "dbloader": mixtures.DBLoader,
    "LitData": mixtures.LitData,
    "MosaicML Streaming": mixtures.Streaming,
    "datasets, unshuffled": mixtures.Datasets,
    "datasets, shuffled": mixtures.DatasetsBuffered,
    "WebDataset": mixtures.WebDataset,
    "Grain": mixtures.Grain,
    "Grain, `IterDataset.mix`": mixtures.GrainIterators,
    "Megatron Energon": mixtures.Energon,
}
WEIGHTS = (5, 2, 1)
BATCH = 24  # samples of all ranks in a step
LIMIT_S = 300  # time limit of a part; most parts take 10 s, or a minute on a busy machine
LENGTHS = {"long": (4000, 1600, 800), "short": (800, 320, 40), "many": (960,) * 35}  # of the sources
CHANGED = 1200  # length of the second source of "long" after a change
EPOCH = 1280 // BATCH  # steps of the epoch of "short", in which the last source is repeated four times


class Part(NamedTuple):
    """A part of a training; it resumes the part before it."""

    steps: int
    ranks: int = 2
    workers: int = 2


class FailedError(Exception):
    """A loader raised an error or did not end."""


def sources_of(folder: Path, kind: str) -> list[mixtures.Source]:
    weights = WEIGHTS if len(lengths := LENGTHS[kind]) == 3 else (1,) * len(LENGTHS[kind])
    ranges = [range(number * 1_000_000, number * 1_000_000 + length) for number, length in enumerate(lengths)]
    places = [folder / kind / str(number) for number in range(len(lengths))]
    return [*map(mixtures.Source, places, ranges, weights)]


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        batch = None
        for batch in loader:
            yield batch
        if batch is None:
            raise RuntimeError("an epoch has no batches")


def count_threads() -> int:
    """Return the number of threads of this process and of all processes that it started."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = stat.read_text().rpartition(")")[2].split()
        found[int(stat.parent.name)] = (int(fields[1]), int(fields[17]))
    family = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in family} - family:
        family |= more
    return sum(found[pid][1] for pid in family)


def run_rank(pipe: Any, output: Path, environment: dict[str, str], peer: str, task: tuple[Any, Part, Any]) -> None:
    """Take the batches of one rank, and send the samples, the state and the number of threads, or an error."""
    os.setsid()  # so that the worker processes can be ended
    os.environ.update(environment)
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sources, part, state = task
    result: dict[str, Any] = {}
    try:
        if part.ranks > 1:
            torch.distributed.init_process_group("gloo")
        own = PEERS[peer]()
        loader = own.open(sources, BATCH // part.ranks, part.workers)
        if state:
            getattr(loader, own.restore)(state)
        samples: list[int] = []
        for number, batch in enumerate(endless(loader), 1):
            samples += map(int, own.samples(batch))
            if number == part.steps * own.batches(BATCH // part.ranks):
                state = getattr(loader, own.save)() if own.has_state else None
                result = {"samples": samples, "state": state, "threads": count_threads()}
                break
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines()
        last = lines[-1] if lines else "without a message"
        result = {"error": last if last.startswith(type(error).__name__) else f"{type(error).__name__}: {last}"}
    pipe.send(result)
    pipe.poll(None)  # the tensors of the state are in this process's memory, so wait until it is killed
    os._exit(1)


def run_part(folder: Path, peer: str, sources: list[mixtures.Source], part: Part, states: Any) -> list[dict[str, Any]]:
    """Return the samples, the state and the number of threads of each rank."""
    states = states and PEERS[peer]().redistribute(Path(tempfile.mkdtemp(dir=folder)), states, part.ranks)
    fixed = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(part.ranks)) | {"MASTER_ADDR": "127.0.0.1"}
    fixed["MASTER_PORT"] = str(20_000 + os.getpid() % 20_000)
    context = multiprocessing.get_context("spawn")
    children = []
    for rank in range(part.ranks):
        environment = {**fixed, **dict.fromkeys(("RANK", "LOCAL_RANK", "GLOBAL_RANK"), str(rank))}
        pipe, theirs = context.Pipe()
        task = (sources, part, states and states[rank])
        child = context.Process(target=run_rank, args=(theirs, folder / "output.txt", environment, peer, task))
        child.start()
        children.append((child, pipe))
    results = [pipe.recv() for _, pipe in children if pipe.poll(LIMIT_S)]
    for child, _ in children:
        with suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)  # also its worker processes
        child.join()
    for result in results:
        if "error" in result:
            raise FailedError(result["error"])
    if len(results) < part.ranks:
        raise FailedError(f"no end after {LIMIT_S} s")
    return results


def take(folder: Path, peer: str, kind: str, parts: list[Part]) -> Counter[int]:
    """Return how often a training gives each sample."""
    found: Counter[int] = Counter()
    states = None
    for part in parts:
        results = run_part(folder, peer, sources_of(folder, kind), part, states)
        states = [result["state"] for result in results]
        found.update(sample for result in results for sample in result["samples"])
    return found


def resume_with_changed_data(folder: Path, peer: str) -> str:
    states = [result["state"] for result in run_part(folder, peer, sources_of(folder, "long"), Part(40), None)]
    (folder / "long").rename(folder / "old")  # a loader may compare the places
    (folder / "long").mkdir()
    sources = sources_of(folder, "long")
    sources[1] = sources[1]._replace(samples=sources[1].samples[:CHANGED])
    for source in sources:
        PEERS[peer]().write(source)
    try:
        run_part(folder, peer, sources, Part(40), states)
    except FailedError as error:
        return f"**{error}**"
    return "accepted"


def resume(folder: Path, peer: str) -> Iterator[str]:
    """Yield the cells of a row that are about states."""
    if not PEERS[peer].has_state:
        yield from ["no state"] * 6
        return
    cases = {
        "long": [[Part(40)], [Part(40, workers=3)], [Part(40, *PEERS[peer].moved)], [Part(20), Part(20)]],
        "short": [[Part(40)]],
    }
    for kind, ends in cases.items():
        first = Part(40 if kind == "long" else 2 * EPOCH + EPOCH // 2)
        expected = take(folder, peer, kind, [Part(first.steps + 40)])
        for parts in ends:
            try:
                more = take(folder, peer, kind, [first, *parts]) - expected
            except FailedError as error:
                yield f"**{error}**"
                continue
            again = sum(count for sample, count in more.items() if sample in expected)
            yield f"{more.total()}, {again} repeated" if more else "0"
    yield resume_with_changed_data(folder, peer)


def measure(folder: Path, peer: str) -> list[str]:
    """Return the cells of a row."""
    (result,) = run_part(folder, peer, sources_of(folder, "long"), Part(80, ranks=1), None)
    numbers = [sample // 1_000_000 for sample in result["samples"]]
    windows = [Counter(numbers[begin : begin + 8]) for begin in range(0, len(numbers), 8)]
    off = max(abs(window[number] - weight) for window in windows for number, weight in enumerate(WEIGHTS))
    many = sources_of(folder, "many")
    runs = [run_part(folder, peer, sources, Part(20, ranks=1), None) for sources in (many[:1], many)]
    return [*resume(folder, peer), str(off), " to ".join(str(run[0]["threads"]) for run in runs)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare how mixtures are resumed.")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    options = parser.parse_args()
    rows, errors, versions = {}, [], {}
    for peer in options.peers:
        try:
            versions[PEERS[peer].package] = version(PEERS[peer].package)
        except PackageNotFoundError:
            print(f"{peer} is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, redirect_stdout(sys.stderr):
            os.environ["TMPDIR"] = name  # for the files that loaders leave behind
            for kind in LENGTHS:
                (Path(name) / kind).mkdir()
                for source in sources_of(Path(name), kind):
                    PEERS[peer]().write(source)
            rows[peer] = measure(Path(name), peer)
        print(peer, *rows[peer], sep=" | ", file=sys.stderr, flush=True)
    print("| loader | the same | 3 workers | 4 ranks | resumed twice | third epoch | changed data | shares | threads |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for peer, cells in rows.items():
        for number, cell in enumerate(cells):
            if cell.startswith("**"):
                message = cell.strip("*")
                errors += [message] if message not in errors else []
                cells[number] = f"error {errors.index(message) + 1}"
        print(f"| {peer} | {' | '.join(cells)} |")
    print(*(f"\n{number}. {message}" for number, message in enumerate(errors, 1)), sep="")
    print(f"\n{datetime.now(UTC):%d %B %Y}, {', '.join(' '.join(pair) for pair in versions.items())}")
    own = rows.get("dbloader", ["0"] * 5 + ["error", "0"])
    sys.exit(own[:5] != ["0"] * 5 or not own[5].startswith("error") or own[6] != "0")


if __name__ == "__main__":
    main()
