"""What the documents show is what happens: their code and commands are run.

A ```python block runs as a script of its own; a ```text block right after it is
its output. In a ```console block a line that begins with `$ ` is a command (a
backslash at its end continues it) and what follows is its output; commands of
`toolcell` are run, `$ echo $?` after one shows its exit code, and a line `...`
stands for any lines. A ```toml block is a configuration. A line `<!-- not run:
reason -->` before a block skips it, and one `<!-- needs the public index -->` skips
it where no index answers.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from toolcell.host import HostConfig

from ..conftest import missing
from ..support.cells.node_cells import node
from ..support.paths import README, ROOT, documents

README_LINES = 100
CONTRIBUTING_LINES = 80
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
_NEEDS_INDEX = "<!-- needs the public index -->"
_NO_INDEX = "set package_rules.index_url"
_OURS = re.compile(r"(?:^|&& )(?:\.venv/bin/)?(toolcell .*)$", re.S)
_NO_ENGINE = "unix:///nonexistent/docker.sock"
_VARIES = [
    (re.compile(r"\d+(?:\.\d+)? (ms|s|MiB|MB|bytes)\b"), r"N \1"),
    (re.compile(r'("[a-z_]*(?:_ms|_bytes)": )[\d.]+'), r"\1N"),
    (re.compile(r"(using the subprocess backend: ).*"), r"\1..."),
    (re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{12,64}\b"), "ID"),
]


@dataclass(kw_only=True)
class Block:
    """A fenced block of a document."""

    path: Path
    line: int
    language: str
    lines: list[str] = field(default_factory=list)
    not_run: str = ""
    needs_index: bool = False
    output: list[str] | None = None

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@dataclass(kw_only=True)
class Command:
    """A command of a console block and what it prints, as shown."""

    text: str
    output: list[str] = field(default_factory=list)


def read_blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a document; an unclosed one is an error."""
    blocks: list[Block] = []
    fence, block, before = "", None, ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        opens = re.match(r"^(```+)\s*(\w*)\s*$", line)
        if block is not None and line.rstrip() == fence:
            block, before = None, fence
        elif block is not None:
            block.lines.append(line)
        elif opens:
            fence = opens[1]
            block = Block(path=path, line=number, language=opens[2])
            skipped = _NOT_RUN.match(before)
            block.not_run = skipped[1] if skipped else ""
            block.needs_index = before == _NEEDS_INDEX
            follows = before == fence and blocks[-1].language == "python"
            if opens[2] == "text" and follows:
                blocks[-1].output = block.lines
            blocks.append(block)
        elif line.strip():
            before = line.strip()
    assert block is None, f"{path.name}: a block is not closed"
    return blocks


def read_commands(lines: list[str]) -> list[Command]:
    """Split a console block into commands with their output."""
    commands: list[Command] = []
    continues = False
    for line in lines:
        if continues:
            commands[-1].text = f"{commands[-1].text[:-1]}{line.lstrip('> ')}"
        elif line.startswith("$ "):
            commands.append(Command(text=line[2:]))
        elif commands:
            commands[-1].output.append(line)
        continues = bool(commands) and commands[-1].text.endswith("\\")
    return commands


def blocks_of(language: str) -> list[object]:
    return [
        pytest.param(
            block,
            id=str(block),
            marks=[pytest.mark.skip(reason=block.not_run)] if block.not_run else [],
        )
        for path in documents()
        for block in read_blocks(path)
        if block.language == language
    ]


def usual(text: str) -> list[str]:
    """Return lines without what differs from run to run and place to place."""
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def compare(shown: list[str], printed: str) -> None:
    """Fail with a diff unless a program printed what a document shows."""
    expected, real = usual("\n".join(shown)), usual(printed)
    parts = [re.escape(line) if line != "..." else r"[^\0]*" for line in expected]
    # Lines are joined by NL; `...` takes whole lines or none.
    pattern = "\n".join(parts).replace("\n[^\\0]*", "(?:\n[^\\0]*)?")
    if re.fullmatch(pattern, "\n".join(real)) is None:
        diff = difflib.unified_diff(expected, real, "shown", "printed", lineterm="")
        pytest.fail("\n".join(diff))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A reader's: our commands and a node are there, and no package is yet."""
    places = [sysconfig.get_path("scripts"), str(node().parent), os.environ["PATH"]]
    cache = str(tmp_path_factory.mktemp("cache"))
    return {**os.environ, "PATH": os.pathsep.join(places), "XDG_CACHE_HOME": cache}


def check_index(block: Block, code: int, said: str) -> None:
    """Say that the index is missing, where that is why a block went wrong."""
    if block.needs_index and code and _NO_INDEX in said:
        missing(said)


@pytest.mark.promise("RG-01", "cluster-52")
@pytest.mark.parametrize("block", blocks_of("python"))
def test_python_blocks_run(
    block: Block, tmp_path: Path, environment: dict[str, str]
) -> None:
    script = tmp_path / "block.py"
    script.write_text("\n".join(block.lines))
    done = subprocess.run(
        [sys.executable, "-I", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    check_index(block, done.returncode, done.stderr)
    assert done.returncode == 0, done.stderr
    if block.output is not None:
        compare(block.output, done.stdout)


def run_command(
    text: str, shown: list[str], folder: Path, environment: dict[str, str]
) -> tuple[str, int]:
    """Run a command of ours as a reader would; return its output and exit code."""
    env = {**environment, "NO_COLOR": "1", "COLUMNS": "80"}
    env.pop("FORCE_COLOR", None)
    if any("using the subprocess backend" in line for line in shown):
        env["DOCKER_HOST"] = _NO_ENGINE
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=280,
    )
    return done.stdout, done.returncode


@pytest.mark.parametrize("block", blocks_of("console"))
def test_console_blocks_run(block: Block, environment: dict[str, str]) -> None:
    commands = read_commands(block.lines)
    assert commands, "a console block needs a line that begins with `$ `"
    code: int | None = None
    for command in commands:
        ours = _OURS.search(command.text)
        if ours:
            printed, code = run_command(ours[1], command.output, ROOT, environment)
            check_index(block, code, printed)
            assert code not in (126, 127), printed
            if command.output:
                compare(command.output, printed)
        elif command.text == "echo $?" and code is not None:
            compare(command.output, str(code))


@pytest.mark.promise("JE5")
def test_examples_run_where_only_an_engine_does() -> None:
    """One is about the layers of the backend that it names."""
    named = [
        str(path.relative_to(ROOT))
        for path in documents()
        for block in read_blocks(path)
        if block.language in ("python", "console", "toml")
        and re.search(r"backend\W+subprocess", "\n".join(block.lines))
    ]

    assert named == ["docs/security.md"]


@pytest.mark.parametrize("block", blocks_of("toml"))
def test_configurations_are_accepted(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text("\n".join(block.lines))

    HostConfig.from_file(path, environ={})


def test_the_readme_shows_first_what_a_reader_wants() -> None:
    text = README.read_text()
    first, combined, *_ = [b for b in read_blocks(README) if b.language == "python"]
    [shell, *_] = [b for b in read_blocks(README) if b.language == "console"]
    [command] = read_commands(shell.lines)

    assert len(text.splitlines()) <= README_LINES
    assert len([line for line in first.lines if line]) <= 6
    assert "docs/images/chart.png" in text
    assert "AgentPolicy" in str(combined.lines)
    assert len([line for line in combined.lines if line]) <= 14
    assert combined.output, "what the guard refuses is seen"
    assert text.index("Does not protect") < text.index("## Try it")
    assert _OURS.search(command.text)
    assert command.output, "the first command shows its real output"


def test_the_last_command_is_what_ci_runs() -> None:
    commands = [
        command
        for block in read_blocks(README)
        if block.language == "console"
        for command in read_commands(block.lines)
    ]

    # `.ci/run` and `.ci/places` take the first command of the README that names pytest.
    [first, *_] = re.findall(r"^\$ (.*\bpytest\b.*)$", README.read_text(), re.M)
    assert commands[-1].text == first
    for script in ("run", "places"):
        assert r"pytest\b.*\)$/\1/p' README.md" in (ROOT / ".ci" / script).read_text()


def test_the_usual_documents_exist() -> None:
    for name in ("LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        assert (ROOT / name).is_file(), name
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    assert len(lines) <= CONTRIBUTING_LINES


@pytest.mark.parametrize("path", list(documents()), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
    dead = [
        target
        for target in targets
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert dead == []


@pytest.mark.parametrize("path", list(documents()), ids=lambda path: path.name)
def test_each_test_that_is_named_is_there(path: Path) -> None:
    named = re.findall(r"\btests/[\w./-]+\.py\b", path.read_text())

    assert [name for name in named if not (ROOT / name).exists()] == []


def test_each_invariant_names_a_test() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    _, _, table = text.partition("| never | test |")
    rows = [line for line in table.splitlines() if line.startswith("| ")]

    assert len(rows) > 10
    assert all(re.search(r"`tests/\S+\.py`", line) for line in rows)


def test_a_document_is_read_right(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n```console\n$ toolcell run a.py \\\n>   --json\n{}\n...\n"
        "$ echo $?\n0\n```\n<!-- not run: needs a cluster -->\n```python\n1 / 0\n"
        "```\n```python\nprint(1)\n```\n\n```text\n1\n```\n"
    )
    console, skipped, shown, text = read_blocks(page)

    commands = read_commands(console.lines)
    assert [c.text for c in commands] == ["toolcell run a.py --json", "echo $?"]
    assert [c.output for c in commands] == [["{}", "..."], ["0"]]
    assert (console.line, skipped.not_run, shown.not_run) == (3, "needs a cluster", "")
    assert (skipped.output, shown.output, text.lines) == (None, ["1"], ["1"])


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["ok, 12 ms, 9 MiB"], "ok, 7 ms, 10 MiB\n", True),
        (["ok, 12 ms"], "error, 12 ms", False),
        (["a", "...", "d"], "a\nb\nc\nd", True),
        (["a", "..."], "a", True),
        (["a", "..."], "b", False),
        (["a"], "a\nb", False),
        (["pi is 3.1415926535897931"], "pi is 3.1415926535897932", False),
        (["removed 3f9c0a1b2c4d"], "removed 0123456789ab", True),
    ],
)
def test_output_is_compared_line_by_line(
    shown: list[str], printed: str, same: bool
) -> None:
    if same:
        compare(shown, printed)
    else:
        with pytest.raises(pytest.fail.Exception):
            compare(shown, printed)
