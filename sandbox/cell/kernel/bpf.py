"""Classic BPF for seccomp: compiles a list of calls and rules into one program.

The kernel runs the program at each system call whose answer depends on arguments. It
runs it once for each other call, and remembers the answer.
"""

from __future__ import annotations

import collections
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

    Instruction = tuple[int, int, int, int]
    # The first number of a run of calls with one answer, and the code of that answer.
    Segment = tuple[int, list[Instruction]]

EPERM, EINVAL, ENOSYS = 1, 22, 38
NOTIFY = -1
"""In place of an errno: the process that has the filter's listener answers the call."""

_ERRNO, _NOTIFY, _ALLOW = 0x00050000, 0x7FC00000, 0x7FFF0000
_LOAD, _AND, _OR_X, _TO_X = 0x20, 0x54, 0x4C, 0x07
_JUMP, _JUMP_EQ, _JUMP_GT, _JUMP_GE, _RETURN = 0x05, 0x15, 0x25, 0x35, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16
_X32_BIT = 0x40000000
_FARTHEST = 255
_POINTER = -1

Test = collections.namedtuple("Test", "argument values mask inside")
SyscallRule = collections.namedtuple("SyscallRule", "call errno tests")


def within(argument: int, *values: int | tuple[int, int], mask: int = 0) -> Test:
    """Test that an argument, masked if `mask` is given, is among values or ranges.

    The kernel takes 32 bits of these arguments, so the upper half is ignored.
    """
    return Test(argument, values, mask, True)


def outside(argument: int, *values: int | tuple[int, int], mask: int = 0) -> Test:
    """Test the opposite of `within`."""
    return Test(argument, values, mask, False)


def given(argument: int) -> Test:
    """Test that an argument is a pointer other than NULL."""
    return Test(argument, (0,), _POINTER, False)


def rule(call: str, errno: int, *tests: Test) -> SyscallRule:
    """Return a rule: the call is answered with `errno` when all `tests` hold.

    Args:
        call: The name of the call.
        errno: The answer, or `NOTIFY`.
        tests: Of its arguments.
    """
    return SyscallRule(call, errno, tests)


def assemble(
    audit_arch: int,
    calls: dict[str, int],
    rules: Iterable[SyscallRule],
    last_known: int,
) -> bytes:
    """Return the program as `struct sock_filter` records.

    Args:
        audit_arch: The only system call table that is allowed, as AUDIT_ARCH_*.
        calls: Numbers of the allowed calls, by name.
        rules: Exceptions to these; of several for a call the first that holds counts.
        last_known: Calls beyond this number fail with ENOSYS, other ones with EPERM.
    """
    checks: dict[str, list[Instruction]] = {}
    for refused in rules:
        checks.setdefault(refused.call, []).extend(_refuse_if(refused))
    answers = {
        number: [*checks.get(name, ()), _allow()] for name, number in calls.items()
    }
    segments: list[Segment] = []
    for number in range(last_known + 1):
        answer = answers.get(number, [_errno(EPERM)])
        if not segments or segments[-1][1] != answer:
            segments.append((number, answer))
    segments += [(last_known + 1, [_errno(ENOSYS)]), (_X32_BIT, [_errno(EPERM)])]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQ, 1, 0, audit_arch),
        _errno(EPERM),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        *_search(segments),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _errno(number: int) -> Instruction:
    return (_RETURN, 0, 0, _NOTIFY if number == NOTIFY else _ERRNO | number)


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)


def _refuse_if(refusal: SyscallRule) -> list[Instruction]:
    """Return code that refuses if all tests hold, and else continues behind itself."""
    code = [_errno(refusal.errno)]
    for test in reversed(refusal.tests):
        code = [*_go_on_if(test, len(code)), *code]
    assert len(code) <= _FARTHEST
    return code


def _go_on_if(test: Test, rest: int) -> list[Instruction]:
    """Return code that continues if a test holds, else skips `rest` instructions."""
    code: list[Instruction] = []
    # Behind the comparisons that are yet to come.
    end = 0
    for value in reversed(test.values):
        found = end if test.inside else end + rest
        missed = 0
        if end == 0:
            missed = rest if test.inside else 0
        if isinstance(value, tuple):
            first, last = value
            code.insert(0, (_JUMP_GT, missed, found, last))
            code.insert(0, (_JUMP_GE, 0, missed + 1, first))
        else:
            code.insert(0, (_JUMP_EQ, found, missed, value))
        end = len(code)
    return [*_load(test), *code]


def _load(test: Test) -> list[Instruction]:
    low = _OFFSET_ARGUMENTS + 8 * test.argument
    if test.mask == _POINTER:
        high: list[Instruction] = [(_LOAD, 0, 0, low + 4), (_TO_X, 0, 0, 0)]
        return [*high, (_LOAD, 0, 0, low), (_OR_X, 0, 0, 0)]
    masked: list[Instruction] = [(_AND, 0, 0, test.mask)] if test.mask else []
    return [(_LOAD, 0, 0, low), *masked]


def _search(segments: list[Segment]) -> list[Instruction]:
    """Return a binary search for the segment that holds a call's number."""
    if len(segments) == 1:
        return segments[0][1]
    middle = len(segments) // 2
    left, right = _search(segments[:middle]), _search(segments[middle:])
    first = segments[middle][0]
    if len(left) > _FARTHEST:
        far: list[Instruction] = [(_JUMP_GE, 0, 1, first), (_JUMP, 0, 0, len(left))]
        return [*far, *left, *right]
    return [(_JUMP_GE, len(left), 0, first), *left, *right]
