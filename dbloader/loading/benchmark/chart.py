"""A bar chart of what was measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dbloader.errors import OptionError

if TYPE_CHECKING:
    import os

    from dbloader.loading.benchmark.report import Benchmark

_SUFFIXES = (".png", ".svg", ".pdf")
_COLOURS = {
    "read": "#8da0cb",
    "decode": "#8da0cb",
    "crop": "#8da0cb",
    "threads": "#1b9e77",
    "processes": "#66c2a5",
    "folder": "#b3b3b3",
}


class Chart:
    """A file with a bar chart. It is checked when this is made, so that no measurement is in vain.

    Args:
        path: Its ending says the format: .png, .svg or .pdf.

    Raises:
        OptionError: It has another ending, its folder is not there, or matplotlib is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in _SUFFIXES:
            raise OptionError(f"plot must be a file that ends in {', '.join(_SUFFIXES)}, got {path}")
        if not self.path.parent.is_dir():
            raise OptionError(f"plot must be a file in a folder that is there, got {path}")
        if find_spec("matplotlib") is None:
            raise OptionError(f"plot needs matplotlib, which is not installed: pip install matplotlib; got {path}")

    def draw(self, benchmark: Benchmark) -> None:
        """Draw the images a second of each loader, and of decoding by itself.

        Reading is left out: it is so many times faster that no other bar would be seen.
        """
        from matplotlib.figure import Figure  # which nothing else needs

        shown = [one for one in benchmark.measurements if one.kind != "read"]
        figure = Figure(figsize=(8, 1.2 + 0.35 * len(shown)), layout="constrained")
        axes = figure.add_subplot()
        rates = [one.images_per_s for one in shown]
        bars = axes.barh(
            [one.name for one in shown],
            rates,
            xerr=[[rate - min(one.rounds) for rate, one in zip(rates, shown, strict=True)],
                  [max(one.rounds) - rate for rate, one in zip(rates, shown, strict=True)]],
            color=[_COLOURS[one.kind] for one in shown],
            error_kw={"elinewidth": 1, "ecolor": "#555555"},
        )  # fmt: skip
        axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=8)
        axes.margins(x=0.15)
        axes.invert_yaxis()
        axes.set_xlabel(f"images/s: median, least and greatest of rounds: {len(shown[0].rounds)}")
        axes.set_title(f"{Path(benchmark.place).name}, {benchmark.size} x {benchmark.size} pixels", loc="left")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.savefig(self.path, dpi=150)
