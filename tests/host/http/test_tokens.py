"""Tokens: shown once, kept as hashes, good for a time, and ended at once."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from toolcell.core import ConfigError, InvalidInputError
from toolcell.host.http.tokens import USE_SECONDS, TokenStore

from ...support.mcp.served_hosts import CONFIG, written
from ...support.toolcell_command import toolcell


def test_a_token_is_found_until_its_end(tmp_path: Path) -> None:
    now = 1_000.0
    with TokenStore(tmp_path / "tokens.db", clock=lambda: now) as store:
        token, text = store.create("a", days=1)
        found = store.find(text)
        now += 86_399
        still = store.find(text)
        now += 1
        over = store.find(text)

    assert found == still == token
    assert over is None


@pytest.mark.promise("JC6")
def test_a_token_says_whose_it_is_and_when_it_was_used(tmp_path: Path) -> None:
    now = 1_000_000.0
    with TokenStore(tmp_path / "tokens.db", clock=lambda: now) as store:
        _, text = store.create("a", label="build server")
        used = []
        for later in (0, USE_SECONDS - 1, 1):
            now += later
            assert store.find(text)
            assert store.find(text + "x") is None
            used.append(store.all()[0].last_used_at)
        assert store.all()[0].label == "build server"
        with pytest.raises(InvalidInputError, match="at most 200"):
            store.create("a", label="x" * 201)

    assert used == [1_000_000.0, 1_000_000.0, 1_000_000.0 + USE_SECONDS]


@pytest.mark.promise("JC6")
def test_a_file_of_before_labels_is_used_on(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    with TokenStore(path) as store:
        _, text = store.create("a")
    with closing(sqlite3.connect(path)) as file:
        for column in ("operator", "label", "last_used_at"):
            file.execute(f"ALTER TABLE tokens DROP COLUMN {column}")
    with TokenStore(path) as store:
        found = store.find(text)

    assert found is not None
    assert (found.label, found.operator, found.last_used_at) == ("", False, None)


@pytest.mark.promise("JC6")
def test_a_token_is_good_though_its_use_cannot_be_noted(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    with TokenStore(path) as store:
        token, text = store.create("a")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert store.find(text) == token


def test_only_the_hash_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    with TokenStore(path) as store:
        _, text = store.create("a")
        files = {file: file.read_bytes() for file in tmp_path.iterdir()}

    secret = text.split("_", 2)[2]
    files[path] += path.read_bytes()
    assert not [file for file, data in files.items() if secret.encode() in data]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("change", [str.upper, lambda text: text[:-1], "x".__add__])
def test_another_text_is_no_token(tmp_path: Path, change: object) -> None:
    assert callable(change)
    with TokenStore(tmp_path / "tokens.db") as store:
        token, text = store.create("a")
        others = [change(text), token.id, f"tcl_{token.id}_", f"tcl__{text}", "\udcff"]

        assert [store.find(other) for other in others] == [None] * 5
        assert store.find(text) == token


def test_a_revoked_token_is_revoked_for_every_process(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    with TokenStore(path) as server, TokenStore(path) as desk:
        token, text = desk.create("a")
        assert server.find(text) == token
        desk.revoke(token.id)
        assert server.find(text) is None
        with pytest.raises(InvalidInputError, match="no token"):
            desk.revoke(token.id)


@pytest.mark.parametrize("days", [0.0, -1.0, 3_651.0, float("nan")])
def test_a_token_has_an_end(tmp_path: Path, days: float) -> None:
    with TokenStore(tmp_path / "tokens.db") as store:
        with pytest.raises(InvalidInputError, match="at most 3650 days"):
            store.create("a", days=days)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    path.write_text("something else" * 100)

    with pytest.raises(ConfigError, match="cannot be used"):
        TokenStore(path)


def test_the_commands(tmp_path: Path) -> None:
    config = ("--config", str(written(tmp_path)))
    made = toolcell("tokens", "create", "--agent", "a", "--days", "1", *config)
    text = made.stdout.decode().strip()
    listed = toolcell("tokens", "list", *config)
    [token] = json.loads(toolcell("tokens", "list", "--json", *config).stdout)
    revoked = toolcell("tokens", "revoke", token["id"], *config)
    again = toolcell("tokens", "revoke", token["id"], *config)
    stranger = toolcell("tokens", "create", "--agent", "nobody", *config)

    assert text.startswith(f"tcl_{token['id']}_")
    assert b"not shown again" in made.stderr
    assert token["id"].encode() in listed.stdout
    assert text.encode() not in listed.stdout
    assert token["agent_id"] == "a"
    assert token["expires_at"] - token["created_at"] == 86_400
    assert (revoked.returncode, again.returncode) == (0, 2)
    assert stranger.returncode == 2
    assert b"no policy of an agent 'nobody'" in stranger.stderr


def test_tokens_need_a_place(tmp_path: Path) -> None:
    text = CONFIG.replace('folder = "state"', "")
    config = ("--config", str(written(tmp_path, text)))
    made = toolcell("tokens", "create", "--agent", "a", *config)

    assert made.returncode == 2
    assert b"name a folder in [state]" in made.stderr
