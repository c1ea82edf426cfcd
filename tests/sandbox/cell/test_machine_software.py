"""Cells of `subprocess` run the software of this machine, and see no secret of it."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import Limits, Sandbox, SandboxManager
from toolcell.sandbox.backends import shown_paths
from toolcell.sandbox.backends.shown_paths import public_settings
from toolcell.sandbox.cell.launcher import reach

from ...conftest import CONFINED, SUBPROCESS, BackendRow
from ...support.attacks.as_programs import program

pytestmark = pytest.mark.anyio

JAVA = 'class A { public static void main(String[] a) { System.out.print("hi"); } }'
NO_LEAKS = 'const char *__asan_default_options(void) { return "detect_leaks=0"; }'
SOFTWARE = {
    "java": (f"echo '{JAVA}' > A.java && java A.java", "hi"),
    "javac": (f"echo '{JAVA}' > A.java && javac A.java && java -cp . A", "hi"),
    "fc-list": ("fc-list | grep -q . && echo fonts", "fonts"),
    "cmake": (
        "echo 'cmake_minimum_required(VERSION 3.10)\nproject(a NONE)' > CMakeLists.txt"
        " && cmake -S . -B b | tail -n 1 | cut -d: -f1",
        "-- Build files have been written to",
    ),
    "perl": (
        "perl -MJSON::PP -MTime::Local -MFile::Find -e 'print encode_json([1])'",
        "[1]",
    ),
    "chromium": ("chromium --version | cut -d' ' -f1", "Chromium"),
    "gcc": (
        f"echo '{NO_LEAKS} int main(void) {{ return 0; }}' > a.c"
        " && gcc -fsanitize=address a.c && ./a.out && echo ran",
        "ran",
    ),
    "file": ("echo '#!/bin/sh' > a && file -b --mime-type a", "text/x-shellscript"),
    "awk": ("test -h /usr/bin/awk && echo 1 2 | awk '{ print $2 }'", "2"),
    "git": ("git init -q a && ls a/.git/info", "exclude"),
}


@pytest.mark.promise("QX2", "QX6", "QX11", "QX13", "QX14", "QX7")
@pytest.mark.parametrize("name", SOFTWARE)
@pytest.mark.parametrize("row", [SUBPROCESS, CONFINED], ids=lambda row: row.name)
@pytest.mark.namespaces
async def test_software_of_the_machine_works(row: BackendRow, name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    code, expected = SOFTWARE[name]
    limits = Limits(memory_mib=2048, wall_seconds=120, pids=256)

    async with SandboxManager(row.config(limits=limits)) as sandbox:
        result = await sandbox.run(code, language="bash")

    assert (result.status, result.stdout.strip()) == ("ok", expected), result.stderr


def secrets_of_files(folders: list[str]) -> list[str]:
    import os

    found = []
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                readable = os.access(path, os.R_OK)
                if not os.stat(path).st_mode & 4:
                    # Nothing of /etc that is not for everybody is even seen.
                    found += [path] if readable or folder == "/etc" else []
                elif folder == "/etc" and readable:
                    with open(path, "rb") as file:
                        if b"PRIVATE KEY" in file.read():
                            found.append(path)
    return found


@pytest.mark.promise("QX11")
async def test_no_file_of_the_machine_that_a_cell_sees_is_secret(
    sandbox: Sandbox, backend: BackendRow
) -> None:
    if backend.options["backend"] == "docker":
        pytest.skip("it sees files of its image")
    code = program(secrets_of_files)

    result = await sandbox.run(code, inputs={"folders": ["/usr", "/etc"]})

    assert (result.status, result.value) == ("ok", []), result.stderr


@pytest.mark.promise("QX11")
@pytest.mark.parametrize("row", [SUBPROCESS, CONFINED], ids=lambda row: row.name)
@pytest.mark.namespaces
async def test_settings_of_people_below_usr_are_not_shown(
    row: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that has files on each machine stands for `/usr/local/etc`."""
    private, beside = "/usr/share/base-passwd", "/usr/share/common-licenses"
    monkeypatch.setattr(shown_paths, "PRIVATE", (private, "/usr/local/etc/no-such"))
    paths = [
        str(path) for folder in (private, beside) for path in Path(folder).iterdir()
    ]

    async with SandboxManager(row.config()) as sandbox:
        result = await sandbox.run(OPENED, inputs={"paths": paths})

    opened: Any = result.value
    assert {os.path.dirname(path) for path in paths} == {private, beside}
    assert {os.path.dirname(path) for path in opened} == {beside}, result.stderr


OPENED = """
def opens(path):
    try:
        return bool(open(path).read(1))
    except OSError:
        return False
[path for path in paths if opens(path)]
"""


def test_a_folder_that_cannot_be_read_or_is_a_link_is_hidden_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "link"
    outside.symlink_to("/usr/share/common-licenses")
    paths = ("/usr/share/base-passwd", str(outside), str(tmp_path), "/usr/no-such")
    monkeypatch.setattr(shown_paths, "PRIVATE", paths)
    found = shown_paths.hidden_paths()
    monkeypatch.setattr(os, "listdir", refuse)

    assert found == ["/usr/share/base-passwd", "/usr/share/common-licenses"]
    assert "/usr/share/base-passwd" in shown_paths.hidden_paths()


def refuse(path: str) -> list[str]:
    raise PermissionError(path)


def test_what_is_hidden_is_no_part_of_what_is_shown(tmp_path: Path) -> None:
    for name in ("bin", "local/etc", "local/lib"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "local/link").symlink_to("etc")
    root = str(tmp_path)

    assert reach.without([], [root]) == [root]
    assert reach.without([f"{root}/local/etc"], [root]) == [
        f"{root}/bin",
        f"{root}/local/lib",
    ]


def system(root: Path, files: dict[str, str]) -> str:
    """Make a system whose package brought three files, and return its root."""
    brought = {"tool/a.conf": "a", "tool/d/b.conf": "b", "magic": "m"}
    for name, text in {**brought, **files}.items():
        path = root / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    lines = [
        f" /etc/{name} {hashlib.md5(text.encode()).hexdigest()}"
        for name, text in brought.items()
    ]
    status = root / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text("\n".join(["Package: tool", "Conffiles:", *lines, ""]))
    return str(root)


@pytest.mark.promise("QX11")
@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ({}, ["magic", "tool"]),
        ({"tool/d/b.conf": "password = hunter2"}, ["magic"]),
        ({"tool/token": "t"}, ["magic"]),
        ({"magic": "m\n", "shadow": "root:!"}, ["tool"]),
        ({"tool/d/b.conf": ""}, ["magic"]),
    ],
)
def test_what_somebody_wrote_in_etc_is_not_shown(
    tmp_path: Path, files: dict[str, Any], shown: list[str]
) -> None:
    root = system(tmp_path, files)

    assert public_settings(root) == tuple(f"{root}/etc/{name}" for name in shown)


@pytest.mark.promise("QX11")
def test_what_only_its_owner_reads_is_not_shown(tmp_path: Path) -> None:
    root = system(tmp_path, {})
    os.chmod(f"{root}/etc/magic", 0o640)
    os.chmod(f"{root}/etc/tool/d", 0o750)

    assert public_settings(root) == ()


@pytest.mark.promise("QX11")
def test_links_bring_nothing_with_them(tmp_path: Path) -> None:
    root = system(tmp_path, {})
    os.rename(f"{root}/etc/magic", f"{root}/etc/secret")
    os.symlink("secret", f"{root}/etc/magic")
    os.symlink("../secret", f"{root}/etc/tool/link")

    assert public_settings(root) == (f"{root}/etc/tool",)
