"""The names of `IPython.display` for programs, where IPython is not installed."""

from __future__ import annotations

import os

from .display import display, publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple


VERSION = (9, 0, 0)
"""The version of IPython whose names these are."""

_MAGIC = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
)

publish_display_data = publish


def update_display(value: Any, *, display_id: Any, **options: Any) -> None:
    """Send a value again; it is a further output."""
    display(value, display_id=display_id, **options)


def clear_output(wait: bool = False) -> None:
    """Do nothing: what was sent stays."""


class DisplayObject:
    """Data to display, given as it is or as a file."""

    metadata: Dict[str, Any]
    _mode = "r"

    def __init__(
        self,
        data: Any = None,
        url: Optional[str] = None,
        filename: Any = None,
        metadata: Optional[Dict[str, Any]] = None,
    ) -> None:
        if isinstance(data, os.PathLike):
            data, filename = None, data
        elif isinstance(data, str) and url is None and filename is None:
            if data.startswith("http"):
                data, url = None, data
            elif self._is_file(data):
                data, filename = None, data
        self.data = data
        self.url = url
        self.filename = filename
        self.metadata = metadata or {}
        self.reload()

    @staticmethod
    def _is_file(text: str) -> bool:
        try:
            return os.path.isfile(text)
        except ValueError:
            return False

    def reload(self) -> None:
        """Read the file or the address again."""
        if self.filename is not None:
            encoding = "utf-8" if self._mode == "r" else None
            with open(self.filename, self._mode, encoding=encoding) as file:
                self.data = file.read()
        elif self.url is not None:
            from urllib.request import urlopen

            with urlopen(self.url) as answer:  # noqa: S310 - the cell's own network
                data = answer.read()
            self.data = data.decode("utf-8") if self._mode == "r" else data

    def __repr__(self) -> str:
        return "<%s object>" % type(self).__name__

    def _with_metadata(self) -> Any:
        return (self.data, self.metadata) if self.metadata else self.data


class TextDisplayObject(DisplayObject):
    """Text to display."""

    def reload(self) -> None:
        super().reload()
        if self.data is not None and not isinstance(self.data, str):
            kind = type(self).__name__
            raise TypeError("%s expects text, not %r" % (kind, self.data))


class Pretty(TextDisplayObject):
    """Plain text."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.data)


class HTML(TextDisplayObject):
    """HTML."""

    def _repr_html_(self) -> Any:
        return self._with_metadata()

    def __html__(self) -> Any:
        return self._with_metadata()


class Markdown(TextDisplayObject):
    """Markdown."""

    def _repr_markdown_(self) -> Any:
        return self._with_metadata()


class Latex(TextDisplayObject):
    """LaTeX, with its dollar signs."""

    def _repr_latex_(self) -> Any:
        return self._with_metadata()


class Math(TextDisplayObject):
    """A formula of LaTeX, without dollar signs."""

    def _repr_latex_(self) -> Any:
        text = "$\\displaystyle %s$" % self.data.strip("$")
        return (text, self.metadata) if self.metadata else text


class SVG(TextDisplayObject):
    """A drawing in SVG."""

    def reload(self) -> None:
        if isinstance(self.data, bytes):
            self.data = self.data.decode("utf-8")
        super().reload()

    def _repr_svg_(self) -> Any:
        return self._with_metadata()


class JSON(DisplayObject):
    """A value of JSON, or its text."""

    def __init__(
        self,
        data: Any = None,
        url: Optional[str] = None,
        filename: Any = None,
        expanded: bool = False,
        metadata: Optional[Dict[str, Any]] = None,
        root: str = "root",
        **options: Any,
    ) -> None:
        about = {"expanded": expanded, "root": root, **(metadata or {}), **options}
        super().__init__(data, url, filename, about)

    def reload(self) -> None:
        super().reload()
        if isinstance(self.data, str):
            import json

            self.data = json.loads(self.data)

    def _repr_json_(self) -> Tuple[Any, Dict[str, Any]]:
        return self.data, self.metadata


class Javascript(TextDisplayObject):
    """JavaScript. Its source is an output; nothing runs it."""

    def __init__(
        self,
        data: Any = None,
        url: Optional[str] = None,
        filename: Any = None,
        lib: Any = None,
        css: Any = None,
    ) -> None:
        super().__init__(data, url, filename)

    def _repr_javascript_(self) -> str:
        return str(self.data)


class Image(DisplayObject):
    """A picture in PNG, JPEG, GIF or WebP; one at an address is not fetched."""

    _mode = "rb"

    def __init__(
        self,
        data: Any = None,
        url: Optional[str] = None,
        filename: Any = None,
        format: Optional[str] = None,  # noqa: A002 - IPython's name
        embed: Optional[bool] = None,
        width: Optional[int] = None,
        height: Optional[int] = None,
        metadata: Optional[Dict[str, Any]] = None,
        alt: Optional[str] = None,
        **ignored: Any,
    ) -> None:
        sizes = {"width": width, "height": height, "alt": alt}
        about = {name: each for name, each in sizes.items() if each is not None}
        self._embeds = bool(embed) or url is None
        super().__init__(data, url, filename, {**about, **(metadata or {})})
        self.format = format

    def reload(self) -> None:
        if self.url is None or self._embeds:
            super().reload()

    def _repr_html_(self) -> Optional[str]:
        if self.data is not None:
            return None
        import html

        return '<img src="%s"/>' % html.escape(str(self.url))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        if self.data is None:
            return {}
        mime = _type_of(self.data)
        if mime is None:
            raise ValueError("an image is PNG, JPEG, GIF or WebP")
        return {mime: self.data}, {mime: self.metadata} if self.metadata else {}


def _type_of(data: Any) -> Optional[str]:
    for start, magic, mime in _MAGIC:
        if bytes(data[start : start + len(magic)]) == magic:
            return mime
    return None


def _shower(kind: Callable[[Any], Any]) -> Callable[..., None]:
    """Return a function that displays values, or with `raw` texts, as one type."""

    def show(*values: Any, raw: bool = False, metadata: Any = None) -> None:
        for value in values:
            display(kind(value) if raw else value, metadata=metadata)

    return show


display_pretty = _shower(Pretty)
display_html = _shower(HTML)
display_markdown = _shower(Markdown)
display_svg = _shower(SVG)
display_png = display_jpeg = _shower(Image)
display_latex = _shower(Latex)
display_json = _shower(JSON)
display_javascript = _shower(Javascript)


def get_ipython() -> None:
    """Return None: there is no shell."""
