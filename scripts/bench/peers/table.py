"""Tables of what was measured."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Protocol

from data import LIMIT, REFERENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Runs = Mapping[str, Sequence[Mapping[str, float]]]


class Shown(Protocol):
    """A contender; ``images`` is the heading of its table."""

    @property
    def images(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...


_HEAD = (
    "contender", "images/s", "least - greatest", f"/ {REFERENCE}", f"/ {LIMIT}", "first batch s", "MB", "MB a worker"
)  # fmt: skip


def print_tables(rows: Sequence[Shown], runs: Runs) -> None:
    """Print a Markdown table for each kind of images."""
    for images, group in groupby((row for row in rows if runs[row.key]), key=lambda row: row.images):
        print(f"\n### {images[0].upper()}{images[1:]}\n")
        print(f"| {' | '.join(_HEAD)} |")
        print(f"| --- | {' | '.join(['---:'] * (len(_HEAD) - 1))} |")
        for row in group:
            print(f"| {row.name} | {' | '.join(_cells(row, images, runs))} |")


def _cells(row: Shown, images: str, runs: Runs) -> list[str]:
    some = runs[row.key]
    rates = [run["images_per_s"] for run in some]
    middle = {name: median(run[name] for run in some) for name in some[0]}
    return [
        f"{median(rates):,.0f}",
        f"{min(rates):,.0f} - {max(rates):,.0f}",
        *(_ratio(rates, runs.get(f"{images}: {other}", ())) for other in (REFERENCE, LIMIT)),
        f"{middle['first_s']:.2f}",
        f"{middle['private_mb']:,.0f}",
        f"{middle['worker_mb']:,.0f}" if middle["worker_mb"] else "",
    ]


def _ratio(rates: Sequence[float], others: Sequence[Mapping[str, float]]) -> str:
    """Return the median of the ratios of each round, because the machine's speed may change between rounds."""
    if not others:
        return ""
    return f"{median(rate / other['images_per_s'] for rate, other in zip(rates, others, strict=True)):.2f}"
