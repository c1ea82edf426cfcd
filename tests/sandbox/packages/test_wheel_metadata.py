"""A wheel that a stranger's source came to is read within bounds."""

from __future__ import annotations

import importlib
import tracemalloc
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolcell.core import PackageError
from toolcell.sandbox.packages.wheel_metadata import (
    MAX_DIRECTORY_BYTES,
    MAX_NEEDS,
    WheelError,
    read_metadata,
)

HEAD = "Metadata-Version: 2.1\nName: a\nVersion: 1\n"
sources: Any = importlib.import_module("toolcell.sandbox.packages.source_builder")
SOURCE = sources.SourceDistribution(
    name="a", version="1", url="https://x/a.tar.gz", sha256="0" * 64
)


def wheel(folder: Path, metadata: str, files: int = 0) -> Path:
    path = folder / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(files):
            archive.writestr(f"{'x' * 900}{number}", "")
        archive.writestr("a-1.dist-info/METADATA", HEAD + metadata)
    return path


def test_a_wheel_says_what_it_needs(tmp_path: Path) -> None:
    metadata = "Requires-Dist: b>=1; extra == 'c'\nProvides-Extra: c\n"
    found = read_metadata(wheel(tmp_path, metadata, files=100))

    assert found == (("b>=1; extra == 'c'",), ("c",))


@pytest.mark.promise("A14")
def test_a_large_directory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = wheel(tmp_path, "", files=10_000)
    tracemalloc.start()
    try:
        with pytest.raises(PackageError, match="directory is too large"):
            sources._read_wheel(SOURCE, path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert path.stat().st_size > MAX_DIRECTORY_BYTES
    assert peak < 1024 * 1024


@pytest.mark.promise("A29")
@pytest.mark.parametrize(
    "metadata",
    [
        f"Requires-Dist: b; {'(' * 490}os_name == 'x'{')' * 490}\n",
        f"Requires-Dist: b; {'(' * 50_000}\n",
        "Requires-Dist: b\n" * (MAX_NEEDS + 1),
        "Requires-Dist: b @ https://evil.example/b.whl\n",
    ],
)
def test_a_hostile_wheel_ends_in_a_typed_error(tmp_path: Path, metadata: str) -> None:
    with pytest.raises(PackageError):
        sources._read_wheel(SOURCE, wheel(tmp_path, metadata))


@pytest.mark.promise("A29")
def test_what_the_parser_itself_raises_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(data: bytes) -> None:
        raise RecursionError

    monkeypatch.setattr("packaging.metadata.parse_email", parse)
    with pytest.raises(WheelError):
        read_metadata(wheel(tmp_path, ""))


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06" + b"\xff" * 18, b"x" * 70_000])
def test_what_is_no_wheel_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.whl"
    path.write_bytes(data)
    with pytest.raises(WheelError):
        read_metadata(path)


@pytest.mark.promise("A29")
@pytest.mark.parametrize(
    "line",
    ["b; os_name ~= 'x'", f"b; {'(' * 490}os_name == 'x'{')' * 490}", "b" * 2000],
)
def test_what_a_build_asks_for_is_refused_by_a_typed_error(line: str) -> None:
    target: Any = SimpleNamespace(version="3.11", platform="x86_64-linux")
    with pytest.raises(PackageError):
        sources._needed(SOURCE, [line], target)
