"""What was measured of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dbloader.loading.benchmark.machine import Machine

Kind = Literal["read", "decode", "crop", "threads", "processes", "folder"]
Limit = Literal["reading", "decoding", "collating"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How fast one way to get images is.

    Attributes:
        name: What was measured, in words.
        kind: ``"read"`` records out of the store; ``"decode"`` images whole; ``"crop"`` decode, crop and resize them;
            batches by ``"threads"`` or ``"processes"``; batches of the ``"folder"`` by processes.
        workers: Threads or processes; 0 where batches are made in the training's own process, in the background.
        images_per_s: Median of the rounds.
        rounds: Images a second of each round.
        bytes_per_s: Of image files or stored pixels read, median of the rounds; None where it is not reading that
            is measured.
        first_batch_s: Seconds from the start of the loader to its first batch, median; None where there is none.
    """

    name: str
    kind: Kind
    workers: int
    images_per_s: float
    rounds: tuple[float, ...]
    bytes_per_s: float | None = None
    first_batch_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """How fast the images of a store are on a machine.

    Attributes:
        place: The store, without credentials.
        folder: The folder that was measured beside it, if one was.
        folder_left_out: Images of the folder that were read and left out, because they do not decode.
        records: In the store.
        images: Records of it that have an image: what was measured.
        image_bytes: Of a record's image, on average.
        batch_size: Images in a batch.
        size: Height and width in pixels of the images in it.
        seconds: That each measurement took, at least, in each round.
        machine: What it was measured on.
        measurements: In the order in which they took turns.
        limit: What the workers of the fastest loader spend most of their time on.
        limit_share: The share of their time, 0 to 1.
        verdict: How many images a second a training can have, and what limits that, in one line.
    """

    place: str
    folder: str | None
    folder_left_out: int
    records: int
    images: int
    image_bytes: float
    batch_size: int
    size: int
    seconds: float
    machine: Machine
    measurements: tuple[Measurement, ...]
    limit: Limit
    limit_share: float
    verdict: str
