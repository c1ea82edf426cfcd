"""Tools that come with a ready JSON Schema, such as those of other servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Unpack

from toolcell.core import ConfigError, InvalidInputError

from .context import ToolContext
from .docstrings import description_of
from .json_schema import WrittenSchema
from .options import ToolOptions, check_options
from .signature import (
    docstring_of,
    local_names,
    open_parameters,
    resolve_annotations,
    wants_context,
)
from .tool import Tool
from .validation import Arguments


class JSONSchemaTool(Tool):
    """A handler that takes all arguments as one dict, and the schema of that dict.

    The schema alone decides which arguments are valid. The defaults of its properties
    are filled in, unless that would make the arguments invalid. The validator is built
    once. Nothing is fetched.

    Args:
        handler: Called with the arguments, async or not. Another parameter of type
            `ToolContext` is filled by the executor.
        **options: See `ToolOptions`; `name` and `parameters` are needed, and
            `strict` has no meaning here.

    Raises:
        ConfigError: An option or the schema cannot be used.
    """

    def __init__(
        self, handler: Callable[..., Any], **options: Unpack[ToolOptions]
    ) -> None:
        given: dict[str, Any] = dict(options)
        self._written = given.pop("parameters", {})
        name = str(given.get("name", ""))
        given.setdefault("description", description_of(name, docstring_of(handler)))
        for option, value in check_options(f"JSONSchemaTool {name}", given):
            setattr(self, option, value)
        self.handler = handler
        hints = resolve_annotations(
            handler, open_parameters(handler), local_names(handler)
        )
        self._contexts = [key for key in hints if wants_context(hints[key])]
        self.check_definition()

    @cached_property
    def _schema(self) -> WrittenSchema:
        return WrittenSchema(self.name, self._written or {})

    @property
    def _body(self) -> Callable[..., Any]:
        return self.handler

    @property
    def takes_context(self) -> bool:
        return bool(self._contexts)

    def check_definition(self) -> None:
        if self.sandboxed:
            raise ConfigError(
                f"{self.name} cannot run in a cell, only functions can",
                hint="leave out `sandboxed`, or make a tool of a function",
            )
        super().check_definition()

    def execute(self, /, **arguments: Any) -> Any:
        return self.handler(arguments)

    def call(self, arguments: Arguments, context: ToolContext | None = None) -> Any:
        if self._contexts and context is None:
            raise InvalidInputError(
                f"{self.name} takes a ToolContext, give one",
                hint="pass it as `context`",
            )
        return self.handler(arguments.values, **dict.fromkeys(self._contexts, context))
