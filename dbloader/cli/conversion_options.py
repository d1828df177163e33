"""Options that ``convert`` and ``plan`` share."""

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
        help="Take paths (relative to SOURCE), labels and other fields from a .json, .jsonl, .csv or .tsv file, or "
        "boxes from annotations of COCO, VOC or YOLO.",
    ),
    click.option("--name-field", metavar="FIELD", help="MongoDB field with a file's name.  [default: img_name]"),
    click.option("--image-field", metavar="FIELD", help="MongoDB field with a file's bytes.  [default: bson_img]"),
    click.option(
        "--file-field",
        "file_fields",
        metavar="COLUMN",
        multiple=True,
        help="Column of the listing with paths of further files, such as masks; repeatable. In tar files, mask reads "
        "17.mask.png beside 17.jpg.",
    ),
    click.option(
        "--check",
        type=click.Choice(["decode", "structure", "none"]),
        default="decode",
        show_default=True,
        help="Decode each image, check only its structure (faster, finds less), or check nothing.",
    ),
    click.option(
        "--on-bad",
        type=click.Choice(["reject", "fail"]),
        default="reject",
        show_default=True,
        help="Leave out and report files that are no images or cannot be read, or stop.",
    ),
    click.option(
        "--on-damaged",
        type=click.Choice(["reject", "keep", "fail"]),
        default="reject",
        show_default=True,
        help="Leave out truncated images, store them marked as damaged, or stop.",
    ),
    click.option("--max-side", metavar="PX", type=int, help="Shrink images whose longer side exceeds PX."),
    click.option("--short-side", metavar="PX", type=int, help="Shrink images whose shorter side exceeds PX."),
    click.option(
        "--quality",
        metavar="Q",
        type=int,
        help="JPEG and WebP quality of shrunk images, 1 to 100; with --tile, of all JPEGs.  "
        f"[default: {DEFAULT_QUALITY}]",
    ),
    click.option(
        "--tile",
        is_flag=True,
        help="Tile JPEGs, so training decodes only the crops. jpegtran tiles them without loss; shrunk ones, and all "
        "with --quality, are encoded again.",
    ),
    click.option("--tile-width", metavar="PX", type=int, help=f"Target tile width.  [default: {TILE_WIDTH}]"),
    click.option(
        "--raw",
        is_flag=True,
        help="Store pixels: training decodes nothing, but JPEGs grow about sixfold. Drops EXIF and its orientation, "
        "and the lower 8 of 16 bits.",
    ),
    click.option("--shuffle-seed", metavar="N", type=int, help="Store the records in the random order of this seed."),
)


def conversion_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def pop_image_format(options: dict[str, Any]) -> ImageFormat:
    """Pop the image options into an ImageFormat."""
    return ImageFormat(**{field.name: options.pop(field.name) for field in fields(ImageFormat)})
