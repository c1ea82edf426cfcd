"""An MCP server that tries what a stranger's program may try; standard library only.

Its text is the argument of `python3 -c`, so that it needs no file in a cell. What a
tool does goes by its name; `ask` answers with the value of an expression of Python.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

NAMES = ("ask", "die", "flood", "fork", "half", "never", "stderr")


def send(number: Any, **more: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": number, **more}), flush=True)


def answer(number: Any, value: Any) -> None:
    text = json.dumps(value, default=str)
    send(number, result={"content": [{"type": "text", "text": text}]})


def evaluated(expression: str) -> Any:
    try:
        return eval(expression)
    except Exception as error:
        return type(error).__name__


def forked() -> int:
    """Start processes until no more are given; return how many there were."""
    for count in range(1000):
        try:
            if not os.fork():
                os.setsid()
                signal.pause()
        except OSError:
            return count
    return 1000


def call(number: Any, name: str, arguments: dict[str, Any]) -> None:
    if name == "ask":
        answer(number, evaluated(arguments["expression"]))
    elif name == "die":
        sys.stderr.write(f"the key is {os.environ.get('KEY')}\nI die of it")
        sys.stderr.flush()
        os._exit(7)
    elif name == "flood":
        while True:
            os.write(1, b'{"jsonrpc": "2.0", "method": "notifications/x"}\n' * 100)
    elif name == "fork":
        answer(number, forked())
    elif name == "half":
        while True:
            os.write(1, b"x" * 65536)
    elif name == "stderr":
        for _ in range(arguments["mib"]):
            os.write(2, b"x" * 1048576)
        answer(number, "done")


def main() -> None:
    odd = {"name": "odd", "inputSchema": 7, "description": ["x"]}
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message.get("method")
        params = message.get("params", {})
        if method == "initialize":
            result = {
                "protocolVersion": params["protocolVersion"],
                "serverInfo": {"name": "cell", "version": "1"},
                "capabilities": {"tools": {}},
            }
            send(number, result=result)
        elif method == "tools/list":
            send(number, result={"tools": [*tools, odd]})
        elif method == "tools/call":
            call(number, params["name"], params.get("arguments", {}))
        elif number is not None:
            send(number, error={"code": -32601, "message": "no such method"})


if __name__ == "__main__":
    if sys.argv[1:2] == ["deaf"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    main()
    if sys.argv[1:2] == ["deaf"]:
        signal.pause()
