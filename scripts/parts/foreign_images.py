"""Compare what convert says of the image files in some folders with what Pillow decodes, and print a table."""

from __future__ import annotations

import argparse
import io
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from dbloader.decoding import decode_pil
from dbloader.errors import DBLoaderError, PixelRangeError
from dbloader.images.check import check_image
from dbloader.images.pillow import FORMATS, value_depth

# Files that Pillow decodes without an error, and why they are rejected nevertheless.
DAMAGED = {"hopper_bad_exif.jpg": "bytes are left in the scan before a restart marker: the picture is noise"}
_MOST_BYTES = 2**25
STORED, RANGE, BETTER = (
    "stored, with Pillow's pixels",
    "stored, for a decode= of one's own",
    "stored, though Pillow alone refuses it",
)
OTHER, REJECTED, NEITHER = "rejected: a format that is not read", "rejected: damaged", "decoded by neither"


def outcome(path: Path) -> tuple[str, str]:
    """Return the outcome of a file and a remark; the outcome "WRONG" must not happen."""
    data = path.read_bytes()
    reason = ""
    try:
        data = check_image(data, lambda _: None).data  # perhaps with its end marker
    except DBLoaderError as error:
        reason = str(error)
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            right, name, depth = image.convert("RGB"), image.format, value_depth(image)
    except Exception as error:  # Pillow's parsers raise many types of errors
        return (NEITHER, "") if reason else (BETTER, f"{error}")
    if reason:
        if path.name in DAMAGED:
            return REJECTED, DAMAGED[path.name]
        return (OTHER, reason) if name not in (*FORMATS, "MPO") else ("WRONG", reason)
    try:
        found = decode_pil(data)
    except PixelRangeError as error:
        return RANGE, f"{error}"
    except DBLoaderError as error:
        return "WRONG", f"{error}"
    if depth == "8-bit" and not np.array_equal(np.asarray(found), np.asarray(right)):
        return "WRONG", "other pixels"
    return STORED, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--details", action="store_true", help="print also files of other formats and depths")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Pillow's, of odd EXIF and of palettes
    wrong = 0
    for folder in options.folders:
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size <= _MOST_BYTES)
        counts = Counter[str]()
        for path in files:
            word, remark = outcome(path)
            counts[word] += 1
            if word in ("WRONG", REJECTED) or (options.details and word not in (STORED, NEITHER)):
                print(f"{word}: {path.relative_to(folder)}: {remark}")
        wrong += counts["WRONG"]
        print(f"{folder.name if folder.name != 'images' else 'Pillow'}: {len(files):,} files")
        for word, count in counts.most_common():
            print(f"  {count:5,} {word}")
    sys.exit(int(wrong > 0))


if __name__ == "__main__":
    main()
