"""Media types of files, by their bytes; a name only chooses between kinds of text."""

from __future__ import annotations

from toolcell.core.text.picture_type import picture_type

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
