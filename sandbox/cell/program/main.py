"""The program's process: waits for a request, runs it, and reports its outcome.

Nothing here is trusted after the first line of the program has run: from then on the
program could have written all that comes out of the result pipe.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import json
import linecache
import math
import os
import sys
import time
import types
from importlib.machinery import SourceFileLoader

from ..kernel import seccomp, signals
from ..kernel.confine import (
    ConfineError,
    confine,
    limit_processes,
    narrow,
    set_rlimits,
)
from ..kernel.descriptors import close_from, move_fds
from ..relays import call_door
from ..wire.contract import (
    ANSWER,
    BASH_NAME,
    CELL_END,
    FILE_NAME,
    FOLDERS,
    FORK,
    OFFLINE,
    REQUEST_FD,
    RESULT_FD,
    SESSION_BASH_NAME,
    WARM_UP,
)
from . import (
    arguments,
    displays,
    ending,
    execution,
    host_tools,
    node,
    originals,
    source,
    stateful,
    streams,
    values,
)
from .requests import frame_request, read_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, NoReturn


# Those of `-I -S`, with which cells start.
_OWN_FLAGS = (
    "ignore_environment",
    "isolated",
    "no_site",
    "no_user_site",
    "safe_path",
)
# The program's work dir: a branch has another one than the cell.
_home = ""
_node = ""
# True if the request says which filter the program gets.
_closes = False
# As for `limit_processes`, which counts when a run begins.
_more_processes = 0
# The device and inode of the socket for results, which forks have in common.
_channel = (0, 0)


class Pipes:
    """The program's ends of its four pipes."""

    __slots__ = ("request", "result", "stderr", "stdout")

    def __init__(self, request: int, stdout: int, stderr: int, result: int) -> None:
        self.request = request
        self.stdout = stdout
        self.stderr = stderr
        self.result = result

    def close(self) -> None:
        for fd in (self.request, self.stdout, self.stderr, self.result):
            os.close(fd)


def get_ready(settings: dict[str, Any]) -> None:
    """Set up, once and before any fork, all that is the same for every program."""
    os.environ.clear()
    os.environ.update(settings["env"])
    # An interpreter reads TZ when it starts.
    time.tzset()
    global _home
    _home = settings["workdir"]
    home = os.path.realpath(_home)
    added = os.environ.get("PYTHONPATH", "")
    own = added.split(os.pathsep) if added else []
    _hide_flags()
    originals.keep()
    builtins.display = displays.display  # type: ignore[attr-defined]
    sys.meta_path.insert(0, displays.Finder)
    sys.meta_path.append(arguments.UserPackages)
    sys.path[:0] = [home, *(os.path.normpath(os.path.join(home, path)) for path in own)]
    # A stream remembers that it could seek, and those of programs cannot.
    null, (read_fd, write_fd) = os.open(os.devnull, os.O_RDWR), os.pipe()
    with _descriptors([null, write_fd, write_fd]):
        execution.prepare()
    for fd in (null, read_fd, write_fd):
        os.close(fd)


def move(settings: dict[str, Any]) -> None:
    """Have programs begin in another work dir than `get_ready` was given."""
    global _home
    before, _home = os.path.realpath(_home), settings["workdir"]
    os.environ.clear()
    os.environ.update(settings["env"])
    sys.path[:] = [stateful.moved(path, before, _home) for path in sys.path]


def _hide_flags() -> None:
    """Show the flags of a plain interpreter: programs pass theirs on to children."""
    try:
        from ctypes import py_object
    except ImportError:
        return
    # A named tuple of C: nothing else can change it, and its fields are in this order.
    items = id(sys.flags) + tuple.__basicsize__
    for at, field in enumerate(repr(sys.flags).partition("(")[2].split(", ")):
        if field.partition("=")[0] in _OWN_FLAGS:
            address: Any = py_object.from_address(items + at * 8)
            address.value = type(sys.flags[at])()


@contextlib.contextmanager
def _descriptors(sources: list[int]) -> Iterator[None]:
    """Have these as the descriptors 0, 1, 2, ... for a while."""
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD, 32) for fd in range(len(sources))]
    move_fds(sources, RESULT_FD)
    yield
    move_fds(kept, RESULT_FD)
    for fd in kept:
        os.close(fd)


def start(pipes: Pipes, settings: dict[str, Any]) -> NoReturn:
    """Become the program's process, in a fresh fork."""
    code = 70
    try:
        narrow(settings)
        _attach_pipes(pipes, settings["notifier"])
        closes = settings["renews"] == FOLDERS
        held = confine(settings, closes_later=closes)
        # Only the program's own uid may enter.
        os.chdir(_home)
        execution.make_main_module()
        first = os.read(REQUEST_FD, 1)
        if first == WARM_UP:
            _warm_up()
            execution.prepare()
            execution.make_main_module()
            first = b""
        streams.page = settings["page"]
        setup = {"layers": held, "cpu": time.process_time()}
        global _node, _closes, _more_processes
        _more_processes = settings["more_processes"] if settings["confined"] else 0
        _node, _closes = settings["node"], closes and not settings["confined"]
        # The last line that is certainly ours; it is read when a run begins.
        _write_all(RESULT_FD, _line(setup))
    except ConfineError as error:
        _write_all(RESULT_FD, _line({"error": str(error)}))
        os._exit(code)
    except Exception as error:
        why = f"cell set-up failed: {type(error).__name__}: {error}"
        _write_all(RESULT_FD, _line({"error": why}))
        os._exit(code)
    try:
        code = _serve(first)
        ending.leave(code)
    except BaseException as error:
        # A program may have spoilt what our own steps need.
        why = f"toolcell: the interpreter ended by {type(error).__name__}\n"
        os.write(2, why.encode("utf-8", "replace"))
    finally:
        os._exit(code)


def _attach_pipes(pipes: Pipes, notifier: int) -> None:
    signals.forget_parent()
    signals.await_program()
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    move_fds([null, pipes.stdout, pipes.stderr, pipes.result, pipes.request], RESULT_FD)
    _note_channel()
    close_from(REQUEST_FD + 1, but=notifier)
    os.umask(0o022)


def _warm_up() -> None:
    """Run a small program, so that the memory it touches is no longer shared later."""
    request_r, request_w = os.pipe()
    code = b"x = [1]\nprint(x)\n0\n"
    os.write(request_w, frame_request(b"{}", b"{}", code))
    os.close(request_w)
    with _descriptors([0, 0, 0, 0, request_r]):
        _serve(b"")
    os.close(request_r)
    linecache.cache.clear()


def _serve(first: bytes) -> int:
    request = read_request(REQUEST_FD, first, _home)
    if _closes:
        seccomp.close(lasting=request["again"])
    limit_processes(_more_processes)
    if request["branch"]:
        if request["language"] == "node":
            return node.run(_node, request, _home, lives=True)
        return _live(request)
    if not request["tools"]:
        os.close(REQUEST_FD)
    secrets = request.pop("secrets")
    _set_environment(secrets)
    if "TZ" in secrets:
        time.tzset()
    if request["cpu_seconds"]:
        set_rlimits({"cpu": math.ceil(request["cpu_seconds"])})
    if request["language"] == "node":
        return node.run(_node, request, _home, lives=False)
    if request["language"] == "bash":
        if request["network"] is None:
            os.environ.update({**OFFLINE, **os.environ})
        return _run_bash(
            request["code"],
            request["inputs"],
            final=request["final"],
            tools=bool(request["tools"]),
        )
    return _run_python(request)


def _offer_tools(
    request: dict[str, Any], module: types.ModuleType
) -> host_tools.Bridge | None:
    if not request["tools"]:
        return None
    way = host_tools.Bridge(REQUEST_FD, shared=not request["branch"])
    module.__dict__["tools"] = host_tools.HostTools(request["tools"], way)
    module.__dict__["ToolError"] = host_tools.ToolError
    return way


def _live(request: dict[str, Any] | None) -> int:
    """Run one request after the other in this interpreter, and fork it on request."""
    module = sys.modules["__main__"]
    first = b""
    while True:
        with stateful.PlainBuiltins():
            request = request or read_request(REQUEST_FD, first, _home)
            module.__dict__.update(request["inputs"])
            way = _offer_tools(request, module)
            before = _set_environment(request.pop("secrets"))
            path = source.place_run(request["code"], module.__dict__)
        outcome = execution.run(request["code"], _home, path, lasts=True)
        if displays.in_child():
            return execution.end(outcome.exit_code)
        with stateful.PlainBuiltins():
            displays.end()
            if way is not None:
                way.close()
            _restore_environment(before)
            ending.flush()
            streams.end()
            ending.flush_c()
            line = _encode({**outcome.report, "exit_code": outcome.exit_code})
        if not _has_channel():
            raise OSError("the program has another file where the channel was")
        _write_all(RESULT_FD, line)
        request, first = None, _await_program()


def _await_program() -> bytes:
    """Fork on request until there is another program; return the first byte of it."""
    while (first := os.read(REQUEST_FD, 1)) in (FORK, ANSWER):
        with stateful.PlainBuiltins():
            if first == FORK:
                _become_branch(stateful.fork(*stateful.receive_fork(REQUEST_FD)))
            else:
                # It came after the end of the run that waited for it.
                host_tools.read_answer(REQUEST_FD, first)
    return first


def _become_branch(announcement: dict[str, Any] | None) -> None:
    """Announce a new branch. In the old process `announcement` is None: no change."""
    global _home
    if announcement is None:
        return
    _note_channel()
    _home = announcement.pop("home", _home)
    _write_all(RESULT_FD, _line(announcement))
    if "error" in announcement:
        os._exit(1)


def _set_environment(secrets: dict[str, str]) -> dict[str, str | None]:
    """Set environment variables; return their former values."""
    before = {}
    for name, value in secrets.items():
        before[name] = os.environ.get(name)
        os.environ[name] = value
    return before


def _restore_environment(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _run_bash(code: bytes, inputs: dict[str, Any], *, final: bool, tools: bool) -> int:
    """Replace this process by bash; inputs become environment variables."""
    for name, value in inputs.items():
        os.environ[name] = value if isinstance(value, str) else json.dumps(value)
    own = sys.argv[0] if sys.argv[0] != FILE_NAME else BASH_NAME
    script = _script(code, own if final else SESSION_BASH_NAME)
    if tools:
        os.environ.update(call_door.offered(REQUEST_FD))
    signals.as_new()
    shell = ["bash", "--norc", "--noprofile", "--", script, *sys.argv[1:]]
    try:
        os.execvp("bash", shell)
    except OSError as error:
        os.write(2, f"toolcell: cannot start bash: {error}\n".encode())
        return 127


def _script(code: bytes, name: str) -> str:
    """Return the path of a new script in the work dir, or in memory if that is full."""
    try:
        return os.path.basename(source.place(code, _home, name))
    except OSError:
        script = os.memfd_create("script", 0)
        _write_all(script, code)
        os.lseek(script, 0, os.SEEK_SET)
        os.dup2(script, RESULT_FD)
        return f"/dev/fd/{RESULT_FD}"


def _run_python(request: dict[str, Any]) -> int:
    module = sys.modules["__main__"]
    module.__dict__.update(request["inputs"])
    _offer_tools(request, module)
    code, path, restricted = request["code"], FILE_NAME, request["restricted"]
    is_notebook = restricted is None and code.endswith(CELL_END.encode())
    if restricted is not None:
        code = _restricted(code, module, restricted)
    elif is_notebook:
        pass
    elif request["final"]:
        with contextlib.suppress(OSError):
            path = source.place(code, _home, sys.argv[0] or FILE_NAME)
            loader = SourceFileLoader("__main__", path)
            module.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
    else:
        path = source.place_run(code, module.__dict__)
    # The program's objects end with it, and so must be in no variable here.
    del module
    if is_notebook:
        outcome = execution.run_notebook(code, _home)
    else:
        outcome = execution.run(code, _home, path)
    exit_code = execution.end(outcome.exit_code)
    if not displays.in_child():
        displays.end()
        if not request["final"]:
            source.forget_last()
        _report(outcome.report)
    return exit_code


def _report(report: dict[str, Any]) -> None:
    """Send the report, unless the program has closed the socket or has another."""
    try:
        if _has_channel():
            _write_all(RESULT_FD, _encode(report))
    except Exception:
        # Its exit code says how it ended.
        return


def _has_channel() -> bool:
    return _file_of(RESULT_FD) == _channel


def _note_channel() -> None:
    global _channel
    _channel = _file_of(RESULT_FD)


def _file_of(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _restricted(
    code: bytes, module: types.ModuleType, imports: list[str]
) -> types.CodeType:
    import marshal

    from .restricted import prepare

    prepare(module.__dict__, imports)
    program: types.CodeType = marshal.loads(code)
    return program


def _encode(report: dict[str, Any]) -> bytes:
    try:
        return _line(report)
    except (ValueError, RecursionError, MemoryError):
        return _line({"outcome": report["outcome"], "value": {"type": "unknown"}})


def _line(report: dict[str, Any]) -> bytes:
    # A message may have halves of surrogate pairs, which the host would not take.
    return values.as_json(report).encode("utf-8", "replace") + b"\n"


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
