"""Make the batches of a mixture. Each dataset makes its own samples, and all samples are collated together."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import override

from dbloader.batches.base import BatchFetcher, part_of, row_for_each
from dbloader.batches.collate import collate
from dbloader.batches.tensors import decode_together, join_batch
from dbloader.batches.timed import TimedBatch, Work, now
from dbloader.sampling.rng import seed_like

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from dbloader.batches.base import DatasetBatchFetcher, Finish, Slot, Submit
    from dbloader.ext.mixing.mixture import Mixture
    from dbloader.sampling.rng import Array


class Piece(NamedTuple):
    """Some samples of one dataset. A batch is divided into jobs, and each job makes a list of pieces."""

    number: int  # number of the dataset
    given: Any  # result of the fetcher's ``read`` for the indices ``own``; None if the job itself calls ``read``
    own: Sequence[int]  # indices of all samples that the batch takes from this dataset
    rows: list[Any] | None  # random numbers for each of ``own``; None if the dataset draws its own numbers
    part: slice  # the part of ``own`` for this piece
    places: list[int]  # positions of this piece's samples in the batch


class MixtureBatchFetcher(BatchFetcher):
    """Makes the batches of a mixture with a fetcher for each dataset.

    Either all datasets decode their images into the tensor of the batch, or none does.
    """

    def __init__(
        self, mixture: Mixture, parts: Sequence[DatasetBatchFetcher], collate_fn: Callable[[list[Any]], Any] | None
    ) -> None:
        self.dataset: Mixture = mixture
        self.parts = parts
        self.collate_fn = collate_fn
        self.releases_gil = all(part.releases_gil for part in parts)
        self.image_nbytes = parts[0].image_nbytes
        # Random numbers are drawn as an array with a row for each sample of the batch. Datasets with the same
        # transforms take their rows from the same array.
        self._functions = [
            None if part.makes_own_samples else (id(part.decode), id(part.transform), id(part.transforms))
            for part in mixture.datasets
        ]

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int, read: bool = True, slot: Slot = None) -> Finish:
        images, pixels = self.parts[0].allocate(len(indices), slot)
        began = now()
        sources, groups = self.dataset.divide(indices)
        waited = np.zeros(len(self.parts))
        jobs: list[list[Piece]] = [[] for _ in range(0, len(indices), size)]
        drawn: dict[Any, Any] = {}
        before = 0  # number of samples from the datasets before this one
        for number, places, own in groups:
            started = now()
            key = self._functions[number]
            if key is not None and key not in drawn:
                drawn[key] = row_for_each(self.dataset.datasets[number].random_numbers(indices), len(indices))
            rows = None if key is None else [drawn[key][place] for place in places]
            if self.image_nbytes is None:  # otherwise no seeds are needed: ``rows`` has all random numbers
                own = seed_like(indices, own, places)
            given = self.parts[number].read(own, rows) if read else None
            waited[number] += now() - started
            for job in range(before // size, -(-(before + len(own)) // size)):
                part = slice(max(0, job * size - before), min(len(own), (job + 1) * size - before))
                jobs[job].append(Piece(number, given, own, rows, part, places[part]))
            before += len(own)
        serial = now() - began
        futures = [submit(self._make, job, pixels) for job in jobs]
        return functools.partial(self._finish, indices, sources, images, futures, waited, serial)

    def _make(self, job: list[Piece], pixels: Sequence[Any]) -> list[tuple[int, list[int], list[Any], Work]]:
        parts: list[Any] = []
        for piece in job:
            fetcher, rows = self.parts[piece.number], piece.rows
            if piece.given is None:
                given = fetcher.read(part_of(piece.own, piece.part), rows if rows is None else rows[piece.part])
                parts.append((fetcher, given, slice(None)))
            else:
                parts.append((fetcher, piece.given, piece.part))
        if self.image_nbytes is None:
            made = [fetcher.make(given, part) for fetcher, given, part in parts]
        else:
            made = decode_together(parts, [pixels[place] for piece in job for place in piece.places])
        return [(piece.number, piece.places, *result) for piece, result in zip(job, made, strict=True)]

    def _finish(
        self,
        indices: Sequence[int],
        sources: Array,
        images: Any,
        futures: list[Future[list[tuple[int, list[int], list[Any], Work]]]],
        waited: Array,
        read: float,
    ) -> TimedBatch:
        work = Work()
        samples: list[Any] = [None] * len(indices)
        for number, places, made, spent in [one for future in futures for one in future.result()]:
            work += spent
            waited[number] += spent.read
            for place, sample in zip(places, made, strict=True):
                samples[place] = sample
        began = now()
        samples = self.dataset.name_sources(samples, sources)
        if images is None:
            batch = collate(self.dataset, indices, samples, self.collate_fn)
        else:
            batch = join_batch(self.dataset, indices, images, samples, self.collate_fn)
        serial = Work(read, 0.0, now() - began)
        return TimedBatch(
            batch, work + serial, len(indices), serial.total, sources=self.dataset.count_sources(sources, waited)
        )
