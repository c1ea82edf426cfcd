"""Writes log messages as lines of text or JSON, without secrets."""

from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any

from opentelemetry import trace

from toolcell.core import ConfigError
from toolcell.core.text.printable import escaped_line
from toolcell.guard import Redactor

from ..config.host_config import LoggingConfig

_LOGGER = "toolcell"


def open_logging(
    config: LoggingConfig, redactor: Redactor, stack: AsyncExitStack
) -> None:
    """Write logs as configured, until the stack is left.

    Raises:
        ConfigError: The file cannot be opened.
    """
    if config.format == "none":
        return
    handler = _handler(config)
    as_json = config.format == "json"
    handler.setFormatter((JSONFormatter if as_json else TextFormatter)(redactor))
    logger = logging.getLogger(_LOGGER)
    before = logger.level, logger.propagate

    def close() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        handler.close()

    stack.callback(close)
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(config.level.upper())


def _handler(config: LoggingConfig) -> logging.StreamHandler[Any]:
    if config.path is None:
        return logging.StreamHandler()
    try:
        # This handler opens the file again after a log rotation moved it away.
        return WatchedFileHandler(config.path, encoding="utf-8", delay=False)
    except OSError as error:
        raise ConfigError(
            f"the log {config.path} cannot be opened: {error.strerror}",
            hint="set logging.path to a file in a folder that this user may write",
        ) from None


class JSONFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, ids, trace.

    Args:
        redactor: Hides secrets in every field.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "toolcell", {}),
            **_trace(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(self._redactor(fields))


class TextFormatter(logging.Formatter):
    """One line of text for people; untrusted text in it cannot begin another line.

    Args:
        redactor: Hides secrets.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "toolcell", {})
        pairs = [f"{name}={value}" for name, value in fields.items()]
        text = " ".join([record.getMessage(), *pairs])
        if record.exc_info:
            text += " | " + self.formatException(record.exc_info)
        shown = escaped_line(self._redactor.text(text))
        return f"{_time(record)} {record.levelname} {record.name}: {shown}"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(
        timespec="milliseconds"
    )


def _trace() -> dict[str, str]:
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
    }
