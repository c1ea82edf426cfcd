"""Pauses, snapshots, forks and metadata of files by the SDK `e2b`, unmodified."""

import json
import time
import urllib.error
import urllib.request

from e2b import Sandbox, SandboxException, SandboxNotFoundException, SandboxState


def until_paused(sandbox: Sandbox) -> None:
    for _ in range(1200):
        if sandbox.get_info().state == SandboxState.PAUSED:
            return
        time.sleep(0.05)
    raise AssertionError(sandbox.get_info())


sandbox = Sandbox.create(timeout=120)
assert sandbox.pause()
assert not sandbox.is_running()
assert not sandbox.pause()
assert sandbox.connect(timeout=600).sandbox_id == sandbox.sandbox_id
assert sandbox.is_running()
sandbox.commands.run("sleep 60", background=True)
sandbox.files.write("a.txt", "before", metadata={"author": "mish"})
assert sandbox.files.get_info("a.txt").metadata == {"author": "mish"}

[measured] = sandbox.get_metrics()
assert measured.cpu_count >= 1
assert 0 <= measured.cpu_used_pct <= 100
assert 0 < measured.mem_used < measured.mem_total
assert 0 < measured.disk_used < measured.disk_total

snapshot = sandbox.create_snapshot(name="first")
assert snapshot.names == ["first"]
sandbox.files.write("a.txt", "after")
assert sandbox.files.get_info("a.txt").metadata is None
restored = Sandbox.create(snapshot.snapshot_id, timeout=600)
assert restored.files.read("a.txt") == "before"
assert restored.commands.list() == []
[found] = Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id).next_items()
assert found.snapshot_id == snapshot.snapshot_id
try:
    sandbox.create_snapshot(mode="full")
except SandboxException as error:
    assert "not memory" in str(error)
else:
    raise AssertionError
assert Sandbox.delete_snapshot(snapshot.snapshot_id)
assert not Sandbox.delete_snapshot(snapshot.snapshot_id)
assert restored.kill()

one, two = sandbox.fork(count=2, timeout=600)
one.files.write("a.txt", "in a fork")
assert [each.files.read("a.txt") for each in (sandbox, one, two)] == [
    *("after", "in a fork", "after")
]
for ended in (one, two, sandbox):
    assert ended.kill()
try:
    sandbox.fork()
except SandboxNotFoundException:
    pass
else:
    raise AssertionError

pausing = Sandbox.create(timeout=600, lifecycle={"on_timeout": "pause"})
pausing.set_timeout(0)
until_paused(pausing)
assert not pausing.is_running()
pausing.connect(timeout=600)
assert pausing.is_running()
assert pausing.kill()

waking = Sandbox.create(
    timeout=600, lifecycle={"on_timeout": "pause", "auto_resume": True}
)
waking.set_timeout(0)
until_paused(waking)
assert waking.commands.run("echo hi").stdout == "hi\n"
assert waking.get_info().state == SandboxState.RUNNING
assert waking.kill()
print("done")

signed = Sandbox.create(timeout=600, secure=True)
signed.files.write("a.txt", "signed")
for url in (
    signed.download_url("a.txt"),
    signed.download_url("a.txt", "user", use_signature_expiration=120),
):
    assert urllib.request.urlopen(url).read() == b"signed"
for url, told in (
    (
        signed.download_url("a.txt", use_signature_expiration=-120),
        {"code": 401, "message": "signature is already expired"},
    ),
    (
        signed.download_url("a.txt").replace("a.txt", "b.txt"),
        {"code": 401, "message": "the signature is not valid"},
    ),
):
    try:
        urllib.request.urlopen(url)
    except urllib.error.HTTPError as error:
        assert json.load(error) == told
    else:
        raise AssertionError(url)
command = signed.commands.run("sleep 60", background=True)
assert signed.commands.run("echo $HOME").stdout == "/home/user\n"
assert signed.kill()
try:
    command.wait()
except SandboxException as error:
    assert "killed or reached its end of life" in str(error), error
else:
    raise AssertionError
