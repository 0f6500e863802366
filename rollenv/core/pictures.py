"""Pictures in observations: ``info["images"]``, in the order of their marks in the text."""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
import io
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from rollenv.core.errors import MissingExtra, UsageError

#: The place of a picture in a text.
MARK = "<image>"

#: The most pixels of a picture.
MAX_PIXELS = 16_000_000

#: What is read, by Pillow's names; not EPS, for example, which is a program.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
#: Formats of photographs, which chat APIs take, and which are many times larger as PNG. MPO is JPEG with others behind.
_PHOTOGRAPHS = ("JPEG", "MPO", "WEBP")

_PNG = b"\x89PNG\r\n\x1a\n"
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,")
_ORIENTATION = 0x0112  # the tag of EXIF
_KNOWN: WeakValueDictionary[int, Picture] = WeakValueDictionary()


class Picture:
    """A PNG, JPEG or WebP file. Two pictures with equal bytes are one object, as long as somebody holds it.

    Args:
        data: a whole file with 8 bits per channel and no transparency; :func:`picture` converts others.

    Raises:
        UsageError: for other bytes.
        MissingExtra: it is no PNG file, and Pillow is not installed.
    """

    __slots__ = ("__weakref__", "data", "height", "media_type", "sha256", "width")

    data: bytes
    media_type: str
    sha256: str
    width: int
    height: int

    def __new__(cls, data: bytes) -> Picture:
        sha256 = hashlib.sha256(data).hexdigest()
        if (known := _KNOWN.get(_number(sha256))) is not None:
            return known
        made = super().__new__(cls)
        made.data, made.sha256 = data, sha256
        if data[:3] == b"\xff\xd8\xff" or data[:4] == b"RIFF":
            opened = _opened(data)
            made.media_type = "image/webp" if opened.format == "WEBP" else "image/jpeg"
            made.width, made.height = opened.size
        else:
            made.media_type = "image/png"
            made.width, made.height = _size(data)
        return _KNOWN.setdefault(made.number, made)

    def __reduce__(self) -> tuple[type[Picture], tuple[bytes]]:
        return Picture, (self.data,)

    def __repr__(self) -> str:
        return f"<Picture {self.width}x{self.height} {self.sha256[:12]}>"

    @property
    def number(self) -> int:
        """The id of each of its tokens in a prompt: 2**62 and 62 bits of the hash, so no token of a vocabulary."""
        return _number(self.sha256)

    @property
    def url(self) -> str:
        """A data URL."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"

    @property
    def name(self) -> str:
        """The name of its file beside stored episodes."""
        return file_name(self.as_json(data=False))

    def as_json(self, *, data: bool = True) -> dict[str, Any]:
        """Return the JSON form, which :func:`picture` converts back.

        Args:
            data: with the file's bytes, in base64; without them, the reader has to know the hash.
        """
        form = {"type": "image", "sha256": self.sha256, "width": self.width, "height": self.height}
        if self.media_type != "image/png":
            form["media_type"] = self.media_type
        return {**form, "data": base64.b64encode(self.data).decode()} if data else form

    def array(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the pixels, of shape (height, width, 3)."""
        return np.asarray(_opened(self.data).convert("RGB"))


def file_name(form: Mapping[str, Any]) -> str:
    """Return the name of the file beside stored episodes that has the data of a picture's JSON form."""
    ending = {"image/jpeg": "jpeg", "image/webp": "webp"}.get(form.get("media_type", ""), "png")
    return f"{form['sha256']}.{ending}"


def _number(sha256: str) -> int:
    return 1 << 62 | int(sha256[:16], 16) >> 2


def is_picture_token(token: int) -> bool:
    """Return whether the id of a prompt's token stands for a part of a picture."""
    return token >> 62 == 1


def numbered(token: int) -> Picture:
    """Return the picture of a token id.

    Raises:
        UsageError: nobody holds it any more.
    """
    found = _KNOWN.get(token)
    if found is None:
        raise UsageError(f"the picture of token {token} is gone: keep its Picture (turn.images) with the token ids")
    return found


def picture(of: Any) -> Picture:
    """Convert an array (height, width, 3) of bytes, a Pillow image, a file's bytes or a data URL to a picture.

    PNG, JPEG and WebP files of 8 bits without transparency stay as they are. Of others, the pixels are kept, turned as
    EXIF says, on white where they are transparent, and with 8 bits for each of red, green and blue; of an animation,
    the first frame. The file is then PNG, and JPEG of quality 90 if it was JPEG or WebP.

    Raises:
        UsageError: it is none of these, damaged, or has more than ``MAX_PIXELS`` pixels.
        MissingExtra: it has to be converted and Pillow is not installed.
    """
    if isinstance(of, Picture):
        return of
    if isinstance(of, np.ndarray):
        return Picture(png_of(of))
    if isinstance(of, Mapping):  # a part of a chat message, or the JSON form
        of = of.get("image_url", of)
        if isinstance(of, Mapping):
            of = f"data:image/png;base64,{of['data']}" if "data" in of else of.get("url")
    if isinstance(of, str) and (start := _DATA_URL.match(of)):
        try:
            of = base64.b64decode(of[start.end() :], validate=True)
        except binascii.Error as error:
            raise UsageError(f"the data URL of a picture is not base64: {error}") from error
    if isinstance(of, bytes):
        return Picture(of if _is_plain(of) else _converted(of))
    if hasattr(of, "save") and hasattr(of, "convert"):
        return Picture(_saved(of))
    raise UsageError(
        f"a picture must be an array (height, width, 3) of uint8, a Pillow image, the bytes of a file or a data URL, "
        f"not {type(of).__name__} {of!r:.60}"
    )


def pictures(info: Mapping[str, Any]) -> tuple[Picture, ...]:
    """Return the pictures of an observation.

    Raises:
        UsageError: ``info["images"]`` is not a list of what :func:`picture` converts.
    """
    given = info.get("images")
    if given is None:
        return ()
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise UsageError(f'info["images"] must be a list of pictures, not {type(given).__name__}')
    return tuple(map(picture, given))


def png_of(pixels: np.ndarray[Any, Any]) -> bytes:
    """Encode pixels as PNG.

    Args:
        pixels: (height, width, 3), uint8.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise UsageError(f"pixels must be uint8 (height, width, 3), not {pixels.dtype} {pixels.shape}")
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each begins with its filter, 0: none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return _PNG + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def _header(data: bytes) -> tuple[int, int, int, int]:
    """Return width, height, bits per channel and kind of colour of a PNG file."""
    if data[:8] != _PNG or len(data) < 33:
        raise UsageError(f"this is not a PNG file: {data[:12]!r}")
    width, height, bits, colour = struct.unpack(">IIBB", data[16:26])
    return width, height, bits, colour


def _is_plain(data: bytes) -> bool:
    if data[:8] != _PNG or len(data) < 33:
        return False
    *_, bits, colour = _header(data)
    return bits == 8 and colour in (0, 2, 3) and not data[28] and b"tRNS" not in data and b"eXIf" not in data


def _size(data: bytes) -> tuple[int, int]:
    """Return the width and the height of a PNG file, all parts of which are whole."""
    width, height, _, colour = _header(data)
    _check_size(width, height)
    at, kind, lines = 8, b"", list[bytes]()
    while kind != b"IEND":
        length = int.from_bytes(data[at : at + 4], "big")
        kind, end = data[at + 4 : at + 8], at + 12 + length
        if end > len(data) or zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise UsageError(f"a PNG file of {width}x{height} pixels is cut or damaged after {at} of its bytes")
        lines += [data[at + 8 : end - 4]] if kind == b"IDAT" else []
        at = end
    expected = height * (1 + width * (3 if colour == 2 else 1))
    try:
        found = len(zlib.decompressobj().decompress(b"".join(lines), expected + 1))
    except zlib.error:
        found = 0
    if found != expected:
        raise UsageError(f"a PNG file of {width}x{height} pixels has not as many: it is damaged")
    return width, height


def _check_size(width: int, height: int) -> None:
    if not 0 < width * height <= MAX_PIXELS:
        raise UsageError(f"a picture has {width}x{height} pixels; at most {MAX_PIXELS:,} are allowed: make it smaller")


def _opened(data: bytes) -> Any:
    """Open a file with Pillow and check its size.

    Raises:
        UsageError: it is none that is read, damaged or too large.
    """
    library = _pillow()
    try:
        opened = library.open(io.BytesIO(data), formats=_FORMATS)
        _check_size(*opened.size)
        opened.load()
        return opened
    except UsageError:
        raise
    except library.UnidentifiedImageError as error:
        raise UsageError(f"a picture is in none of the formats {', '.join(_FORMATS)}") from error
    except Exception as error:  # Pillow's decoders raise many kinds for damaged files
        raise UsageError(f"a picture cannot be read: {type(error).__name__}: {error}") from error


def _converted(data: bytes) -> bytes:
    opened = _opened(data)
    photograph = opened.format in _PHOTOGRAPHS
    turned = opened.getexif().get(_ORIENTATION, 1) != 1
    animated = opened.format == "WEBP" and opened.is_animated
    if photograph and opened.mode in ("RGB", "L") and not turned and not animated:
        return data
    return _saved(opened, as_photograph=photograph and not animated and "A" not in opened.mode)


def _saved(image: Any, *, as_photograph: bool = False) -> bytes:
    _check_size(*image.size)
    image = importlib.import_module("PIL.ImageOps").exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits, which Pillow would cut instead of scaling
        image = _pillow().fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if "A" in image.mode or "transparency" in image.info:
        image = image.convert("RGBA")
        image = _pillow().alpha_composite(_pillow().new("RGBA", image.size, "white"), image)
    if as_photograph:
        held = io.BytesIO()
        image.convert("RGB").save(held, "JPEG", quality=90)
        return held.getvalue()
    return png_of(np.asarray(image.convert("RGB")))


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtra("pictures that are no plain PNG files need Pillow: pip install pillow") from error
