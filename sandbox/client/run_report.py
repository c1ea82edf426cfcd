"""The report about one run, as the frames of its cell bring it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from toolcell.core.text.json_size import count_values
from toolcell.core.text.picture_type import picture_type

from ..cell.wire.contract import MAX_RESULT_VALUES
from ..cell.wire.frames import (
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACTS,
    REPORT_DEFAULTS,
    Frame,
    FrameError,
    strict_json,
)
from ..results.output import Output
from ..results.output_reader import OutputReader
from ..results.process_end import kept_text
from ..results.result import Artifact, Connection
from ..results.status import RUN_ENDS, Status
from .header_numbers import MAX_EXIT_CODE, MAX_WAIT_STATUS, milliseconds, whole
from .types import Program

# 16 for the members of a report besides its value.
_MAX_REPORT_VALUES = MAX_RESULT_VALUES + 16
_MAGIC = (
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
)
_TEXT = {
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".md": "text/markdown",
    ".svg": "image/svg+xml",
}


@dataclass(slots=True, eq=False, repr=False)
class _OutputStream:
    data: bytearray = field(default_factory=bytearray)
    tail: bytes = b""
    dropped: int = 0

    def raw(self) -> bytes:
        return bytes(self.data) + self.tail

    def text(self) -> str:
        return kept_text(self.data, self.tail, self.dropped)


@dataclass(slots=True, eq=False, repr=False)
class RunReport:
    """The report about one run, filled frame by frame.

    Args:
        cap: The largest number of bytes of each stream; a cell that sends more is
            broken.
    """

    cap: int
    stdout: _OutputStream = field(default_factory=_OutputStream)
    stderr: _OutputStream = field(default_factory=_OutputStream)
    began: float = 0.0
    """The time at which the program was sent, by `time.monotonic`."""

    overdue: bool = False
    reason: Status | None = None
    wait_status: int | None = None
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    peak_memory_bytes: int = 0
    oom_kills: int = 0
    oom_total: int = 0
    layers: tuple[str, ...] = ()
    setup_error: str | None = None
    state: Literal["kept", "lost"] | None = None
    lost: str | None = None
    artifacts: list[Artifact] = field(default_factory=list)
    artifacts_left: tuple[str, ...] = ()
    artifacts_more: int = 0
    """The number of artifacts that were left out, beside those that are named."""

    collecting: bool = False
    """True while files that the program left are yet to come."""

    outputs: list[Output] = field(default_factory=list)
    outputs_left: int = 0
    """Outputs that the cell left out."""

    clean: bool = False
    """True if the program ended by itself and left no process."""

    program_number: int = 1
    """The number of the program in its cell, from 1."""

    program_report: dict[str, Any] | None = None
    forged: bool = False
    connections: tuple[Connection, ...] = ()
    network_bytes: int = 0
    warnings: tuple[str, ...] = ()
    keep_output: bool = True
    """True keeps output for the result; a streamed run passes it on instead."""

    _coming: str = ""
    """The name of the artifact that `_pieces` belong to."""

    _pieces: list[bytes] = field(default_factory=list)
    _room: int = MAX_ARTIFACT_BYTES
    _reader: OutputReader | None = None

    @classmethod
    def of(cls, program: Program) -> Self:
        """Return the report, still empty, about the next run of a program."""
        return cls(cap=program.limits.output_bytes, keep_output=not program.streamed)

    def add_output(self, header: dict[str, Any], payload: bytes) -> None:
        """Take in a piece of output. Raises FrameError if it is malformed."""
        streams = {"stdout": self.stdout, "stderr": self.stderr}
        stream = streams[header["stream"]]
        if not self.keep_output:
            stream.dropped = whole(header.get("dropped", stream.dropped))
            return
        if header["type"] == "tail":
            stream.tail = payload
            stream.dropped = whole(header["dropped"])
        else:
            stream.data += payload
        if len(stream.data) + len(stream.tail) > self.cap:
            raise FrameError("more output than the cap")

    def add_display(self, payload: bytes) -> None:
        """Take in an output. Raises FrameError if there are more than the limits."""
        self._reader = self._reader or OutputReader()
        output = self._reader.read(payload)
        if output is not None:
            self.outputs.append(output)

    @property
    def malformed_outputs(self) -> int:
        """Outputs that the program made up, and that are none."""
        return self._reader.malformed if self._reader else 0

    def collect(self, frame: Frame) -> None:
        """Take in a piece of an artifact, or the end of all.

        Raises:
            FrameError: The frame is malformed.
        """
        header, payload = frame.header, frame.payload
        if header["type"] == "artifact":
            self._add_piece(header["name"], whole(header["size"]), payload)
        elif header["type"] == "collected":
            self.artifacts_left = tuple(str(each) for each in header["left"])
            self.artifacts_more = whole(header["more"])
            self.collecting = False
        else:
            raise FrameError(f"unexpected frame {header['type'][:40]!r}")

    def cut_short(self, why: str) -> None:
        """Stop collecting: the cell is gone, and the result holds without the rest."""
        self.collecting = False
        self.artifacts_left = (f"what was not collected: {why}",)
        if self.state is not None:
            self.state = "lost"

    def _add_piece(self, name: object, size: int, payload: bytes) -> None:
        self._room -= len(payload)
        if not isinstance(name, str) or self._room < 0:
            raise FrameError("not an artifact")
        if name != self._coming:
            # The file before changed while it was read, and was not completed.
            self._coming, self._pieces = name, []
        self._pieces.append(payload)
        if sum(map(len, self._pieces)) < size:
            return
        self._add_artifact(name, b"".join(self._pieces))
        self._coming, self._pieces = "", []

    def _add_artifact(self, name: str, data: bytes) -> None:
        if len(self.artifacts) >= MAX_ARTIFACTS:
            raise FrameError("more artifacts than the limit")
        self.artifacts.append(
            Artifact(
                name=name[:4096],
                mime=mime_of(name, data),
                data=data,
                size=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
            )
        )

    def finish(
        self,
        header: dict[str, Any],
        program_report: bytes,
        known_layers: tuple[str, ...],
    ) -> None:
        """Take the supervisor's report and the program's own.

        Args:
            header: The supervisor's report.
            program_report: What the program wrote to its result pipe.
            known_layers: What held in this cell before.

        Raises:
            FrameError: The supervisor's report is malformed.
        """
        header = {**REPORT_DEFAULTS, **header}
        if header["reason"] not in (None, *RUN_ENDS):
            raise FrameError("unknown reason")
        self.reason = header["reason"]
        if header["wait_status"] is not None:
            self.wait_status = whole(header["wait_status"], MAX_WAIT_STATUS)
        self.wall_ms = milliseconds(header["wall_ms"])
        self.cpu_ms = milliseconds(header["cpu_ms"])
        self.peak_memory_bytes = whole(header["peak_memory_bytes"])
        self.oom_kills = whole(header["oom_kills"])
        self.oom_total = whole(header["oom_total"])
        self.layers = known_layers
        if header["layers"] is not None:
            self.layers = tuple(str(layer)[:40] for layer in header["layers"][:40])
        if header["setup_error"] is not None:
            self.setup_error = str(header["setup_error"])[:1000]
        if header["state"] not in (None, "kept", "lost"):
            raise FrameError("unknown state")
        self.state = header["state"]
        if header["lost"] is not None:
            self.lost = str(header["lost"])[:200]
        self.collecting = header["artifacts"] is True
        self.outputs_left = whole(header["outputs_left"])
        self.clean = header["clean"] is True and self.reason is None
        self.program_report, self.forged = _parse_program_report(program_report)


def _parse_program_report(data: bytes) -> tuple[dict[str, Any] | None, bool]:
    """Return the report in one well-formed line, and True if it is forged instead."""
    if not data:
        return None, False
    body, newline, rest = data.partition(b"\n")
    # Counted before it is parsed: the program chooses how much work parsing is.
    if (
        not newline
        or rest
        or count_values(body, _MAX_REPORT_VALUES) > _MAX_REPORT_VALUES
    ):
        return None, True
    try:
        program_report = strict_json(body)
        if not isinstance(program_report, dict) or program_report["outcome"] not in (
            "ok",
            "error",
            "exit",
        ):
            return None, True
        if program_report["outcome"] == "error":
            exception = program_report["exception"]
            for name in ("type", "message", "traceback"):
                if not isinstance(exception[name], str):
                    return None, True
        if program_report["outcome"] == "ok" and not isinstance(
            program_report["value"], dict
        ):
            return None, True
        if "exit_code" in program_report:
            whole(program_report["exit_code"], MAX_EXIT_CODE)
    except (FrameError, KeyError, TypeError):
        return None, True
    return program_report, False


def mime_of(name: str, data: bytes) -> str:
    """Return the media type of a file; no decoder but that of UTF-8 runs."""
    if (picture := picture_type(data)) is not None:
        return picture
    for magic, mime in _MAGIC:
        if data.startswith(magic):
            return mime
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "application/octet-stream"
    if "\0" in text:
        return "application/octet-stream"
    return _TEXT.get(name[name.rfind(".") :].lower(), "text/plain")
