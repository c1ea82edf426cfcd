"""What a node returns to steer the graph."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from toolcell.core import InvalidInputError
from toolcell.flow import END, Command, Continue, Send, end, goto
from toolcell.flow.spi import End, is_command, normalize_node_output, resume_with


class State(BaseModel):
    a: int = 0


class Part(BaseModel):
    a: int = 0
    b: int = 0


@pytest.mark.promise("LC-21")
def test_a_command_holds_update_target_answer_and_graph() -> None:
    command = Command(update={"a": 1}, goto=["x", Send("y")], resume=None, graph="g")

    assert (command.has_update, command.has_goto, command.has_resume) == (True,) * 3
    assert command.goto_nodes == ["x", "y"]
    assert command.with_update(b=2).update == {"a": 1, "b": 2}
    assert command.with_goto("z").goto_nodes == ["z"]
    assert command.update == {"a": 1}
    with pytest.raises(InvalidInputError, match="Command is not valid"):
        Command.model_validate({"goto": 5})
    with pytest.raises(InvalidInputError):
        Command.model_validate({"unknown": 1})


@pytest.mark.promise("RL-17", "flow-01")
def test_none_is_an_answer_and_no_answer_is_not_none() -> None:
    assert resume_with(None).has_resume
    assert not Command().has_resume
    assert not Command().has_goto


@pytest.mark.promise("LC-22")
def test_end_and_continue_take_no_other_way() -> None:
    assert End(update={"a": 1}).goto == END
    assert Continue(update={"a": 1}).goto is None
    with pytest.raises(InvalidInputError, match="use Command"):
        End(goto="x")
    with pytest.raises(InvalidInputError, match="use Command"):
        Continue(goto="x")


@pytest.mark.promise("LC-23", "LC-24", "LC-25", "flow-01")
@pytest.mark.parametrize(
    ("made", "update", "target", "answer"),
    [
        (goto("n", a=1), {"a": 1}, "n", False),
        (goto("n", {"target": 1}, a=2), {"target": 1, "a": 2}, "n", False),
        (end(a=1), {"a": 1}, END, False),
        (end({"updates": 1}), {"updates": 1}, END, False),
        (resume_with(3, a=1), {"a": 1}, None, True),
        (resume_with(None, {"value": 1}), {"value": 1}, None, True),
    ],
)
def test_the_short_forms_build_commands(
    made: Command, update: dict[str, int], target: str | None, answer: bool
) -> None:
    assert (made.update, made.goto, made.has_resume) == (update, target, answer)


@pytest.mark.promise("LC-26")
def test_only_commands_are_commands() -> None:
    assert is_command(End())
    assert is_command(goto("x"))
    assert not is_command({"goto": "x"})


@pytest.mark.promise("LC-27", "flow-02")
@pytest.mark.parametrize(
    ("output", "update"),
    [
        ({"a": 1}, {"a": 1}),
        (None, {}),
        (5, {"result": 5}),
        ([1], {"result": [1]}),
        (Part(b=2), {"b": 2}),
    ],
)
def test_any_output_is_an_update(output: Any, update: dict[str, Any]) -> None:
    assert normalize_node_output(output, State) == (update, None)


@pytest.mark.promise("LC-27", "flow-02")
def test_a_command_is_its_update_and_itself() -> None:
    command = goto("x", a=1)

    assert normalize_node_output(command) == ({"a": 1}, command)


@pytest.mark.promise("LC-27", "flow-02")
def test_the_state_itself_is_no_update() -> None:
    with pytest.raises(InvalidInputError, match="the state itself"):
        normalize_node_output(State(a=1), State)
