"""Pictures that programs draw are kept for the console, and have an end."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from toolcell.core import ImagePart, StoreUnavailableError, TextPart
from toolcell.host.operator import pictures as module
from toolcell.host.operator.pictures import Pictures

PNG = b"\x89PNG\r\n\x1a\n"


def picture(number: int) -> ImagePart:
    data = base64.b64encode(PNG + bytes([number]) * 92).decode()
    return ImagePart(mime="image/png", data=data)


def hash_of(number: int) -> str:
    return sha256(PNG + bytes([number]) * 92).hexdigest()


def kept(pictures: Pictures) -> list[int]:
    """Return the numbers of the pictures that are kept."""
    return [number for number in range(5) if pictures.has(hash_of(number))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pictures.db"


@pytest.fixture
def opened(path: Path) -> Callable[..., Pictures]:
    return lambda **options: Pictures(path, **{"days": 1.0, **options})


def test_pictures_are_kept_once_and_the_oldest_are_dropped(
    opened: Callable[..., Pictures],
) -> None:
    """One of 100 bytes counts as 4,196, whichever process keeps it."""
    now = 0.0
    two = {"max_bytes": 9_000, "clock": lambda: now}
    with opened(**two) as first, opened(**two) as second:
        for number in (0, 1, 0, 2):
            now += 1
            first.keep([TextPart(text="x"), picture(number)])
        assert kept(first) == [0, 2]
        now += 1
        second.keep([picture(3)])
        assert kept(second) == kept(first) == [2, 3]


def test_a_picture_that_is_too_old_is_not_shown_and_leaves_the_file(
    opened: Callable[..., Pictures], path: Path
) -> None:
    now = 0.0
    with opened(clock=lambda: now) as pictures:
        pictures.keep([picture(0)])
        now += 86_400
        assert pictures.find(hash_of(0)) == ("image/png", PNG + bytes(92))
        now += 1
        assert kept(pictures) == []
        assert pictures.find(hash_of(0)) is None
    with opened(clock=lambda: now), closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM pictures").fetchone() == (0,)


def test_a_picture_that_cannot_be_kept_is_logged(
    opened: Callable[..., Pictures], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as pictures:
        pictures.keep([ImagePart(mime="image/png", data="AAA"), picture(1)])
        assert kept(pictures) == [1]
        assert caplog.text.count("a picture is not kept") == 1
        path.unlink()
        pictures.keep([picture(0)])
    pictures.keep([picture(0)])

    assert caplog.text.count("a picture is not kept") == 3


def test_a_call_does_not_wait_while_another_process_writes(
    opened: Callable[..., Pictures],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    with opened() as pictures, closing(sqlite3.connect(path)) as other:
        pictures.run("PRAGMA busy_timeout = 10000")
        other.execute("BEGIN IMMEDIATE")
        for number in range(3):
            pictures.keep([picture(number)])
        other.rollback()
        assert kept(pictures) == [0, 1]
        pictures.keep([picture(3)])
        assert kept(pictures) == [0, 1, 3]

    assert "a picture is not kept: too many wait" in caplog.text


def test_what_waits_behind_a_failure_does_not_wait_as_long_again(
    opened: Callable[..., Pictures], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, all_wait = [], Event()

    def run(*statement: Any) -> None:
        tried.append(statement)
        all_wait.wait(10)
        raise StoreUnavailableError("locked")

    with opened() as pictures:
        monkeypatch.setattr(pictures, "run", run)
        for number in range(3):
            pictures.keep([picture(number)])
        all_wait.set()

    assert len(tried) == 1
