"""Programs that make up outputs, or display more than anybody wants."""

from __future__ import annotations

import anyio
import pytest

from toolcell.sandbox import ExecutionResult, Limits, SandboxManager

pytestmark = pytest.mark.anyio

FORGE = """
import json, os
def forge(body, size=None, mark=1):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = len(body) if size is None else size
    data = b"o%02x%08x" % (mark, size) + body
    while data:
        data = data[os.write(3, data):]
def bundle(data, **fields):
    return {"data": data, "json": [], "left": [], "value": False,
            "preview": None, "metadata": "{}", **fields}
"""


async def run(sandbox: SandboxManager, code: str) -> ExecutionResult:
    return await sandbox.run(FORGE + code, limits=Limits(wall_seconds=20))


async def test_a_forged_output_is_only_the_programs_word(
    sandbox: SandboxManager,
) -> None:
    """It needs no `display`, and gains nothing by doing without."""
    result = await run(sandbox, "forge(bundle({'text/plain': 'x'}, value=True))\n42")

    assert (result.status, result.value) == ("ok", 42)
    [output] = result.outputs
    assert (output.text(), output.is_value, output.origin) == ("x", True, "program")


MALFORMED = {
    "no json": "b'{'",
    "no object": "[1, 2]",
    "no fields": "{}",
    "no texts": "bundle({'text/plain': 1})",
    "bad names": "bundle({'../x': 'y'})",
    "names with lines": r"bundle({'text/plain\n': 'y'})",
    "a script as a name": "bundle({'text/<script>': 'y'})",
    "long names": "bundle({'text/' + 'x' * 65: 'y'})",
    "half a surrogate pair": r"bundle({'text/plain': '\ud800'})",
    "many representations": "bundle({f'text/{n}': 'y' for n in range(33)})",
    "many values": "bundle({}, left=[0] * 500_000)",
    "deep values": "b'[' * 1_000_000",
    "wrong fields": "bundle({'text/plain': 'y'}, json=None)",
}


@pytest.mark.promise("R59")
async def test_malformed_outputs_are_dropped(sandbox: SandboxManager) -> None:
    """The run, and the outputs around them, hold."""
    forged = "\n".join(f"forge({body})" for body in MALFORMED.values())
    result = await run(sandbox, f"display(1)\n{forged}\ndisplay(2)\n42")

    assert (result.status, result.value) == ("ok", 42), result.stderr
    assert [output.text() for output in result.outputs] == ["1", "2"]
    assert f"{len(MALFORMED)} outputs were malformed, and dropped" in result.warnings


UNTRUE = {
    "image/png": "'bm8gcGljdHVyZQ=='",
    "image/jpeg": "'no base 64'",
    "image/gif": "'iVBORw0KGgo='",
    "application/json": "'[' * 120 + ']' * 120",
    "x/nan": "'NaN'",
    "x/twice": """'{"a": 1, "a": 2}'""",
    "x/surrogate": r"""'"\\ud800"'""",
    "x/many": "'[' + '1,' * 200_000 + '1]'",
    "x/digits": "'1' * 5_000",
}


@pytest.mark.promise("R59")
async def test_representations_that_are_not_what_they_claim_are_left_out(
    sandbox: SandboxManager,
) -> None:
    data = ", ".join(f"{mime!r}: {text}" for mime, text in UNTRUE.items())
    named = [mime for mime in UNTRUE if not mime.startswith("image/")]
    result = await run(
        sandbox,
        f"forge(bundle({{'text/plain': 'x', {data}}}, json={named!r},"
        " metadata='[1', preview=['image/png', 'bm8gcGljdHVyZQ==']))",
    )

    [output] = result.outputs
    assert output.mimes == ("text/plain",)
    assert set(output.left_out) == UNTRUE.keys()
    assert output.metadata == {}
    assert output.preview is None


async def test_the_number_of_outputs_is_limited(sandbox: SandboxManager) -> None:
    result = await run(sandbox, "for n in range(1_000): display(n)\n42")

    assert (result.status, result.value) == ("ok", 42)
    assert [output.text() for output in result.outputs] == [str(n) for n in range(256)]
    assert any(
        warning.startswith("744 outputs left out") for warning in result.warnings
    )


async def test_the_bytes_of_outputs_are_limited(sandbox: SandboxManager) -> None:
    """A large representation is left out, and named; a large output is, too."""
    result = await run(
        sandbox,
        "class Large:\n"
        "    def __repr__(self): return 'small'\n"
        "    def _repr_html_(self): return 'x' * 5_000_000\n"
        "display(Large())\n"
        "for n in range(6): display({'text/plain': 'y' * 3_000_000}, raw=True)\n"
        "forge(b'z' * 5_000_000)\n"
        "forge(b'', size=0xFFFFFFF0)\n",
    )

    first, *others = result.outputs
    assert (first.text(), first.left_out) == ("small", ("text/html",))
    assert [len(other.text() or "") for other in others] == [3_000_000] * 5
    assert any(warning.startswith("3 outputs left out") for warning in result.warnings)


async def test_an_output_that_never_ends_costs_its_run_only(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1")
        half = await session.run(FORGE + "forge(b'half', size=100)\nx")
        after = await session.run("display(x)\nx")

    assert half.value is None
    assert half.outputs == ()
    assert ([output.text() for output in after.outputs], after.value) in (
        (["1"], 1),
        ([], None),
    )


async def test_a_thread_cannot_write_into_the_next_run(
    sandbox: SandboxManager,
) -> None:
    """Between runs nobody takes outputs, so `display` prints, and holds nobody up."""
    async with sandbox.session() as session:
        await session.run(
            "import os, threading, time\n"
            "def work():\n"
            "    while not os.path.exists('go'): time.sleep(0.01)\n"
            "    display('between')\n"
            "    open('done', 'w').close()\n"
            "    while True: time.sleep(0.01); display('during')\n"
            "threading.Thread(target=work, daemon=True).start()\n"
            "display('main')\n"
        )
        await session.write_file("go", "")
        with anyio.fail_after(60):
            while not any(file.path == "done" for file in await session.list_files()):
                await anyio.sleep(0.01)
        results = [await session.run(f"display({n})\n{n}") for n in range(3)]

    assert [result.value for result in results] == [0, 1, 2]
    assert results[0].stdout.startswith("'between'\n")
    for number, result in enumerate(results):
        assert str(number) in [output.text() for output in result.outputs]
        assert "result channel" not in str(result.warnings)


async def test_answers_that_nobody_reads_hold_up_nothing(
    sandbox: SandboxManager,
) -> None:
    result = await run(sandbox, "for n in range(5_000): forge(b'')\n42")

    assert (result.status, result.value) == ("ok", 42)
    assert result.outputs == ()


async def test_what_cannot_be_sent_is_left_out_by_display(
    sandbox: SandboxManager,
) -> None:
    result = await run(
        sandbox,
        r"display({'text/plain': 'a\ud800b', 'x/y': {'k': '\ud800'}, 7: 'x',"
        r" 'no type': 'x', 'x/z': object(), 'x/n': [float('nan')]}, raw=True)",
    )

    [output] = result.outputs
    assert output.data == {"text/plain": "a?b"}
    assert output.left_out == ("x/y", "x/z", "x/n")
