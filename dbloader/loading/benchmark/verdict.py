"""What limits the images a second that a training can have of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.batches.timed import Work
    from dbloader.loading.benchmark.report import Limit, Measurement

_REMEDIES = {
    "decoding": "more processors, or images that are cheaper to decode (dbloader convert --short-side or --tile), "
    "give more",
    "reading": "faster storage gives more, or a store that is in memory (dbloader warm), or, of one in MongoDB, a copy "
    "in a file (dbloader copy)",
    "collating": "smaller images (--size) give more",
}


def fastest(measurements: Sequence[Measurement], *kinds: str) -> Measurement:
    """Return the fastest of some kinds."""
    return max((one for one in measurements if one.kind in kinds), key=lambda one: one.images_per_s)


def find_limit(work: Work) -> tuple[Limit, float]:
    """Return what takes most of the workers' time, and its share of it, 0 to 1."""
    seconds: dict[Limit, float] = {"reading": work.read, "decoding": work.decode, "collating": work.collate}
    limit = max(seconds, key=lambda name: seconds[name])
    return limit, seconds[limit] / work.total


def verdict(
    measurements: Sequence[Measurement], limit: Limit, share: float, processors: int, *, resized: int = 0
) -> str:
    """Return the verdict in one line.

    Args:
        measurements: Of all contenders.
        limit: What takes most of the time of the fastest loader's workers.
        share: How much of it, 0 to 1.
        processors: That this process may use.
        resized: Images of the store that were made smaller when it was converted; those of the folder were not.
    """
    best = fastest(measurements, "threads", "processes")
    rate = best.images_per_s
    parts = [f"a training can have {rate:,.0f} images/s ({best.name.removeprefix('batches, ')})"]
    if any(one.kind == "folder" for one in measurements):
        parts[0] += f", {rate / fastest(measurements, 'folder').images_per_s:.1f} x what the folder gives"
        if resized:
            parts[0] += f" in full size ({resized:,} of the store's images were made smaller when it was converted)"
    parts.append(f"{limit} limits, with {share:.0%} of the workers' time")
    most = max(one.workers for one in measurements)
    if most < processors:
        parts.append(f"more workers may give more: at most {most} were measured, and there are {processors} processors")
    else:
        parts.append(_REMEDIES[limit])
    return "; ".join(parts)
