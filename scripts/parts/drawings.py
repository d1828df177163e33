"""Write the diagrams and the chart of the documentation into docs/images.

    python scripts/parts/drawings.py

A diagram is a text below. It lists columns, whose titles name the process or thread; boxes, each with its column and
row; and arrows between boxes, labeled with what flows. The chart shows a table of scripts/bench/figures.md. The colors
can be read on a light and on a dark page.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parents[2]
BOX, GAP, ROW, TOP = 218, 24, 116, 64  # pixels: width of a box, gap between columns, height of a row, of the titles
GRAY, TEAL, AMBER, BLUE = "#76828f", "#0f766e", "#a35b06", "#2563a8"

CONVERT = """
title What runs where in dbloader convert
column calling thread
column worker threads
column disk or server
a 3 1 Sources: folder, tars, zip, Parquet, listing, another store
b 1 1 List of files, in a temporary file: their number, order and digest
c 2 2 Read, examine, repair, decode; perhaps resize or tile; encode the record
d 1 3 Write the records in their order, commit now and then
e 3 3 train.lmdb.partial: --resume continues here
f 1 4 Manifest, checksum, rename: all or nothing
g 3 4 train.lmdb and its report
a b names, labels, fields
b c tasks of 16 files
c d records, at most 96 MiB ahead
d e
d f
f g
"""

LOADER = """
title What runs where in create_loader
column your thread
column background thread
column workers: threads or processes
a 2 1 Sampler: the next indices, from seed and epoch
b 3 2 Read and verify the records; decode, crop, resize, flip
c 2 3 On a CUDA stream of its own: copy to the device, normalize, preparation
d 1 4 next(): your stream waits for the copy, then your training step
a b indices
b c uint8 batches, prefetch_factor ahead
c d float batch on the device, at most two ahead
"""

STORES = """
title Where a store is, and who reads it
column one machine
column several machines
a 1 1 train.lmdb: one file. Records, columns of names and labels, manifest
b 1 2 All training processes map the same file, and share the page cache
c 2 1 mongodb://… or s3://…: the same records on a server
d 2 2 cache= on a machine: LMDB files of some 64 MB, fetched ahead
e 2 3 All training processes of a machine read from it
a b memory map
c d each record once
d e memory map
"""


def diagram(source: str) -> str:
    lines = [line.split(" ", 1) for line in source.strip().splitlines()]
    title = next(text for word, text in lines if word == "title")
    columns = [text for word, text in lines if word == "column"]
    boxes, arrows = {}, []
    for word, text in lines:
        if box := re.fullmatch(r"(\d) (\d) (.*)", text):
            boxes[word] = (int(box[1]) - 1, int(box[2]) - 1, box[3])
        elif len(word) == 1:
            arrows.append((word, *text.partition(" ")[::2]))
    width = len(columns) * (BOX + GAP) + GAP
    height = TOP + (1 + max(row for _, row, _ in boxes.values())) * ROW
    drawn = []
    for number, name in enumerate(columns):
        x = GAP / 2 + number * (BOX + GAP)
        drawn.append(f'<rect x="{x}" y="4" width="{BOX + GAP - 6}" height="{height - 8}" rx="10" class="column"/>')
        drawn.append(words(textwrap.wrap(name, 30), x + (BOX + GAP - 6) / 2, 34, "title"))
    for start, end, label in arrows:
        drawn.append(arrow(boxes[start], boxes[end], label))
    for column, row, text in boxes.values():
        left, top, color = GAP + column * (BOX + GAP), TOP + row * ROW, (TEAL, AMBER, BLUE)[column]
        drawn.append(f'<rect x="{left}" y="{top}" width="{BOX - 6}" height="72" rx="7" fill="{color}"/>')
        drawn.append(words(textwrap.wrap(text, 26), left + BOX / 2 - 3, top + 40, "box"))
    style = (
        f".title{{fill:{GRAY};font-weight:600}}.box{{fill:#fff}}.label{{fill:{GRAY};font-size:11.5px}}"
        f".column{{fill:{GRAY};fill-opacity:.09}}.line{{fill:none;stroke:{GRAY};stroke-width:1.6}}"
    )
    head = f'<path d="M0 0L8 4L0 8z" fill="{GRAY}"/>'
    size = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    marker = f'<marker id="head" {size} orient="auto">{head}</marker>'
    return svg(title, width, height, style, [f"<defs>{marker}</defs>", *drawn])


def arrow(start: tuple[int, int, str], end: tuple[int, int, str], label: str) -> str:
    """Draw an arrow from below one box to above another, or sideways if both are in one row."""
    (x, y), (to_x, to_y) = ((GAP + column * (BOX + GAP) + BOX / 2, TOP + row * ROW) for column, row, _ in (start, end))
    if y == to_y:
        side = BOX / 2 if to_x > x else -BOX / 2
        path = f"M{x + side - 3} {y + 36}H{to_x - side - 3}"
        text = words([label], (x + to_x) / 2, y + 28, "label")
    else:
        bend = to_y - 24
        path = f"M{x} {y + 72}V{bend}H{to_x}V{to_y - 2}"
        text = words([label], x + (-8 if to_x < x else 8), bend - 6, "label", "end" if to_x < x else "start")
    return f'<path d="{path}" class="line" marker-end="url(#head)"/>{text if label else ""}'


def words(lines: list[str], x: float, y: float, name: str, anchor: str = "middle") -> str:
    """Return lines of text around a point."""
    first = y - 8 * (len(lines) - 1)
    spans = [
        f'<tspan x="{x:g}" y="{first + 16 * number:g}">{escape(line)}</tspan>' for number, line in enumerate(lines)
    ]
    return f'<text class="{name}" text-anchor="{anchor}">{"".join(spans)}</text>'


def svg(title: str, width: float, height: float, style: str, content: list[str]) -> str:
    font = 'text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{font}{style}</style>", *content, "</svg>", ""])


def chart(page: str) -> str:
    """Draw a chart of the images per second in the table "Full size" under "Training batches"."""
    table = page.partition("### Full size")[2].partition("###")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]
    speeds = sorted((float(row[1].replace(",", "")), row[0]) for row in rows[2:])[::-1]
    scale, drawn = 430 / speeds[0][0], []
    for number, (speed, name) in enumerate(speeds):
        y = 30 + 27 * number
        color = TEAL if name.startswith("dbloader") else GRAY
        drawn.append(f'<text x="196" y="{y + 14}" class="label" text-anchor="end">{escape(name)}</text>')
        drawn.append(f'<rect x="206" y="{y}" width="{speed * scale:.0f}" height="19" rx="3" fill="{color}"/>')
        drawn.append(f'<text x="{214 + speed * scale:.0f}" y="{y + 14}" class="label">{speed:,.0f}</text>')
    title = "Random crops of JPEG photographs, images a second, with two workers on the same two cores"
    drawn.insert(0, f'<text x="4" y="14" class="label" font-weight="600">{title}</text>')
    return svg(title, 700, 30 + 27 * len(speeds), f".label{{fill:{GRAY}}}", drawn)


def main() -> None:
    folder = HERE / "docs" / "images"
    for name, source in (("convert", CONVERT), ("create-loader", LOADER), ("stores", STORES)):
        (folder / f"{name}.svg").write_text(diagram(source), encoding="utf-8")
    page = (HERE / "scripts" / "bench" / "figures.md").read_text(encoding="utf-8").partition("## Training batches")[2]
    (folder / "training-speed.svg").write_text(chart(page), encoding="utf-8")


if __name__ == "__main__":
    main()
