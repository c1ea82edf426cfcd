"""A browser starts in a cell, and takes a picture of a page."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from toolcell.core import PackageError
from toolcell.sandbox import Limits, Mount, PackageRules, SandboxManager

from ...conftest import CONFINED, BackendRow, missing

pytestmark = pytest.mark.anyio

BROWSER, LIBRARIES = "/usr/lib/chromium", "/usr/lib/x86_64-linux-gnu"
DRIVER = "/usr/bin/chromedriver"
PAGE = """
import os, subprocess
with open("page.html", "w") as file:
    file.write("<title>hello</title><body style='background: rgb(1, 170, 3)'>")
os.mkdir("artifacts")
address = "file://" + os.path.abspath("page.html")
options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=300,200"]
"""
CONFINED_PAGE = """
import os
os.environ["TMPDIR"] = "."  # the path of a socket there is too long
options += ["--no-zygote", "--in-process-gpu"]  # which look at processes in /proc
"""
PICTURES = {
    "by itself": """
picture = "--screenshot=artifacts/page.png"
subprocess.run([browser, *options, picture, address], check=True, timeout=280)
""",
    "selenium": """
from selenium import webdriver
asked = webdriver.ChromeOptions()
asked.binary_location = browser
for option in options:
    asked.add_argument(option)
service = webdriver.ChromeService(executable_path=driver)
with webdriver.Chrome(options=asked, service=service) as window:
    window.get(address)
    assert window.title == "hello"
    assert window.save_screenshot("artifacts/page.png")
""",
    "playwright": """
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    window = playwright.chromium.launch(executable_path=browser, args=options)
    page = window.new_page(viewport={"width": 300, "height": 200})
    page.goto(address)
    assert page.title() == "hello"
    page.screenshot(path="artifacts/page.png")
    window.close()
""",
}
ROOM = Limits(memory_mib=1024, pids=256, disk_mib=512, wall_seconds=300)


class Shown(NamedTuple):
    """A browser and its driver in a cell, and what its manager needs to show them."""

    options: dict[str, Any]
    browser: str
    driver: str


def shown_to(backend: BackendRow) -> Shown:
    if backend.options["backend"] == "subprocess":
        return Shown({}, f"{BROWSER}/chromium", DRIVER)
    # The image has none: the libraries of this machine, which is a Debian too, do.
    sources = {"chromium": BROWSER, "lib": LIBRARIES, "chromedriver": DRIVER}
    mounts = [
        Mount(source=source, target=f"/browser/{name}")
        for name, source in sources.items()
    ]
    found = "/browser/lib:/browser/lib/pulseaudio"
    options = {"mounts": mounts, "env": {"LD_LIBRARY_PATH": found}}
    return Shown(options, "/browser/chromium/chromium", "/browser/chromedriver")


@pytest.mark.promise("QX1")
@pytest.mark.parametrize("how", PICTURES)
async def test_a_browser_takes_a_picture(backend: BackendRow, how: str) -> None:
    if not (Path(BROWSER, "chromium").exists() and Path(DRIVER).exists()):
        missing("Debian's chromium and chromium-driver are not installed")
    shown = shown_to(backend)
    packages = () if how == "by itself" else (how,)
    rules = PackageRules(allow=packages)
    config = backend.config(limits=ROOM, package_rules=rules, **shown.options)
    page = PAGE + CONFINED_PAGE if backend is CONFINED else PAGE

    async with SandboxManager(config) as sandbox:
        try:
            result = await sandbox.run(
                page + PICTURES[how],
                inputs={"browser": shown.browser, "driver": shown.driver},
                packages=packages,
            )
        except PackageError as error:
            if error.details["reason"] != "unreachable":
                raise
            missing(str(error))

    assert result.status == "ok", result.stderr[-2000:]
    data = result.artifacts[0].data
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert width and height
    if how != "selenium":  # Its window has a frame.
        assert (width, height) == (300, 200)
