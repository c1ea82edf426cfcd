"""Says to a program that failed which hosts have no address in its cell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import ExecutionResult

_WEB_PORTS = (80, 443)


def with_name_warnings(
    result: ExecutionResult, listeners: Iterable[tuple[str, int, str]]
) -> ExecutionResult:
    """Return a result with a warning if a client without a proxy may have failed.

    A `confined` cell has the machine's /etc/hosts, where rules for one name have no
    address, and the error of a driver does not say so.

    Args:
        result: With the connections of its program or command.
        listeners: Address, port and host of each rule for one name.
    """
    level = result.isolation and result.isolation.level
    if result.status == "ok" or level != "confined":
        return result
    used = {(connection.host, connection.port) for connection in result.connections}
    unused = [
        f"{host}:{port}"
        for _, port, host in listeners
        if port not in _WEB_PORTS and (host, port) not in used
    ]
    if not unused:
        return result
    warning = (
        f"no connection to {', '.join(unused[:3])}: confined cells give names no "
        "address, so that drivers of databases do not find them; connect through the "
        "proxy of HTTPS_PROXY, or run in namespaces or in Docker"
    )
    return result.model_copy(update={"warnings": (*result.warnings, warning)})
