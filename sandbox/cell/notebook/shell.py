"""`get_ipython()`: as much of IPython's shell as the commands of notebooks need."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile

from . import magics

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Tuple

    Execute = Callable[[str, str], Any]


_NAMED = re.compile(r"\$\$|\$([^\W\d]\w*)|\{\{|\}\}|\{([^{}]+)\}")


class Lines(list):  # type: ignore[type-arg] # subscripted in no Python 3.8
    """The lines that a command printed, as IPython's SList."""

    __module__ = "builtins"

    @property
    def l(self) -> Lines:  # noqa: E743 - IPython's name
        return self

    @property
    def n(self) -> str:
        return "\n".join(self)

    @property
    def s(self) -> str:
        return " ".join(self)

    list, nlstr, spstr = l, n, s


class Shell:
    """Runs the commands of cells.

    Args:
        namespace: The program's variables.
        execute: Runs Python with them; takes text and path, returns the value.
    """

    def __init__(self, namespace: Dict[str, Any], execute: Execute) -> None:
        self.user_ns = namespace
        self.execute = execute
        self.passed_over: set[str] = set()
        self.installed: Dict[str, str] = {}
        """Errors of each `pip install`, which the host does; empty if it went well."""

    def run_line_magic(self, name: str, line: str, *ignored: Any) -> Any:
        """Run a `%` command; return its value."""
        return magics.run_line(self, name, line)

    def run_cell_magic(self, name: str, line: str, cell: str) -> Any:
        """Run a `%%` command."""
        return magics.run_cell(self, name, line, cell)

    def magic(self, text: str) -> Any:
        """Run a `%` command, given with its arguments."""
        name, _, line = text.lstrip("%").partition(" ")
        return self.run_line_magic(name, line)

    def system(self, command: str) -> None:
        """Run a command of the shell; its exit code is `_exit_code`."""
        self.run_script(("bash", "-c", self.expanded(command)))

    def getoutput(self, command: str, *ignored: Any) -> Lines:
        """Run a command of the shell; return its lines, of both streams."""
        done = _run(
            ("bash", "-c", self.expanded(command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.user_ns["_exit_code"] = done.returncode
        return Lines(done.stdout.decode("utf-8", "replace").splitlines())

    def run_script(self, argv: Tuple[str, ...], text: str = "") -> int:
        """Run a program; what it prints goes where `print` goes."""
        pipes = {
            "stdout": subprocess.PIPE if sys.stdout is not sys.__stdout__ else None,
            "stderr": subprocess.PIPE if sys.stderr is not sys.__stderr__ else None,
        }
        given: Any = {"input": text.encode()} if text else {"stdin": subprocess.DEVNULL}
        done = _run(argv, **pipes, **given)
        for stream, taken in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
            if taken:
                stream.write(taken.decode("utf-8", "replace"))
        self.user_ns["_exit_code"] = done.returncode
        return int(done.returncode)

    def start_script(self, argv: Tuple[str, ...], text: str) -> Any:
        """Start a program that goes on beside the cells; nobody reads its output."""
        with tempfile.TemporaryFile() as stdin:
            stdin.write(text.encode())
            stdin.seek(0)
            none = subprocess.DEVNULL
            started = _run(
                argv, by=subprocess.Popen, stdin=stdin, stdout=none, stderr=none
            )
        return started

    def pinfo(self, asked: str) -> None:
        """Print how a thing is called, and its documentation; with `?`, its source."""
        import inspect

        name = asked.rstrip("?")
        try:
            # A command of the program itself.
            value = eval(name, self.user_ns)
        except Exception:
            print("Object `%s` not found." % name)
            return
        try:
            print("Signature: %s%s" % (name, inspect.signature(value)))
        except (TypeError, ValueError):
            print("Type: %s" % type(value).__name__)
        try:
            found = inspect.getsource(value) if asked != name else inspect.getdoc(value)
        except (OSError, TypeError):
            found = inspect.getdoc(value)
        print(found or "No documentation.")

    def expanded(self, command: str) -> str:
        """Return a command with `{expression}` and `$name` of the program replaced.

        What the program does not know stays: the shell may know it.
        """

        def known(match: re.Match[str]) -> str:
            name, expression = match.groups()
            if name is None and expression is None:
                return match[0][0]
            try:
                # A command of the program itself.
                return str(eval(name or expression, {}, self.user_ns))
            except Exception:
                return match[0]

        return _NAMED.sub(known, command)


def _run(argv: Tuple[str, ...], *, by: Any = subprocess.run, **options: Any) -> Any:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        return by(argv, **options)
    except FileNotFoundError:
        if argv[0] != "bash":
            raise magics.UsageError("there is no %s here" % argv[0]) from None
        return by(("sh", *argv[1:]), **options)
