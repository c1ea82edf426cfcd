"""A browser starts in a cell, and takes a picture of a page."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import Limits, Mount, SandboxManager

from ...conftest import CONFINED, BackendRow, missing

pytestmark = pytest.mark.anyio

BROWSER, LIBRARIES = "/usr/lib/chromium", "/usr/lib/x86_64-linux-gnu"
PICTURE = """
import os, subprocess
with open("page.html", "w") as file:
    file.write("<body style='background: rgb(1, 170, 3)'>hello")
os.mkdir("artifacts")
options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=300,200"]
picture = "--screenshot=artifacts/page.png"
subprocess.run([browser, *options, picture, "page.html"], check=True, timeout=280)
"""
ROOM = Limits(memory_mib=1024, pids=256, disk_mib=512, wall_seconds=300)


def options_of(backend: BackendRow) -> tuple[dict[str, Any], str]:
    """Return what a manager needs to show the browser, and where it shows it."""
    if backend.options["backend"] == "subprocess":
        return {}, f"{BROWSER}/chromium"
    # The image has none: the libraries of this machine, which is a Debian too, do.
    mounts = [
        Mount(source=source, target=f"/browser/{name}")
        for name, source in (("chromium", BROWSER), ("lib", LIBRARIES))
    ]
    found = "/browser/lib:/browser/lib/pulseaudio"
    env = {"LD_LIBRARY_PATH": found}
    return {"mounts": mounts, "env": env}, "/browser/chromium/chromium"


@pytest.mark.promise("QX1")
async def test_a_browser_takes_a_picture(backend: BackendRow) -> None:
    if backend is CONFINED:
        pytest.skip("programs see no processes in /proc, which browsers look for")
    if not Path(BROWSER, "chromium").exists():
        missing("Debian's chromium is not installed")
    options, browser = options_of(backend)

    async with SandboxManager(backend.config(limits=ROOM, **options)) as sandbox:
        result = await sandbox.run(PICTURE, inputs={"browser": browser})

    assert result.status == "ok", result.stderr[-2000:]
    data = result.artifacts[0].data
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (300, 200)
