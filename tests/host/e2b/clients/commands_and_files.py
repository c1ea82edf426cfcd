"""The SDK `e2b`, unmodified."""

import io

from e2b import CommandExitException, NotFoundException, Sandbox, TimeoutException

sandbox = Sandbox.create(timeout=120, metadata={"a": "b"}, envs={"FOO": "bar"})
result = sandbox.commands.run("echo $FOO; pwd; echo err >&2")
assert (result.stdout, result.stderr) == ("bar\n/home/user\n", "err\n"), result
try:
    sandbox.commands.run("exit 3")
except CommandExitException as error:
    assert error.exit_code == 3
else:
    raise AssertionError
cat = sandbox.commands.run("cat", background=True, stdin=True)
sandbox.commands.send_stdin(cat.pid, "yo")
assert [each.pid for each in sandbox.commands.list()] == [cat.pid]
assert sandbox.commands.kill(cat.pid)
assert not sandbox.commands.kill(cat.pid + 1000)
try:
    sandbox.commands.run("sleep 60", timeout=0.5)
except TimeoutException:
    pass
else:
    raise AssertionError

sandbox.files.write("a/b.txt", "hello")
assert sandbox.files.read("a/b.txt") == "hello"
assert [each.name for each in sandbox.files.list("a")] == ["b.txt"]
assert sandbox.files.exists("a")
assert not sandbox.files.exists("b")
assert sandbox.files.make_dir("d")
assert not sandbox.files.make_dir("d")
assert sandbox.files.rename("a/b.txt", "d/c").path == "/home/user/d/c"
sandbox.files.remove("d")
sandbox.files.write("big", io.BytesIO(bytes(1 << 20)))
assert len(sandbox.files.read("big", format="bytes")) == 1 << 20
try:
    sandbox.files.read("missing")
except NotFoundException:
    pass
else:
    raise AssertionError

watch = sandbox.files.watch_dir(".")
sandbox.files.write("seen", "x")
assert "seen" in {event.name for event in watch.get_new_events()}
watch.stop()

assert sandbox.get_info().metadata == {"a": "b"}
sandbox.set_timeout(60)
listed = Sandbox.list().next_items()
assert sandbox.sandbox_id in [each.sandbox_id for each in listed]
assert Sandbox.connect(sandbox.sandbox_id).commands.run("echo hi").stdout == "hi\n"
assert sandbox.is_running()
assert sandbox.kill()
assert not sandbox.is_running()
print("done")
