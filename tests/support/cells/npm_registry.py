"""A registry of npm on loopback; some of its packages are hostile."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from toolcell.sandbox import PackageRules

from .package_index import open_to_cells


class NpmRegistry:
    """Packages, and the bytes that are served for each path."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self._archives: dict[str, bytes] = {}
        self._versions: dict[str, dict[str, Any]] = {}

    def rules(self, folder: Path) -> PackageRules:
        """Return rules that take packages from here alone."""
        open_to_cells(folder)
        return PackageRules(npm_registry=self.url, folder=str(folder), seconds=120)

    def add(
        self,
        name: str,
        files: Mapping[str, str],
        *,
        version: str = "1.0.0",
        links: Mapping[str, str] | None = None,
        integrity: str | None = None,
        algorithm: str = "sha512",
        **manifest: Any,
    ) -> None:
        """Add a version of a package; paths and contents are as given.

        Args:
            name: Its name.
            files: Its files, by their paths.
            version: Its version.
            links: Targets of links, by their paths.
            integrity: Its hash as the registry says it; None is the right one.
            algorithm: That of the right hash.
            **manifest: Further members of its `package.json`.
        """
        described = {"name": name, "version": version, **manifest}
        text = {"package.json": json.dumps(described), **files}
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            for path, content in text.items():
                entry = tarfile.TarInfo(f"package/{path}")
                entry.size = len(content)
                entry.mode = 0o755 if content.startswith("#!") else 0o644
                archive.addfile(entry, io.BytesIO(content.encode()))
            for path, target in (links or {}).items():
                entry = tarfile.TarInfo(f"package/{path}")
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                archive.addfile(entry)
        path = f"/{name}/-/{version}.tgz"
        self._archives[path] = data.getvalue()
        if integrity is None:
            digest = hashlib.new(algorithm, data.getvalue()).digest()
            integrity = f"{algorithm}-{base64.b64encode(digest).decode()}"
        dist = {"tarball": self.url + path, "integrity": integrity}
        scripts = bool(manifest.get("scripts")) or "binding.gyp" in files
        self._versions.setdefault(name, {})[version] = {
            **described,
            "dist": dist,
            "hasInstallScript": scripts,
        }

    def answer(self, path: str) -> bytes | None:
        """Return the bytes of a path; None if there are none."""
        self.asked.append(path)
        if path in self._archives:
            return self._archives[path]
        versions = self._versions.get(path.removeprefix("/"))
        if versions is None:
            return None
        last = list(versions)[-1]
        document = {
            "name": path.removeprefix("/"),
            "dist-tags": {"latest": last},
            "versions": versions,
        }
        return json.dumps(document).encode()


@contextlib.contextmanager
def npm_registry() -> Iterator[NpmRegistry]:
    """Serve a registry until the end."""
    registry = NpmRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = registry.answer(unquote(self.path))
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Length", str(len(data or b"{}")))
            self.end_headers()
            self.wfile.write(data or b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


def fill(registry: NpmRegistry, elsewhere: str) -> None:
    """Add what the tests ask for; hostile packages lead to another server."""
    add = registry.add
    false = {"false.js": "#!/bin/sh\necho of a dependency\n"}
    bins = dict.fromkeys(("bash", "node", "say-it"), "false.js")
    add("leaf", {"index.js": "exports.name = 'leaf'\n", **false}, bin=bins)
    stem = {"index.js": "exports.leaf = require('leaf')\n", "m.mjs": "export default 7"}
    add("stem", {**stem}, dependencies={"leaf": "^1.0.0"})
    add("kind", {"index.js": "module.exports = 41\n"})
    add("kind", {"index.js": "module.exports = 42\n"}, version="2.0.0")
    add("inner", {"program": "#!/bin/sh\necho inner\n"})
    says = "#!/usr/bin/env node\nconsole.log('said', require('leaf').name, ...process."
    says += "argv.slice(2))\n"
    add(
        "@scope/tool",
        {"cli.js": says},
        bin={"say-it": "./cli.js", "../../escape": "cli.js", "bash": "cli.js"},
        dependencies={"leaf": "1.0.0"},
    )
    canary = "require('fs').writeFileSync('/work/node_modules/ran', 'x')"
    add(
        "scripted",
        {"index.js": "", "install.js": canary},
        scripts={"preinstall": "node install.js", "postinstall": "node install.js"},
    )
    add("compiled", {"index.js": "", "binding.gyp": "{}"})
    add("prebuilt", {"index.js": "", "binding.gyp": "{}", "build/x.node": "x"})
    add("linked", {"index.js": "module.exports = 1\n"}, links={"out": "/etc"})
    add("changed", {"index.js": ""}, integrity="sha512-" + "A" * 86 + "==")
    add("weak", {"index.js": ""}, algorithm="sha1")
    add("bare", {"index.js": ""}, integrity="")
    addresses = {
        "git": f"git+{elsewhere}/x.git",
        "archive": f"{elsewhere}/kind/-/1.0.0.tgz",
        "file": "file:/etc",
    }
    for name, address in addresses.items():
        add(f"from-{name}", {"index.js": ""}, dependencies={"x": address})
