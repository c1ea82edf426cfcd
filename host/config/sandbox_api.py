"""The table `[sandbox_api]` of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import Count, Model

_Template = Annotated[str, Field(min_length=1, max_length=128)]
_Domain = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
_Bytes = Annotated[int, Field(ge=1_024, le=2**40)]


class SandboxAPIConfig(Model):
    """The sandboxes of `toolcell serve --sandbox-api`. They are cells of `[sandbox]`,
    with its limits and network, and are their clients' as far as policies allow."""

    domain: _Domain | None = None
    """The domain below which `{port}-{id}.{domain}` leads to a sandbox, such as
    `sandboxes.example.com`. None: sandboxes are found by headers alone."""

    templates: Annotated[tuple[_Template, ...], Field(max_length=1_000)] = (
        "base",
        "code-interpreter-v1",
    )
    """Templates that clients may name; all stand for the cell of `[sandbox]`. Others
    are answered 404."""

    work_dir: Annotated[
        str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)
    ] = "/home/user"
    """The home and work dir of sandboxes, in place of `sandbox.work_dir`."""

    user: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "user"
    """The only user that clients may name."""

    max_sandboxes: Annotated[int, Field(ge=1, le=4_096)] = 16
    """Sandboxes at once, of all clients; one token has at most as many as are left to
    the others. When it is reached new ones are answered 429."""

    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Seconds that a sandbox lives if its client names none. When it is reached the
    sandbox ends, with its files and processes."""

    max_timeout_seconds: Annotated[int, Field(ge=1, le=86_400 * 30)] = 3_600
    """Seconds from now that a client may set the end of a sandbox to. Longer ones are
    answered 400."""

    approval_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """Seconds that a call waits for a person. When it is reached the call is refused
    with the id of the request; the same call finds a later answer."""

    max_body_bytes: _Bytes = 4_194_304
    """Bytes of one request that carries no file, and of one message of a WebSocket.
    When it is reached the request is answered 413, and the WebSocket is closed with
    1009."""

    max_file_bytes: _Bytes = 1_073_741_824
    """Bytes of the files of one upload, unpacked, and of one download. When it is
    reached an upload is answered 413, and a download is cut off."""

    max_snapshots: Annotated[int, Field(ge=0, le=10_000)] = 16
    """Snapshots of one token. When it is reached further ones are answered 429."""

    max_snapshot_bytes: _Bytes = 1_073_741_824
    """Bytes of all files of one snapshot. When it is reached it is answered 413, and
    nothing of it is kept."""

    snapshot_days: Annotated[int, Field(ge=1, le=3_650)] = 30
    """Days that a snapshot is kept. When it is reached the snapshot is deleted."""

    max_processes: Count = 32
    """Commands of one sandbox at once. When it is reached further ones are answered
    429."""
