"""A package index in a folder, with packages that are kind and others that are not."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from toolcell.sandbox import PackageRules

SETUP = "open({canary!r}, 'w').write('setup.py was run')\n"
# Stands for setuptools: what `setup()` is told becomes a wheel. It asks for `leaf`.
BACKEND = """
import zipfile
class Hooks:
    def get_requires_for_build_wheel(self, settings=None):
        return ["leaf>=1", "absent; python_version < '3'"]
    def build_wheel(self, folder, settings=None, metadata=None):
        import leaf
        told = {"version": "1.0", "needs": []}
        with open("setup.py") as file:
            exec(compile(file.read(), "setup.py", "exec"), {"setup": told.update})
        name = f"{told['name']}-{told['version']}"
        info = f"{name}.dist-info"
        text = f"Metadata-Version: 2.1\\nName: {told['name']}\\n"
        text += f"Version: {told['version']}\\n"
        text += "".join(f"Requires-Dist: {each}\\n" for each in told["needs"])
        files = {f"{told['name']}.py": told["code"], f"{info}/METADATA": text,
                 f"{info}/WHEEL": "Wheel-Version: 1.0\\nTag: py3-none-any\\n"}
        record = "".join(f"{path},,\\n" for path in (*files, f"{info}/RECORD"))
        path = f"{folder}/{name}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for each, content in {**files, f"{info}/RECORD": record}.items():
                wheel.writestr(each, content)
        return path
__legacy__ = Hooks()
"""
PTH = "import os; open('/work/pth', 'w').write('a .pth file was run')\n"
SITECUSTOMIZE = "open('/work/site', 'w').write('sitecustomize was run')\n"


def open_to_cells(folder: Path) -> None:
    """Let users of cells pass to a folder: pytest closes those that it makes."""
    for parent in folder.parents:
        if tempfile.gettempdir() in map(str, parent.parents):
            parent.chmod(parent.stat().st_mode | 0o011)


class Index:
    """An index that uv reads from a folder.

    Args:
        root: An empty folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.simple = root / "simple"
        self.simple.mkdir()

    @property
    def url(self) -> str:
        """Its address."""
        return self.simple.as_uri()

    def rules(self, folder: Path, *allow: str) -> PackageRules:
        """Return rules that take packages from here alone."""
        open_to_cells(folder)
        return PackageRules(
            allow=allow, index_url=self.url, folder=str(folder), seconds=60
        )

    def wheel(
        self,
        name: str,
        files: Mapping[str, str],
        *,
        version: str = "1.0",
        needs: str = "",
        links: Mapping[str, str] | None = None,
    ) -> Path:
        """Add a wheel; paths and contents are as given, however hostile."""
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += f"Requires-Dist: {needs}\n" if needs else ""
        text = {
            **files,
            f"{info}/METADATA": metadata,
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\n"
            "Root-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{path},,\n" for path in (*text, f"{info}/RECORD"))
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            for path, content in {**text, f"{info}/RECORD": record}.items():
                archive.writestr(path, content)
            for path, target in (links or {}).items():
                entry = zipfile.ZipInfo(path)
                entry.external_attr = 0o120777 << 16
                archive.writestr(entry, target)
        return self._add(name, f"{name}-{version}-py3-none-any.whl", data.getvalue())

    def source(
        self, name: str, setup: str, files: Mapping[str, str] | None = None
    ) -> Path:
        """Add a package that has to be built."""
        data = io.BytesIO()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        text = {"setup.py": setup, "PKG-INFO": metadata, **(files or {})}
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            for path, content in text.items():
                entry = tarfile.TarInfo(f"{name}-1.0/{path}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content.encode()))
        return self._add(name, f"{name}-1.0.tar.gz", data.getvalue())

    def _add(self, name: str, file: str, data: bytes) -> Path:
        folder = self.simple / name
        folder.mkdir(exist_ok=True)
        path = folder / file
        path.write_bytes(data)
        links = "".join(
            f'<a href="{each.name}#sha256={_sha256(each)}">{each.name}</a>\n'
            for each in sorted(folder.iterdir())
            if each.suffix != ".html"
        )
        (folder / "index.html").write_text(f"<!DOCTYPE html><html>{links}</html>")
        return path


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def filled(root: Path) -> Index:
    """Return an index of what the tests ask for; hostile packages aim at `canary`."""
    index, canary = Index(root), root / "canary"
    index.wheel("kind", {"kind/__init__.py": "def answer():\n    return 41\n"})
    index.wheel(
        "kind", {"kind/__init__.py": "def answer():\n    return 42\n"}, version="2.0"
    )
    index.wheel("leaf", {"leaf.py": "name = 'leaf'\n"})
    index.wheel("stem", {"stem.py": "import leaf\n"}, needs="leaf>=1")
    index.wheel("picky", {"picky.py": ""}, needs="kind<2")
    index.wheel("startup", {"startup.py": "x = 1\n", "startup.pth": PTH})
    index.wheel("site", {"site_.py": "x = 1\n", "sitecustomize.py": SITECUSTOMIZE})
    index.wheel("shadow", {"json.py": "raise SystemExit('shadowed')\n"})
    index.source("unbuilt", SETUP.format(canary=str(canary)))
    escapes = {
        "../../../../escaped-up": "out",
        str(canary): "out",
        "escape-1.0.data/data/../../../escaped-data": "out",
        "escape-1.0.data/scripts/../../escaped-script": "out",
    }
    index.wheel("escape", {"escape.py": "x = 1\n", **escapes})
    index.wheel("linked", {"linked.py": "x = 1\n"}, links={"way-out": "/etc"})
    broken = "def\n" + "(" * 5000
    index.wheel("broken", {"broken.py": broken, "whole.py": "x = 1\n"})
    return index
