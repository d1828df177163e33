"""``dbloader export``."""

from __future__ import annotations

import click

from dbloader._describe import counted, size
from dbloader.cli.meter import Meter
from dbloader.cli.text import after_making, say, say_json
from dbloader.exports.export import FORMATS, export_store


@click.command(
    "export",
    short_help="Write a store as files for other programs.",
    epilog="""\b
Examples:
  dbloader export train.lmdb images/
  dbloader export train.lmdb train-shards/ --format webdataset
  dbloader export train.lmdb train-parquet/ --format parquet
  dbloader export boxes.lmdb train-coco/ --format coco
  dbloader export train.lmdb cats/ --where class:cat""",
)
@click.argument("place", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option(
    "--format",
    type=click.Choice([*FORMATS]),
    default="folder",
    show_default=True,
    help="An image folder, tar files for WebDataset, Parquet files, or images with boxes for COCO or YOLO.",
)
@click.option("--where", metavar="QUERY", help="Write only the records that match QUERY.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def export_command(
    place: str,
    destination: str,
    *,
    format: str,  # noqa: A002
    where: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write the records of the store PLACE as files into the new folder DESTINATION.

    The folder appears when it is complete. dbloader convert DESTINATION makes a store with the same records again. For
    coco and yolo, convert DESTINATION/images with --listing DESTINATION/annotations.json or DESTINATION/data.yaml.
    """
    with Meter("Exporting", "records", quiet=quiet or as_json) as meter:
        report = export_store(place, destination, format=format, where=where, progress=meter.update)
    with after_making(report.destination):
        if as_json:
            say_json(report._asdict(), indent=2)
        elif not quiet:
            say(f"{report.destination}: {counted(report.records, 'record')}, {size(report.image_bytes)} of images")
            for warning in report.warnings:
                say(f"Warning: {warning}", err=True)
