"""Compressed formats with stored data, for identical bytes whatever the machine's zlib (RFC 1950 to 1952)."""

from __future__ import annotations

import struct
import zlib

_BLOCK = 0xFFFF


def _stored(data: bytes) -> bytes:
    """Return data as stored (uncompressed) blocks of a deflate stream."""
    pieces = [data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK)] or [b""]
    heads = [
        struct.pack("<BHH", n == len(pieces), len(piece), len(piece) ^ _BLOCK) for n, piece in enumerate(pieces, 1)
    ]
    return b"".join(part for both in zip(heads, pieces, strict=True) for part in both)


def gzipped(data: bytes | str) -> bytes:
    """Return a gzip file, without name and time."""
    if isinstance(data, str):
        data = data.encode()
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + _stored(data) + struct.pack("<II", zlib.crc32(data), len(data))


def zlibbed(data: bytes) -> bytes:
    """Return a zlib stream, the format of git's objects."""
    return b"\x78\x01" + _stored(data) + struct.pack(">I", zlib.adler32(data))
