"""HEIF (HEIC) files, which Pillow opens with the package pillow-heif."""

from __future__ import annotations

from dbloader.errors import NotAnImageError

# Major brands, behind the length of the first box (ISO/IEC 23008-12, 10). AVIF may have those that are not of HEVC.
_HEVC = {b"ftyp" + brand for brand in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")}
_ANY = {b"ftypmif1", b"ftypmsf1"}


def is_heif(start: bytes) -> bool:
    """Return whether a file with these first 12 bytes or more is HEIF, or perhaps AVIF."""
    return start[4:12] in _HEVC | _ANY


def heif_format(start: bytes) -> tuple[str, ...]:
    """Return Pillow's name of the format of a HEIF file, once Pillow can open it; nothing for other files.

    pillow-heif is imported, in 75 ms, with the first such file of a process. Without it a file that can only be HEIF is
    a NotAnImageError.
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
