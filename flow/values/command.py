"""Commands, which a node returns to steer the graph."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeGuard

from pydantic import BaseModel, Field, model_validator

from toolcell.core import InvalidInputError
from toolcell.core.models import FrozenModel

from .send import Send

START: Final = "__start__"
"""The beginning of a thread; only a source of edges and routes."""

END: Final = "__end__"
"""The end of a branch; only a target."""

_Target = str | Send | list[str | Send] | None


class _Unset(Enum):
    UNSET = "unset"


UNSET: Final = _Unset.UNSET
"""Stands for no answer: None is one."""


class Command(FrozenModel):
    """An update of the state, and where to go next."""

    update: dict[str, Any] = Field(default_factory=dict)
    """Fields of the state that change, merged by their reducers."""

    goto: _Target = None
    """A node, a Send, or a list of both, which run in parallel; `END` ends the branch.
    None: the normal way."""

    resume: Any = UNSET
    """The answer to the one open question, in `Flow.resume`."""

    graph: str | None = None
    """The graph that it is for; None: the node's own. No other can be named yet."""

    @property
    def has_update(self) -> bool:
        """True if it changes the state."""
        return bool(self.update)

    @property
    def has_goto(self) -> bool:
        """True if it names targets."""
        return self.goto is not None

    @property
    def has_resume(self) -> bool:
        """True if it carries an answer, which may be None."""
        return self.resume is not UNSET

    @property
    def targets(self) -> list[str | Send]:
        """The targets as a list; empty for the normal way."""
        if self.goto is None:
            return []
        return self.goto if isinstance(self.goto, list) else [self.goto]

    @property
    def goto_nodes(self) -> list[str]:
        """The names of the nodes to go to, those of Sends included."""
        return [
            target if isinstance(target, str) else target.node
            for target in self.targets
        ]

    def with_update(self, **updates: Any) -> Command:
        """Return this command with further changes of the state."""
        return self.model_copy(update={"update": {**self.update, **updates}})

    def with_goto(self, target: _Target) -> Command:
        """Return a command with the same update and answer that goes elsewhere."""
        return Command(
            update=self.update, goto=target, resume=self.resume, graph=self.graph
        )


class End(Command):
    """End the whole thread when the step commits; siblings' updates are merged."""

    goto: _Target = END

    @model_validator(mode="after")
    def _only_end(self) -> End:
        if self.goto != END:
            raise ValueError("End takes no goto; use Command")
        return self


class Continue(Command):
    """Update the state, and take the normal way."""

    @model_validator(mode="after")
    def _no_goto(self) -> Continue:
        if self.goto is not None:
            raise ValueError("Continue takes no goto; use Command")
        return self


def goto(
    target: str | Send | list[str | Send],
    updates: Mapping[str, Any] | None = None,
    /,
    **named: Any,
) -> Command:
    """Return a command that goes somewhere; a dict carries names that are taken."""
    return Command(goto=target, update={**(updates or {}), **named})


def end(updates: Mapping[str, Any] | None = None, /, **named: Any) -> End:
    """Return a command that ends the thread, with last changes of the state."""
    return End(update={**(updates or {}), **named})


def resume_with(
    value: Any, updates: Mapping[str, Any] | None = None, /, **named: Any
) -> Command:
    """Return a command that answers the open question; None is an answer."""
    return Command(resume=value, update={**(updates or {}), **named})


def is_command(value: Any) -> TypeGuard[Command]:
    """Return whether a value is a Command."""
    return isinstance(value, Command)


def normalize_node_output(
    output: Any, state: type[BaseModel] | None = None
) -> tuple[dict[str, Any], Command | None]:
    """Return the update that a node's output stands for, and its command.

    A dict is an update, a Command has one, None is no update, a model stands
    for the fields that were set; anything else is `{"result": value}`.

    Args:
        output: The value that the node returned.
        state: The model of the graph's state.

    Raises:
        InvalidInputError: It is the state itself, which would be merged twice.
    """
    if output is None:
        return {}, None
    if is_command(output):
        return dict(output.update), output
    if isinstance(output, Mapping):
        return dict(output), None
    if state is not None and isinstance(output, state):
        raise InvalidInputError(
            "a node returned the state itself",
            hint="return a dict of the fields that change",
        )
    if isinstance(output, BaseModel):
        return {name: getattr(output, name) for name in output.model_fields_set}, None
    return {"result": output}, None
