"""The parts of all servers over HTTP: sockets, connections, tokens, bodies, streams."""
