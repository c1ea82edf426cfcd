"""Pictures that programs draw are kept for the console, and have an end."""

from __future__ import annotations

import base64
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from toolcell.core import ImagePart, TextPart
from toolcell.host.operator.pictures import Pictures

PNG = b"\x89PNG\r\n\x1a\n"


def picture(number: int) -> ImagePart:
    data = base64.b64encode(PNG + bytes([number]) * 92).decode()
    return ImagePart(mime="image/png", data=data)


def kept(pictures: Pictures) -> list[int]:
    """Return the numbers of the pictures that are kept."""
    return [
        number
        for number in range(5)
        if pictures.has(sha256(PNG + bytes([number]) * 92).hexdigest())
    ]


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Pictures]:
    path = tmp_path / "pictures.db"
    return lambda **options: Pictures(path, **{"days": 1.0, **options})


def test_pictures_are_kept_once_and_the_oldest_are_dropped(
    opened: Callable[..., Pictures],
) -> None:
    now = 0.0
    with opened(max_bytes=200, clock=lambda: now) as pictures:
        for number in (0, 1, 0, 2):
            now += 1
            pictures.keep([TextPart(text="x"), picture(number)])
        assert kept(pictures) == [0, 2]
        now += 86_401
        pictures.keep([picture(3)])
        assert kept(pictures) == [3]


def test_a_picture_that_cannot_be_kept_is_logged(
    opened: Callable[..., Pictures], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as pictures:
        (tmp_path / "pictures.db").unlink()
        pictures.keep([picture(0)])

    assert "a picture is not kept" in caplog.text
