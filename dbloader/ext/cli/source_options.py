"""Options of ``dbloader convert`` and ``plan`` for all sources except a plain folder of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dbloader.sources.base import Listing

if TYPE_CHECKING:
    from collections.abc import Callable


def _only_one(context: click.Context, option: click.Parameter, paths: tuple[str, ...]) -> str | None:
    """Return the path of the listing; click alone would take the last of several without a word."""
    if len(paths) > 1:
        way = "join the files, or make a folder of shards (--shards) from one and add the other with --append"
        raise click.UsageError(f"--listing is given {len(paths)} times: {way}")
    return paths[0] if paths else None


_OPTIONS = (
    click.option(
        "--listing",
        metavar="FILE",
        type=click.Path(),
        multiple=True,
        callback=_only_one,
        help="Table (.csv, .tsv, .txt, .json, .jsonl) with paths below SOURCE, labels and other fields; or "
        "annotations of COCO, VOC or YOLO.",
    ),
    click.option("--image-column", metavar="COLUMN", help="Listing's column with the names of images."),
    click.option(
        "--label-column", metavar="COLUMN", multiple=True, help="Column of labels, or one per class: a,b or '*' (all)."
    ),
    click.option("--separator", metavar="TEXT", help="Separator of classes in a label, such as '|'."),
    click.option("--text-column", metavar="COLUMN", multiple=True, help="Column to keep as text, not as numbers."),
    click.option("--name-field", metavar="FIELD", help="MongoDB field with a file's name.  [default: img_name]"),
    click.option("--image-field", metavar="FIELD", help="MongoDB field with a file's bytes.  [default: bson_img]"),
    click.option(
        "--file-field",
        "file_fields",
        metavar="COLUMN",
        multiple=True,
        help="Listing's column with paths of further files, such as masks; repeatable. In tar files, mask means "
        "17.mask.png beside 17.jpg.",
    ),
    click.option("--where", metavar="QUERY", help="With a store as SOURCE: convert only the records that match QUERY."),
    click.option(
        "--class-folder",
        type=click.Choice(["first", "last", "path"]),
        help="Part of a path that is the image's class: first folder, last folder, or whole path.  [default: first]",
    ),
    click.option(
        "--boxes",
        metavar="WORDS",
        multiple=True,
        callback=lambda context, option, words: ",".join(words) if words else None,
        help="Form of boxes: upright (on the image turned by EXIF) or stored; pixels or fractions. Example: "
        "upright,pixels.",
    ),
    click.option(
        "--classes",
        metavar="NAMES",
        help="Order of classes: a store, .txt, .json or a,b,c; or the word numbers if the class names are the labels.",
    ),
    click.option("--encoding", metavar="NAME", help="Encoding of a listing, or of names in a zip or tar."),
)


def add_source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of this module to a command, before its own options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def pop_listing(options: dict[str, Any]) -> str | Listing | None:
    """Pop the listing and its column options from ``options``. Without column options, return the listing's path."""
    path: str | None = options.pop("listing")
    given = {name: options.pop(name) for name in ("image_column", "label_column", "separator", "text_column")}
    if not any(given.values()):
        return path
    if path is None:
        names = ", ".join(f"--{name.replace('_', '-')}" for name, value in given.items() if value)
        raise click.UsageError(f"{names}: only a listing has columns: give --listing too")
    image, labels, separator, text = given.values()
    labels = [name.strip() for names in labels for name in names.split(",")]
    return Listing(path, image=image, label=labels, separator=separator, text=text)
