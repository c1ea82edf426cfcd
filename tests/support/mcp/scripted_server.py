"""An MCP server of few words, friendly or hostile; standard library only.

Started as `python mcp_test_server.py FOLDER`. It offers the tools of FOLDER/tools.json,
read at each listing, and writes what happens to FOLDER/log. What a tool does goes by
its name; other methods have the answers of FOLDER/answers.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
STATE = {"requestState": "s"}
forms: dict[str, Any] = {}
"""The calls that wait for an answer to a form."""


def send(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}))


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def log(text: str) -> None:
    with (FOLDER / "log").open("a") as file:
        file.write(text + "\n")


def answer(number: Any, text: str = "done", **more: Any) -> None:
    content = [{"type": "text", "text": text}]
    send(id=number, result={"content": content, **more})


def handle(message: dict[str, Any]) -> None:
    number, method = message.get("id"), message.get("method")
    params = message.get("params", {})
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}, **answers("capabilities")}
        about = {"name": "test", "version": "1"}
        version = params["protocolVersion"]
        result = {
            "protocolVersion": version,
            "capabilities": capabilities,
            "serverInfo": about,
        }
        send(id=number, result=result)
    elif method == "tools/list":
        log("listed")
        page = json.loads((FOLDER / "tools.json").read_text())
        send(id=number, result=page if isinstance(page, dict) else {"tools": page})
    elif method == "tools/call":
        log(f"called {params['name']}")
        call(number, params["name"], params.get("arguments", {}), params)
    elif method == "notifications/cancelled":
        log(f"cancelled {params['requestId']}")
    elif method is None:
        told = json.dumps(message.get("error", message.get("result")))
        log(f"told {told}")
        if number in forms:
            answer(forms.pop(number), told)
    elif number is not None and method in answers():
        log(f"asked {method} {json.dumps(params)}")
        send(id=number, result=answers(method))
    elif number is not None:
        send(id=number, error={"code": -32601, "message": "no such method"})


def answers(name: str | None = None) -> dict[str, Any]:
    """Return the answers of FOLDER/answers.json by method, or one of them."""
    path = FOLDER / "answers.json"
    told = json.loads(path.read_text()) if path.exists() else {}
    return told if name is None else told.get(name, {})


def call(number: Any, name: str, arguments: dict[str, Any], params: Any) -> None:
    match name:
        case "echo":
            answer(number, json.dumps(arguments))
        case "die":
            os._exit(1)
        case "die_once":
            if not (FOLDER / "died").exists():
                (FOLDER / "died").touch()
                os._exit(1)
            answer(number)
        case "never":
            log(f"never answers {number}")
        case "deaf":
            log("deaf")
            while True:
                signal.pause()
        case "huge":
            write("x" * arguments["bytes"] + arguments.get("times", 0) * "[],[],")
            answer(number)
        case "nonsense":
            for line in ("{", "[]", "7", '{"jsonrpc":"1.0"}', "\x1b[2Jlog", "\x00"):
                for _ in range(arguments["times"]):
                    write(line)
            answer(number)
        case "wrong_ids":
            odd: list[Any] = [None, "x", 10**40, number + 9, -1, True, 1.5, [], {}]
            for other in odd:
                answer(other, "forged")
            write(f"[{json.dumps({'jsonrpc': '2.0', 'id': number, 'result': {}})}]")
            answer(number, "first")
            answer(number, "second")
        case "flood":
            while True:
                send(method="notifications/message", params={"level": "info"})
        case "progress":
            token = params.get("_meta", {}).get("progressToken")
            for progress in (1, 3, 2, 3, "4", None, 4):
                told = {"progressToken": token, "progress": progress, "total": 4}
                told["message"] = "\x1b[31m" + "w" * 1000
                send(method="notifications/progress", params=told)
            answer(number, str(token is not None))
            send(
                method="notifications/progress",
                params={"progressToken": token, "progress": 9},
            )
        case "ask":
            for count, method in enumerate(arguments["methods"]):
                send(id=f"ask-{count}", method=method, params=arguments["params"])
            answer(number)
        case "changed":
            send(method="notifications/tools/list_changed")
            answer(number)
        case "daemon":
            daemon()
            answer(number)
        case "raw":
            write(json.dumps(arguments["line"]).replace('"ID"', json.dumps(number)))
        case _:
            call_more(number, name, arguments, params)


def call_more(number: Any, name: str, arguments: dict[str, Any], params: Any) -> None:
    match name:
        case "say":
            sys.stderr.write(arguments["text"])
            sys.stderr.flush()
            answer(number)
        case "again" if params.get("requestState") == "s":
            answer(number, str("inputResponses" in params), resultType="complete")
        case "again":
            send(id=number, result={"resultType": "input_required", **STATE})
        case "form" if "inputResponses" in params:
            given = [params["inputResponses"]["it"], params["requestState"]]
            answer(number, json.dumps(given), resultType="complete")
        case "form" if answers("server/discover"):
            request = {"method": "elicitation/create", "params": arguments}
            asked = {"inputRequests": {"it": request}, **STATE}
            send(id=number, result={"resultType": "input_required", **asked})
        case "hasty":
            send(id="hasty", method="elicitation/create", params=arguments)
            while not (FOLDER / "is asked").exists():
                time.sleep(0.005)
            answer(number)
        case "form":
            forms[f"form-{number}"] = number
            send(id=f"form-{number}", method="elicitation/create", params=arguments)
        case _:
            send(id=number, error={"code": -32602, "message": "\x1b[2Junknown"})


def daemon() -> None:
    """Start a process that left session and group, and holds no pipe."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in range(3):
        os.close(number)
    log(f"daemon {os.getpid()}")
    signal.pause()


if __name__ == "__main__":
    log(f"started {os.getpid()} {json.dumps(dict(os.environ))}")
    for text in sys.stdin:
        handle(json.loads(text))
    log("left")
