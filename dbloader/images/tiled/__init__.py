"""Tiled JPEG: an ordinary JPEG of which a crop can be decoded without decoding the rest."""

from dbloader.images.tiled.encode import TILE_WIDTH, TiledJPEG, encode_tiled, find_jpegtran, tile
from dbloader.images.tiled.join import decode_crop, join_tiles
from dbloader.images.tiled.layout import find_lengths

__all__ = [
    "TILE_WIDTH",
    "TiledJPEG",
    "decode_crop",
    "encode_tiled",
    "find_jpegtran",
    "find_lengths",
    "join_tiles",
    "tile",
]
