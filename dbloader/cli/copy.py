"""``dbloader copy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dbloader._describe import counted, size
from dbloader.cli.isolated import isolated
from dbloader.cli.meter import Meter
from dbloader.cli.text import complain, say, say_json, say_next
from dbloader.copying.copy_store import copy_store
from dbloader.records.manifest import Manifest
from dbloader.remote.places import is_remote
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

SOME_LEFT_OUT = 1
_NAMED = 10


@click.command(
    "copy",
    short_help="Copy stores: all records or some, several into one, or divided.",
    epilog="""\b
LISTING is a .txt with the name of a record on each line, or a .jsonl, .json, .csv or .tsv with a
column "name" or "path", or "index" for the position in the first SOURCE.
CONDITION is width, height, nbytes (of the image) or label, then <, <=, >, >=, == or !=, then an
integer. A record without the value does not fulfil it.

\b
Examples:
  dbloader copy mongodb://server/images.train local.lmdb
  dbloader copy all.lmdb mongodb://server/images.copy
  dbloader copy first.lmdb second.lmdb merged.lmdb
  dbloader copy all.lmdb train.lmdb val.lmdb --split 0.9,0.1 --seed 0
  dbloader copy all.lmdb clean.lmdb --drop bad.txt --where 'width>=32'
  dbloader copy all.lmdb cats.lmdb --class cat
  dbloader copy all.lmdb pets.lmdb --rename-class cat=pet --rename-class dog=pet
  dbloader copy all.lmdb fixed.lmdb --labels labels.csv
  dbloader copy damaged.lmdb rest.lmdb --skip-damaged""",
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, type=click.Path())
@click.argument("destination", type=click.Path())
@click.option("--select", metavar="LISTING", type=click.Path(), help="Copy the records that a listing names.")
@click.option("--drop", metavar="LISTING", type=click.Path(), help="Leave out the records that a listing names.")
@click.option(
    "--class",
    "classes",
    metavar="NAME",
    multiple=True,
    help="Copy the records of a class; may be repeated. Only these classes are left, with labels from 0 on.",
)
@click.option("--where", metavar="CONDITION", multiple=True, help="Copy the records that fulfil this; may be repeated.")
@click.option(
    "--labels",
    metavar="LISTING",
    type=click.Path(),
    help='Take labels, integers or names of classes, from a listing that has a column "label" too.',
)
@click.option(
    "--rename-class",
    metavar="OLD=NEW",
    multiple=True,
    help="Give a class another name, or that of another class, which unites them; may be repeated.",
)
@click.option(
    "--split",
    metavar="F,F,...",
    help="Divide the records at random by these fractions, each class alike; the last arguments are the destinations, "
    "one for each.",
)
@click.option("--seed", metavar="N", type=int, help="Seed of --split.  [default: 0]")
@click.option("--overwrite", is_flag=True, help="Replace the store at DESTINATION once the copy is finished.")
@click.option(
    "--skip-damaged", is_flag=True, help="Leave out damaged records of the one SOURCE; the copy's report names them."
)
@click.option("--resume", is_flag=True, help="Continue an interrupted copy; begin if none was interrupted.")
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
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
    """Make at DESTINATION the same store that is at SOURCE, each a file or a mongodb:// place.

    With --skip-damaged the copy holds the records of SOURCE that are intact; the exit status is 1 if some are not.

    SOURCE may be a folder of shards too. The records keep their content, byte for byte, and each is checked on its way.

    Several SOURCEs become one store, their classes united by name. With options the copy holds the records that fulfil
    all of --select, --drop, --class and --where, in their order, or has other labels. Sources never change.

    One of the two places may be in object storage: s3://, gs:// or az://bucket/name. There and back a whole store is
    copied as it is, as a folder of shards, without a check of each record. If that was interrupted, the same command
    goes on with the files that are whole.
    """
    places = [*sources, destination]
    fractions = None if split is None else _fractions(split)
    if seed is not None and fractions is None:
        raise click.UsageError("--seed is the seed of --split: give --split too")
    count = 1 if fractions is None else len(fractions)
    if len(places) <= count:
        wanted = (
            f"--split {split} wants a SOURCE and {count} destinations" if split else "SOURCE and DESTINATION are wanted"
        )
        raise click.UsageError(f"{wanted}, got {counted(len(places), 'argument')}")
    targets: Any = places[-count:]
    options |= {"rename_classes": _renamed(rename_class), "split": fractions, "seed": seed or 0}
    left_out: list[str] = []
    try:
        with Meter("Copying", "records", quiet=quiet or as_json) as meter:
            made: Any
            if skip_damaged and len(places) == 2:
                function = "copying.copy_store.copy_store"
                options |= {"skip_damaged": left_out.append, "progress": meter.update}
                made = Manifest(**isolated(function, sources[0], destination, **options))
            else:
                options["skip_damaged"] = left_out.append if skip_damaged else None
                made = copy_store(
                    places[:-count], targets if fractions else destination, progress=meter.update, **options
                )
    except KeyboardInterrupt as error:
        if skip_damaged:
            raise
        if any(map(is_remote, places)):
            error.args = ("what was copied whole is kept; the same command goes on with the rest",)
        else:
            error.args = ("committed records are kept; --resume continues after them",)
        raise
    facts = []
    for target, manifest in zip(targets, made if fractions else [made], strict=True):
        place = str(target)
        if not is_remote(place):
            with open_store(place) as store:
                place = store.place  # without credentials
        facts.append(
            {"place": place, **{name: getattr(manifest, name) for name in ("length", "image_bytes", "digest")}}
        )
        if not quiet and not as_json:
            records, images = counted(manifest.length, "record"), size(manifest.image_bytes)
            say(f"{place}: {records}, {images} of images; digest {manifest.digest}")
    if as_json:
        say_json(facts, indent=2)
    elif not quiet and not is_remote(targets[0] if fractions else destination):
        say_next("Look at it", "dbloader", "view", *(str(fact["place"]) for fact in facts[:2]))
    for reason in left_out[:_NAMED]:
        complain(reason)
    if len(left_out) > _NAMED:
        complain(f"{counted(len(left_out), 'problem')}; see all with dbloader info {facts[0]['place']} --report")
    return SOME_LEFT_OUT if left_out else 0


def _fractions(split: str) -> list[float]:
    try:
        return [float(part) for part in split.split(",")]
    except ValueError:
        raise click.UsageError(f"--split: fractions such as 0.9,0.1 are wanted, got {split!r}") from None


def _renamed(pairs: Sequence[str]) -> dict[str, str]:
    """Return the new name of each class in ``OLD=NEW``."""
    renamed: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if not old or not new or old in renamed:
            raise click.UsageError(f"--rename-class: OLD=NEW is wanted, each OLD once, got {pair!r}")
        renamed[old] = new
    return renamed
