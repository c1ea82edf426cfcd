"""Values that a program displayed, each with representations by media type."""

import base64
import binascii
import json
import re
import struct
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from toolcell.core.text.picture_type import picture_type

from ..cell.wire.contract import MAX_PREVIEW_BYTES, MAX_PREVIEW_SIDE

if TYPE_CHECKING:
    from toolcell.core import ImagePart, Part


class ResultModel(BaseModel):
    """A value that does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


MAX_CONTENT_CHARACTERS = 16_384
"""Characters of one output as text for a model. When it is reached the text is cut, and
says so."""

MAX_CONTENT_ROWS = 20
"""Rows of a table for a model. When it is reached the others are left out, and a last
line says so."""

_CUT = "\n[cut: {} of {} characters]"
_FENCED = {
    "text/html": "html",
    "image/svg+xml": "svg",
    "application/javascript": "javascript",
}
_PLOTLY = "application/vnd.plotly.v1+json"
_PICTURES: tuple[Literal["image/png", "image/jpeg"], ...] = ("image/png", "image/jpeg")
_MAX_SEGMENTS = 1_000
# Start of frame: all but the tables and extensions between them.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def picture_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG or JPEG in pixels; None if unknown."""
    kind = picture_type(data)
    if kind == "image/png" and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    return _jpeg_size(data) if kind == "image/jpeg" else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if len(data) < at + 9 or data[at] != 0xFF:
            return None
        if data[at + 1] in _FRAMES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + max(int.from_bytes(data[at + 2 : at + 4], "big"), 2)
    return None


class Preview(ResultModel):
    """A small copy of a picture, made in the cell."""

    mime: Literal["image/png", "image/jpeg"]
    data: str = Field(repr=False)
    """Its bytes in base 64."""


class Output(ResultModel):
    """One thing that a program displayed. All of it is the program's word.

    Pictures are what their type says: their first bytes were looked at, no more.
    """

    data: dict[str, JsonValue] = Field(repr=False)
    """Representations by media type, as in a notebook: texts, JSON values, and bytes in
    base 64."""

    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    is_value: bool = False
    """True for the value of the program's last expression."""

    left_out: tuple[str, ...] = ()
    """Media types of representations that were too large, or not what they claim."""

    preview: Preview | None = None
    """A smaller copy of a picture that is too large for models."""

    origin: Literal["program"] = "program"

    @property
    def mimes(self) -> tuple[str, ...]:
        """The media types of the representations."""
        return tuple(self.data)

    def text(self, mime: str = "text/plain") -> str | None:
        """Return a representation as text; None if there is no such text."""
        found = self.data.get(mime)
        return found if isinstance(found, str) else None

    def content(self, mime: str) -> bytes | None:
        """Return a representation as bytes, such as those of a picture.

        None if there is none. Texts are returned in UTF-8.
        """
        found = self.data.get(mime)
        if isinstance(found, str) and not mime.endswith("json"):
            if mime.startswith("text/") or mime.endswith(("+xml", "javascript")):
                return found.encode()
            try:
                return base64.b64decode(found, validate=True)
            except (binascii.Error, ValueError):
                return found.encode()
        return None if found is None else json.dumps(found).encode()

    def to_content(self) -> "list[Part]":
        """Return what a model gets: a picture, or a text.

        A picture is a PNG or JPEG of at most 1,568 pixels on its longer side and 1 MiB;
        one that is larger is replaced by its preview, or named and not sent. Otherwise
        the first of these is sent: Markdown, a table of HTML as Markdown, LaTeX, the
        source of SVG, JSON or HTML, plain text. Nothing of it is drawn or run.
        """
        from toolcell.core import TextPart

        picture = self._picture()
        if picture is not None:
            return [picture]
        texts = [self._unsent_picture(), self._as_text()]
        text = "\n".join(each for each in texts if each)
        return [TextPart(text=_cut(text or self._names()))]

    def _picture(self) -> "ImagePart | None":
        from toolcell.core import ImagePart

        for mime in _PICTURES:
            if mime in self.data and is_small(self.content(mime) or b""):
                return ImagePart(mime=mime, data=str(self.data[mime]))
        if self.preview is not None:
            return ImagePart(mime=self.preview.mime, data=self.preview.data)
        return None

    def _unsent_picture(self) -> str:
        for mime in self.data:
            if mime.startswith("image/") and mime != "image/svg+xml":
                data = self.content(mime) or b""
                size = picture_size(data)
                pixels = f"{size[0]} x {size[1]} pixels, " if size else ""
                return f"[{mime}, {pixels}{len(data)} bytes: not sent]"
        return ""

    def _as_text(self) -> str:
        if (markdown := self.text("text/markdown")) is not None:
            return markdown
        page = self.text("text/html")
        if page is not None:
            # `html` is slow to import.
            from .html_tables import table_as_markdown

            table = table_as_markdown(page, MAX_CONTENT_ROWS)
            if table is not None:
                return table
        if (latex := self.text("text/latex")) is not None:
            return latex
        return self._source() or self.text() or ""

    def _source(self) -> str:
        if (drawing := self.text("image/svg+xml")) is not None:
            return _fenced("svg", drawing)
        for mime, value in self.data.items():
            if mime == "application/json" or not isinstance(value, str):
                shown = _without_template(value) if mime == _PLOTLY else value
                return _fenced("json", json.dumps(shown, ensure_ascii=False))
        for mime, language in _FENCED.items():
            if (source := self.text(mime)) is not None:
                return _fenced(language, source)
        return ""

    def _names(self) -> str:
        return f"[{', '.join((*self.data, *self.left_out)) or 'nothing'}: not sent]"


def is_small(data: bytes) -> bool:
    """Return True for a PNG or JPEG that is small enough for models."""
    size = picture_size(data)
    if size is None or len(data) > MAX_PREVIEW_BYTES:
        return False
    return 0 < min(size) and max(size) <= MAX_PREVIEW_SIDE


def _without_template(figure: JsonValue) -> JsonValue:
    """Return a figure without the kilobytes of colors that each one has."""
    if not isinstance(figure, dict) or not isinstance(figure.get("layout"), dict):
        return figure
    layout = {**figure["layout"]}  # type: ignore[dict-item]
    layout.pop("template", None)
    return {**figure, "layout": layout}


def _fenced(language: str, source: str) -> str:
    source = source[: MAX_CONTENT_CHARACTERS + 1]
    longest = max(map(len, re.findall("`+", source)), default=0)
    fence = "`" * max(longest + 1, 3)
    return f"{fence}{language}\n{source}\n{fence}"


def _cut(text: str) -> str:
    if len(text) <= MAX_CONTENT_CHARACTERS:
        return text
    note = _CUT.format(MAX_CONTENT_CHARACTERS, len(text))
    return text[:MAX_CONTENT_CHARACTERS] + note
