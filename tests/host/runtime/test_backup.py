"""`back_up` copies the state of a host that runs, and `restore` brings it back."""

from __future__ import annotations

import json
import sqlite3
import stat
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from toolcell.core import ConfigError
from toolcell.guard import AuditLog, verify_audit
from toolcell.host import Host, HostConfig
from toolcell.host.http.tokens import TokenStore
from toolcell.host.runtime import backup as backup_module
from toolcell.host.runtime.backup import back_up, restore

from ...support.toolcell_command import toolcell

pytestmark = pytest.mark.anyio

SUM = {"expression": "6 * 7"}
CALLS = 60


def config(folder: Path, **tables: Any) -> HostConfig:
    return HostConfig.model_validate(
        {
            "sandbox": {"backend": "subprocess"},
            "tools": {
                "builtin": ["arithmetic"],
                "mcp_pins": folder / "pins.json",
                "openapi_pins": folder / "apis.json",
            },
            "state": {"folder": folder / "state"},
            "audit": {"path": folder / "audit.jsonl"},
            "policies": [
                {"agent_id": "a", "allow": ["*"], "rate_limits": [f"{CALLS}/day"]}
            ],
            **tables,
        }
    )


async def test_a_host_that_runs_is_copied_and_brought_back(tmp_path: Path) -> None:
    old, new = config(tmp_path / "old"), config(tmp_path / "new")
    (tmp_path / "old").mkdir()
    old.tools.mcp_pins.write_text('{"pinned": {}}')
    old.tools.openapi_pins.write_text('{"apis": {}}')
    old.state.make_folder()
    with TokenStore(tmp_path / "old/state/tokens.db") as tokens:
        _, token = tokens.create("a")
    async with Host(old, environ={}) as host, anyio.create_task_group() as tasks:
        half = anyio.Event()

        async def calls() -> None:
            for number in range(CALLS):
                await host.call("calculate", SUM, agent_id="a")
                if number == CALLS // 2:
                    half.set()

        tasks.start_soon(calls)
        await half.wait()
        made = await anyio.to_thread.run_sync(back_up, old, tmp_path / "backup")
    (tmp_path / "new").mkdir()
    assert restore(new, tmp_path / "backup") == made

    assert {file.name for file in made.files} > {"guard.db", "records.db", "tokens.db"}
    assert made.files[-1].kind == "audit"
    assert verify_audit(tmp_path / "new/audit.jsonl").ok
    assert new.tools.mcp_pins.read_text() == '{"pinned": {}}'
    assert new.tools.openapi_pins.read_text() == '{"apis": {}}'
    with TokenStore(tmp_path / "new/state/tokens.db") as tokens:
        found = tokens.find(token)
        assert found is not None and found.agent_id == "a"
    async with Host(new, environ={}) as host:
        statuses = [
            (await host.call("calculate", SUM, agent_id="a")).status
            for _ in range(CALLS)
        ]
    # What the old host had counted is counted in the new one.
    assert 0 < statuses.count("denied") >= CALLS // 2 and statuses[-1] == "denied"
    assert verify_audit(tmp_path / "new/audit.jsonl").ok


@pytest.mark.promise("C10")
async def test_calls_that_a_backup_knows_are_known_by_their_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is made after each file; a restore may refuse ids, never forget them."""
    copied = vars(backup_module)["_copied"]

    def copied_and_called(*args: Any) -> Any:
        made = copied(*args)
        anyio.from_thread.run(partial(host.call, "calculate", SUM, agent_id="a"))
        return made

    monkeypatch.setattr(backup_module, "_copied", copied_and_called)
    async with Host(config(tmp_path), environ={}) as host:
        await host.call("calculate", SUM, agent_id="a")
        await anyio.to_thread.run_sync(back_up, config(tmp_path), tmp_path / "backup")

    with closing(sqlite3.connect(tmp_path / "backup/records.db")) as file:
        recorded = [
            each for (each,) in file.execute("SELECT call_id FROM tool_records")
        ]
    with closing(sqlite3.connect(tmp_path / "backup/idempotency.db")) as file:
        [known] = file.execute("SELECT count(*) FROM idempotency_keys").fetchone()
    assert 1 < len(set(recorded)) <= known


async def test_rotated_files_of_the_audit_log_come_along(tmp_path: Path) -> None:
    old, new = config(tmp_path / "old"), config(tmp_path / "new")
    (tmp_path / "old").mkdir()
    with AuditLog(tmp_path / "old/audit.jsonl", rotate_bytes=4_096) as log:
        for number in range(100):
            log.append("note", number=number)
        head = log.head()
    names = {path.name for path in (tmp_path / "old").glob("audit.jsonl*")}
    made = back_up(old, tmp_path / "backup")
    (tmp_path / "new").mkdir()
    restore(new, tmp_path / "backup")

    assert len(names) > 3
    assert {file.name for file in made.files} == names
    assert {path.name for path in (tmp_path / "new").glob("audit*")} == names
    assert verify_audit(tmp_path / "new/audit.jsonl", anchors=[head]).ok


async def test_a_backup_is_for_its_owner_alone_and_has_no_logs_beside(
    tmp_path: Path,
) -> None:
    async with Host(config(tmp_path), environ={}) as host:
        await host.call("calculate", SUM, agent_id="a")
        back_up(config(tmp_path), tmp_path / "backup")

    backup = tmp_path / "backup"
    assert stat.S_IMODE(backup.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in backup.iterdir()}
    assert modes == {0o600}
    assert not list(backup.glob("*-wal")) and not list(backup.glob("*-shm"))
    assert [path for path in tmp_path.iterdir() if "partial" in path.name] == []
    with closing(sqlite3.connect(backup / "guard.db")) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def made_backup(folder: Path) -> Path:
    async with Host(config(folder / "old"), environ={}) as host:
        await host.call("calculate", SUM, agent_id="a")
    back_up(config(folder / "old"), folder / "backup")
    return folder / "backup"


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    (tmp_path / "old").mkdir()
    return await made_backup(tmp_path)


async def test_a_changed_backup_is_refused_and_nothing_is_written(
    tmp_path: Path, backup: Path
) -> None:
    with (backup / "guard.db").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    with pytest.raises(ConfigError, match=r"guard\.db is not what was copied"):
        restore(config(tmp_path / "new"), backup)
    assert not (tmp_path / "new").exists()


async def test_names_cannot_lead_out_of_the_folders(
    tmp_path: Path, backup: Path
) -> None:
    manifest = json.loads((backup / "manifest.json").read_text())
    for name in ("../guard.db", "/etc/cron.d/x", ".", "a/b", "guard.db\n"):
        manifest["files"][0]["name"] = name
        (backup / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ConfigError, match="not valid"):
            restore(config(tmp_path / "new"), backup)


async def test_nothing_that_is_there_is_replaced(tmp_path: Path, backup: Path) -> None:
    before = (tmp_path / "old/state/guard.db").read_bytes()
    with pytest.raises(ConfigError, match="is there already"):
        restore(config(tmp_path / "old"), backup)
    with pytest.raises(ConfigError, match="is there already"):
        back_up(config(tmp_path / "old"), backup)
    assert (tmp_path / "old/state/guard.db").read_bytes() == before


async def test_a_restore_that_fails_leaves_nothing(
    tmp_path: Path, backup: Path
) -> None:
    (tmp_path / "new").mkdir()
    new = config(tmp_path / "new", audit={"path": tmp_path / "missing/audit.jsonl"})
    with pytest.raises(ConfigError, match="cannot be brought back"):
        restore(new, backup)
    assert list((tmp_path / "new/state").iterdir()) == []


def test_without_state_there_is_nothing_to_copy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no state"):
        back_up(config(tmp_path), tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_the_command_line_copies_and_restores(tmp_path: Path) -> None:
    text = (
        '[tools]\nbuiltin = ["arithmetic"]\n[state]\nfolder = "state"\n'
        '[[policies]]\nagent_id = "a"\nallow = ["*"]\n'
    )
    path = tmp_path / "toolcell.toml"
    path.write_text(text)
    options = ("--config", str(path))
    called = toolcell(
        "call", "calculate", "--agent", "a", "--args", '{"expression":"1"}', *options
    )
    assert called.returncode == 0, called.stderr
    folder = str(tmp_path / "backup")
    copied = toolcell("backup", folder, *options, "--json")
    assert {"guard.db", "records.db"} <= {
        file["name"] for file in json.loads(copied.stdout)["files"]
    }
    refused = toolcell("restore", folder, *options)
    assert (refused.returncode, refused.stdout) == (2, b""), refused.stderr
    (tmp_path / "state").rename(tmp_path / "gone")
    restored = toolcell("restore", folder, *options)
    assert b"restored guard.db\n" in restored.stdout, restored.stderr
