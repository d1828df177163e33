"""Run one contender, and print as JSON how fast its batches came.

python scripts/bench/peers/contender.py NAME prepare SOURCE PLACE
python scripts/bench/peers/contender.py NAME run PLACE --workers 2 --seconds 1.5

peer_NAME.py, next to this file, has two functions. ``prepare(source, place)`` converts a folder of images to the
contender's own format. ``batches(place, workers)`` yields an epoch of shuffled batches (images, labels).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
from memory import memory_of_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SIZE = int(os.environ.get("SIZE", "224"))  # pixels of a side of the crops


def run(make: Callable[[], Iterable[Any]], workers: int, seconds: float, kind: str = "uint8") -> dict[str, float]:
    """Take batches for some seconds, or until the end of the epoch, and do nothing with them."""
    begun = time.perf_counter()
    batches = iter(make())
    check(next(batches), kind)
    first_s = time.perf_counter() - begun
    # Do not count batches that the first workers made while the others started. Processes return batches in turn.
    for _ in range(2 * max(1, workers)):
        next(batches)
    memory = memory_of_tree()  # measured here too, because there may be no workers at the end of an epoch
    images, elapsed, begun = 0, 0.0, time.perf_counter()
    for count, batch in enumerate(batches, 1):
        images += len(batch[0])
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds and count % max(1, workers) == 0:  # the same number of batches from each worker
            break
    memory = {name: max(memory[name], megabytes) for name, megabytes in memory_of_tree().items()}
    return {"images_per_s": images / elapsed, "first_s": first_s, **memory}


def check(batch: Any, kind: str) -> None:
    """Exit if a batch differs from what all contenders must return."""
    shape, found = tuple(batch[0].shape), str(batch[0].dtype).removeprefix("torch.")
    if shape[1:] not in {(3, SIZE, SIZE), (SIZE, SIZE, 3)} or found != kind or len(batch[1]) != shape[0]:
        sys.exit(f"images of the shape {shape}, {found}, are not what is compared")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run one contender.")
    parser.add_argument("name")
    parser.add_argument("what", choices=["prepare", "run"])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of peers, about newer versions of their dependencies
    peer = import_module(f"peer_{options.name}")
    if options.what == "prepare":
        peer.prepare(*options.paths)
        return
    result = run(lambda: peer.batches(*options.paths, options.workers), options.workers, options.seconds)
    print(json.dumps(result), flush=True)
    os._exit(0)  # some would end with an error, because their threads still run


if __name__ == "__main__":
    main()
