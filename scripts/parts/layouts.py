"""Convert the layouts of tests/support/layouts, and print how each is understood. Or record the answers of tools."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.layouts.catalog import LAYOUTS
from tests.support.layouts.outcome import try_layout

if TYPE_CHECKING:
    from tests.support.layouts.base import Layout
    from tests.support.layouts.outcome import Ran

RECORDED = Path("tests/ext/sources/layouts.json")
TOOLS = Path(__file__).parent / "layout_tools.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only layouts whose name contains this word")
    parser.add_argument("--details", action="store_true", help="print differences and messages")
    parser.add_argument("--record", action="store_true", help="record the answers of tools")
    parser.add_argument("--check", action="store_true", help="compare the answers of tools with the recorded ones")
    parser.add_argument("--python", action="append", default=[], help="the Python of a further environment with tools")
    options = parser.parse_args()
    chosen = {name: LAYOUTS[name] for name in sorted(LAYOUTS) if options.word.lower() in name.lower()}
    if options.record or options.check:
        sys.exit(record(chosen, [sys.executable, *options.python], check=options.check))
    counts = {True: Counter[str](), False: Counter[str]()}
    for name, layout in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            outcome = try_layout(layout, Path(folder))
        counts[layout.kind == 0][outcome.word] += 1
        print(f"{outcome.word:18} {name}")
        if options.details and outcome.word != "right":
            show(layout.commands[-1] if layout.commands else "write_store", outcome.plain)
            if outcome.with_option is not None:
                show(layout.option, outcome.with_option)
    for is_ordinary, found in counts.items():
        what = "ordinary layouts" if is_ordinary else "layouts"
        print(f"{found.total()} {what}: {', '.join(f'{count} {word}' for word, count in found.most_common())}")


def show(command: str, ran: Ran) -> None:
    print(f"    {command}  (exit status {ran.status})")
    for mark, lines in (("differs", ran.differences), ("says", ran.problems)):
        for line in lines:
            print(f"      {mark:8}{line}")


def record(layouts: dict[str, Layout], pythons: list[str], *, check: bool) -> int:
    """Ask the tools in each environment, and record their answers or compare them; return the exit status."""
    before = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    answers: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tasks = [make_task(layout, Path(folder, str(n))) for n, layout in enumerate(layouts.values()) if layout.tool]
        file = Path(folder, "tasks.json")
        file.write_text(json.dumps(tasks))
        for python in pythons:
            done = subprocess.run([python, str(TOOLS), str(file)], stdout=subprocess.PIPE, text=True, check=True)
            answers |= json.loads(done.stdout.splitlines()[-1])
    if check:
        other = [name for name, answer in answers.items() if without_version(answer) != without_version(before[name])]
        print(f"{len(answers)} of {len(before)} answers compared", *(f"{name} differs" for name in other), sep="\n")
        return 1 if other or not answers else 0
    merged = {**before, **answers}
    rows = [f"{json.dumps(name)}: {json.dumps(merged[name], ensure_ascii=False)}" for name in sorted(merged)]
    RECORDED.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(f"{RECORDED}: {len(answers)} answers recorded")
    return 0


def without_version(answer: dict[str, object]) -> str:
    answer = {key: value for key, value in answer.items() if key != "tool"}
    return re.sub(r"refuses.*", "refuses", json.dumps(answer, sort_keys=True))


def make_task(layout: Layout, folder: Path) -> dict[str, str]:
    """Write the files of a layout, and each image alone; return what a tool needs to know."""
    (folder / "files").mkdir(parents=True)
    (folder / "images").mkdir()
    for name, data in layout.make(folder / "files").images.items():
        (folder / "images" / name.rpartition("/")[2]).write_bytes(data)
    words = shlex.split(layout.commands[-1])
    listing = folder / "files" / words[words.index("--listing") + 1] if "--listing" in words else ""
    return {
        "name": layout.name,
        "tool": layout.tool,
        "folder": str(folder),
        "source": str(folder / "files" / words[0]),
        "listing": str(listing),
        "images": str(folder / "images"),
    }


if __name__ == "__main__":
    main()
