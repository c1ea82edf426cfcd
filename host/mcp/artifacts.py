"""Artifacts that a call saves, and their blocks in its MCP result.

The type of an artifact is found from its bytes. The type that a tool or a program
declares is only a claim: HTML that is declared as an image is sent as plain bytes.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from urllib.parse import quote

import mcp_types as types

from toolcell.core import ToolExecutionError
from toolcell.core.text.picture_type import picture_type

MAX_ARTIFACTS = 32
"""Artifacts of one call. When it is reached a tool cannot save more, and those of
further programs are left out."""

MAX_BYTES = 8_388_608
"""Bytes of all artifacts of one call. When it is reached the same happens."""

PLAIN = "application/octet-stream"
_SOUNDS = {
    rb"RIFF....WAVE": "audio/wav",
    rb"OggS\0": "audio/ogg",
    rb"fLaC[\0\x80]": "audio/flac",
    rb"ID3[\x02-\x04]": "audio/mpeg",
}
_TEXTS = frozenset({"text/plain", "text/csv", "text/markdown", "application/json"})


@dataclass(frozen=True, slots=True)
class SavedArtifact:
    """One artifact that a call saved."""

    name: str
    data: bytes
    media_type: str
    """The declared type, a claim."""


class CallArtifacts:
    """The artifacts of one call, until its result is sent."""

    def __init__(self) -> None:
        self.saved: list[SavedArtifact] = []

    def save(self, name: str, data: bytes, media_type: str) -> str:
        """Store an artifact, and return the URI that the client sees.

        Raises:
            ToolExecutionError: There are too many, they are too large, or the name
                is not a relative path.
        """
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise ToolExecutionError(
                f"{name!r} is no name of an artifact",
                hint="use a relative path without `.` and `..`, such as plots/one.png",
            )
        size = sum(len(artifact.data) for artifact in self.saved) + len(data)
        if len(self.saved) >= MAX_ARTIFACTS or size > MAX_BYTES:
            raise ToolExecutionError(
                f"a call saves at most {MAX_ARTIFACTS} artifacts of "
                f"{MAX_BYTES} bytes together",
                hint="save less, or in several calls",
            )
        self.saved.append(SavedArtifact(name, bytes(data), media_type))
        return _uri(name)


def _uri(name: str) -> str:
    return f"artifact:///{quote(name)}"


def media_type_of(artifact: SavedArtifact) -> str:
    """Return the media type that the bytes show, or that of plain bytes."""
    data = artifact.data
    if (picture := picture_type(data)) is not None:
        return picture
    for magic, media_type in _SOUNDS.items():
        if re.match(magic, data, re.DOTALL):
            return media_type
    declared = artifact.media_type.partition(";")[0].strip().lower()
    if not _is_text(data):
        return PLAIN
    if declared in _TEXTS:
        return declared
    return "text/plain" if declared.startswith("text/") else PLAIN


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def to_block(artifact: SavedArtifact) -> types.ContentBlock:
    """Return an artifact as content: an image, a sound, or an embedded file."""
    media_type = media_type_of(artifact)
    kind = media_type.partition("/")[0]
    if kind == "image":
        return types.ImageContent(data=_base64(artifact.data), mime_type=media_type)
    if kind == "audio":
        return types.AudioContent(data=_base64(artifact.data), mime_type=media_type)
    uri = _uri(artifact.name)
    if media_type == PLAIN:
        return types.EmbeddedResource(
            resource=types.BlobResourceContents(
                uri=uri, mime_type=PLAIN, blob=_base64(artifact.data)
            )
        )
    return types.EmbeddedResource(
        resource=types.TextResourceContents(
            uri=uri, mime_type=media_type, text=artifact.data.decode()
        )
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
