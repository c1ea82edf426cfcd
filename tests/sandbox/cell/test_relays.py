"""The relays of a cell close sockets that other processes may still have open."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from toolcell.sandbox.cell.relays.egress_relay import EgressRelay
from toolcell.sandbox.cell.relays.port_relay import PortRelay
from toolcell.sandbox.cell.relays.streams import StreamRelay
from toolcell.sandbox.cell.wire.frames import Frame


@contextmanager
def connected(relay: StreamRelay) -> Iterator[socket.socket]:
    """Have a relay carry a connection; yield the program's end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = socket.create_connection(server.getsockname())
        with program, server.accept()[0] as accepted:
            stream = relay.add(1, socket.socket(fileno=accepted.detach()))
            relay.settle(stream)
            yield program


def ignore(_: bytes) -> None:
    """Take a frame that no test looks at."""


def test_a_closed_stream_is_not_served_though_another_process_has_it_open() -> None:
    relay = PortRelay(ignore)
    with connected(relay) as program, ExitStack() as elsewhere:
        elsewhere.enter_context(socket.socket(fileno=socket.dup(*relay._by_fd)))
        relay.close_streams()
        program.sendall(b"to a closed stream")
        relay.pump()

        assert relay.epoll.poll(0) == []


def test_a_port_that_is_given_up_is_not_served_though_it_is_open_elsewhere() -> None:
    relay = PortRelay(ignore)
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as elsewhere:
        port = server.getsockname()[1]
        relay.handle_frame(
            Frame({"type": "port_open", "id": 1, "port": port}, b"", b"")
        )
        elsewhere.enter_context(socket.socket(fileno=socket.dup(*relay._attempts)))
        relay.handle_frame(Frame({"type": "port_close", "id": 1}, b"", b""))
        relay.pump()

        assert relay.epoll.poll(0) == []


def test_a_listener_of_a_run_that_ended_is_not_served_though_it_is_open() -> None:
    relay = EgressRelay(ignore, -1)
    relay.begin({"connections": 1, "listeners": [("127.0.0.1", 0, "")]})
    [(fd, (port, _))] = [each for each in relay._ports.items() if each[1][1] == 0]
    address = "127.0.0.1", port.number
    with ExitStack() as elsewhere:
        elsewhere.enter_context(socket.socket(fileno=socket.dup(fd)))
        relay.finish()
        elsewhere.enter_context(socket.create_connection(address))
        relay.pump()

        assert relay.epoll.poll(0) == []
    relay.shut_down()


def test_tiny_pieces_of_a_stream_wait_as_few_large_ones() -> None:
    relay, sent, came = PortRelay(ignore), bytearray(), bytearray()

    def give(piece: bytes) -> None:
        relay.handle_frame(Frame({"type": "port_data", "id": 1}, b"", piece))
        sent.extend(piece)

    with connected(relay) as program:
        stream = relay._streams[1]
        while not stream.unsent:
            give(b"x" * 65_536)
        for number in range(5_000):
            give(bytes([number % 251]))
        assert len(stream.unsent) < 10

        program.settimeout(30)
        while len(came) < len(sent):
            came += program.recv(65_536)
            relay.pump()
        assert came == sent
        relay.close_streams()
