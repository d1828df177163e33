"""``dbloader copy`` and ``export``, which write the records of stores elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dbloader._describe import counted, size
from dbloader._places import is_mongo, is_remote
from dbloader.cli.isolated import isolated
from dbloader.cli.text import after_making, complain, say, say_json
from dbloader.conversion.meter import Meter
from dbloader.ext.copying.copy_store import copy_store
from dbloader.ext.copying.select_records import checked_fractions
from dbloader.ext.exports.export import FORMATS, export_store
from dbloader.records.manifest import Manifest
from dbloader.stores.mongo.uri import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

SOME_LEFT_OUT = 1
_NAMED = 10


@click.command(
    "copy",
    short_help="Copy, filter, merge or split stores.",
    epilog="""\b
LISTING is a .txt file with one record name per line, or a .jsonl, .json, .csv or .tsv file with a
column "name", "path" or "index" (the position in the first SOURCE).
QUERY has conditions such as 'class:cat width<256 score>=0.5'. A record must match all of them. A
record without a score does not match score>=0.5.

\b
Examples:
  dbloader copy mongodb://server/images.train local.lmdb
  dbloader copy first.lmdb second.lmdb merged.lmdb
  dbloader copy all.lmdb train.lmdb val.lmdb --split 0.9,0.1 --seed 0
  dbloader copy all.lmdb clean.lmdb --drop bad.txt --where 'width>=32'
  dbloader copy all.lmdb cats.lmdb --class cat
  dbloader copy all.lmdb pets.lmdb --rename-class cat=pet --rename-class dog=pet
  dbloader copy all.lmdb fixed.lmdb --labels labels.csv
  dbloader copy train.lmdb reviewed.lmdb --marks train.lmdb.marks.jsonl
  dbloader copy damaged.lmdb rest.lmdb --skip-damaged""",
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, type=click.Path())
@click.argument("destination", type=click.Path())
@click.option("--select", metavar="LISTING", type=click.Path(), help="Copy the listed records.")
@click.option("--drop", metavar="LISTING", type=click.Path(), help="Leave out the listed records.")
@click.option(
    "--class",
    "classes",
    metavar="NAME",
    multiple=True,
    help="Copy the records of this class; repeatable. Labels of the copied classes start from 0.",
)
@click.option("--where", metavar="QUERY", help="Copy the records that match QUERY.")
@click.option(
    "--labels",
    metavar="LISTING",
    type=click.Path(),
    help='Set labels from the column "label" of a listing. The column contains integers or class names.',
)
@click.option(
    "--marks",
    metavar="FILE",
    type=click.Path(),
    multiple=True,
    help="Apply a FILE of marks that the viewer wrote: leave out dropped records, and set labels; repeatable.",
)
@click.option(
    "--rename-class",
    metavar="OLD=NEW",
    multiple=True,
    help="Rename a class; repeatable. Two classes with the same NEW name become one.",
)
@click.option(
    "--split",
    metavar="F,F,...",
    help="Divide the records of each class at random by these fractions. Give one destination for each fraction.",
)
@click.option("--seed", metavar="N", type=int, help="Seed of --split.  [default: 0]")
@click.option("--overwrite", is_flag=True, help="Replace the store at DESTINATION when the copy is finished.")
@click.option(
    "--skip-damaged",
    is_flag=True,
    help="With one SOURCE: leave out damaged records, and list them in the report. Exit status 1 if there are any.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted copy, or begin a new copy.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as a JSON list, one item for each destination.")
def copy_command(
    sources: Sequence[str],
    destination: str,
    *,
    rename_class: Sequence[str],
    split: str | None,
    seed: int | None,
    skip_damaged: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Copy the store SOURCE (a file, folder of shards or mongodb:// place) to DESTINATION (a file or mongodb:// place).

    Each record is checked, and its bytes are copied. Several SOURCEs become one store. Classes with the same name
    become one class. Records stay in order. With several of --select, --drop, --class and --where, a record must pass
    each of them. Sources never change.

    One of the places may be in object storage: s3://, gs:// or az://bucket/name. In this case, the whole store is
    copied as a folder of shards, and records are not checked. After an interruption, the same command copies the
    missing files.
    """
    places = [*sources, destination]
    fractions = None if split is None else checked_fractions(split)
    if seed is not None and fractions is None:
        raise click.UsageError("--seed has no effect without --split: give --split too")
    count = 1 if fractions is None else len(fractions)
    if len(places) <= count:
        wanted = (
            f"--split {split} needs a SOURCE and {count} destinations" if split else "SOURCE and DESTINATION are needed"
        )
        raise click.UsageError(f"{wanted}, got {counted(len(places), 'argument')}")
    targets = places[-count:]
    left_out: list[str] = []
    options |= {
        "rename_classes": _renamed(rename_class),
        "split": fractions,
        "seed": seed or 0,
        "skip_damaged": left_out.append if skip_damaged else None,
    }
    try:
        with Meter("Copying", "records", quiet=quiet or as_json) as meter:
            options["progress"] = meter.update
            if fractions is not None:
                made = copy_store(places[:-count], targets, **options)
            elif skip_damaged and len(places) == 2:  # in another process, because a damaged file may crash it
                made = [Manifest(**isolated("ext.copying.copy_store.copy_store", *places, **options))]
            else:
                made = [copy_store(sources, destination, **options)]
    except KeyboardInterrupt as error:
        if skip_damaged:
            raise
        if any(map(is_remote, places)):
            error.args = ("copied files are kept; the same command copies the remaining files",)
        else:
            error.args = ("committed records are kept; --resume continues after them",)
        raise
    shown = [parse(place).redacted if is_mongo(place) else place for place in targets]
    with after_making(shown[0] if len(shown) == 1 else "each copy"):
        if as_json:
            names = ("length", "image_bytes", "digest")
            facts = [{name: getattr(manifest, name) for name in names} for manifest in made]
            say_json([{"place": place, **fact} for place, fact in zip(shown, facts, strict=True)], indent=2)
        elif not quiet:
            for place, manifest in zip(shown, made, strict=True):
                records, images = counted(manifest.length, "record"), size(manifest.image_bytes)
                say(f"{place}: {records}, {images} of images; digest {manifest.digest}")
    for reason in left_out[:_NAMED]:
        complain(reason)
    if len(left_out) > _NAMED:
        complain(f"{counted(len(left_out), 'problem')}; see all with dbloader info {shown[0]} --report")
    return SOME_LEFT_OUT if left_out else 0


def _renamed(pairs: Sequence[str]) -> dict[str, str]:
    renamed: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if not old or not new or old in renamed:
            raise click.UsageError(f"--rename-class must be OLD=NEW, with a different OLD each time, got {pair!r}")
        renamed[old] = new
    return renamed


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

    The folder appears when it is complete. dbloader convert DESTINATION makes a store with the same records. For coco,
    convert DESTINATION/images with --listing DESTINATION/annotations.json; for yolo, with DESTINATION/data.yaml.
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
