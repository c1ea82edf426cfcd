"""The host's side of a run's network: decides, connects, counts and records.

Theory of operation. The relay in the cell (`cell/relays/egress_relay.py`) passes on
every byte that programs send to its port. Here one task for each connection reads the
proxy request (`proxy.py`), or knows the rule whose listener took the connection, looks
the name up, and connects to an address that the rules allow. It connects to the very
address that was checked, so a name cannot lead elsewhere a moment later. What goes into
a tunnel is checked as well (`tunnel.py`). A redirect is a request like any other. All
decisions about what a program sends are made here, but that a gate is asked about the
connections and requests of guarded networks (`admission.py`).
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from contextvars import copy_context
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from pydantic import JsonValue

from toolcell.core import CellLostError

from ..cell.wire.contract import PIECE_BYTES
from ..cell.wire.frames import FrameError
from ..config.network import Network
from ..config.settings import Limits
from ..results.result import Connection
from . import stream as egress_stream
from .admission import admitted, use_credentials
from .attempt import Attempt
from .exchange import answer_to
from .gate import ActName, NetworkAct, RequestGate
from .held_body import Share
from .http_request import HTTPRequest, new_writer
from .proxy import ProxyRequest, http_answer, read_proxy_request
from .run_clock import Pausable
from .stream import CellStream
from .tunnel import forward_opaque, read_tunnel_preamble
from .types import EgressError, OnConnection, ProgramEnd, Resolver, SendFrame

if TYPE_CHECKING:
    from ..credentials.agents import AgentCredentials
    from .inspector import Inspector

_CONNECT_SECONDS = 10.0


class SpawnConnection(Protocol):
    """Starts a task that may run longer than its caller."""

    def __call__(
        self, function: Callable[[Attempt], Coroutine[Any, Any, None]], /, *args: Any
    ) -> Any: ...


class Egress:
    """The network of one run.

    Each connection is served by one task and recorded once, when it has ended or was
    refused. `limits.connections` and `limits.network_bytes` count over the whole run,
    both directions together; when the bytes are used up all connections end. A fault
    in the proxy ends one connection, closed, and never the run.

    Args:
        network: The hosts that its program may reach.
        limits: Caps on connections and bytes.
        resolve: Looks names up.
        spawn: Starts tasks; exceptions in them are handled here.
        on_connection: Called with each connection when it has ended or was refused.
        addresses: Addresses of the cell's loopback by the names that lead there.
        gate: Judges what goes to a guarded network; None refuses all of that.
        inspector: Says whose HTTPS is inspected; None: no one's.
        credentials: Those of its program's agent; None: it has none.
        agent_id: The agent whose share of the room for held bodies it uses.
    """

    def __init__(
        self,
        network: Network,
        limits: Limits,
        *,
        resolve: Resolver,
        spawn: SpawnConnection,
        on_connection: OnConnection | None = None,
        addresses: Mapping[str, str] | None = None,
        gate: RequestGate | None = None,
        inspector: Inspector | None = None,
        credentials: AgentCredentials | None = None,
        agent_id: str | None = None,
    ) -> None:
        self.listeners = network.rules.listeners(addresses or {})
        """Address, port and host of each rule for one name."""

        self._network, self._rules = network, network.rules
        self._gate = gate
        self._inspector = inspector
        self._credentials = credentials
        # Of the caller, whose call the program's acts belong to.
        self._context = copy_context()
        self._max_connections = limits.connections
        self._bytes_left = limits.network_bytes
        self._resolve = resolve
        self._spawn = spawn
        self._on_connection = on_connection
        self._send_frame: SendFrame | None = None
        self._clock: Pausable
        self._opened = self._reached = 0
        self._share = Share(agent_id)
        self._attempts: dict[int, Attempt] = {}
        self._records: dict[int, Connection] = {}
        self._over = False
        self._problem: Exception | None = None
        self.spent = 0
        """Bytes that went through, both directions together."""

    @property
    def request(self) -> dict[str, Any]:
        """The part of a request to run that concerns the network."""
        return {
            "set_variables": self._network.mode != "none",
            "without_proxy": self._rules.without_proxy(),
            "is_inspected": self._inspector is not None,
            "variables": self._credentials.variables if self._credentials else {},
            "connections": self._max_connections,
            "listeners": self.listeners,
        }

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Records of ended connections, in the order in which they were opened."""
        return tuple(self._records[number] for number in sorted(self._records))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about limits that were reached."""
        found = []
        if max(self._opened, self._reached) >= self._max_connections:
            found.append(f"the run has used up its {self._max_connections} connections")
        if not self._bytes_left:
            found.append("the run has used up its network_bytes")
        return tuple(found)

    @property
    def max_pause_seconds(self) -> float:
        """Seconds for which the program's clock may stand still in all."""
        if self._gate is None or self._network.mode != "guarded":
            return 0.0
        return self._gate.max_pause_seconds

    def begin(self, send_frame: SendFrame, clock: Pausable) -> None:
        """Set the function that sends frames to the cell, and the program's clock."""
        self._send_frame, self._clock = send_frame, clock

    def serve(self, header: dict[str, Any], payload: bytes) -> None:
        """Handle a frame of the cell, without waiting.

        Raises:
            FrameError: No cell of ours sends such a frame.
        """
        kind, number = header["type"], header["id"]
        if self._over:
            return
        if kind == "net_open":
            self._opened += 1
            if self._opened > self._max_connections or number in self._attempts:
                raise FrameError("a connection that is not allowed")
            assert self._send_frame is not None
            attempt = Attempt(CellStream(number, self._send_frame))
            if "listener" in header:
                attempt.host, attempt.port = self._rule_of(header["listener"])
            self._attempts[number] = attempt
            self._context.run(self._spawn, self._serve, attempt)
        elif kind not in ("net_data", "net_credit", "net_end", "net_close"):
            raise FrameError(f"unexpected frame {kind[:40]!r}")
        elif number in self._attempts:
            self._attempts[number].stream.take(kind, header, payload)

    def _rule_of(self, listener: object) -> tuple[str, int]:
        """Return host and port of a listener's rule. Raises FrameError."""
        if type(listener) is not int or not 0 <= listener < len(self.listeners):
            raise FrameError("a listener that no cell of ours has")
        _, port, host = self.listeners[listener]
        return host, port

    async def set_network(self, network: Network) -> None:
        """Change the rules; return when connections that they forbid have ended."""
        self._network, self._rules = network, network.rules
        attempts = self._attempts.values()
        ended = [attempt for attempt in attempts if not self._may_stay(attempt)]
        for attempt in ended:
            attempt.stop("the rules have changed")
        for attempt in ended:
            await attempt.over.wait()

    def _may_stay(self, attempt: Attempt) -> bool:
        if not attempt.asked:
            return True
        if self._network.mode == "guarded" and not attempt.is_guarded:
            return False
        found = attempt.address
        return self._rules.allow(attempt.host, attempt.port) and (
            found is None or self._rules.allow_address(found, attempt.port)
        )

    def stop(self) -> None:
        """Cancel every connection, and accept no more."""
        self._over = True
        for attempt in self._attempts.values():
            attempt.stop()
            attempt.cleanup_scope.cancel()

    async def aclose(self) -> None:
        """End every connection; the cell ends its side by itself.

        Raises:
            Exception: `on_connection` raised it.
        """
        self.stop()
        with anyio.CancelScope(shield=True):
            for attempt in list(self._attempts.values()):
                await attempt.over.wait()
        if self._problem is not None:
            raise self._problem

    async def _serve(self, attempt: Attempt) -> None:
        """Serve one connection from its first byte to its record."""
        try:
            with attempt.scope:
                await self._carry(attempt)
        except (OSError, CellLostError) as error:
            attempt.stop(error)
        except Exception as error:  # noqa: BLE001 - a fault ends one connection, closed
            attempt.judge("failed", f"{type(error).__name__} in the proxy")
        finally:
            with attempt.cleanup_scope:
                await self._end(attempt)
            del self._attempts[attempt.stream.number]
            attempt.over.set()

    async def _end(self, attempt: Attempt) -> None:
        try:
            if attempt.asked:
                self._record(attempt.stream.number, attempt.record())
            if not self._over:
                await attempt.stream.aclose()
        except CellLostError:
            return

    def _record(self, number: int, record: Connection) -> None:
        self._records[number] = record
        if self._on_connection is not None:
            try:
                self._on_connection(record)
            except Exception as error:  # noqa: BLE001 - raised to the run's caller
                self._problem = error

    async def _carry(self, attempt: Attempt) -> None:
        stream = attempt.stream
        try:
            if attempt.host:
                proxy_request: ProxyRequest | None = ProxyRequest(
                    host=attempt.host, port=attempt.port, direct=True
                )
            else:
                proxy_request = await read_proxy_request(stream)
        except EgressError as error:
            attempt.asked = True
            attempt.judge("refused", error)
            await stream.send(error.answer)
            return
        if proxy_request is None:
            return
        attempt.asked = True
        attempt.host, attempt.port = proxy_request.host, proxy_request.port
        try:
            self._require_allowed(attempt)
            inspector = self._inspector
            if inspector is not None and inspector.inspects(*attempt.place):
                if proxy_request.http is not None:
                    raise EgressError("it is inspected, and reached by HTTPS alone")
                await self._inspect(attempt, proxy_request, inspector)
                return
            async with self.judged(attempt, proxy_request.http):
                await self._carry_to(attempt, proxy_request)
        except EgressError as error:
            attempt.judge("refused", error)
            await stream.send(proxy_request.error_reply(str(error), error.headers))
            if error.headers:
                await stream.turn_away()

    async def _inspect(
        self, attempt: Attempt, proxy_request: ProxyRequest, inspector: Inspector
    ) -> None:
        """Serve the requests of an attempt inside of its TLS."""
        from .inspection import InspectedConnection

        attempt.is_guarded = self._network.mode == "guarded"
        await attempt.stream.send(proxy_request.success_reply)
        try:
            hello = await read_tunnel_preamble(attempt.stream, proxy_request)
        except EgressError as error:
            attempt.judge("refused", error)
            return
        first = hello if isinstance(hello, bytes) else b""
        await InspectedConnection(attempt, inspector, self).serve(first)

    async def _carry_to(self, attempt: Attempt, proxy_request: ProxyRequest) -> None:
        """Carry the bytes of an attempt that may go on. Raises EgressError."""
        stream = attempt.stream
        try:
            remote = await self.reach(attempt)
        except OSError as error:
            attempt.judge("failed", str(error) or "nobody answered in time")
            await stream.send(proxy_request.error_reply(attempt.reason, failed=True))
            return
        with closing(remote):
            attempt.judge("allowed")
            await stream.send(proxy_request.success_reply)
            await self._relay(attempt, proxy_request, remote)

    @asynccontextmanager
    async def judged(
        self,
        attempt: Attempt,
        http: HTTPRequest | None,
        program: ProgramEnd | None = None,
        outcome: Callable[[], Mapping[str, JsonValue]] | None = None,
    ) -> AsyncIterator[None]:
        """Have an attempt, or a request on it, admitted; the body goes on with it.

        Args:
            attempt: It.
            http: The request; None for a connection that nobody reads.
            program: The program's end of it. Default: the stream of the attempt.
            outcome: Returns what became of it. Default: that of the attempt.

        Raises:
            EgressError: On entering: it is not admitted.
        """
        is_guarded = self._network.mode == "guarded"
        name: ActName = "net.connect"
        facts: dict[str, JsonValue] = {"host": attempt.host, "port": attempt.port}
        end, hold = program or attempt.stream, None
        if http is not None and is_guarded:
            name, facts = http.act, http.exactly()
            if facts["content_length"] != 0:
                hold = partial(http.hold, end, self._share)
        act = NetworkAct(
            name=name,
            arguments=facts,
            stop=partial(attempt.stop, "a person stopped it"),
            outcome=outcome or attempt.outcome,
            hold_body=hold,
        )
        gate = self._gate if is_guarded else None
        if http is not None and self._credentials is not None:
            # The exact spelling may show a placeholder that another one hid.
            await use_credentials(http, self._credentials, gate, act)
        if not is_guarded:
            yield
            return
        attempt.is_guarded = True
        async with admitted(gate, act, self._clock, end, attempt.withdraw, http):
            yield

    def _require_allowed(self, attempt: Attempt) -> None:
        """Raise EgressError if the rules or the limits forbid an attempt."""
        if not self._rules.allow(attempt.host, attempt.port):
            raise EgressError(f"{attempt.host} port {attempt.port} is not allowed")
        if not self._bytes_left:
            raise EgressError("the run has used up its network_bytes")

    async def reach(self, attempt: Attempt) -> socket.socket:
        """Return a connection to the host that an attempt asks for.

        Raises:
            EgressError: The rules or the limits forbid it.
            OSError: The host does not answer, or not in time.
        """
        host, port = attempt.host, attempt.port
        # The rules may have changed while a person looked.
        self._require_allowed(attempt)
        # An inspected connection reaches its server again when that has closed.
        self._reached += 1
        if self._reached > self._max_connections:
            raise EgressError(
                f"the run has used up its {self._max_connections} connections"
            )
        with anyio.fail_after(_CONNECT_SECONDS):
            addresses = await self._addresses(host, port)
            problem: Exception = EgressError(
                f"{host} leads to {addresses[0]}, which is not on the public internet; "
                "the list would have to name it"
            )
            for address in addresses:
                # Checked at the last moment: the rules may have changed meanwhile.
                if not self._rules.allow_address(address, port):
                    continue
                attempt.address = address
                try:
                    return await egress_stream.connect(address, port)
                except OSError as error:
                    problem = error
            raise problem

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        if ":" in host or host.rpartition(".")[2].isdigit():
            return [host]
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise OSError(f"{host} has no address")
        return [str(ip_address(each.partition("%")[0])) for each in found]

    async def _relay(
        self, attempt: Attempt, proxy_request: ProxyRequest, remote: socket.socket
    ) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._download, attempt, remote)
            await self._upload(attempt, proxy_request, remote)

    async def _upload(
        self, attempt: Attempt, proxy_request: ProxyRequest, remote: socket.socket
    ) -> None:
        async def send(data: bytes) -> None:
            if self.pay(len(data)):
                attempt.bytes_out += len(data)
                await egress_stream.send(remote, data)

        stream = attempt.stream
        try:
            preamble = proxy_request.http or await read_tunnel_preamble(
                stream, proxy_request
            )
            if isinstance(preamble, HTTPRequest):
                is_new = preamble is not proxy_request.http
                async with self.judged(attempt, preamble) if is_new else nullcontext():
                    out = new_writer()
                    attempt.response = answer_to(attempt, preamble, out)
                    await preamble.make(out, stream, send)
                    # One request, one connection: the next was not checked.
                    while await stream.receive():
                        pass
                return
            await forward_opaque(preamble, stream, send)
            remote.shutdown(socket.SHUT_WR)
        except EgressError as error:
            attempt.judge("refused", error)
            if attempt.response is None and error.headers:
                reply = http_answer("403 Forbidden", str(error), error.headers)
                await stream.send(reply)
                await stream.turn_away()
            attempt.stop()
        except (OSError, CellLostError) as error:
            attempt.stop(error)

    async def _download(self, attempt: Attempt, remote: socket.socket) -> None:
        stream = attempt.stream
        # Page faults of new memory cost more than bytes; a map has only touched pages.
        buffer = memoryview(mmap.mmap(-1, PIECE_BYTES))
        try:
            while True:
                room = buffer[: await stream.room()]
                data = await egress_stream.receive_into(remote, room)
                if not data:
                    break
                if self.pay(len(data)):
                    attempt.bytes_in += len(data)
                    head = attempt.response
                    shown = data if head is None else await head.pass_on(data)
                    await stream.send(shown)
            if attempt.response is not None:
                await stream.send(await attempt.response.end())
            await stream.end()
        except (OSError, CellLostError) as error:
            attempt.stop(error)

    def pay(self, size: int) -> bool:
        """Charge bytes to the run. At the limit end all connections; False then."""
        if size <= self._bytes_left:
            self._bytes_left -= size
            self.spent += size
            return True
        self._bytes_left = 0
        for attempt in self._attempts.values():
            attempt.stop("the run has used up its network_bytes")
        return False
