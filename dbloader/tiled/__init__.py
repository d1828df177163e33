"""Tiled JPEG: an ordinary JPEG of which a crop can be decoded without decoding the rest."""

from dbloader.tiled.crop import decode_crop, join_crop
from dbloader.tiled.grid import find_lengths
from dbloader.tiled.writing import TILE_WIDTH, TiledJPEG, encode_tiled, find_jpegtran, tile

__all__ = [
    "TILE_WIDTH",
    "TiledJPEG",
    "decode_crop",
    "encode_tiled",
    "find_jpegtran",
    "find_lengths",
    "join_crop",
    "tile",
]
