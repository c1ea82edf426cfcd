"""The outcomes of a run, and everything that differs by outcome."""

from typing import Literal, NamedTuple

Status = Literal[
    "ok",
    "error",
    "exit",
    "timeout",
    "cpu_limit",
    "out_of_memory",
    "output_limit",
    "disk_limit",
    "crashed",
    "killed",
    "cancelled",
    "refused",
]
"""The outcome of a run; docs/security.md lists the causes of each."""


class StatusRules(NamedTuple):
    """The rules of one outcome."""

    exit_code: int | None = None
    """The exit code of `toolcell run`; None: the program's own, or 128 and the number
    of the signal that ended it."""

    ends_run: bool = False
    """True if a cell may report it as its reason to end a program."""

    ends_command: bool = False
    """True if a cell may report it as its reason to end a command."""

    is_out_of_time: bool = False
    limit: str = ""
    """The thing that the program used too much of; empty if it reached no limit."""


STATUSES: dict[Status, StatusRules] = {
    "ok": StatusRules(exit_code=0),
    "error": StatusRules(exit_code=1),
    "exit": StatusRules(),
    "timeout": StatusRules(
        exit_code=124,
        ends_run=True,
        ends_command=True,
        is_out_of_time=True,
        limit="time",
    ),
    "cpu_limit": StatusRules(
        exit_code=124, ends_run=True, is_out_of_time=True, limit="CPU time"
    ),
    "out_of_memory": StatusRules(
        exit_code=137, ends_run=True, ends_command=True, limit="memory"
    ),
    "output_limit": StatusRules(exit_code=137, ends_run=True, limit="room for output"),
    "disk_limit": StatusRules(
        exit_code=1, ends_run=True, ends_command=True, limit="disk space"
    ),
    "crashed": StatusRules(),
    "killed": StatusRules(exit_code=137, ends_run=True),
    "cancelled": StatusRules(exit_code=130, ends_run=True, ends_command=True),
    "refused": StatusRules(exit_code=3),
}
"""The rules of each outcome. Cells import nothing of the host, so they name those that
they report in their own sources; a test compares both."""

RUN_ENDS = frozenset(name for name, rules in STATUSES.items() if rules.ends_run)
COMMAND_ENDS = frozenset(name for name, rules in STATUSES.items() if rules.ends_command)
