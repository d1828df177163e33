"""``dbloader convert``, and the options and output that ``plan`` and ``publish`` share with it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dbloader._describe import counted, size
from dbloader._extensions import extension, has_extensions
from dbloader.cli.text import after_making, say, say_json
from dbloader.conversion.convert import convert
from dbloader.conversion.meter import Meter
from dbloader.conversion.report import REMARKS
from dbloader.conversion.transcode import ImageFormat
from dbloader.images.resize import DEFAULT_QUALITY
from dbloader.images.tiled.encode import TILE_WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.conversion.report import Progress, Report

SOME_REJECTED = 1

_REPORTED = ("repaired", "damaged", "rejected", *REMARKS)
_KEPT = "committed records are kept; --resume continues after them"
NAMED = 10  # the terminal shows this many files, extensions or classes; the report and --json contain all

_OPTIONS = (
    click.option(
        "--check",
        type=click.Choice(["decode", "structure", "none"]),
        default="decode",
        show_default=True,
        help="Decode each image, check only its structure, or check nothing.",
    ),
    click.option(
        "--on-bad",
        type=click.Choice(["reject", "fail"]),
        default="reject",
        show_default=True,
        help="If a file is not an image or cannot be read: report it and leave it out, or stop.",
    ),
    click.option(
        "--on-damaged",
        type=click.Choice(["reject", "keep", "fail"]),
        default="reject",
        show_default=True,
        help="If an image is truncated: report it and leave it out, store it marked as damaged, or stop.",
    ),
    click.option("--max-side", metavar="PX", type=int, help="Shrink images whose longer side exceeds PX."),
    click.option("--short-side", metavar="PX", type=int, help="Shrink images whose shorter side exceeds PX."),
    click.option(
        "--quality",
        metavar="Q",
        type=int,
        help="Quality of shrunk JPEG and WebP images, 1 to 100. If given with --tile, all JPEGs are encoded again.  "
        f"[default: {DEFAULT_QUALITY}]",
    ),
    click.option(
        "--tile",
        is_flag=True,
        help="Tile JPEGs, so training decodes only the crops. Tiling changes no pixels. --quality and shrinking do.",
    ),
    click.option("--tile-width", metavar="PX", type=int, help=f"Target tile width.  [default: {TILE_WIDTH}]"),
    click.option(
        "--raw",
        is_flag=True,
        help="Store pixels, so training decodes nothing. JPEGs grow sixfold; EXIF data and the lower 8 of 16 bits "
        "are lost.",
    ),
    click.option("--new-only", is_flag=True, help="With --append: read all files, and add only new or changed ones."),
    click.option("--shuffle-seed", metavar="N", type=int, help="Store the records in a random order, with seed N."),
)


def conversion_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command the options that ``convert`` and ``plan`` share."""
    for option in reversed(_OPTIONS):
        command = option(command)
    if has_extensions():
        command = extension("add_source_options")(command)
    return command


def pop_image_format(options: dict[str, Any]) -> ImageFormat:
    """Remove the image options from ``options``, and return them as an ImageFormat."""
    return ImageFormat(**{field.name: options.pop(field.name) for field in fields(ImageFormat)})


@click.command(
    "convert",
    short_help="Turn a folder of images into a store.",
    epilog="""\b
SOURCE is one of these:
  a folder with a folder of images for each class, local or at s3://, gs:// or az://bucket/folder
  a folder with metadata.csv or metadata.jsonl: the column file_name names the images, and a
    column such as mask_file_name names further files
  tar, zip or Parquet files: one, a folder of them, or 'shard-{000..127}.tar' in quotes
  a folder that Hugging Face's save_to_disk wrote
  a store (records keep all fields), or an LMDB file of another program
  with --listing, the place that its paths are relative to: a folder, object storage, a web
    server (https://), or a collection with a document for each file (mongodb://)

\b
Exit status: 0 every file is stored, 1 some were rejected, 2 error, 130 interrupted.
With status 2 or 130, DESTINATION is unchanged. Exception: only printing the report failed.

\b
Examples:
  dbloader convert imagenet/train/ train.lmdb
  dbloader convert imagenet/train/ small.lmdb --short-side 256 --quality 90
  dbloader convert imagenet/train/ tiled.lmdb --tile
  dbloader convert photos/ captions.lmdb --listing captions.csv
  dbloader convert scenes/ scenes.lmdb --listing scenes.csv --file-field mask --file-field depth
  dbloader convert coco/train2017/ train.lmdb --listing coco/annotations/instances_train2017.json
  dbloader convert 'shards/train-{000..146}.tar' train.lmdb
  dbloader convert imagenet/train/ mongodb://server/images.train
  dbloader convert mongodb://server/images.old train.lmdb --listing listing.json
  dbloader convert imagenet/train/ train.lmdb --shards 64
  dbloader convert imagenet/train/ train.lmdb --append --new-only
  dbloader convert imagenet/train/ train.lmdb --resume""",
)
@click.argument("source", type=click.Path())
@click.argument("destination", type=click.Path())
@conversion_options
@click.option(
    "--workers",
    metavar="N",
    type=int,
    help="Number of threads, of processes (--shards), or of threads in each task (--executor).  [default: one per CPU; "
    "with --executor, 1]",
)
@click.option(
    "--shards",
    metavar="N",
    type=int,
    help="Make a folder of N LMDB files, with the same records and digest as a single file.",
)
@click.option(
    "--executor",
    type=click.Choice(["ray"]),
    help="Make the shards as tasks of the Ray cluster on this machine or at RAY_ADDRESS. Without a cluster, start Ray.",
)
@click.option(
    "--append",
    is_flag=True,
    help="Add the images to the folder of shards DESTINATION, in one new file, or in N new files with --shards N.",
)
@click.option("--overwrite", is_flag=True, help="Replace the store at DESTINATION when the new store is finished.")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue an interrupted conversion with the same options, or begin a conversion. Only --overwrite, now or in "
    "the interrupted conversion, replaces a finished store.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be converted, without reading images or writing.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def convert_command(*, dry_run: bool, quiet: bool, as_json: bool, **options: Any) -> int:
    """Convert the images in SOURCE, such as a folder with a folder for each class, to the store DESTINATION.

    DESTINATION is a file, such as train.lmdb, a folder of such files (--shards), or mongodb://host/database.collection.
    The store appears there when it is complete. Every image is checked, and its bytes are stored unchanged. If a JPEG
    lacks only its end marker, convert appends the marker. DESTINATION.report.jsonl names each rejected file and the
    reason. For MongoDB, this file is DATABASE.COLLECTION.report.jsonl in the current folder.
    """
    images = pop_image_format(options)
    if has_extensions():
        options["listing"] = extension("pop_listing")(options)
    if dry_run:
        status: int = extension("print_dry_run")(options, quiet=quiet, as_json=as_json)
        return status
    try:
        with Meter("Looking for images", "images", quiet=quiet or as_json) as meter:
            show = partial(_show, meter) if not (quiet or as_json) else None
            report = convert(**options, images=images, progress=show)
    except KeyboardInterrupt as error:
        has_parts = options["shards"] is not None or options["append"]
        again = f"the same command{' with --resume' * options['overwrite']} makes the remaining parts"
        error.args = (f"finished parts are kept; {again}" if has_parts else _KEPT,)
        raise
    return print_report(report, quiet=quiet, as_json=as_json, raw=images.raw)


def _show(meter: Meter, progress: Progress) -> None:
    """Show the progress. Before the first file is converted, also show how the files are read."""
    if progress.understood:
        meter.clear()
    with suppress(OSError):  # if stdout is closed, only printing the report fails, when the store is complete
        for line in progress.understood:
            say(f"  {line}")
    progress.show(meter)


def print_report(report: Report, *, quiet: bool, as_json: bool, raw: bool = False, rated: bool = True) -> int:
    """Print the report of a conversion and return the exit status. With ``rated``, print the speed too."""
    with after_making(report.place):
        if as_json:
            say_json(asdict(report), indent=2)
        elif not quiet:
            _print_lines(report, raw=raw, rated=rated)
    return SOME_REJECTED if report.rejected else 0


def _print_lines(report: Report, *, raw: bool, rated: bool) -> None:
    done = report.files - report.resumed_at
    rates = f"{done / report.seconds:,.0f} images/s, {report.bytes_read / report.seconds / 1e6:,.1f} MB/s"
    say(
        f"{report.place}: {counted(report.records, 'record')}, {size(report.image_bytes)} of images, "
        f"in {report.seconds:.1f} s{f' ({rates})' * rated}"
    )
    say(f"  digest    {report.digest}")
    if raw and report.bytes_read and not report.resumed_at:
        growth = report.image_bytes / report.bytes_read
        say(f"  raw       the pixels take {growth:.1f} times the space of the files ({size(report.bytes_read)})")
    for count, text in (
        (report.resumed_at, "resumed   after {} files of an earlier run"),
        (report.resized, "resized   {}"),
        (report.reencoded, "reencoded {}: pixels differ from the files"),
        (report.unchanged and report.files - report.unchanged - report.rejected, "added     {}"),
        (report.unchanged, "unchanged {}: in the store already"),
        (report.repaired, "repaired  {}: only the end marker was missing"),
        (report.damaged, "damaged   {}, stored nevertheless"),
        (report.untiled, "untiled   {}: must be decoded whole"),
        (report.rejected, "rejected  {} of {files:,}"),
    ):
        if count:
            say("  " + text.format(f"{count:,}", files=report.files))
    if report.report_file and any(getattr(report, event) for event in _REPORTED):
        _print_events(report)
    print_left_out(report)


def _print_events(report: Report) -> None:
    with Path(report.report_file).open(encoding="utf-8") as file:
        # Show rejected, damaged and repaired files first, then remarks.
        lines = map(json.loads, islice(file, report.earlier_events, None))
        named = nsmallest(NAMED, lines, key=lambda event: event["event"] in REMARKS)
    for event in named:
        say(f"    {event['event']:8}  {event['name']}: {event['reason']}")
    more = sum(getattr(report, event) for event in _REPORTED) - len(named)
    say(f"    {f'and {more:,} more, all' if more > 0 else 'all of them'} in {report.report_file}")


def print_left_out(found: Any) -> None:
    """Print how many files the source leaves out, and the warnings."""
    if found.skipped:
        kinds = [f"{extension or 'no extension'} {count:,}" for extension, count in found.skipped.items()]
        kinds[NAMED:] = [f"{len(kinds) - NAMED:,} more"] if len(kinds) > NAMED else []
        say(f"  left out  {counted(sum(found.skipped.values()), 'file')} of other kinds ({', '.join(kinds)})")
    if found.hidden:
        say(f"  left out  {counted(found.hidden, 'hidden file')} (names that begin with a dot)")
    for warning in found.warnings:
        say(f"Warning: {warning}", err=True)
