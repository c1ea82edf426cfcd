"""The program's process: waits for one request, runs it, says how it ended.

Nothing here is trusted after the first line of the program has run: what goes
to the result pipe from then on is the program's claim.
"""

from __future__ import annotations

import _ast
import atexit
import builtins
import fcntl
import functools
import io
import json
import linecache
import math
import os
import signal
import sys
import time
import traceback
import types

from ..kernel import signals
from ..kernel.confine import ConfineError, confine, limit_memory, set_rlimits
from ..kernel.descriptors import move_fds
from ..wire.contract import ANSWER, FILE_NAME, FORK, SECRETS, WARM_UP
from ..wire.frames import RUN_DEFAULTS
from . import (
    arguments,
    displays,
    host_tools,
    node,
    packages,
    stateful,
    values,
)
from .outcomes import Outcome, bare_error, error_outcome, exit_outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn


RESULT_FD = 3
REQUEST_FD = 4
_HIGHEST_FD = 1024
# The program's own work dir: a branch has another than the cell.
_home = ""
# Bytes that a program may add to the address space; 0 where a cgroup holds memory.
_address_space = 0
_node = ""
# Kept: `json.dumps` would make a new one for each line, and `json.loads` guesses at
# encodings.
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_from_json = json.JSONDecoder().decode


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
    """Do, once and before any fork, what is the same for every program."""
    os.environ.clear()
    os.environ.update(settings["env"])
    global _home
    _home = settings["workdir"]
    home = os.path.realpath(_home)
    added = os.environ.get("PYTHONPATH", "")
    own = added.split(os.pathsep) if added else []
    sys.path[:0] = [home, *(os.path.normpath(os.path.join(home, path)) for path in own)]
    _prepare_main_module()


def start(pipes: Pipes, settings: dict[str, Any]) -> NoReturn:
    """Become the program's process, in a fresh fork."""
    code = 70
    try:
        _attach_pipes(pipes)
        held = confine(settings)
        # Only the program's own uid may enter.
        os.chdir(_home)
        _reseed()
        first = os.read(REQUEST_FD, 1)
        if first == WARM_UP:
            _warm_up()
            _prepare_main_module()
            first = b""
        else:
            # Those from before the fork remember that they could seek.
            _open_streams()
        setup = {"layers": held, "cpu": time.process_time()}
        global _address_space, _node
        _address_space, _node = settings["address_space"], settings["node"]
        # The last line that is ours; it waits in the pipe until a run begins.
        _write_all(RESULT_FD, _line(setup))
        code = _serve(first)
    except ConfineError as error:
        _write_all(RESULT_FD, _line({"error": str(error)}))
    except Exception as error:
        why = f"cell set-up failed: {type(error).__name__}: {error}"
        _write_all(RESULT_FD, _line({"error": why}))
    finally:
        os._exit(code)


def _attach_pipes(pipes: Pipes) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signals.await_program()
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    move_fds([null, pipes.stdout, pipes.stderr, pipes.result, pipes.request], RESULT_FD)
    os.closerange(REQUEST_FD + 1, _HIGHEST_FD)
    os.umask(0o022)


def _warm_up() -> None:
    """Run a small program now, so that the memory it touches is ours when asked."""
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD, 32) for fd in range(REQUEST_FD + 1)]
    request_r, request_w = os.pipe()
    code = b"x = [1]\nprint(x)\n0\n"
    os.write(request_w, frame_request(b"{}", b"{}", code))
    os.close(request_w)
    move_fds([0, 0, 0, 0, request_r], RESULT_FD)
    _serve(b"")
    move_fds(kept, RESULT_FD)
    os.closerange(REQUEST_FD + 1, _HIGHEST_FD)
    linecache.cache.pop(FILE_NAME, None)


def _serve(first: bytes) -> int:
    request = _read_request(first)
    if request["branch"]:
        limit_memory(_address_space)
        return _live(request)
    if not request["tools"]:
        os.close(REQUEST_FD)
    os.environ.update(request.pop("secrets"))
    if request["cpu_seconds"]:
        set_rlimits({"cpu": math.ceil(request["cpu_seconds"])})
    if request["language"] == "node":
        return node.run(_node, request["memory_mb"], request["code"], request["inputs"])
    limit_memory(_address_space)
    if request["language"] == "bash":
        return _run_bash(request["code"], request["inputs"])
    return _run_python(request)


def _offer_tools(
    request: dict[str, Any], module: types.ModuleType
) -> host_tools.Bridge | None:
    if not request["tools"]:
        return None
    way = host_tools.Bridge(REQUEST_FD)
    module.__dict__["tools"] = host_tools.Tools(request["tools"], way)
    module.__dict__["ToolError"] = host_tools.ToolError
    return way


def _live(request: dict[str, Any]) -> int:
    """Run one request after the other in this interpreter."""
    module = sys.modules["__main__"]
    while True:
        module.__dict__.update(request["inputs"])
        way = _offer_tools(request, module)
        before = _set_environment(request.pop("secrets"))
        program = functools.partial(_execute, request["code"], module.__dict__)
        outcome = _interruptible(functools.partial(_outcome, program))
        if way is not None:
            way.close()
        _restore_environment(before)
        _flush()
        report = {**outcome.report, "exit_code": outcome.exit_code}
        _write_all(RESULT_FD, _encode(report))
        first = os.read(REQUEST_FD, 1)
        while first in (FORK, ANSWER):
            if first == FORK:
                _become_branch(stateful.fork(*stateful.receive_fork(REQUEST_FD)))
            else:
                # Nobody waits for it any more.
                host_tools.read_answer(REQUEST_FD, first)
            first = os.read(REQUEST_FD, 1)
        request = _read_request(first)


def _become_branch(announcement: dict[str, Any] | None) -> None:
    """Announce a new branch. In the old process `announcement` is None: no change."""
    global _home
    if announcement is None:
        return
    _reseed()
    _home = announcement.pop("home", _home)
    _write_all(RESULT_FD, _line(announcement))
    if "error" in announcement:
        os._exit(1)


def _set_environment(secrets: dict[str, str]) -> dict[str, str | None]:
    """Set environment variables; return what they were."""
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


def _read_request(first: bytes) -> dict[str, Any]:
    """Read a request: its size in eight hexadecimal digits, header, inputs, code."""
    # Nothing follows a request until its program asks for it.
    data = first
    while len(data) < 8:
        data += os.read(REQUEST_FD, 65536) or os._exit(0)
    size, data = int(data[:8], 16), data[8:]
    body = _read_exactly(size - len(data), data)
    header, named, code = body.split(b"\n", 2)
    request = _asked(header)
    inputs: dict[str, Any] = _from_json(named.decode()) if named else {}
    secrets = {**request["variables"], **inputs.pop(SECRETS, {})}
    arguments.take(inputs, _home)
    if request["packages"]:
        packages.use(request["packages"])
    return {**request, "inputs": inputs, "secrets": secrets, "code": code}


# The next run of a session often asks for the same.
@functools.lru_cache(maxsize=1)
def _asked(header: bytes) -> dict[str, Any]:
    return {**RUN_DEFAULTS, **_from_json(header.decode())}


def _read_exactly(size: int, start: bytes = b"") -> bytes:
    parts = [start]
    while size:
        part = os.read(REQUEST_FD, min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def frame_request(header: bytes, inputs: bytes, code: bytes) -> bytes:
    """Return a request as `_read_request` reads it."""
    body = b"\n".join((header, inputs, code))
    return b"%08x" % len(body) + body


def _run_bash(code: bytes, inputs: dict[str, Any]) -> int:
    """Replace this process by bash; inputs become environment variables."""
    for name, value in inputs.items():
        os.environ[name] = value if isinstance(value, str) else json.dumps(value)
    script = os.memfd_create("script", 0)
    _write_all(script, code)
    os.lseek(script, 0, os.SEEK_SET)
    signals.as_new()
    os.close(RESULT_FD)
    os.dup2(script, RESULT_FD)
    os.close(script)
    shell = ["bash", "--norc", "--noprofile", f"/dev/fd/{RESULT_FD}", *sys.argv[1:]]
    try:
        os.execvp("bash", shell)
    except OSError as error:
        os.write(2, f"toolcell: cannot start bash: {error}\n".encode())
        return 127


def _prepare_main_module() -> None:
    """Set up all that programs find and that does not depend on their request."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.argv = [FILE_NAME]
    _open_streams()
    atexit._clear()


def _open_streams() -> None:
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False), encoding="utf-8")
    sys.stdout = _writer(1, "surrogateescape")
    sys.stderr = _writer(2, "backslashreplace")
    # What `sys.stdout = sys.__stdout__` in a program goes back to.
    sys.__dict__.update(__stdout__=sys.stdout, __stderr__=sys.stderr)


def _run_python(request: dict[str, Any]) -> int:
    code: bytes = request["code"]
    module = sys.modules["__main__"]
    module.__dict__.update(request["inputs"])
    _offer_tools(request, module)
    restricted = request["restricted"]
    program = code if restricted is None else _restricted(code, module, restricted)
    outcome = _interruptible(lambda: _whole(program, module.__dict__))
    _write_all(RESULT_FD, _encode(outcome.report))
    return outcome.exit_code


def _whole(program: Any, namespace: dict[str, Any]) -> Outcome:
    """Run a program, and end as an interpreter does."""
    outcome = _outcome(lambda: _execute(program, namespace))
    _finish()
    return outcome


def _interruptible(program: Callable[[], Outcome]) -> Outcome:
    """Return how a program ends that SIGINT may interrupt anywhere."""
    outcome: Outcome | None = stateful.interruptible(program)
    return outcome or Outcome(1, bare_error(KeyboardInterrupt()))


def _reseed() -> None:
    """Give a program its own random numbers, not those of the fork's parent."""
    random = sys.modules.get("random")
    if random is not None:
        random.seed()


def _restricted(
    code: bytes, module: types.ModuleType, imports: list[str]
) -> types.CodeType:
    import marshal

    from .restricted import prepare

    prepare(module.__dict__, imports)
    program: types.CodeType = marshal.loads(code)
    return program


def _writer(fd: int, errors: str) -> io.TextIOWrapper:
    # Unbuffered, as `python -u`: what was printed before a kill is not lost.
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)


def _execute(program: Any, namespace: dict[str, Any]) -> Any:
    """Run a program; return the value of its last expression, if it is one."""
    if isinstance(program, types.CodeType):
        exec(program, namespace)
        return namespace.get("last_value_")
    text = program.decode("utf-8", "replace")
    # Split as the parser does: str.splitlines knows more line ends.
    lines = list(io.StringIO(text, newline=None))
    linecache.cache[FILE_NAME] = (len(text), None, lines, FILE_NAME)
    only = _expression(program)
    if only is not None:
        return eval(only, namespace)
    tree: Any = compile(
        program, FILE_NAME, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True
    )
    last: Any = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
    if tree.body:
        exec(compile(tree, FILE_NAME, "exec", 0, True), namespace)
    if last is None:
        return None
    return eval(compile(last, FILE_NAME, "eval", 0, True), namespace)


def _expression(program: bytes) -> types.CodeType | None:
    """Return a program that is one expression on one line, compiled without a tree.

    What has a backslash may be warned of, which is not to be said twice.
    """
    if b"\n" in program or b"\r" in program or b"\\" in program:
        return None
    try:
        return compile(program, FILE_NAME, "eval", 0, True)
    except Exception:
        return None


def _outcome(program: Callable[[], Any]) -> Outcome:
    try:
        value = program()
    except SystemExit as stop:
        return exit_outcome(stop.code)
    except BaseException as error:
        try:
            return error_outcome(error)
        except BaseException:
            return Outcome(1, bare_error(error))
    try:
        if displays.wanted(value):
            displays.save(value, _home)
    except BaseException:
        sys.stderr.write("toolcell: pictures and tables could not be kept\n")
    try:
        return Outcome(0, {"outcome": "ok", "value": values.report(value)})
    except BaseException:
        return Outcome(0, {"outcome": "ok", "value": {"type": values.type_name(value)}})


def _finish() -> None:
    """End as an interpreter does: wait for threads, run exit handlers, flush."""
    try:
        threading = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def _encode(report: dict[str, Any]) -> bytes:
    try:
        return _line(report)
    except (ValueError, RecursionError, MemoryError):
        return _line({"outcome": report["outcome"], "value": {"type": "unknown"}})


def _line(report: dict[str, Any]) -> bytes:
    return _to_json(report).encode() + b"\n"


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
