"""A calculator that cannot be talked into anything else.

The expression is parsed and walked; nothing is compiled or evaluated by Python, so
there is nothing to escape from. Every intermediate number is bounded before it is
computed, since Python's integers are not.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable

from toolcell.core import ToolError

from ..definition.tool import tool

MAX_CHARACTERS = 1_000
"""Length of an expression. A longer one is refused."""

MAX_DEPTH = 50
"""Levels of brackets and operators. Deeper ones are refused."""

MAX_BITS = 4_096
"""Size of an integer. When it would be reached the calculation is refused."""

MAX_DIGITS = 300
"""Digits to round to. More are refused."""

Number = int | float
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
    **{
        name: getattr(math, name)
        for name in (
            "sqrt exp log log2 log10 sin cos tan asin acos atan atan2 sinh cosh tanh "
            "degrees radians hypot floor ceil trunc gcd"
        ).split()
    },
}


@tool
async def calculate(expression: str) -> int | float:
    """Work out an arithmetic expression exactly as Python would.

    Args:
        expression: Numbers, `+ - * / // % **`, brackets, `pi`, `e`, `tau`, and
            functions such as `sqrt`, `sin`, `log`, `round`, `min` and `max`.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ToolError(
            f"the expression is longer than {MAX_CHARACTERS} characters",
            hint="calculate it in parts",
        )
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        result = _bounded(_value(tree.body, MAX_DEPTH))
    except (SyntaxError, RecursionError, MemoryError):
        raise ToolError(
            "this is not an arithmetic expression",
            hint="use numbers, + - * / // % **, brackets and functions such as sqrt",
        ) from None
    except ZeroDivisionError:
        raise ToolError("division by zero", hint="use another divisor than 0") from None
    except (OverflowError, ValueError, TypeError) as error:
        raise ToolError(
            f"this cannot be calculated: {error}",
            hint="use values for which it is defined",
        ) from None
    if isinstance(result, float) and not math.isfinite(result):
        raise ToolError("the result is not a finite number", hint="use smaller numbers")
    return result


def _value(node: ast.expr, depth: int) -> Number:
    if depth == 0:
        raise ToolError(
            f"the expression has more than {MAX_DEPTH} levels",
            hint="calculate it in parts",
        )
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(operand, depth - 1))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _binary(op, _value(left, depth - 1), _value(right, depth - 1))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]):
            if name in _FUNCTIONS:
                values = [_value(each, depth - 1) for each in given]
                if name == "round" and any(
                    abs(each) > MAX_DIGITS for each in values[1:]
                ):
                    raise ToolError(
                        f"round takes at most {MAX_DIGITS} digits",
                        hint="ask for fewer digits",
                    )
                return _bounded(_FUNCTIONS[name](*values))
    raise ToolError(
        f"{_node_name(node)} is not part of arithmetic",
        hint=f"functions are {', '.join(sorted(_FUNCTIONS))}",
    )


def _binary(op: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
        # 9**9**9 would never end: its size is known before it is computed.
        if right > 0 and left.bit_length() * right > MAX_BITS:
            raise ToolError(
                f"the result has more than {MAX_BITS} bits", hint="use smaller numbers"
            )
        if right < -MAX_BITS:
            raise ToolError("the exponent is too small", hint="use a larger exponent")
    return _bounded(_BINARY[type(op)](left, right))


def _bounded(value: object) -> Number:
    if isinstance(value, complex) or not isinstance(value, int | float):
        raise ToolError(
            "the result is not a real number",
            hint="use a base of 0 or more, or a whole exponent",
        )
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ToolError(
            f"a number has more than {MAX_BITS} bits", hint="use smaller numbers"
        )
    return value


def _node_name(node: ast.expr) -> str:
    return type(node).__name__
