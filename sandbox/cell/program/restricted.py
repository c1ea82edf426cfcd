"""The guards that code compiled by RestrictedPython calls at run time.

They are used only in `process` isolation, where they and rlimits are all that stands
between a program and the machine.
"""

from __future__ import annotations

import builtins
import operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any, Callable, Iterable

_BUILTINS = (
    "abs all any ascii bin bool bytes callable chr complex dict divmod enumerate "
    "filter float frozenset hash hex id int isinstance issubclass iter len list map "
    "max min next oct ord pow print range repr reversed round set slice sorted str "
    "sum tuple zip True False None NotImplemented Ellipsis __build_class__ "
    "ArithmeticError AssertionError AttributeError BaseException Exception "
    "FloatingPointError GeneratorExit IndexError KeyError LookupError MemoryError "
    "NameError NotImplementedError OverflowError RecursionError RuntimeError "
    "StopIteration StopAsyncIteration SyntaxError TypeError UnboundLocalError "
    "UnicodeError ValueError ZeroDivisionError"
).split()

# They read attributes by names inside a string, past every guard.
_FORMATTERS = ("format", "format_map")
# They lead from a generator, coroutine, frame or traceback to frames outside.
_INNER = frozenset(
    "tb_frame tb_next f_back f_builtins f_code f_globals f_locals f_trace co_code "
    "gi_frame gi_code gi_yieldfrom cr_await cr_frame cr_code cr_origin ag_frame "
    "ag_code ag_await mro".split()
)
# The object that an AttributeError carries along.
_OF_ERRORS = frozenset({"obj", "with_traceback"})
_WRITABLE = (list, dict, set, bytearray)
# The modules that the program may use, each by its whole name.
_imports: frozenset[str] = frozenset()


def prepare(namespace: dict[str, Any], imports: list[str]) -> None:
    """Fill a namespace with the guards and the few builtins that are left."""
    global _imports
    _imports = frozenset(imports)
    safe = {name: getattr(builtins, name) for name in _BUILTINS if _is_builtin(name)}
    safe["__import__"] = _importer()
    safe["getattr"] = _getattr
    safe["hasattr"] = _hasattr
    namespace.update(
        {
            "__builtins__": safe,
            "__metaclass__": type,
            "__name__": "__main__",
            "_getattr_": _getattr,
            "_getitem_": operator.getitem,
            "_getiter_": iter,
            "_iter_unpack_sequence_": _unpack_sequence,
            "_unpack_sequence_": _unpack_sequence,
            "_inplacevar_": _inplace,
            "_print_": _Printer,
            "_write_": _write,
        }
    )


def _is_builtin(name: str) -> bool:
    return hasattr(builtins, name)


def _importer() -> Callable[..., Any]:
    real = builtins.__import__

    def restricted_import(
        name: str,
        globals_: Any = None,
        locals_: Any = None,
        fromlist: tuple[str, ...] = (),
        level: int = 0,
    ) -> Any:
        if level or name not in _imports:
            raise ImportError(f"import of {name!r} is not allowed")
        module = real(name, {}, {}, fromlist, 0)
        for wanted in fromlist or ():
            inner = getattr(module, wanted, None)
            if isinstance(inner, type(builtins)) and not _may_lead_to(module, inner):
                raise ImportError(f"import of {wanted!r} from {name!r} is not allowed")
        return module

    return restricted_import


def _getattr(value: Any, name: str, *default: Any) -> Any:
    if type(name) is not str or name.startswith("_") or name in _INNER:
        raise AttributeError("this attribute is not allowed")
    if name in _OF_ERRORS and isinstance(value, BaseException):
        raise AttributeError("this attribute is not allowed")
    if name in _FORMATTERS:
        raise AttributeError("format is not allowed; use an f-string")
    result = getattr(value, name, *default)
    if isinstance(result, type(builtins)) and not _may_lead_to(value, result):
        raise AttributeError("this attribute leads to another module")
    return result


def _may_lead_to(module: Any, inner: types.ModuleType) -> bool:
    """Return True for `collections.abc`, not for the `sys` that a module imports."""
    name: str = getattr(module, "__name__", "")
    below = isinstance(module, type(builtins)) and inner.__name__.startswith(name + ".")
    return below and inner.__name__ in _imports


def _hasattr(value: Any, name: str) -> bool:
    try:
        _getattr(value, name)
    except AttributeError:
        return False
    return True


def _unpack_sequence(value: Iterable[Any], spec: dict[str, Any], getiter: Any) -> Any:
    # The inner patterns of `(a, (b, c)) = value` are unpacked one level deeper.
    items = list(getiter(value))
    for index, child in spec.get("childs", ()):
        items[index] = _unpack_sequence(items[index], child, getiter)
    return items


_OPERATORS = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "|=": operator.ior,
    "&=": operator.iand,
    "^=": operator.ixor,
    "@=": operator.imatmul,
}


def _inplace(symbol: str, target: Any, value: Any) -> Any:
    operation: Callable[[Any, Any], Any] = _OPERATORS[symbol]
    return operation(target, value)


class _Printer:
    """Stands in for `print`, which RestrictedPython turns into calls of an object."""

    def __init__(self, _getattr_: Any = None) -> None:
        self._getattr = _getattr_

    def _call_print(self, *values: Any, **options: Any) -> None:
        options.pop("file", None)
        print(*values, **options)


def _write(target: Any) -> Any:
    if isinstance(target, _WRITABLE) or hasattr(type(target), "_restricted_class"):
        return target
    if type(type(target)) is type and type(target).__module__ == "__main__":
        return target
    raise TypeError(f"{type(target).__name__} may not be changed")
