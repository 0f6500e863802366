import base64
import copy
import io
import pickle
import struct
import zlib

import numpy as np
import pytest

import rollenv
from rollenv.core.errors import UsageError
from rollenv.core.pictures import Picture, is_picture_token, numbered, picture, pictures, png_of

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def noise(height=20, width=30, channels=3, kind=np.uint8):
    return np.random.default_rng(0).integers(0, np.iinfo(kind).max, (height, width, channels)).astype(kind)


def file_of(image, kind="PNG", **settings):
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def test_equal_bytes_are_one_picture_also_after_a_copy():
    one = picture(noise())
    assert (one.array() == noise()).all()
    assert (one.width, one.height) == (30, 20)
    for other in (Picture(one.data), pickle.loads(pickle.dumps(one)), copy.deepcopy(one), picture(one.url)):
        assert other is one
    assert numbered(one.number) is one
    assert is_picture_token(one.number)
    assert not is_picture_token(1 << 31)


@pytest.mark.parametrize("mode", ["L", "P", "RGB"])
def test_plain_png_files_stay_as_they_are(mode):
    data = file_of(PIL.fromarray(noise()).convert(mode))
    assert picture(data).data == data


def test_conversions_are_those_of_the_documentation():
    clear = PIL.fromarray(np.zeros((4, 4, 4), np.uint8))
    assert (picture(file_of(clear)).array() == 255).all()
    deep = PIL.fromarray(np.full((4, 4), 65535 // 2, np.uint16))
    assert (picture(file_of(deep)).array() == 127).all()
    exif = PIL.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    turned = picture(file_of(PIL.fromarray(noise()), "JPEG", exif=exif))
    assert (turned.width, turned.height) == (20, 30)


def png_with(lines, width=4, height=4):
    """A whole PNG file with these compressed lines."""

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return png_of(noise())[:8] + part(b"IHDR", header) + part(b"IDAT", lines) + part(b"IEND", b"")


def test_of_animations_the_first_frame_is_seen_and_of_cmyk_the_colours():
    first, second = PIL.new("RGB", (6, 4), "red"), PIL.new("RGB", (6, 4), "blue")
    for kind in ("GIF", "WEBP", "PNG"):
        file = file_of(
            first, kind, save_all=True, append_images=[second], **({"lossless": True} if kind == "WEBP" else {})
        )
        assert (picture(file).array() == (255, 0, 0)).all()
    assert (abs(picture(file_of(first.convert("CMYK"), "JPEG")).array().astype(int) - (255, 0, 0)) < 8).all()


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        (png_with(zlib.compress(b"\0" * 9)), "damaged"),
        (png_with(b"no zlib"), "damaged"),
        (png_with(zlib.compress(b"\0" * 50_000_000)), "damaged"),
        (png_with(zlib.compress(b"\0" * 99), 30_000, 30_000), "30000x30000 pixels; at most"),
        (b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x08\x04abcd\0;", "4294836225|bomb"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "none of the formats PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "none of the formats PNG"),
    ],
    ids=["short", "no zlib", "long", "large", "large gif", "svg", "eps"],
)
def test_hostile_files_are_refused(hostile, said):
    with pytest.raises(UsageError, match=said):
        picture(hostile)


@pytest.mark.parametrize(
    "wrong",
    [b"", b"GIF", png_of(noise())[:-20], png_of(noise())[:40], 3, None, "no address", noise(channels=4), {"url": "x"}],
    ids=repr,
)
def test_others_are_refused(wrong):
    with pytest.raises(UsageError):
        picture(wrong)


@pytest.mark.parametrize("wrong", [np.stack([noise(), noise()]), noise(), "", {}])
def test_pictures_are_a_list(wrong):
    with pytest.raises(UsageError, match="must be a list of pictures"):
        pictures({"images": wrong})


class Seeing(rollenv.Env):
    def _reset(self, options):
        return "<image>", {"images": [noise()]}

    def _step(self, action):
        return "<image>", 0.0, True, False, {"images": [PIL.fromarray(noise())]}


def test_an_environment_gives_pictures_in_any_form():
    env = Seeing()
    *_, info = env.reset(seed=0)
    assert info["images"] == [picture(noise())] == env.step("")[4]["images"]


def photograph(mode="RGB", form="JPEG", orientation=None):
    """Return a file of a noisy scene, and its pixels as Pillow reads them."""
    y, x = np.mgrid[0:60, 0:90]
    scene = np.stack([x, y, x + y], -1) + np.random.default_rng(0).normal(0, 5, (60, 90, 3))
    image, held = PIL.fromarray(scene.clip(0, 255).astype(np.uint8)).convert(mode), io.BytesIO()
    exif = PIL.Exif()
    if orientation:
        exif[0x0112] = orientation
    image.save(held, form, exif=exif)
    return held.getvalue()


@pytest.mark.parametrize(("form", "ending"), [("JPEG", "jpeg"), ("WEBP", "webp")])
def test_photographs_travel_as_they_are(form, ending):
    data = photograph(form=form)
    one = picture(data)
    assert one.data == data
    assert (one.media_type, one.name, one.width, one.height) == (f"image/{ending}", f"{one.sha256}.{ending}", 90, 60)
    assert base64.b64decode(one.url.removeprefix(f"data:image/{ending};base64,")) == data
    assert all(other is one for other in (picture(one.url), picture(one.as_json()), pickle.loads(pickle.dumps(one))))
    assert np.array_equal(one.array(), np.asarray(PIL.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize(("mode", "orientation", "size"), [("CMYK", None, (90, 60)), ("RGB", 6, (60, 90))])
def test_photographs_that_have_to_be_converted_stay_small(mode, orientation, size):
    data = photograph(mode, orientation=orientation)
    one = picture(data)
    assert (one.media_type, (one.width, one.height)) == ("image/jpeg", size)
    assert len(one.data) < 3 * len(data)


def test_a_damaged_photograph_is_refused():
    for data in (photograph()[:-200], b"\xff\xd8\xff" + b"x" * 50, b"RIFF" + b"x" * 50):
        with pytest.raises(UsageError):
            picture(data)
