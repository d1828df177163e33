"""Options of the commands that convert: which files, and what becomes of them."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from dbloader.conversion.resize import DEFAULT_QUALITY
from dbloader.conversion.transcode import ImageFormat
from dbloader.images.tiled.encode import TILE_WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTIONS = (
    click.option(
        "--listing",
        metavar="FILE",
        type=click.Path(),
        help="Take files, labels and further fields from a .json, .jsonl, .csv or .tsv file; its paths start "
        "from SOURCE. "
        "Or take boxes: a COCO .json, the folder of VOC's .xml files, a file of its ImageSets, or YOLO's data.yaml.",
    ),
    click.option(
        "--name-field", metavar="FIELD", help="Field of a collection with a file's name.  [default: img_name]"
    ),
    click.option(
        "--image-field", metavar="FIELD", help="Field of a collection with a file's bytes.  [default: bson_img]"
    ),
    click.option(
        "--file-field",
        "file_fields",
        metavar="COLUMN",
        multiple=True,
        help="Column of the listing with paths of further files, such as masks, whose bytes become the field of "
        "its name; "
        "in tar files, mask stands for 17.mask.png beside 17.jpg. They are checked as the images are. May be "
        "given several "
        "times.",
    ),
    click.option(
        "--check",
        type=click.Choice(["decode", "structure", "none"]),
        default="decode",
        show_default=True,
        help="What to check of each image: that it decodes; only its structure (faster, finds less); nothing.",
    ),
    click.option(
        "--on-bad",
        type=click.Choice(["reject", "fail"]),
        default="reject",
        show_default=True,
        help="What to do with a file that is no image or cannot be read: leave it out and report it, or stop.",
    ),
    click.option(
        "--on-damaged",
        type=click.Choice(["reject", "keep", "fail"]),
        default="reject",
        show_default=True,
        help="What to do with a truncated image: reject it, store it marked as damaged, or stop.",
    ),
    click.option(
        "--max-side", metavar="PX", type=int, help="Make images smaller whose longer side has more than PX pixels."
    ),
    click.option(
        "--short-side", metavar="PX", type=int, help="Make images smaller whose shorter side has more than PX pixels."
    ),
    click.option(
        "--quality",
        metavar="Q",
        type=int,
        help="JPEG and WebP quality of images made smaller, 1 to 100; with --tile, of all JPEGs.  "
        f"[default: {DEFAULT_QUALITY}]",
    ),
    click.option(
        "--tile",
        is_flag=True,
        help="Store JPEGs tiled, so that crops are decoded without the rest. Those made smaller, or all with "
        "--quality, "
        "are encoded tiled; the others are tiled without loss by the program jpegtran.",
    ),
    click.option("--tile-width", metavar="PX", type=int, help=f"Target tile width.  [default: {TILE_WIDTH}]"),
    click.option(
        "--raw",
        is_flag=True,
        help="Store pixels instead of files: training decodes nothing, but a store of JPEGs becomes about 6x as large. "
        "EXIF is dropped and its orientation not applied; of 16 bits a value the upper 8 are kept.",
    ),
    click.option(
        "--shuffle-seed",
        metavar="N",
        type=int,
        help="Store the records in a random order; the same N always gives the same order.",
    ),
)


def conversion_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def pop_image_format(options: dict[str, Any]) -> ImageFormat:
    """Return the ImageFormat that the options say, and take them out."""
    return ImageFormat(**{field.name: options.pop(field.name) for field in fields(ImageFormat)})
