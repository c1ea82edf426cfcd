"""Pickles functions by value with cloudpickle, where their source is not enough.

Only the cell unpickles the bytes, as the user of the program. They hold byte code of
this interpreter, so a cell with another version of Python refuses them.
"""

from __future__ import annotations

import base64
import functools
import inspect
import io
import marshal
import sys
import sysconfig
import threading
import types
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import cloudpickle

from toolcell.core import InvalidInputError

from .captured_values import CapturedValues

_LOCK = threading.Lock()

PROGRAM = """\
import base64, marshal, pickle, sys, types, zlib
class InterpreterMismatch(Exception): pass
if [sys.implementation.name, *sys.version_info[:2]] != call_interpreter:
    raise InterpreterMismatch(
        "the function was made by %s %s.%s, the cell has %s %s.%s" % (
            *call_interpreter, sys.implementation.name, *sys.version_info[:2]))
for name in ("cloudpickle", "cloudpickle.cloudpickle"):
    sys.modules.setdefault(name, types.ModuleType(name))
exec(
    marshal.loads(zlib.decompress(base64.b64decode(call_loader))),
    vars(sys.modules["cloudpickle.cloudpickle"]),
)
pickle.loads(base64.b64decode(call_function))(*call_args, **call_kwargs)
"""
"""The program that unpickles and calls the function in the cell."""


def pickled_program(
    function: Callable[..., Any], captured: CapturedValues
) -> tuple[str, dict[str, Any]]:
    """Return a program that loads and calls a function, and the inputs it needs.

    Args:
        function: The function; not async.
        captured: The values that it refers to.

    Raises:
        InvalidInputError: It cannot be pickled.
    """
    file = io.BytesIO()
    try:
        with _by_value(captured.modules):
            _Pickler(file, captured).dump(function)
    except Exception as error:
        raise InvalidInputError(
            f"{captured.name} cannot travel: {error}",
            hint="leave open files, locks and connections on the host",
        ) from error
    inputs: dict[str, Any] = {
        "call_function": base64.b64encode(file.getvalue()).decode(),
        "call_loader": _loader(),
        "call_interpreter": [sys.implementation.name, *sys.version_info[:2]],
    }
    return PROGRAM, inputs


@functools.cache
def _loader() -> str:
    """Return the code of cloudpickle, since a cell may lack it."""
    source = inspect.getsource(cloudpickle.cloudpickle)
    code = compile(source, "<cloudpickle>", "exec", dont_inherit=True, optimize=2)
    return base64.b64encode(zlib.compress(marshal.dumps(code))).decode()


@contextmanager
def _by_value(modules: set[str]) -> Iterator[None]:
    """Pickle the classes of these modules by value: a cell cannot import them."""
    with _LOCK:
        known = cloudpickle.list_registry_pickle_by_value()
        mine = [sys.modules[each] for each in modules - known if each in sys.modules]
        for module in mine:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in mine:
                cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions without annotations and without paths of the host."""

    def __init__(self, file: io.BytesIO, captured: CapturedValues) -> None:
        super().__init__(file, protocol=4)
        self._captured = captured
        self._globals: dict[int, dict[str, Any]] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ContextVar):
            value = self._captured.context.get(obj.name, ())
            return self._bare(_CONTEXT_VARIABLE), (obj.name, *value)
        if isinstance(obj, types.FunctionType) and not is_importable(obj):
            obj = self._bare(obj)
        return super().reducer_override(obj)

    def _bare(self, function: types.FunctionType) -> types.FunctionType:
        names = self._globals.get(id(function.__globals__))
        if names is None:
            names = {
                key: value
                for key, value in function.__globals__.items()
                if not (key.startswith("__") and key.endswith("__"))
            }
            self._globals[id(function.__globals__)] = names
        made = types.FunctionType(
            _without_paths(function.__code__),
            names,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__ = function.__qualname__
        return made


def _context_variable(name: str, *value: Any) -> Any:
    from contextvars import ContextVar

    made: ContextVar[Any] = ContextVar(name)
    for item in value:
        made.set(item)
    return made


_CONTEXT_VARIABLE = cast("types.FunctionType", _context_variable)


def _without_paths(code: types.CodeType) -> types.CodeType:
    constants = tuple(
        _without_paths(each) if isinstance(each, types.CodeType) else each
        for each in code.co_consts
    )
    return code.replace(co_filename=f"<{code.co_name}>", co_consts=constants)


@functools.cache
def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(Path(paths[each]).resolve() for each in ("purelib", "platlib"))


def is_importable(thing: Any) -> bool:
    """Return True if a cell is expected to be able to import a function or class."""
    name = getattr(thing, "__module__", None) or ""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        found = getattr(sys.modules.get(name), thing.__qualname__, None)
        return found is thing or top == "builtins"
    file = getattr(sys.modules.get(top), "__file__", None)
    if (
        file is None
        or getattr(sys.modules[name], thing.__qualname__, None) is not thing
    ):
        return False
    return any(each in Path(file).resolve().parents for each in _installed())
