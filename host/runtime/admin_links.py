"""The address of a console, and the one-time links of its admins."""

from __future__ import annotations

from toolcell.core import ConfigError

from ..config.host_config import HostConfig
from ..http.serving import host_and_port
from ..operator.people import FIRST_LINK_SECONDS, People
from ..operator.people_file import open_people

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def link_of_new_admin(config: HostConfig, address: str) -> str:
    """Return a one-time link for a new admin; it is good on this machine.

    Args:
        config: The configuration of the console, which may run.
        address: Where it is or will be served, `HOST:PORT`.

    Raises:
        ConfigError: Nobody reaches the address, or there is no place for people.
    """
    name, port = host_and_port(address)
    if not port and config.console.public_url is None:
        raise ConfigError(
            "a link needs the port of the console",
            hint="give --address as the console that runs has it",
        )
    origin = console_origin(config, name, port)
    with open_people(config) as file:
        return admin_link(People(file), origin)


def admin_link(people: People, origin: str) -> str:
    """Return a one-time link for an admin at the address of a console."""
    code = people.make_link(role="admin", seconds=FIRST_LINK_SECONDS, local=True)
    return f"{origin}/join/{code}"


def console_origin(config: HostConfig, name: str, port: int) -> str:
    """Return the address that people open.

    Raises:
        ConfigError: Others reach it, and nothing says by which name.
    """
    url = config.console.public_url
    if url is not None:
        return url
    if name not in _LOOPBACK:
        raise ConfigError(
            "others would reach the console without TLS",
            hint="serve it on 127.0.0.1 behind a proxy, and set console.public_url",
        )
    return f"http://localhost:{port}"
