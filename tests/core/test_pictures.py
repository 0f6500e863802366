import copy
import io
import pickle

import numpy as np
import pytest

import rollenv
from rollenv.core.errors import UsageError
from rollenv.core.pictures import Picture, is_picture_token, numbered, picture, png_of

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
    for other in (Picture(one.png), pickle.loads(pickle.dumps(one)), copy.deepcopy(one), picture(one.url)):
        assert other is one
    assert numbered(one.number) is one
    assert is_picture_token(one.number)
    assert not is_picture_token(1 << 31)


@pytest.mark.parametrize("mode", ["L", "P", "RGB"])
def test_plain_png_files_stay_as_they_are(mode):
    data = file_of(PIL.fromarray(noise()).convert(mode))
    assert picture(data).png == data


def test_conversions_are_those_of_the_documentation():
    clear = PIL.fromarray(np.zeros((4, 4, 4), np.uint8))
    assert (picture(file_of(clear)).array() == 255).all()
    deep = PIL.fromarray(np.full((4, 4), 65535 // 2, np.uint16))
    assert (picture(file_of(deep)).array() == 127).all()
    exif = PIL.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    turned = picture(file_of(PIL.fromarray(noise()), "JPEG", exif=exif))
    assert (turned.width, turned.height) == (20, 30)


@pytest.mark.parametrize(
    "wrong",
    [b"", b"GIF", png_of(noise())[:-20], png_of(noise())[:40], 3, None, "no address", noise(channels=4), {"url": "x"}],
    ids=repr,
)
def test_others_are_refused(wrong):
    with pytest.raises(UsageError):
        picture(wrong)


def test_large_pictures_are_refused_before_they_are_decoded():
    header = bytearray(png_of(noise()))
    header[16:24] = (5000).to_bytes(4, "big") + (4000).to_bytes(4, "big")
    with pytest.raises(UsageError, match="5000x4000"):
        picture(bytes(header))


class Seeing(rollenv.Env):
    def _reset(self, options):
        return "<image>", {"images": [noise()]}

    def _step(self, action):
        return "<image>", 0.0, True, False, {"images": [PIL.fromarray(noise())]}


def test_an_environment_gives_pictures_in_any_form():
    env = Seeing()
    *_, info = env.reset(seed=0)
    assert info["images"] == [picture(noise())] == env.step("")[4]["images"]
