"""Creation of a container in a thread, for a caller that may be cancelled meanwhile."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

from . import docker_engine, docker_volumes

if TYPE_CHECKING:
    import docker


class ContainerCreation:
    """A container that is made in a thread, for a caller that may give up meanwhile.

    Of the thread and `give_up`, the one that comes second removes the container.

    Args:
        client: The client for slow calls.
        arguments: The body of the create call.
        has_covers: True if the image declares volumes, which must not be mounted.
    """

    def __init__(
        self, client: docker.DockerClient, arguments: dict[str, Any], has_covers: bool
    ) -> None:
        self._client = client
        self._arguments = arguments
        self._has_covers = has_covers
        self._decided = threading.Lock()
        self._sock: socket.socket | None = None
        self.container_id = ""

    def give_up(self) -> None:
        """Have the container removed as soon as it is made."""
        if not self._decided.acquire(blocking=False):
            threading.Thread(target=self._undo, daemon=True).start()

    def _undo(self) -> None:
        if self._sock is not None:
            self._sock.close()
        docker_engine.remove(self._client, self.container_id)

    def run(self) -> socket.socket:
        """Make and start a container, and return its stream."""
        # The SDK leaves its low-level client without types.
        api: Any = self._client.api
        self.container_id = api.create_container_from_config(self._arguments)["Id"]
        try:
            self._sock = sock = self._start(api)
        except BaseException:
            self._undo()
            raise
        if not self._decided.acquire(blocking=False):
            self._undo()
        return sock

    def _start(self, api: Any) -> socket.socket:
        if self._has_covers:
            found = api.inspect_container(self.container_id)
            docker_volumes.require_none(found.get("Mounts") or ())
        options = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        attached = api.attach_socket(self.container_id, params=options)
        sock = docker_engine.own_socket(attached)
        try:
            api.start(self.container_id)
        except BaseException:
            sock.close()
            raise
        return sock
