"""Bytes from a program are data: nothing of the host runs because of them."""

from __future__ import annotations

import ast
import base64
import builtins
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import Session
from toolcell.sandbox.cell.wire.frames import (
    FrameDecoder,
    FrameError,
    encode,
    strict_json,
)

from ..conftest import missing
from ..support.paths import ROOT

pytestmark = pytest.mark.anyio

CORPORA = ROOT.parent / "shared" / "corpora"


def cases(folder: str) -> list[dict[str, Any]]:
    path = CORPORA / folder / "cases.jsonl"
    if not path.is_file():
        missing(f"there is no {path}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def forbid(*_: object, **__: object) -> Any:
    raise AssertionError("the host did what a payload asked for")


@pytest.mark.promise("E-90")
@pytest.mark.corpus
async def test_payloads_come_back_as_bytes(
    cell: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = {case["id"]: case["b64"] for case in cases("pickles")}
    await cell.run("1", fresh=True)
    modules = set(sys.modules)
    for name in ("eval", "exec"):
        monkeypatch.setattr(builtins, name, forbid)
    monkeypatch.setattr(subprocess.Popen, "__init__", forbid)
    # The whole of a long value would be an output, which waits for an answer.
    code = "import base64, os\ndata = base64.b64decode(text)\n{}\ndata[:99]"
    for name, text in payloads.items():
        data = base64.b64decode(text)
        written = await cell.run(
            code.format("os.write(1, data)"), fresh=True, inputs={"text": text}
        )
        forged = await cell.run(
            code.format("os.write(3, data)"), fresh=True, inputs={"text": text}
        )
        assert (written.status, written.stdout_bytes) == ("ok", data), name
        assert forged.value is None and forged.warnings, name

    assert {
        name for name in set(sys.modules) - modules if "toolcell" not in name
    } == set()


# Loading with any of these can run code.
LOADERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
RUNNERS = {"eval", "exec", "compile", "__import__", "object_hook"}


def loads_and_runs(path: Path) -> set[str]:
    """Return the calls in a file that could turn data into running code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        words = {word.arg or "" for word in node.keywords}
        if isinstance(called, ast.Name):
            words.add(called.id)
        elif isinstance(called, ast.Attribute) and called.attr in ("load", "loads"):
            loader = ast.unparse(called.value)
            words |= {loader} & LOADERS
        found |= words & (LOADERS | RUNNERS)
    return found


@pytest.mark.promise("E-90", "E-91")
def test_the_host_has_no_loader_that_runs_code() -> None:
    files = [
        path
        for folder in ("core", "sandbox", "host", "images")
        for path in (ROOT / folder).rglob("*.py")
        if "cell" not in path.parts
    ]

    assert len(files) > 20
    found = {path.name: calls for path in files if (calls := loads_and_runs(path))}
    # What it compiles, and never runs, is the source of a library of the host.
    assert found == {"function_pickle.py": {"compile"}}
    text = (ROOT / "sandbox" / "programs" / "function_pickle.py").read_text()
    assert (
        "source = inspect.getsource(cloudpickle.cloudpickle)\n    code = comp" in text
    )


@pytest.mark.promise("E-91")
async def test_text_that_is_code_stays_text(cell: Session) -> None:
    texts = [
        "__import__('os').system('touch /tmp/x')",
        "!!python/object/apply:os.system ['touch /tmp/x']",
        '{"__class__": "os.system", "__reduce__": 1}',
        "{0.__class__.__init__.__globals__}",
        "%(x)s %s",
    ]
    result = await cell.run("texts", fresh=True, inputs={"texts": texts})

    assert result.value == texts


@pytest.mark.promise("E-92")
@pytest.mark.corpus
async def test_there_is_one_strict_decoder(cell: Session) -> None:
    word = b'{"outcome":"ok","value":{"json":%s}}'
    for case in cases("json_parsing"):
        data = base64.b64decode(case["b64"])
        accepted = reads(data)
        if case["expect"] == "reject":
            assert not accepted, case["id"]
        # The same answer where the bytes are a whole frame's header...
        if accepted and isinstance(strict_json(data), dict):
            continue
        with pytest.raises(FrameError):
            FrameDecoder().feed(
                len(data).to_bytes(4, "big") + bytes(4) + (data or b"")
            ) or strict_json(data or b"")
        # ...and the next good one still works.
        assert FrameDecoder().feed(encode({"type": "x"}))[0].header["type"] == "x"
    for text in (b"NaN", b'{"a":1,"a":2}', b'"\\ud800"', b"1" * 5000, b'"\xff"'):
        line = (word % text) + b"\n"
        result = await cell.run(
            f"import os\nos.write(3, {line!r})\nos._exit(0)", fresh=True
        )
        assert (reads(text), result.status, result.value) == (False, "exit", None)
        assert result.warnings


def reads(data: bytes) -> bool:
    try:
        strict_json(data)
    except FrameError:
        return False
    return True


@pytest.mark.promise("E-52")
@pytest.mark.corpus
async def test_naughty_strings_survive(cell: Session) -> None:
    path = CORPORA / "naughty_strings" / "blns.json"
    if not path.is_file():
        missing(f"there is no {path}")
    strings = json.loads(path.read_text())
    code = "import sys\nfor s in texts: sys.stdout.write(s + '\\n')\ntexts"
    result = await cell.run(code, fresh=True, inputs={"texts": strings})

    assert result.status == "ok", result.stderr
    assert result.value == strings
    assert result.stdout_bytes == "".join(f"{string}\n" for string in strings).encode()
    assert Path(path).stat().st_size > 0
