"""Replaces large results by a preview and a reference to the whole."""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Protocol

import anyio
from pydantic import JsonValue

from toolcell.core import ConfigError

from .hook import Hook, Invocation, Proceed


class ResultStore(Protocol):
    """A store of texts, addressed by their content."""

    async def put(self, text: str) -> str:
        """Store a text and return its name; the same text has the same name."""
        ...


class FolderResultStore:
    """Stores texts as files named by their SHA-256.

    Args:
        folder: The folder; it is made if it is missing.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = anyio.Path(folder)

    async def put(self, text: str) -> str:
        """Store a text, and return the name that it is found by again."""
        data = text.encode()
        name = f"sha256-{hashlib.sha256(data).hexdigest()}"
        await self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / name
        if not await path.exists():
            # Renamed when whole: nobody reads half a result.
            part = self._folder / f".{name}.{secrets.token_hex(8)}"
            await part.write_bytes(data)
            await part.rename(path)
        return name

    async def get(self, name: str) -> str:
        """Return a text by its name.

        Raises:
            KeyError: There is none of this name.
        """
        path = self._folder / Path(name).name
        if not name.startswith("sha256-") or not await path.is_file():
            raise KeyError(name)
        return await path.read_text()


class ResultSizeHook(Hook):
    """Replaces large content by its beginning and a reference to the whole.

    Args:
        max_characters: Characters of content as the model would read it; default
            32,000. When it is reached the content becomes an object with `preview`,
            `characters` and, with a store, `reference`.
        preview_characters: Characters of the beginning that are shown; default 8,000.
        store: The store of the whole; None: it is lost.

    Raises:
        ConfigError: The preview is longer than what is allowed.
    """

    def __init__(
        self,
        *,
        max_characters: int = 32_000,
        preview_characters: int = 8_000,
        store: ResultStore | None = None,
    ) -> None:
        if not 0 <= preview_characters <= max_characters:
            raise ConfigError(
                "preview_characters must be 0 to max_characters",
                hint="give both, and preview_characters the lower number",
            )
        self._max = max_characters
        self._preview = preview_characters
        self._store = store

    async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
        content = await proceed()
        text = content if isinstance(content, str) else _text(content)
        if len(text) <= self._max:
            return content
        shown: dict[str, JsonValue] = {
            "preview": text[: self._preview],
            "characters": len(text),
        }
        if self._store is not None:
            shown["reference"] = await self._store.put(text)
        return shown


def _text(content: JsonValue) -> str:
    return json.dumps(content, ensure_ascii=False)
