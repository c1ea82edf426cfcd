"""Programs in JavaScript and TypeScript: as in Python, on every backend."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from toolcell.core import InvalidInputError
from toolcell.sandbox import (
    ExecutionResult,
    Limits,
    SandboxConfig,
    SandboxManager,
    Stdout,
)
from toolcell.sandbox.machine import host_cgroups
from toolcell.sandbox.spi import OpaqueValue

from ...conftest import CONFINED, SUBPROCESS, BackendRow
from ...support.cells.node_cells import node, options
from ...support.toolcell_command import toolcell

SHORT = Limits(wall_seconds=1.5)
pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def nodes(backend: BackendRow) -> AsyncIterator[SandboxManager]:
    """A manager whose cells have node."""
    limits = Limits(wall_seconds=30)
    async with SandboxManager(backend.config(limits=limits, **options(backend))) as m:
        yield m


@pytest.fixture(scope="module")
async def here() -> AsyncIterator[SandboxManager]:
    """The same without Docker, for what is no matter of the backend."""
    config = SUBPROCESS.config(node=str(node()), pool=2)
    async with SandboxManager(config) as manager:
        yield manager


async def js(sandbox: SandboxManager, code: str, **more: Any) -> ExecutionResult:
    return await sandbox.run(code, language="node", **more)


async def test_a_program_prints_and_its_last_value_comes_back(
    nodes: SandboxManager,
) -> None:
    code = (
        "const path = require('path')\n"
        "console.log('out', data.length); console.error('err')\n"
        "const found = {sum: data.reduce((a, b) => a + b), at: path.join('a', 'b')}\n"
        "found"
    )
    result = await js(nodes, code, inputs={"data": [1, 2.5, 3], "text": "é😀"})

    assert (result.status, result.exit_code) == ("ok", 0), result.stderr
    assert result.value == {"sum": 6.5, "at": "a/b"}
    assert (result.stdout, result.stderr) == ("out 3\n", "err\n")
    assert (await js(nodes, "text", inputs={"text": "é😀"})).value == "é😀"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("let x = 1", None),
        ("null", None),
        ("[true, 'x', 0.5, -0, {'': null}]", [True, "x", 0.5, 0, {"": None}]),
        ("(async () => { await 1; return 42 })()", 42),
        ("await 1; export default [await Promise.resolve(2)]", [2]),
        ("import {join} from 'node:path'\nexport default join('a', 'b')", "a/b"),
        ("export default import.meta.filename", "/work/main.js"),
        ("import('fs').then(fs => fs.existsSync('/work'))", True),
        ("interface A { x: number }\nconst a: A = {x: 1}\na.x + (2 as number)", 3),
        ("import type {A} from './a'\nconst n: number = 5\nexport default n", 5),
        ("const process = 1, value = 2, code = 3\nvalue + code", 5),
        ("[process.argv[1], typeof inputs]", ["/work/main.js", "undefined"]),
    ],
)
async def test_values_that_are_json(
    here: SandboxManager, code: str, value: object
) -> None:
    result = await js(here, code)

    assert (result.status, result.value) == ("ok", value), result.stderr


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("new Map([[1, 2]])", "Map", "Map(1) { 1 => 2 }"),
        ("10n", "BigInt", "10n"),
        ("({x: undefined})", "Object", "{ x: undefined }"),
        ("NaN", "Number", "NaN"),
        ("'\\ud83d'", "String", "'\\ud83d'"),
        ("new Promise(() => {})", "Promise", "Promise { <pending> }"),
        ("({toJSON() { return 1 }})", "Object", "{ toJSON: [Function: toJSON] }"),
        ("const x = {}; x.x = x; x", "Object", "<ref *1> { x: [Circular *1] }"),
        ("'a'.repeat(600000)", "String", "'" + "a" * 1023),
    ],
)
async def test_other_values_are_described(
    here: SandboxManager, code: str, kind: str, text: str
) -> None:
    result = await js(here, code)

    assert result.value == OpaqueValue(type=kind, repr=text), result.stderr


async def test_an_error_has_type_message_and_lines(nodes: SandboxManager) -> None:
    code = "class Odd extends Error {}\nfunction f() {\n  throw new Odd('bad')\n}\nf()"
    result = await js(nodes, code)

    assert (result.status, result.exit_code) == ("error", 1)
    assert result.exception is not None
    assert (result.exception.type, result.exception.message) == ("Odd", "bad")
    assert "main.js:3:9" in result.exception.traceback
    assert "main.js:5:1" in result.exception.traceback
    assert "[eval]" not in result.stderr
    assert "Odd" in result.stderr or "Error: bad" in result.stderr


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("let a = ;", "SyntaxError", "Unexpected token"),
        ("import x from 'absent'", "Error", "absent"),
        ("Promise.reject(new RangeError('late'))", "RangeError", "late"),
        ("setTimeout(() => { null.x }, 1); 1", "TypeError", "null"),
        ("throw 'plain'", "String", "plain"),
        ("await 1; throw new TypeError('deep')", "TypeError", "deep"),
        ("enum E { A }\nE.A", "SyntaxError", "not supported"),
        ("require('./absent')", "Error", "absent"),
    ],
)
async def test_errors_of_every_kind(
    here: SandboxManager, code: str, kind: str, message: str
) -> None:
    result = await js(here, code)

    assert result.status == "error", result
    assert result.exception is not None
    assert result.exception.type == kind
    assert message in result.exception.message


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("process.exit(3)", 3),
        ("process.exit(0)", 0),
        ("process.exitCode = 7; 1", 7),
        ("setTimeout(() => process.exit(0), 1); 1", 0),
        ("await new Promise(() => {})", 13),
    ],
)
async def test_leaving_early_is_exit(
    here: SandboxManager, code: str, exit_code: int
) -> None:
    result = await js(here, code)

    assert (result.status, result.exit_code) == ("exit", exit_code)
    assert result.value is None


ENDINGS = {
    "while (true) {}": ("timeout", "SIGKILL", 0.5),
    "process.kill(process.pid, 'SIGSEGV')": ("crashed", "SIGSEGV", 30),
    "require('fs').writeFileSync('big', Buffer.alloc(80 << 20))": (
        *("disk_limit", None, 30),
    ),
}
"""Status, signal, and the seconds of each program."""


@pytest.mark.parametrize("code", ENDINGS)
async def test_limits_end_a_program(nodes: SandboxManager, code: str) -> None:
    status, signal, seconds = ENDINGS[code]
    result = await js(nodes, code, limits=Limits(wall_seconds=seconds))

    assert (result.status, result.signal) == (status, signal), result.stderr


HEAP = "const a = []; while (true) a.push(new Array(100000).fill(1.5))"
BUFFERS = "const a = []; while (true) a.push(Buffer.alloc(1 << 20, 1))"


@pytest.mark.parametrize("code", [HEAP, BUFFERS], ids=["heap", "buffers"])
async def test_memory_is_held_for_the_heap_and_beside_it(
    nodes: SandboxManager, code: str
) -> None:
    result = await js(nodes, code)

    assert (result.status, result.self_reported) == ("out_of_memory", False), (
        result.stderr
    )


@pytest.mark.parametrize("row", [SUBPROCESS, CONFINED], ids=lambda row: row.name)
@pytest.mark.parametrize("code", [HEAP, BUFFERS], ids=["heap", "buffers"])
async def test_memory_is_watched_where_there_is_no_cgroup(
    monkeypatch: pytest.MonkeyPatch, code: str, row: BackendRow
) -> None:
    def refuse() -> dict[str, str]:
        raise OSError("no cgroups here")

    monkeypatch.setattr(host_cgroups, "create", refuse)
    async with SandboxManager(row.config(node=str(node()))) as manager:
        result = await js(manager, code)
        fine = await js(manager, "new Array(1e6).fill(0).length")
        python = await manager.run("x = bytearray(1 << 30)")

    assert (result.status, result.self_reported) == ("out_of_memory", False), (
        result.stderr
    )
    assert fine.value == 1_000_000
    assert (python.status, python.self_reported) == ("out_of_memory", False)


async def test_output_and_cpu_have_limits(nodes: SandboxManager) -> None:
    flood = "while (true) console.log('x'.repeat(1000))"
    narrow = Limits(output_bytes=10_000, stop_at_output_limit=True)
    spin = Limits(cpu_seconds=0.5, wall_seconds=20)

    assert (await js(nodes, flood, limits=narrow)).status == "output_limit"
    assert (await js(nodes, "while (true) {}", limits=spin)).status == "cpu_limit"


async def test_types_are_stripped_in_runs_and_sessions(nodes: SandboxManager) -> None:
    code = "type P = {n: number}\nconst p: P = {n: 6}\np.n * (7 as number)"
    one = await js(nodes, code)
    async with nodes.session() as session:
        two = await session.run(code, language="node")

    assert (one.value, two.value) == (42, 42), one.stderr + two.stderr


async def test_an_older_node_runs_javascript_and_refuses_types() -> None:
    found = shutil.which("node")
    words = subprocess.run([found or "false", "--version"], capture_output=True).stdout
    if found is None or not 18 <= int(words[1:].partition(b".")[0] or 0) < 22:
        pytest.skip("the machine's node is none, or newer")
    config = SUBPROCESS.config(node=str(Path(found).resolve()))
    async with SandboxManager(config) as manager:
        plain = await js(manager, "const n = 6\nn * 7")
        typed = await js(manager, "const n: number = 6\nn * 7")

    assert plain.value == 42, plain.stderr
    assert typed.exception is not None
    assert typed.exception.type == "SyntaxError"


async def test_a_stream_and_a_stop_are_as_in_python(nodes: SandboxManager) -> None:
    said, code = [], "for (const n of [1, 2]) console.log(n)"
    async for event in nodes.stream(code, language="node"):
        said.append(event)
    text = b"".join(each.data for each in said if isinstance(each, Stdout))
    begun = anyio.Event()
    async with nodes.session() as session, anyio.create_task_group() as tasks:
        endless = "console.log('on'); while (true) {}"

        async def run() -> None:
            result = await session.run(
                endless, language="node", on_output=lambda *_: begun.set()
            )
            assert result.status == "cancelled"

        tasks.start_soon(run)
        await begun.wait()
        await session.interrupt()

    assert text == b"1\n2\n"


async def test_node_finds_what_it_needs_and_nothing_else(nodes: SandboxManager) -> None:
    code = """
const {Worker} = require('worker_threads'), {execSync} = require('child_process')
const echo = 'require("worker_threads").parentPort.postMessage(7)'
const worker = new Promise((done) => new Worker(echo, {eval: true}).on('message', done))
const net = fetch('http://192.0.2.1/').then(() => 'reached', () => 'refused')
const denied = (what) => { try { what(); return 'done' } catch (e) { return e.code } }
const fs = require('fs')
Promise.all([worker, net]).then(([seven, reached]) => ({
  seven, reached, child: execSync('echo hi').toString(),
  shadow: denied(() => fs.readFileSync('/etc/shadow')),
  write: denied(() => fs.writeFileSync(process.execPath, 'x')),
  uid: process.getuid(), variables: Object.keys(process.env).sort(),
  wasm: new WebAssembly.Memory({initial: 1}).buffer.byteLength,
}))"""
    result = await js(nodes, code)

    assert isinstance(result.value, dict), result.stderr
    assert result.value.pop("shadow") in ("ENOENT", "EACCES")
    assert result.value.pop("write") in ("EROFS", "EACCES", "ETXTBSY", "EPERM")
    variables = result.value.pop("variables")
    names = {"HOME", "LANG", "MPLBACKEND", "PATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR"}
    names |= {"LOGNAME", "USER"}
    assert isinstance(variables, list)
    assert {str(variable) for variable in variables} == names
    assert result.value == {
        "seven": 7, "reached": "refused", "child": "hi\n", "uid": 10_001, "wasm": 65_536
    }  # fmt: skip


async def test_a_value_cannot_be_forged_twice(here: SandboxManager) -> None:
    code = 'require(\'fs\').writeSync(3, \'{"outcome":"ok","value":{}}\\n\'); 1'
    result = await js(here, code)

    assert result.value is None
    assert any("result channel" in warning for warning in result.warnings)


async def test_files_artifacts_and_secrets(nodes: SandboxManager) -> None:
    code = """
const fs = require('fs'), {twice} = require('./lib.js')
fs.mkdirSync('artifacts')
fs.writeFileSync('artifacts/out.json', JSON.stringify({n: twice(21)}))
process.env.KEY"""
    result = await js(
        nodes,
        code,
        files={"lib.js": "exports.twice = (n) => 2 * n"},
        secrets={"KEY": SecretStr("hidden")},
    )

    assert result.value == "hidden", result.stderr
    [artifact] = result.artifacts
    assert (artifact.name, artifact.data) == ("out.json", b'{"n":42}')


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("const n = await Promise.resolve(41)\nn + 1", 42),
        ("await 1; ({a: [await 2]})", {"a": [2]}),
        ("await 1; new Promise((done) => setTimeout(() => done('late'), 5))", "late"),
        ("const os = await import('node:os')\nexport default os.EOL", "\n"),
        ("#!/usr/bin/env node\nconst n = await 41\nn + 1", 42),
        ("await 1; require.main === module", True),
    ],
)
async def test_the_value_of_a_program_that_awaits(
    nodes: SandboxManager, code: str, value: object
) -> None:
    result = await js(nodes, code)

    assert (result.status, result.value) == ("ok", value), result.stderr


# Of one session, in this order: code and value.
CELLS: tuple[tuple[str, object], ...] = (
    ("let x = 1; const y = 2; class A { two() { return y } }", None),
    ("x += new A().two()", 3),
    ("const y = 40; let x = 2; x + y", 42),
    ("await new Promise((done) => setTimeout(() => done(x), 5))", 2),
    ("const {a} = await Promise.resolve({a: [1]}); a", [1]),
    (
        "import fs, {existsSync as there} from 'node:fs'\n"
        "import * as p from 'node:path'\n"
        "[typeof fs.readFileSync, there('/'), p.join('a', 'b')]",
        ["function", True, "a/b"],
    ),
    ("(await import('node:path')).sep + a", "/1"),
    ("'import(x)'", "import(x)"),
    ("process.exitCode", None),
    ("{ a: 1, b: await 2 }", {"a": 1, "b": 2}),
    ("_.b", 2),
    ("{ let x = 1; x }", 1),
    ("{ a: 1 };", 1),
    ("{\n  if (x) {\n    globalThis.ran = 'ran';\n  }\n}\n", "ran"),
    ("require.main === module", True),
    ("const _ = 5; 6", 6),
    ("_", 5),
)


async def test_a_session_of_javascript_says_what_it_does_not_take(
    here: SandboxManager,
) -> None:
    async with here.session() as session:
        refused = await session.run("export const a = 1", language="node")
        known = await session.run("_error.message", language="node")
        of_another = await session.run("new Function('export')", language="node")

    assert refused.exception is not None
    assert "Cannot use export in a session" in refused.exception.message
    assert "Cannot use export in a session" in refused.stderr
    assert known.value == refused.exception.message
    assert of_another.exception is not None
    assert of_another.exception.message == "Unexpected token 'export'"


@pytest.mark.promise("S6")
async def test_variables_of_javascript_stay_in_a_session(nodes: SandboxManager) -> None:
    """Beside those of Python. An error costs none, an endless loop all of them."""
    late = "await new Promise((done) => setTimeout(done, 60_000))"
    async with nodes.session() as session:
        await session.run("x = 'of Python'")
        for code, value in CELLS:
            result = await session.run(code, language="node")
            assert (result.status, result.value) == ("ok", value), (code, result.stderr)
            assert result.state == "kept"
        for code, kind in (("throw new RangeError('no')", "RangeError"), ("1 +", "")):
            failed = await session.run(code, language="node")
            assert failed.exception is not None
            assert failed.exception.type == (kind or "SyntaxError")
            assert failed.state == "kept"
        waits = await session.run(late, language="node", limits=SHORT)
        kept = await session.run("x", language="node")
        fresh = await session.run("typeof x", language="node", fresh=True)
        endless = await session.run("while (true);", language="node", limits=SHORT)
        gone = await session.run("typeof x", language="node")
        other = await session.context()
        apart = await other.run("typeof A", language="node")
        python = await session.run("x")

    assert (waits.status, waits.state, kept.value) == ("timeout", "kept", 2)
    assert fresh.value == "undefined"
    assert (endless.status, endless.state) == ("timeout", "lost")
    assert (gone.value, apart.value) == ("undefined", "undefined")
    assert python.value == "of Python"


async def test_inputs_and_secrets_are_of_one_run_of_a_session(
    nodes: SandboxManager,
) -> None:
    async with nodes.session() as session:
        code = "[given, process.env.KEY]"
        secrets = {"KEY": SecretStr("hidden")}
        first = await session.run(
            code, language="node", inputs={"given": "x" * 100}, secrets=secrets
        )
        large = await session.run(
            "given.length", language="node", inputs={"given": "x" * 2_000_000}
        )
        after = await session.run("typeof process.env.KEY", language="node")

    assert first.value == ["x" * 100, "hidden"], first.stderr
    assert large.value == 2_000_000, large.stderr
    assert after.value == "undefined"


async def test_in_a_session_files_stay(nodes: SandboxManager) -> None:
    async with nodes.session() as session:
        await session.run("x = 41")
        wrote = await session.run(
            "require('fs').writeFileSync('f', '1'); var y = 1", language="node"
        )
        after = await session.run(
            "[typeof y, require('fs').readFileSync('f', 'utf8')]", language="node"
        )
        python = await session.run("x + int(open('f').read())")

    assert wrote.status == "ok", wrote.stderr
    assert after.value == ["number", "1"]
    assert python.value == 42


async def test_bash_finds_node(here: SandboxManager) -> None:
    result = await here.run("node -p '6 * 7'", language="bash")

    assert result.stdout == "42\n", result.stderr


async def test_a_cell_without_node_says_so(tmp_path: Path) -> None:
    no_node = tmp_path / "node"
    no_node.write_text("no program")
    async with SandboxManager(SUBPROCESS.config(node=str(no_node))) as manager:
        result = await js(manager, "1")

    assert (result.status, result.exit_code) == ("exit", 127)
    assert "cannot start node" in result.stderr


async def test_a_language_that_is_not_known() -> None:
    async with SandboxManager(SandboxConfig(backend="subprocess")) as manager:
        with pytest.raises(InvalidInputError, match="language"):
            await manager.run("1", language="ruby")  # type: ignore[arg-type]


def test_the_command_line_knows_it_by_the_name(tmp_path: Path) -> None:
    program = tmp_path / "program.ts"
    program.write_text("const n: number = 6\nconsole.log(n * 7)")
    path = {"PATH": f"{node().parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = toolcell("run", "--backend", "subprocess", str(program), env=path)

    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr
