"""An option of `run` is declared once, and reaches a node as it was given."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from pydantic import SecretStr

from toolcell.cluster.driver.requests import RemoteRun
from toolcell.cluster.node.driver_connection import options_of
from toolcell.cluster.wire.message import WireMessage
from toolcell.cluster.wire.protocol import FOLLOWED
from toolcell.sandbox import HostCalls, Job, Limits, Network, Sandbox, SandboxSession
from toolcell.sandbox.spi import RunRequest


async def answer(name: str, args: Any, kwargs: Any) -> dict[str, Any]:
    return {"value": None}


GIVEN: dict[str, Any] = {
    "code": "1",
    "language": "bash",
    "inputs": {"n": [1, 2]},
    "limits": Limits(wall_seconds=3),
    "files": {"a": b"1", "b": b"2"},
    "argv": ["main.py", "a"],
    "stdin": b"line\n",
    "merge_stderr": True,
    "secrets": {"KEY": SecretStr("word")},
    "packages": ["six"],
    "agent_id": "a",
    "calls": HostCalls(names=("f",), handler=answer),
    "network": Network.allow(["a.example:443"]),
    "on_output": lambda stream, data: None,
    "on_display": lambda output: None,
    "on_connection": lambda connection: None,
    "minimum_freshness": "cell",
    "fresh": True,
}
"""A value of each option that is not the usual one."""


def options(method: Any) -> set[str]:
    return set(inspect.signature(method).parameters) - {"self"}


def test_a_request_has_what_methods_take_and_nothing_else() -> None:
    taken = options(Sandbox.run) | options(SandboxSession.run)

    stays = {"gate"}
    passed = {*RunRequest._fields} - {"streamed", "batch"} - stays
    assert taken - stays == GIVEN.keys() == passed
    assert options(SandboxSession.run) - {"fresh"} < options(Sandbox.run)
    for of_place in (Sandbox, SandboxSession):
        assert options(of_place.stream) < options(of_place.run)
    assert set(Job.__dataclass_fields__) - {"id"} < taken


@pytest.mark.parametrize("name", GIVEN)
def test_each_option_reaches_a_node(name: str) -> None:
    request = RunRequest(**{"code": "1", name: GIVEN[name]})
    fields, blobs = RemoteRun(request).packed(Limits(), {"op": "run"})
    message = WireMessage(json.loads(json.dumps(fields)), tuple(blobs))

    if name in FOLLOWED:
        assert name in message.fields
        assert options_of(message) == {"code": "1"}
    else:
        assert options_of(message) == {"code": "1", name: GIVEN[name]}
