"""``dbloader export``."""

from __future__ import annotations

import click

from dbloader._describe import counted, size
from dbloader.cli.meter import Meter
from dbloader.cli.text import say, say_json
from dbloader.exports.export import FORMATS, export_store


@click.command(
    "export",
    short_help="Write a store as files that other programs read.",
    epilog="""\b
Examples:
  dbloader export train.lmdb images/
  dbloader export train.lmdb train-shards/ --format webdataset
  dbloader export train.lmdb train-parquet/ --format parquet
  dbloader export boxes.lmdb train-coco/ --format coco""",
)
@click.argument("place", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option(
    "--format",
    type=click.Choice([*FORMATS]),
    default="folder",
    show_default=True,
    help="What to write: an image folder, tar files for WebDataset, Parquet files, or boxes as COCO or YOLO.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def export_command(
    place: str,
    destination: str,
    *,
    format: str,  # noqa: A002
    quiet: bool,
    as_json: bool,
) -> None:
    """Write all records of the store PLACE as files into the new folder DESTINATION.

    dbloader convert DESTINATION makes the same store again. The folder appears when it is complete. Boxes are read from
    DESTINATION/images, with --listing DESTINATION/annotations.json (coco) or DESTINATION/data.yaml (yolo).
    """
    with Meter("Exporting", "records", quiet=quiet or as_json) as meter:
        report = export_store(place, destination, format=format, progress=meter.update)
    if as_json:
        say_json(report._asdict(), indent=2)
    elif not quiet:
        say(f"{report.destination}: {counted(report.records, 'record')}, {size(report.image_bytes)} of images")
        for warning in report.warnings:
            say(f"Warning: {warning}", err=True)
