"""Makes one result with one status from the reports of supervisor and program."""

from __future__ import annotations

import errno
import functools
import signal
from typing import Any, TypeVar

from pydantic import BaseModel

from toolcell.core.models import construct_unchecked

from ..cell.wire.contract import MAX_OUTPUTS, MAX_OUTPUTS_BYTES
from ..config.settings import IsolationLevel, Limits
from ..results.missing_package import missing_package
from ..results.process_end import (
    MEMORY_KILL,
    exit_of,
    signal_name,
    status_of_signal,
)
from ..results.result import (
    ExceptionInfo,
    ExecutionResult,
    Isolation,
    OpaqueValue,
    Truncated,
    Usage,
)
from ..results.status import Status
from .run_report import RunReport
from .types import CellTraits, Language

_M = TypeVar("_M", bound=BaseModel)
_FORGED = "the program wrote to the result channel; its value was dropped"


def build_result(
    report: RunReport, language: Language, limits: Limits, traits: CellTraits
) -> ExecutionResult:
    """Return the result of a run.

    The supervisor decides the status where it ended the program, and the exit status
    where a signal did. Only then does the program's own report count, and only if it
    agrees with the exit code; `self_reported` marks a cause that nothing else confirms.
    docs/security.md has the causes of each status.

    Args:
        report: A finished report.
        language: The language of the program; bash reports no value.
        limits: The limits that held for the run.
        traits: The promises of the backend.
    """
    code, number = _ending(report)
    status, self_reported = _status(report, language, limits, code, number)
    stdout, stderr = report.stdout.raw(), report.stderr.raw()
    exception = _exception(report)
    lacks = () if traits.level == "process" else missing_package(exception)
    return _model(
        ExecutionResult,
        status=status,
        value=_value(report) if status == "ok" else None,
        stdout_bytes=stdout,
        stderr_bytes=stderr,
        stdout=report.stdout.text(),
        stderr=report.stderr.text(),
        truncated=_truncated(report),
        exception=exception,
        exit_code=code,
        signal=signal_name(number),
        self_reported=self_reported,
        reasons=(),
        warnings=(*_warnings(report, status), *lacks),
        state=report.state,
        outputs=tuple(report.outputs),
        artifacts=tuple(report.artifacts),
        connections=report.connections,
        usage=_usage(report, limits, traits),
        backend=traits.backend,
        isolation=_isolation(
            traits.level, (*traits.layers, *report.layers), report.program_number
        ),
    )


def _usage(report: RunReport, limits: Limits, traits: CellTraits) -> Usage:
    enforced_by = {
        name: enforcer
        for name, enforcer in traits.enforced_by.items()
        if getattr(limits, name) is not None
    }
    return _model(
        Usage,
        wall_ms=report.wall_ms,
        cpu_ms=report.cpu_ms,
        peak_memory_bytes=report.peak_memory_bytes,
        connections=len(report.connections),
        network_bytes=report.network_bytes,
        enforced_by=enforced_by,
    )


def is_clean(report: RunReport, result: ExecutionResult) -> bool:
    """Return True if a program ended by itself, within its limits, and left nothing."""
    alone = report.clean and not report.forged and not report.artifacts_left
    return alone and result.status in ("ok", "error")


def _truncated(report: RunReport) -> Truncated:
    out, err = report.stdout.dropped, report.stderr.dropped
    return _model(Truncated, stdout=out, stderr=err) if out or err else _WHOLE


@functools.lru_cache(maxsize=128)
def _isolation(
    level: IsolationLevel, layers: tuple[str, ...], number: int
) -> Isolation:
    reused = number > 1
    return _model(
        Isolation, level=level, layers=layers, reused=reused, program_number=number
    )


def _model(kind: type[_M], **fields: Any) -> _M:
    """Return a model with all of its fields, unchecked."""
    return construct_unchecked(kind, fields, set(fields))


_NAMED_ARTIFACTS = 10
_WHOLE = _model(Truncated, stdout=0, stderr=0)


def _warnings(report: RunReport, status: Status) -> tuple[str, ...]:
    found = [_FORGED] if report.forged else []
    if report.oom_kills and status != "out_of_memory":
        found.append(MEMORY_KILL)
    if report.lost:
        found.append(
            f"the session's variables were lost before this run: {report.lost}"
        )
    if report.outputs_left:
        found.append(
            f"{report.outputs_left} outputs left out: a run has at most {MAX_OUTPUTS}, "
            f"of {MAX_OUTPUTS_BYTES >> 20} MiB together"
        )
    if report.malformed_outputs:
        found.append(f"{report.malformed_outputs} outputs were malformed, and dropped")
    if report.artifacts_left:
        named = ", ".join(report.artifacts_left[:_NAMED_ARTIFACTS])
        more = len(report.artifacts_left) - _NAMED_ARTIFACTS + report.artifacts_more
        found.append(
            f"artifacts left out: {named}" + (f" and {more:,} more" if more > 0 else "")
        )
    return (*found, *report.warnings)


def _ending(report: RunReport) -> tuple[int | None, int | None]:
    if report.overdue:
        # The backstop kills the whole cell.
        return None, signal.SIGKILL
    if report.wait_status is None:
        # An interpreter that lives on can only report its exit code itself.
        return (report.program_report or {}).get("exit_code"), None
    return exit_of(report.wait_status)


def _status(
    report: RunReport,
    language: Language,
    limits: Limits,
    code: int | None,
    number: int | None,
) -> tuple[Status, bool]:
    if report.overdue:
        return "timeout", False
    if report.reason is not None:
        return report.reason, False
    if number is not None:
        return _signalled(report, limits, number), False
    if language == "bash":
        return ("ok" if code == 0 else "exit"), False
    program_report = report.program_report or {}
    if code == 0 and program_report.get("outcome") == "ok":
        return "ok", False
    if code == 1 and program_report.get("outcome") == "error":
        return _raised(report, program_report["exception"])
    return "exit", False


def _signalled(report: RunReport, limits: Limits, number: int) -> Status:
    status = status_of_signal(number)
    if status == "killed" and report.oom_kills:
        return "out_of_memory"
    spent = limits.cpu_seconds and report.cpu_ms >= limits.cpu_seconds * 1000
    return "cpu_limit" if status == "killed" and spent else status


def _raised(report: RunReport, exception: dict[str, Any]) -> tuple[Status, bool]:
    if report.oom_kills and exception["type"] == "MemoryError":
        return "out_of_memory", False
    if exception["type"] == "MemoryError":
        return "out_of_memory", True
    if exception.get("errno") in (errno.ENOSPC, errno.EFBIG):
        return "disk_limit", True
    return "error", False


def _value(report: RunReport) -> Any:
    if report.program_report is None:
        return None
    value = report.program_report["value"]
    if "json" in value:
        return value["json"]
    return _model(
        OpaqueValue,
        type=str(value.get("type", "unknown"))[:200],
        repr=str(value.get("repr", ""))[:1024],
    )


def _exception(report: RunReport) -> ExceptionInfo | None:
    if report.program_report is None or report.program_report["outcome"] != "error":
        return None
    exception = report.program_report["exception"]
    return _model(
        ExceptionInfo,
        type=exception["type"][:200],
        message=exception["message"],
        traceback=exception["traceback"],
    )
