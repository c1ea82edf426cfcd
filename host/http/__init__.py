"""What all servers over HTTP share: sockets, connections, tokens, streams, metrics."""
