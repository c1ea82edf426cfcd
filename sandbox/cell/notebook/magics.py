"""The meanings of `%` and `%%` commands; those without one are passed over, aloud."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import time

from ..outputs import display, ipython
from . import cells

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, NoReturn

    # `shell.Shell`, which imports this module.
    Shell = Any


# They change what a person sees, or how; here they change nothing.
_PASSED_OVER = frozenset(
    "autoreload autosave colors config debug gui load_ext pdb precision reload_ext "
    "tensorboard unload_ext xmode".split()
)
_OF_THE_SHELL = frozenset("cat cp head less ls ll mkdir mv rm rmdir tail".split())
_RUN_BY = ("bash", "perl", "python", "python3", "ruby", "sh")
_RUNS = 7


class UsageError(Exception):
    """A command that does not exist, or cannot be used in this way."""

    # By which it is named to people.
    __module__ = "builtins"


def run_line(shell: Shell, name: str, line: str) -> Any:
    """Run a `%` command; return its value.

    Raises:
        UsageError: There is no such command.
    """
    if name in _PASSED_OVER:
        return _pass_over(shell, name, line)
    if name in _OF_THE_SHELL:
        return shell.system("%s %s" % (name, line))
    command = _LINES.get(name)
    if command is None:
        raise _no_such("Line", name, line)
    if name not in cells.PYTHON_BODIES:
        line = shell.expanded(line)
    return command(shell, line)


def run_cell(shell: Shell, name: str, line: str, body: str) -> Any:
    """Run a `%%` command. Raises as `run_line`."""
    if name in _RUN_BY or name == "script":
        words = shlex.split(shell.expanded(line))
        return _script(shell, [name, *words] if name != "script" else words, body)
    command = _CELLS.get(name)
    if command is None:
        raise _no_such("Cell", name, line)
    return command(shell, line, body)


def _no_such(kind: str, name: str, line: str) -> UsageError:
    sign = "%" if kind == "Line" else "%%"
    text = "%s magic function `%s%s` not found: %s%s %s"
    return UsageError((text % (kind, sign, name, sign, name, line)).rstrip())


def _pass_over(shell: Shell, name: str, line: str) -> None:
    if name not in shell.passed_over:
        shell.passed_over.add(name)
        text = "toolcell: %%%s %s has no meaning here and was passed over"
        print(text % (name, line), file=sys.stderr)


def _matplotlib(shell: Shell, line: str) -> None:
    if line not in ("", "inline", "agg", "--list"):
        text = "toolcell: figures are shown as pictures, not by %s"
        print(text % line, file=sys.stderr)


def _pip(shell: Shell, line: str) -> None:
    """Say what came of an installation; the host does it, before the run."""
    if not line.startswith("install "):
        shell.run_script((sys.executable, "-m", "pip", *shlex.split(line)))
        return
    problem = shell.installed.get(line)
    names = [each for each in shlex.split(line)[1:] if each[:1] != "-"]
    if problem is None:
        problem = "write it as a separate line, with names of packages"
    if problem and names and all(map(_is_there, names)):
        problem = ""
    shell.user_ns["_exit_code"] = 1 if problem else 0
    if problem:
        print("ERROR: %s" % problem, file=sys.stderr)
    else:
        print("Requirement already satisfied: %s" % ", ".join(names))


def _is_there(requirement: str) -> bool:
    from importlib import metadata

    name, _, version = requirement.partition("==")
    try:
        found = metadata.version(name)
    except Exception:
        return False
    return version in ("", found)


def _cd(shell: Shell, line: str) -> None:
    os.chdir(os.path.expanduser(line.strip("'\"") or "~"))
    print(os.getcwd())


def _env(shell: Shell, line: str) -> Any:
    name, sign, value = line.partition("=")
    if not sign:
        name, sign, value = line.partition(" ")
    if not sign:
        return os.environ[name] if name else dict(os.environ)
    os.environ[name.strip()] = value.strip()
    print("env: %s=%s" % (name.strip(), value.strip()))
    return None


def _run_file(shell: Shell, line: str) -> None:
    argv = [each for each in shlex.split(line) if each not in ("-i", "-t")]
    if not argv:
        raise _no_such("Line", "run", line)
    path = argv[0] if os.path.splitext(argv[0])[1] else argv[0] + ".py"
    with open(path, encoding="utf-8") as file:
        text = file.read()
    before, sys.argv = sys.argv, argv
    try:
        for code in _cells_of(text) if path.endswith(".ipynb") else [text]:
            shell.execute(code, path)
    finally:
        sys.argv = before


def _cells_of(text: str) -> list[str]:
    import json

    book = json.loads(text)
    found = (cell for cell in book["cells"] if cell["cell_type"] == "code")
    return ["".join(each["source"]) for each in found]


def _time(shell: Shell, line: str, body: str = "") -> Any:
    from resource import RUSAGE_SELF, getrusage

    began, used = time.perf_counter(), getrusage(RUSAGE_SELF)
    try:
        return shell.execute("\n%s\n" % body if body else line, "<timed>")
    finally:
        wall, now = time.perf_counter() - began, getrusage(RUSAGE_SELF)
        user, system = now.ru_utime - used.ru_utime, now.ru_stime - used.ru_stime
        texts = map(_duration_text, (user, system, user + system))
        print("CPU times: user %s, sys: %s, total: %s" % tuple(texts))
        print("Wall time: %s" % _duration_text(wall))


def _timeit(shell: Shell, line: str, body: str = "") -> Any:
    import getopt
    import statistics
    import timeit

    options, words = getopt.getopt(line.split(" "), "n:r:qotcp:v:")
    given: Dict[str, str] = dict(options)
    text = " ".join(words)
    timed, setup = (body, text or "pass") if body else (text, "pass")
    timer = timeit.Timer(timed, setup, globals=shell.user_ns)
    loops = int(given["-n"]) if "-n" in given else timer.autorange()[0]
    each = [t / loops for t in timer.repeat(int(given.get("-r", _RUNS)), loops)]
    summary = "%s ± %s per loop (mean ± std. dev. of %d runs, %d loops each)" % (
        _duration_text(statistics.mean(each)),
        _duration_text(statistics.pstdev(each)),
        len(each),
        loops,
    )
    if "-q" not in given:
        print(summary)
    return Timing(each, summary) if "-o" in given else None


class Timing:
    """The times of `%timeit -o`, in seconds a loop."""

    def __init__(self, timings: list[float], summary: str) -> None:
        self.timings, self._summary = timings, summary
        self.average = sum(timings) / len(timings)
        self.best, self.worst = min(timings), max(timings)

    def __repr__(self) -> str:
        return "<TimeitResult : %s>" % self._summary


def _duration_text(seconds: float) -> str:
    if seconds >= 60:
        return "%dmin %ds" % divmod(seconds, 60)
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return "%.3g %s" % (seconds / unit, name)
    return "%.3g ns" % (seconds / 1e-9)


def _prun(shell: Shell, line: str, body: str = "") -> None:
    import cProfile
    import pstats

    profile = cProfile.Profile()
    try:
        profile.runcall(shell.execute, body or line, "<profiled>")
    finally:
        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(20)


def _who(shell: Shell, line: str) -> None:
    kinds = (type(sys), type(_who))
    names = [n for n, each in shell.user_ns.items() if not isinstance(each, kinds[:1])]
    print("\t".join(name for name in names if name[0] != "_"))


def _xdel(shell: Shell, line: str) -> None:
    shell.user_ns.pop(line, None)


def _reset(shell: Shell, line: str) -> None:
    for name in [each for each in shell.user_ns if each[:2] != "__"]:
        del shell.user_ns[name]


def _write_file(shell: Shell, line: str, body: str) -> None:
    words = shlex.split(shell.expanded(line))
    adds = words[:1] in (["-a"], ["--append"])
    [name] = words[1:] if adds else words
    path = os.path.expanduser(name)
    word = "Appending to" if adds else "Overwriting"
    print(word if os.path.exists(path) else "Writing", name)
    with open(path, "a" if adds else "w", encoding="utf-8") as file:
        file.write(body if body.endswith("\n") or not body else body + "\n")


class Captured:
    """The output of a cell under `%%capture`."""

    def __init__(self) -> None:
        self._streams = io.StringIO(), io.StringIO()
        self.outputs: list[Any] = []

    @property
    def stdout(self) -> str:
        return self._streams[0].getvalue()

    @property
    def stderr(self) -> str:
        return self._streams[1].getvalue()

    def __str__(self) -> str:
        return self.stdout

    def show(self) -> None:
        """Print and display it."""
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for data, metadata in self.outputs:
            display.publish(data, metadata)

    __call__ = show

    @contextlib.contextmanager
    def taking(self) -> Any:
        out, err = self._streams
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with display.kept_in(self.outputs):
                yield


def _capture(shell: Shell, line: str, body: str) -> None:
    captured = Captured()
    with captured.taking():
        value = shell.execute("\n" + body, "<captured>")
        if value is not None:
            display.display(value)
        display.show_figures()
    names = [each for each in line.split() if each[:1] != "-"]
    if names:
        shell.user_ns[names[0]] = captured


def _script(shell: Shell, words: list[str], body: str) -> None:
    given, argv = _script_options(words)
    if given.bg:
        process = shell.start_script(tuple(argv), body)
        shell.user_ns.update({given.proc: process} if given.proc else {})
        return
    taken: Dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        if given.out:
            taken[given.out] = stack.enter_context(_taking(contextlib.redirect_stdout))
        if given.err:
            taken[given.err] = stack.enter_context(_taking(contextlib.redirect_stderr))
        code = shell.run_script(tuple(argv), body)
    shell.user_ns.update({name: text.getvalue() for name, text in taken.items()})
    if code and not given.no_raise_error:
        import subprocess

        raise subprocess.CalledProcessError(code, argv)


def _script_options(words: list[str]) -> tuple[Any, list[str]]:
    """Return IPython's options of `%%script`, and the words that are the command."""
    import argparse

    class Options(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(message)

    options = Options(add_help=False, allow_abbrev=False)
    for name in ("--out", "--err", "--proc"):
        options.add_argument(name)
    for name in ("--bg", "--no-raise-error"):
        options.add_argument(name, action="store_true")
    given, argv = options.parse_known_args(words)
    if given.bg and (given.out or given.err):
        options.error("--bg takes no --out or --err: its output is not kept")
    return given, argv


@contextlib.contextmanager
def _taking(redirect: Any) -> Any:
    text = io.StringIO()
    with redirect(text):
        yield text


def _shown_as(kind: Any) -> Callable[[Shell, str, str], None]:
    def show(shell: Shell, line: str, body: str) -> None:
        display.display(kind(body))

    return show


_LINES: Dict[str, Callable[[Shell, str], Any]] = {
    "cd": _cd,
    "env": _env,
    "matplotlib": _matplotlib,
    "pip": _pip,
    "prun": _prun,
    "pwd": lambda shell, line: os.getcwd(),
    "reset": _reset,
    "run": _run_file,
    "set_env": _env,
    "sx": lambda shell, line: shell.getoutput(line),
    "system": lambda shell, line: shell.system(line),
    "time": _time,
    "timeit": _timeit,
    "who": _who,
    "xdel": _xdel,
}
_CELLS: Dict[str, Callable[[Shell, str, str], Any]] = {
    "capture": _capture,
    "file": _write_file,
    "html": _shown_as(ipython.HTML),
    "HTML": _shown_as(ipython.HTML),
    "javascript": _shown_as(ipython.Javascript),
    "js": _shown_as(ipython.Javascript),
    "latex": _shown_as(ipython.Latex),
    "markdown": _shown_as(ipython.Markdown),
    "prun": _prun,
    "svg": _shown_as(ipython.SVG),
    "time": _time,
    "timeit": _timeit,
    "writefile": _write_file,
}
