"""A rollout of verifiers whose program is in a cell; its model is scripted."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import verifiers.v1 as vf
from verifiers.v1.clients import EvalClientConfig

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers.verifiers import ToolcellRuntime

POLICY = AgentPolicy(
    agent_id="verifiers",
    allow=["exec", {"tools": ["read_file"], "when": {"path": {"equals": "answer"}}}],
)
COMMANDS = ["echo 42 > answer", "DONE"]
PROGRAM = """
import json, subprocess, sys, urllib.request
url, key, said = sys.argv[1], sys.argv[2], [{"role": "user", "content": sys.argv[3]}]
while True:
    body = json.dumps({"model": "scripted", "messages": said}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", body, headers)
    answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    if answer["content"] == "DONE":
        break
    done = subprocess.run(answer["content"], shell=True, capture_output=True, text=True)
    said += [answer, {"role": "user", "content": f"exit code {done.returncode}"}]
"""


class Endpoint(BaseHTTPRequestHandler):
    """The model: it says the next command, whatever it is asked."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": COMMANDS.pop(0)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {
            "id": "one",
            "object": "chat.completion",
            "created": 0,
            "model": "scripted",
            "choices": [choice],
        }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        pass


class Harness(vf.Harness[vf.HarnessConfig]):
    """Starts the program above in the runtime."""

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        return await runtime.run_program(
            ["python3", "-c", PROGRAM, endpoint, secret, data.prompt], {}
        )


class Sum(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    """Asks for a sum; the runtime has what became of it."""

    @vf.reward
    async def right(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return float((await runtime.read("answer")).strip() == b"42")


async def main() -> None:
    """Roll out one task; then let the guard refuse a file."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = EvalClientConfig(base_url=f"http://127.0.0.1:{server.server_port}/v1")
    config = vf.AgentConfig(
        model="scripted", client=client, runtime=vf.SubprocessConfig()
    )
    agent = vf.Agent(config)  # its own runtime is never made
    agent.harness = Harness(vf.HarnessConfig(id="script"))
    runtime = ToolcellRuntime(guard=ActionGuard([POLICY]))
    await runtime.start()
    task = Sum(vf.TaskData(idx=0, prompt="Write 40 + 2 into `answer`."))
    async with agent:
        trace = await agent.run(task, runtime=runtime)
    print("errors:", [error.message for error in trace.errors])
    print("rewards:", trace.rewards)
    try:
        await runtime.read("/etc/passwd")
    except vf.SandboxError as error:
        print("refused:", error)
    await runtime.stop()
    server.shutdown()


asyncio.run(main())
