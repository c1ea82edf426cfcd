"""Measures what packages that are installed already add to a run."""

from __future__ import annotations

import zipfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from baselines.programs import HELLO, PYTHON
from harness import processes
from harness.measure import Contender, Missing, Row, Sample, WrongResult, take_turns
from harness.options import Options

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox import PackageRules, SandboxConfig, SandboxManager

_POOL = 8
_MAX_ADDED_MS = 5


async def cached(options: Options) -> list[Row]:
    """A prepared cell with a set of packages that is installed, and one without."""
    with TemporaryDirectory() as folder:
        index = _index(Path(folder))
        rules = PackageRules(
            allow=("small",), index_url=index, folder=f"{folder}/store"
        )
        config = SandboxConfig(
            backend="subprocess", python=PYTHON, pool=_POOL, package_rules=rules
        )
        async with SandboxManager(config) as sandbox:
            try:
                await sandbox.install(["small"])
            except SandboxUnavailableError as error:
                raise Missing(str(error)) from None
            settle = partial(processes.cells_settled, sandbox, _POOL)
            runs = [
                Contender(name=name, run=partial(_run, sandbox, wanted), settle=settle)
                for name, wanted in (("packages=[...]", ["small"]), ("none", []))
            ]
            ours, without = await take_turns(runs, options.runs)
    pairs = zip(ours.values, without.values, strict=True)
    added = Sample(name="added", values=[one - other for one, other in pairs])
    return [
        Row(
            work="subprocess, cached packages",
            ours=ours,
            baseline=without,
            compare="share",
        ),
        Row(
            work="what cached packages add",
            ours=added,
            compare="absolute",
            gate=_MAX_ADDED_MS,
        ),
    ]


async def _run(sandbox: SandboxManager, packages: list[str]) -> None:
    result = await sandbox.run(HELLO, packages=packages)
    if result.stdout != "1\n":
        raise WrongResult(f"print(1) became {result!r}")


def _index(folder: Path) -> str:
    """Make an index with one small wheel; return its address."""
    page = folder / "simple" / "small"
    page.mkdir(parents=True)
    name, info = "small-1.0-py3-none-any.whl", "small-1.0.dist-info"
    with zipfile.ZipFile(page / name, "w") as wheel:
        wheel.writestr("small.py", "x = 1\n")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(
            f"{info}/RECORD", f"small.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n"
        )
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')
    return page.parent.as_uri()


PACKAGE_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "packages-cached": cached,
}
