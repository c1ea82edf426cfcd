"""Runs and sessions without async, also where an event loop runs, as in a notebook."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

from toolcell.core import InvalidInputError
from toolcell.sandbox import SandboxConfig, open_session, run

from ..conftest import apart

CONFIG = SandboxConfig(backend="subprocess")


@pytest.mark.promise("N13")
@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_a_program_runs_inside_a_running_loop(library: str) -> None:
    async def cell_of_a_notebook() -> list[object]:
        return [run("6 * 7", config=CONFIG).value for _ in range(2)]

    values = apart(lambda: anyio.run(cell_of_a_notebook, backend=library))

    assert values == [42, 42]


@pytest.mark.promise("N13")
def test_its_callbacks_are_called_before_it_returns() -> None:
    heard: list[bytes] = []

    async def cell_of_a_notebook() -> str:
        options = {"on_output": lambda _, data: heard.append(data)}
        result = run("print('heard'); exit(3)", config=CONFIG, **options)
        return result.status

    assert apart(lambda: anyio.run(cell_of_a_notebook)) == "exit"
    assert heard == [b"heard\n"]


@pytest.mark.promise("JF2")
def test_a_session_keeps_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "sales.csv").write_text("5\n7\n")

    with open_session(config=CONFIG) as session:
        assert session.upload(tmp_path / "in") == 1
        session.run("total = sum(int(line) for line in open('sales.csv'))")
        session.write_file("factor", "2")
        result = session.run(
            "open('out', 'w').write('kept')\ntotal * int(open('factor').read())"
        )
        assert (result.value, session.read_file("out")) == (24, b"kept")
        assert {file.path for file in session.list_files()} == {
            "sales.csv",
            "factor",
            "out",
        }
        assert session.download(tmp_path / "out") == 3

    assert (tmp_path / "out" / "out").read_text() == "kept"
    with pytest.raises(InvalidInputError, match="on its own event loop"):
        session.run("total")


def test_a_session_serves_a_loop_and_threads() -> None:
    async def cell_of_a_notebook() -> list[object]:
        with open_session(config=CONFIG) as session, ThreadPoolExecutor(4) as threads:
            session.run("n = 0")
            list(threads.map(session.run, ["n += 1"] * 8))
            return [session.run("n").value]

    assert apart(lambda: anyio.run(cell_of_a_notebook)) == [8]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise, also where a shell started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_run_and_not_the_session() -> None:
    here = threading.get_ident()
    with open_session(config=CONFIG) as session:
        session.run("x = 41")
        with pytest.raises(KeyboardInterrupt):
            session.run(
                "print('begun', flush=True)\nwhile True: pass",
                on_output=lambda *_: signal.pthread_kill(here, signal.SIGINT),
            )
        assert session.run("x + 1").value == 42


def test_bad_input_of_a_session_is_raised() -> None:
    with open_session(config=CONFIG) as session:
        with pytest.raises(InvalidInputError):
            session.install("numpy")
        with pytest.raises(InvalidInputError):
            session.read_file("missing")
