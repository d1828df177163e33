"""HEIF (HEIC) files, which Pillow opens with the package pillow-heif."""

from __future__ import annotations

from dbloader.errors import NotAnImageError

# Major brands, after the length of the first box (ISO/IEC 23008-12, 10). AVIF files may have the brands in _ANY.
_HEVC = {b"ftyp" + brand for brand in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")}
_ANY = {b"ftypmif1", b"ftypmsf1"}


def is_heif(start: bytes) -> bool:
    """Return whether a file with these first 12 bytes or more is HEIF, or perhaps AVIF."""
    return start[4:12] in _HEVC | _ANY


def heif_format(start: bytes) -> tuple[str, ...]:
    """Enable Pillow to open a HEIF file, and return Pillow's name of its format; return nothing for other files.

    The first such file of a process imports pillow-heif, in 75 ms. Without pillow-heif, a file that can only be HEIF
    raises NotAnImageError.
    """
    if not is_heif(start):
        return ()
    try:
        import pillow_heif
    except ImportError as error:
        if start[4:12] in _ANY:
            return ()
        raise NotAnImageError("is HEIF (HEIC), which needs pillow-heif: pip install 'dbloader[heif]'") from error
    pillow_heif.register_heif_opener()
    return ("HEIF",)
