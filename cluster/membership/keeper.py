"""The actor that has a node on each machine of a Ray cluster."""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from typing import Any

from pydantic import ValidationError

from .capacity import RESOURCE, Demand, Holding
from .connection import imported_ray
from .node_actor import ActorStatus, NodeActor

KEEPER = "toolcell-keeper"
_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
_STOP_SECONDS = 4.0
_log = logging.getLogger(__name__)


class Keeper:
    """Starts an actor on each machine that has the resource `toolcell`.

    It knows nothing that it could not find again: when it is lost Ray starts it anew,
    and it takes the actors that are there by their names. Nor do links need it.

    Args:
        sealed: The `NodeSettings`.
        digest: Tells these settings from others.
        namespace: The namespace of all actors.
    """

    def __init__(self, sealed: bytes, digest: str, namespace: str) -> None:
        self._sealed = sealed
        self._digest = digest
        self._namespace = namespace
        self._machines: dict[str, _Machine] = {}
        self._demand = Demand()
        self._asked: _Asked | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toolcell", daemon=True)
        self._thread.start()

    def digest(self) -> str:
        """Return what tells its settings from others."""
        return self._digest

    def nodes(self) -> list[str]:
        """Return the records of all nodes, as JSON."""
        found = [machine.status.record for machine in list(self._machines.values())]
        return [record.model_dump_json() for record in found if record is not None]

    def problems(self) -> list[str]:
        """Return why machines have no node, with their names."""
        return [
            f"{machine.name}: {machine.status.problem}"
            for machine in list(self._machines.values())
            if machine.status.problem
        ]

    def tell(self, driver: str, waiting: int, seconds: float) -> None:
        """Note how many runs wait in a driver; it holds for so many seconds."""
        with self._lock:
            self._demand.tell(driver, waiting, time.monotonic() + seconds)

    def waiting(self) -> int:
        """Return how many runs wait in all drivers."""
        with self._lock:
            return self._demand.waiting(time.monotonic())

    def stop(self) -> None:
        """End all nodes, and start no more."""
        self._stopped.set()
        self._thread.join(_STOP_SECONDS)
        for machine in list(self._machines.values()):
            machine.end()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - the head may be away for a while
                _log.warning("the machines could not be seen: %s", type(error).__name__)

    def _look(self) -> None:
        ray = imported_ray()
        now = time.monotonic()
        there = {
            node["NodeID"]: node
            for node in ray.nodes()
            if node["Alive"] and _slots(node)
        }
        for gone in self._machines.keys() - there.keys():
            self._machines.pop(gone).let_go()
        for number in there.keys() - self._machines.keys():
            self._machines[number] = _Machine(there[number])
        machines = list(self._machines.values())
        for machine in machines:
            machine.keep(self._sealed, self._namespace)
        asked = {machine.actor.status.remote(): machine for machine in machines}
        ready, late = (
            ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_SECONDS)
            if asked
            else ([], [])
        )
        for answer in ready:
            asked[answer].take(answer)
        # One that does not answer keeps its record: drivers see for themselves.
        for answer in late:
            ray.cancel(answer)
        for machine in machines:
            machine.hold(now)
        with self._lock:
            wanted = self._demand.slots(now)
        self._ask_for(wanted)

    def _ask_for(self, slots: int) -> None:
        """Have one placement group that waits, for what is asked for now."""
        if self._asked is not None and (
            self._asked.slots != slots or self._asked.is_placed()
        ):
            self._asked.drop()
            self._asked = None
        if self._asked is None and slots:
            self._asked = _Asked(slots)


class _Machine:
    """One machine of Ray: its actor, and what is held of it."""

    def __init__(self, node: dict[str, Any]) -> None:
        self._number = str(node["NodeID"])
        self._host = str(node["NodeManagerAddress"])
        self._slots = _slots(node)
        host = re.sub(r"[^A-Za-z0-9]+", "-", str(node["NodeManagerHostname"]))
        self.name = f"{host.strip('-')[:40] or 'node'}-{self._number[:12]}"
        self.status = ActorStatus()
        self.actor: Any = None
        self._holding = Holding(self._slots)
        self._groups: list[Any] = []

    def keep(self, sealed: bytes, namespace: str) -> None:
        """Have an actor there."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self.actor is None:
            options = (
                imported_ray()
                .remote(NodeActor)
                .options(
                    name=f"toolcell-node-{self._number}",
                    namespace=namespace,
                    get_if_exists=True,
                    lifetime="detached",
                    num_cpus=0,
                    max_restarts=-1,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(
                        self._number, soft=False
                    ),
                )
            )
            self.actor = options.remote(sealed, self.name, self._host, self._slots)

    def take(self, answer: Any) -> None:
        """Take the answer of the actor."""
        ray = imported_ray()
        try:
            self.status = ActorStatus.model_validate_json(ray.get(answer))
        except ray.exceptions.ActorDiedError:
            # For good; another one is made if the machine is there still.
            self.actor, self.status = None, ActorStatus(state="lost")
        except (ray.exceptions.RayError, ValidationError):
            # Ray starts it anew.
            self.status = ActorStatus(state="lost")

    def hold(self, now: float) -> None:
        """Hold of the machine what is in use, or cannot be used."""
        is_full = self.status.state in ("draining", "sick", "ended")
        busy = self._slots if is_full else self.status.busy
        wanted = self._holding.parts(busy, now)
        while len(self._groups) > wanted:
            _drop(self._groups.pop())
        while len(self._groups) < wanted:
            self._groups.append(_group([self._holding.part], self._number))

    def let_go(self) -> None:
        """Hold nothing of it any more."""
        while self._groups:
            _drop(self._groups.pop())

    def end(self) -> None:
        """End its actor."""
        self.let_go()
        if self.actor is not None:
            imported_ray().kill(self.actor, no_restart=True)


class _Asked:
    """A placement group that waits for slots which are not there yet."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._group = _group([1] * slots, None)

    def is_placed(self) -> bool:
        """Return True if there was room for it."""
        return bool(self._group.wait(0))

    def drop(self) -> None:
        """Ask no more."""
        _drop(self._group)


def _group(parts: list[int], node: str | None) -> Any:
    from ray.util import placement_group

    # No two may have the same name.
    what = "waiting" if node is None else "held"
    where = None if node is None else [{"ray.io/node-id": node}] * len(parts)
    return placement_group(
        [{RESOURCE: part} for part in parts],
        name=f"toolcell-{what}-{secrets.token_hex(8)}",
        bundle_label_selector=where,
    )


def _drop(group: Any) -> None:
    from ray.util import remove_placement_group

    remove_placement_group(group)


def _slots(node: dict[str, Any]) -> int:
    return int(node["Resources"].get(RESOURCE, 0))
