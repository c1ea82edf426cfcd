"""Computes, prints, looks for a secret, phones home, and does not stop."""

import os
import socket

print("pi is about", sum(4 * (-1) ** n / (2 * n + 1) for n in range(100_000)))
print("environment:", sorted(os.environ))

try:
    print("secret:", open("/etc/shadow").read())
except OSError as error:
    print("secret:", error)

try:
    socket.create_connection(("192.0.2.1", 443), timeout=1)
    print("network: phoned home")
except OSError as error:
    print("network:", error)

while True:
    pass
