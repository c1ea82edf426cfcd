"""Ports, pauses, archives, watches, networks where cells have their caller's user."""

from __future__ import annotations

import json
import os
import tempfile

from ...support.ordinary_user import (
    ORDINARY_USER,
    as_ordinary_user,
    need_an_ordinary_user,
)

_BEFORE = """
import encodings.idna, http.server, threading
from toolcell.core import InvalidInputError
from toolcell.sandbox import Network
from toolcell.sandbox.sessions import archives as session_archives
from toolcell.sandbox.client.workdir import WorkDir
from toolcell.sandbox.network import egress, proxy
class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"reached")
    def log_message(self, *_): pass
site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
threading.Thread(target=site.serve_forever, daemon=True).start()
port = site.server_port
"""
_PROGRAM = """
config = SandboxConfig(
    backend="subprocess", python=python, work_dir="/home/user",
    network=Network.allow([f"web.test:{port}", f"127.0.0.1:{port}"]),
)
async def resolve(host, port): return ["127.0.0.1"]
get = '''
import sys, urllib.error, urllib.request
try: print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
except urllib.error.HTTPError as error: print(error.code)
'''
archive = arguments[0] + "/saved"
server = '''
import os, socket, threading
beats = os.open('beat', os.O_RDWR | os.O_CREAT, 0o600)
def beat():
    n = 0
    while True: n += 1; os.pwrite(beats, b'%09d' % n, 0)
threading.Thread(target=beat, daemon=True).start()
door = socket.create_server(('127.0.0.1', 8000))
print('listening', flush=True)
while True:
    peer = door.accept()[0]
    peer.sendall(peer.recv(100)[::-1])
    peer.close()
'''
async def main():
    said = {}
    open_manager = lambda: SandboxManager(config, resolver=resolve)
    async with open_manager() as manager, manager.session() as session:
        said["network"] = []
        for where in (port, port + 1):
            url = f"http://web.test:{where}/"
            done = await (await session.exec(["python3", "-c", get, url])).wait()
            verdicts = [each.verdict for each in done.connections]
            said["network"].append([done.stdout.strip(), *verdicts])
        async with await session.watch() as watch:
            await session.write_file("seen", b"")
            said["watched"] = [each.path for each in await watch.changes()]
        await session.remove("seen")
        command = await session.exec(["python3", "-c", server], background=True)
        await anext(command.output())
        async with await session.connect(8000) as stream:
            await stream.send(b"abc")
            said["connected"] = (await stream.receive()).decode()
        beat = lambda: WorkDir(session._shared.cell, "main").read("beat")
        await session.pause()
        before = await beat()
        await anyio.sleep(0.3)
        said["still"] = await beat() == before
        await session.resume()
        with anyio.fail_after(60):
            while await beat() in (before, b""):
                await anyio.sleep(0.01)
        await command.kill()
        await session.write_file("kept", b"1")
        await session.save(archive)
    async with open_manager() as manager, manager.session() as session:
        await session.load(archive)
        said["files"] = [each.path for each in await session.list_files()]
        said["folder"] = (await session.run("import os\\nos.getcwd()")).value
    print(json.dumps(said))
anyio.run(main)
"""


def test_an_ordinary_user_has_them_all() -> None:
    need_an_ordinary_user()
    # Not a folder of pytest's: those are closed to other users.
    with tempfile.TemporaryDirectory() as base:
        os.chown(base, ORDINARY_USER, ORDINARY_USER)
        printed = as_ordinary_user(_PROGRAM, base, before=_BEFORE)
    assert json.loads(printed) == {
        "network": [["reached", "allowed"], ["403", "refused"]],
        "watched": ["seen"],
        "connected": "cba",
        "still": True,
        "files": ["beat", "kept"],
        "folder": "/home/user",
    }
