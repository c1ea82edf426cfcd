"""The end of a program's process, in the order in which an interpreter ends.

`Py_FinalizeEx` itself would free the memory that this process shares with the one that
it was forked from, and so copy all of it: some milliseconds, where these steps on the
program's own objects take a tenth of one.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import io
import itertools
import os
import resource
import sys
import traceback
import weakref
from importlib.machinery import ExtensionFileLoader
from types import ModuleType

from . import streams

try:
    from ..kernel import linux
except ImportError:
    # This interpreter has no ctypes.
    linux = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


FLUSH_FAILED = 120
"""Python's exit code if what was printed could not be written."""

_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_OURS = __name__.partition(".")[0] + "."
_MAX_BLOCKS = 2_000_000
# With less memory a process has not so many. To count them is to look at all of it.
_SMALL_KIB = 65_536
# Later ones look at some of the objects only, unless they look at all.
_COLLECTS_YOUNG = sys.version_info < (3, 14)
_modules = sys.modules
# Modules from before the program: they are first among them.
_older = 0
_loaded_library = False


def begin() -> None:
    """Note, in a fork, that all objects and modules so far are not the program's."""
    global _older
    gc.freeze()
    _older = len(_modules)


def finish(code: int) -> int:
    """Wait for threads, run exit handlers, flush, and let go of the program's objects.

    Args:
        code: The program's exit code.

    Returns:
        The exit code of its process.
    """
    lost = False
    for step in (_shut_down_threads, atexit._run_exitfuncs):
        try:
            step()
        except BaseException:
            streams.write_error(traceback.format_exc())
    lost |= not flush()
    try:
        _restore_sys()
        _release()
    except Exception:
        streams.write_error(traceback.format_exc())
    _restore_sys()
    streams.flush()
    return FLUSH_FAILED if lost else code


def leave(code: int) -> NoReturn:
    """End this process as a return from C's `main` does, which flushes C's streams.

    Only a library that the program loaded can have more to do at the end of C, and what
    those from before would do costs over a millisecond.
    """
    try:
        if linux is not None:
            if _loaded_library:
                linux.leave(code)
            linux.flush_streams()
    finally:
        os._exit(code)


def flush_c() -> None:
    """Flush C's standard output, where the process goes on."""
    if linux is not None:
        linux.flush_stdout()


def flush() -> bool:
    """Flush the program's output streams; False if some of it could not be written."""
    done = True
    for name in ("stdout", "stderr"):
        stream = sys.__dict__.get(name)
        try:
            if stream is not None and not _is_closed(stream):
                stream.flush()
        except Exception as error:
            done = False
            if name == "stdout":
                why = "".join(traceback.format_exception_only(type(error), error))
                streams.write_error(f"Exception ignored in: {stream!r}\n{why}")
    return done


def _is_closed(stream: Any) -> bool:
    if getattr(stream, "closed", False):
        return True
    return bool(getattr(getattr(stream, "buffer", None), "closed", False))


def _shut_down_threads() -> None:
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()


def _restore_sys() -> None:
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    for name in ("stdin", "stdout", "stderr"):
        sys.__dict__[name] = sys.__dict__.get("__%s__" % name)


def _release() -> None:
    """Drop the program's modules, then what is only in cycles, then the rest."""
    global _loaded_library
    left = []
    for name in _newer():
        module, _modules[name] = _modules[name], None  # type: ignore[assignment]
        if type(getattr(module, "__loader__", None)) is ExtensionFileLoader:
            _loaded_library = True
        if type(module) is ModuleType:
            left.append(weakref.ref(module))
        del module
    # A collection closes what is in cycles in any order: bytes perhaps before text.
    _flush_files()
    _collect()
    left = [found for found in left if found() is not None]
    # Threads that are still there would find their names gone; an interpreter that ends
    # stops them.
    if left and not _thread._count():
        for found in reversed(left):
            _clear(found())
        # An interpreter has no streams any more when it collects what these held.
        sys.__dict__.update(stdout=None, stderr=None)
        _collect()
    # Something older may hold some.
    _flush_files()


def _newer() -> list[str]:
    """Return the names of the program's modules, in the order of their imports.

    The others are not looked at: that would copy the memory of each name.
    """
    count = max(len(_modules) - _older, 0)
    newest = list(itertools.islice(reversed(_modules), count))
    return [name for name in reversed(newest) if not name.startswith(_OURS)]


def _clear(module: ModuleType | None) -> None:
    """Set the names of a module to None, first those with one underscore."""
    names: dict[str, Any] = getattr(module, "__dict__", {})
    private = [name for name in names if name[:1] == "_" and name[1:2] != "_"]
    for name in private + [name for name in names if name != "__builtins__"]:
        names[name] = None


def _collect() -> None:
    """Collect what is only in cycles.

    A whole collection also gives back the memory that the interpreter keeps for new
    objects, and copies it for that. Where all objects are young it is not needed.
    """
    try:
        all_young = _COLLECTS_YOUNG and not _objects(2)
    except BaseException:
        all_young = False
    gc.collect(1 if all_young else 2)


def _flush_files() -> None:
    """Flush open files: text first, as it goes on to bytes."""
    try:
        found = [each for each in _objects() if issubclass(type(each), _FILES)]
    except BaseException:
        # An audit hook of the program forbids it, or there are too many.
        return
    for file in sorted(found, key=lambda each: not hasattr(each, "encoding")):
        try:
            file.flush()
        except Exception:
            continue


def _objects(generation: int | None = None) -> list[Any]:
    """Return the program's objects, of a generation or all.

    Raises:
        MemoryError: Their list may be more than the memory that is left.
    """
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    is_small = 0 < used < _SMALL_KIB
    if not is_small and sys.getallocatedblocks() > _MAX_BLOCKS:
        raise MemoryError
    return gc.get_objects(generation=generation)
