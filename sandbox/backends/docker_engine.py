"""Access to a Docker engine: connections, time limits, removal, and errors.

Theory of operation. The SDK blocks, so its calls run in their own threads. A thread
cannot be stopped, but it can be abandoned: a caller that is cancelled, or has waited
long enough, continues at once, and neither the event loop nor the end of the process
waits for the thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

from toolcell.core import SandboxUnavailableError

from ..config.settings import SandboxConfig
from ..machine import process_identity
from ..machine.leases import lease
from . import container_spec
from .docker_address import DEFAULT, UNIX, address, of_context

if TYPE_CHECKING:
    import docker

T = TypeVar("T")

QUICK_SECONDS = 5
"""Seconds that an engine has to answer a question, such as which images it has. When
they are over the call fails."""

SLOW_SECONDS = 30
"""Seconds that an engine has to make, start or remove a container. When they are over
the call fails."""

_TO_CLEAN_UP = 1.0
_POOLS = 1024
# How the SDK begins its error where no connection can be made.
_NOT_SHARED = "bind source path does not exist"
_NOT_REACHED = "Error while fetching server API version"


async def in_thread(
    function: Callable[[], T], give_up: Callable[[], None] | None = None
) -> T:
    """Call a function in a thread, which is abandoned when the caller is cancelled.

    Args:
        function: May block.
        give_up: Called when the caller is cancelled. The thread then has a second to
            clean up before this returns; after that it does so in the background.
    """
    token = anyio.lowlevel.current_token()
    done, outcome = anyio.Event(), Future[T]()

    def work() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            outcome.set_exception(error)
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            anyio.from_thread.run_sync(done.set, token=token)

    threading.Thread(target=work, name="toolcell engine", daemon=True).start()
    try:
        await done.wait()
    except anyio.get_cancelled_exc_class():
        if give_up is not None:
            give_up()
            with anyio.move_on_after(_TO_CLEAN_UP, shield=True):
                await done.wait()
        raise
    return outcome.result()


def import_sdk() -> None:
    """Import the SDK.

    It is imported late, for hosts without an engine: this takes a third of the time of
    all imports.
    """
    import docker
    import docker.utils  # noqa: F401


def connect(
    docker_host: str | None, seconds: int = QUICK_SECONDS, version: str | None = None
) -> docker.DockerClient:
    """Return a client of the engine at `docker_host`, DOCKER_HOST or the default.

    Args:
        docker_host: The engine's address.
        seconds: The time limit between two reads of an answer.
        version: The version of the engine's API; None asks the engine.

    Raises:
        docker.errors.DockerException: Nothing answers there.
        OSError: Nothing listens on the engine's Unix socket.
    """
    probe_socket(address(docker_host))
    import docker
    import docker.utils

    where = docker.utils.kwargs_from_env()
    if docker_host is not None or "base_url" not in where:
        where = {"base_url": address(docker_host)}
        if tls := _tls_of_context(docker_host):
            where["tls"] = tls
    # The SDK keeps one pool per URL, thus per container, and closes the oldest even
    # in use; so many pools, and no idle connection in any of them.
    client = docker.DockerClient(
        timeout=QUICK_SECONDS + 1, num_pools=_POOLS, version=version, **where
    )
    # Longer than the caller waits: the SDK has one error for silence and absence.
    client.api.timeout = seconds + 1
    client.api.headers["Connection"] = "close"
    return client


def _tls_of_context(docker_host: str | None) -> docker.tls.TLSConfig | None:
    """Return the TLS settings of the current context, if it is used and has some."""
    from docker.tls import TLSConfig

    context = of_context(docker_host)
    if context is None:
        return None
    files = {path.name: str(path) for path in context.folder.glob("*.pem")}
    if not files and context.verify:
        return None
    cert, key = files.get("cert.pem"), files.get("key.pem")
    return TLSConfig(
        client_cert=(cert, key) if cert and key else None,
        ca_cert=files.get("ca.pem"),
        verify=context.verify,
    )


def probe_socket(where: str) -> None:
    """Raise OSError if the engine's Unix socket is dead.

    The SDK forgets to close a socket that could not connect.
    """
    if where.startswith(UNIX):
        with socket.socket(socket.AF_UNIX) as sock:
            # The queue of a stopped engine's socket may be full.
            sock.settimeout(QUICK_SECONDS)
            sock.connect(where.removeprefix(UNIX))


def orphans(client: docker.DockerClient) -> list[str]:
    """Return the ids of the containers of this machine's dead owners."""
    found: list[str] = []
    for entry in client.api.containers(
        all=True, filters={"label": container_spec.OWNER_LABEL}
    ):
        marks = entry["Labels"]
        here = marks.get(container_spec.MACHINE_LABEL) == process_identity.machine_id()
        if here and not process_identity.lives(marks[container_spec.OWNER_LABEL]):
            found.append(entry["Id"])
    return found


def remove(client: docker.DockerClient, container_id: str) -> None:
    """Kill and remove a container; a missing one is fine.

    It raises nothing: the containers of an engine that is gone end with their streams,
    and the next start sweeps.
    """
    import docker.errors

    try:
        client.api.remove_container(container_id, force=True, v=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        if error.status_code != 409:
            return
        # The engine is removing it already; wait until that is done.
        with contextlib.suppress(Exception):
            client.api.wait(container_id, timeout=10, condition="removed")
    except Exception:  # noqa: BLE001 - the SDK and its transport raise anything
        return


def remove_all(client: docker.DockerClient, container_ids: Iterable[str]) -> None:
    """Remove containers one after the other. It raises nothing."""
    for container_id in container_ids:
        remove(client, container_id)


def own_socket(attached: Any) -> socket.socket:
    """Return a plain socket for an attach stream; the caller closes it.

    No process forked from this one keeps the stream open.
    """
    raw = getattr(attached, "_sock", attached)
    if type(raw) is socket.socket:
        ours = lease(socket.socket(fileno=os.dup(raw.fileno())))
        response = getattr(attached, "_response", None)
        raw.close()
        if response is not None:
            response.close()
        return ours
    # TLS and SSH streams have no descriptor that can be polled for plaintext.
    if isinstance(raw, socket.socket):
        lease(raw)
    ours, theirs = map(lease, socket.socketpair())
    for source, target in ((raw, theirs), (theirs, raw)):
        threading.Thread(target=_relay, args=(source, target), daemon=True).start()
    return ours


def _relay(source: Any, target: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(65_536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(Exception):
            end.close()


def _place(docker_host: str | None) -> str:
    where = address(docker_host)
    return "the local socket" if where == DEFAULT else where


def silent(seconds: float, config: SandboxConfig) -> SandboxUnavailableError:
    """Return the error for an engine that has not answered in time."""
    place = _place(config.docker_host)
    return SandboxUnavailableError(
        f"the Docker engine at {place} has not answered for {seconds:g} seconds",
        hint="look whether it is stopped or overloaded: `docker info`",
    )


def explain(error: Exception, config: SandboxConfig) -> SandboxUnavailableError:
    """Return our error, with a hint, for an error of the Docker SDK."""
    import docker.errors

    text = getattr(error, "explanation", None) or str(error)
    if isinstance(error, docker.errors.ImageNotFound):
        return SandboxUnavailableError(
            f"the Docker engine has no image {config.image!r}",
            hint=f"`docker pull {config.image}`, or `toolcell images build` and "
            "its tag as `image`",
            details={"reason": "image_missing", "image": config.image},
        )
    if isinstance(error, docker.errors.APIError) and "python3" in str(text):
        return SandboxUnavailableError(
            f"the image {config.image!r} has no python3",
            hint="use an image with python3 3.8 or newer on its PATH",
        )
    if isinstance(error, docker.errors.APIError) and _NOT_SHARED in str(text):
        path = str(text).rpartition(_NOT_SHARED)[2].strip(": ")
        return SandboxUnavailableError(
            f"the Docker engine's machine does not see {path}",
            hint="share the folder with it (Docker Desktop: Settings, Resources, File "
            "sharing; Colima: `colima start --mount FOLDER`), or choose one below your "
            "home; XDG_CACHE_HOME is the place of packages",
            details={"reason": "files_not_shared"},
        )
    if isinstance(error, docker.errors.APIError):
        return SandboxUnavailableError(
            f"the Docker engine refused: {text}",
            hint="`toolcell doctor` tries a cell there; the engine's log may say more",
        )
    return nobody_answers(error, config)


def nobody_answers(error: Exception, config: SandboxConfig) -> SandboxUnavailableError:
    """Return the error for an engine that cannot be reached, as `unreached` does."""
    other = "use backend='subprocess'"
    if config.names_docker:
        other = "leave `runtime` and `image` out"
    return unreached(
        error, config.docker_host, f"start it, set DOCKER_HOST, or {other}"
    )


def unreached(
    error: Exception,
    docker_host: str | None,
    hint: str = "start it, or set DOCKER_HOST",
) -> SandboxUnavailableError:
    """Return the error for an engine that is absent, refuses this user or has no name.

    Args:
        error: The error of the connection; those of `requests` are OSErrors.
        docker_host: The engine's address, as configured.
        hint: What to do about an engine that is absent.
    """
    place = _place(docker_host)
    message = f"no Docker engine answers at {place}"
    if isinstance(error, PermissionError):
        message = f"this user may not speak to the Docker engine at {place}"
        hint = "join the group of its socket, mostly `docker`, and log in again"
    elif not isinstance(error, OSError) and not str(error).startswith(_NOT_REACHED):
        message = f"the Docker SDK cannot use {place}: {error}"
        hint = "look at DOCKER_HOST, or `docker_host` of the configuration"
    return SandboxUnavailableError(message, hint=hint, details={"error": str(error)})
