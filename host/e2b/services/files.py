"""`/files`: uploads and downloads of whole files."""

from __future__ import annotations

import posixpath
import re
import zlib
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...config.sandbox_api import SandboxAPIConfig
from ...http.bodies import pieces
from ...http.streams import Streamed
from ..operations.action import Actions
from ..operations.cell_files import resolved
from ..operations.files import READ, WRITE, ReadArguments, WriteArguments, Written
from ..protocol.access import check_user
from ..protocol.errors import APIError
from ..state.sandbox import Sandbox

_MAX_PARTS = 1_000
"""Parts of a form, also those that are no files. When it is reached the request is
answered 413."""

_SLICE = 16_384
"""Bytes of a form that are read before others have their turn."""

_FIRST_SECONDS = 60.0
_METADATA_PREFIX = "x-metadata-"
_METADATA_VALUE = re.compile(r"[\x20-\x7e]*")


class Files:
    """Writes and reads the files of sandboxes.

    Args:
        settings: The limits.
        actions: Leads each file through the guard.
    """

    def __init__(self, settings: SandboxAPIConfig, actions: Actions) -> None:
        self._settings = settings
        self._actions = actions

    async def download(self, request: Request, sandbox: Sandbox) -> Response:
        """Answer with the bytes of a file.

        Raises:
            APIError: There is no such file, or it may not be read.
        """
        path = self._path(request, sandbox, request.query_params.get("path", ""))
        wanted = ReadArguments(sandbox_id=sandbox.id, path=path)
        async with AsyncExitStack() as opening:
            action = self._actions.do(READ, sandbox.token, wanted)
            data = await opening.enter_async_context(action)
            with anyio.move_on_after(_FIRST_SECONDS) as waiting:
                first = await anext(data, b"")
            if waiting.cancelled_caught:
                raise APIError(504, f"{path} cannot be read")
            stack = opening.pop_all()

        async def parts() -> AsyncGenerator[bytes, None]:
            yield first
            async for piece in data:
                yield piece

        return Streamed(parts(), "application/octet-stream", release=stack.aclose)

    async def upload(self, request: Request, sandbox: Sandbox) -> Response:
        """Write the files of a request.

        Raises:
            APIError: One cannot be written, or they are too large.
        """
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        path = request.query_params.get("path", "")
        body = pieces(request, self._settings.max_file_bytes)
        async with aclosing(_unpacked(request, body, self._settings)) as data:
            if kind == b"multipart/form-data":
                boundary = options.get(b"boundary", b"")
                written = await self._parts(request, sandbox, path, boundary, data)
            else:
                written = [await self._single(request, sandbox, path, data)]
        return JSONResponse(written)

    async def _single(
        self,
        request: Request,
        sandbox: Sandbox,
        path: str,
        data: AsyncGenerator[bytes, None],
    ) -> dict[str, Any]:
        async with self._open(request, sandbox, path) as written:
            async for piece in data:
                await written.process.write(piece)
        return _info(written)

    async def _parts(
        self,
        request: Request,
        sandbox: Sandbox,
        path: str,
        boundary: bytes,
        data: AsyncGenerator[bytes, None],
    ) -> list[dict[str, Any]]:
        """Write each part that is a file, one after the other."""
        if not boundary:
            raise APIError(400, "multipart/form-data needs a boundary")
        form = _Form(boundary)
        written: list[Written] = []
        stack = AsyncExitStack()
        open_file: Written | None = None
        async with stack:
            async for event in _events(form, data):
                if isinstance(event, bytes):
                    if open_file is not None:
                        await open_file.process.write(event)
                    continue
                await stack.aclose()
                open_file = None
                if event is not None:
                    opening = self._open(request, sandbox, path or event)
                    open_file = await stack.enter_async_context(opening)
                    written.append(open_file)
        if not form.is_over:
            raise APIError(400, "the form breaks off")
        if not written:
            raise APIError(400, "the form holds no file")
        return [_info(file) for file in written]

    def _open(
        self, request: Request, sandbox: Sandbox, path: str
    ) -> AbstractAsyncContextManager[Written]:
        wanted = WriteArguments(
            sandbox_id=sandbox.id,
            path=self._path(request, sandbox, path),
            metadata=_metadata(request),
        )
        return self._actions.do(WRITE, sandbox.token, wanted)

    def _path(self, request: Request, sandbox: Sandbox, path: str) -> str:
        check_user(request.query_params.get("username"), self._settings.user)
        if not path:
            raise APIError(400, "path is missing")
        return resolved(path, sandbox.home)


def _info(written: Written) -> dict[str, Any]:
    path = written.path
    info = {"name": posixpath.basename(path), "path": path, "type": "file"}
    return info | ({"metadata": written.metadata} if written.metadata else {})


def _metadata(request: Request) -> dict[str, str]:
    """Return the metadata in the headers of an upload. Raises APIError."""
    found = {
        name.removeprefix(_METADATA_PREFIX): value
        for name, value in request.headers.items()
        if name.startswith(_METADATA_PREFIX)
    }
    if "" in found or not all(
        _METADATA_VALUE.fullmatch(each) for each in found.values()
    ):
        raise APIError(400, "metadata has names, and values in printable ASCII")
    return found


async def _unpacked(
    request: Request, data: AsyncGenerator[bytes, None], settings: SandboxAPIConfig
) -> AsyncGenerator[bytes, None]:
    """Yield a body unpacked. Raises APIError: it is damaged, or too large unpacked."""
    encoding = request.headers.get("content-encoding", "identity")
    async with aclosing(data):
        if encoding == "identity":
            async for piece in data:
                yield piece
            return
        if encoding != "gzip":
            raise APIError(400, f"the encoding {encoding[:20]!r} is not read")
        unpacking = zlib.decompressobj(wbits=31)
        size = 0
        try:
            async for piece in data:
                while piece:
                    out = unpacking.decompress(piece, 1_048_576)
                    piece = unpacking.unconsumed_tail
                    size += len(out)
                    if size > settings.max_file_bytes:
                        raise APIError(413, "the file is too large unpacked")
                    if out:
                        yield out
        except zlib.error:
            raise APIError(400, "the body is no gzip") from None
        if not unpacking.eof:
            raise APIError(400, "the gzip breaks off")


async def _events(
    form: _Form, data: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes | str | None, None]:
    """Yield what a form holds, in slices, so that no form keeps the server busy."""
    async for piece in data:
        for start in range(0, len(piece), _SLICE):
            for event in form.feed(piece[start : start + _SLICE]):
                yield event
            await anyio.lowlevel.checkpoint()


@dataclass(slots=True)
class _Form:
    """Reads a form with files: file names, then their bytes."""

    boundary: bytes
    is_over: bool = False
    _parser: MultipartParser = field(init=False)
    _found: list[bytes | str | None] = field(default_factory=list)
    _name: bytes = b""
    _value: bytes = b""
    _disposition: bytes = b""
    _parts: int = 0

    def __post_init__(self) -> None:
        try:
            self._parser = self._new_parser()
        except FormParserError:
            raise APIError(400, "the boundary of the form cannot be used") from None

    def _new_parser(self) -> MultipartParser:
        return MultipartParser(
            self.boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._on_name,
                "on_header_value": self._on_value,
                "on_header_end": self._on_header,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_end": self._on_end,
            },
        )

    def feed(self, piece: bytes) -> list[bytes | str | None]:
        """Return file names, None for a part that is no file, and bytes."""
        try:
            self._parser.write(piece)
        except FormParserError:
            raise APIError(400, "the form cannot be read") from None
        found, self._found = self._found, []
        return found

    def _begin(self) -> None:
        self._disposition = self._name = self._value = b""
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise APIError(413, f"the form has more than {_MAX_PARTS} parts")

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def _on_headers(self) -> None:
        options = parse_options_header(self._disposition)[1]
        # The path of a file without a name is in the query.
        no_name = b"" if options.get(b"name") == b"file" else None
        name = options.get(b"filename", no_name)
        self._found.append(None if name is None else name.decode("utf-8", "replace"))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._found.append(data[start:end])

    def _on_end(self) -> None:
        self.is_over = True
