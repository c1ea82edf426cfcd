"""What a lock of npm may hold: packages of the registry, each with its SHA-512."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ConfigError, PackageError, SandboxUnavailableError
from toolcell.sandbox import Mount, PackageRules, SandboxConfig
from toolcell.sandbox.backends.selection import check_strength
from toolcell.sandbox.client.types import CellTraits
from toolcell.sandbox.packages.npm_lock import NpmLock, PackageCommand

REGISTRY = "https://registry.example.org/npm"
GOOD: dict[str, Any] = {
    "version": "1.0.0",
    "resolved": "https://registry.example.org/npm/a/-/a-1.0.0.tgz",
    "integrity": "sha1-x sha512-y",
}


def read(entries: dict[str, Any]) -> NpmLock:
    lock = {"lockfileVersion": 3, "packages": {"": {"dependencies": {}}, **entries}}
    return NpmLock.read(json.dumps(lock).encode(), REGISTRY)


@pytest.mark.promise("door-11")
@pytest.mark.parametrize(
    ("place", "entry", "why"),
    [
        ("node_modules/a", {"link": True}, "is no folder of the set"),
        ("../a", {}, "is no folder of the set"),
        ("node_modules/../a", {}, "is no folder of the set"),
        ("node_modules/a/b", {}, "is no folder of the set"),
        ("/etc/node_modules/a", {}, "is no folder of the set"),
        ("node_modules/a", {"integrity": ""}, "has no SHA-512"),
        ("node_modules/a", {"integrity": "sha1-x"}, "has no SHA-512"),
        ("node_modules/a", {"resolved": ""}, "from nowhere"),
        ("node_modules/a", {"resolved": "file:../a"}, "from file:../a"),
        ("node_modules/a", {"resolved": "git+ssh://a/b.git#1"}, "from git"),
        ("node_modules/a", {"resolved": "https://other.example/a.tgz"}, "from https"),
        (
            "node_modules/a",
            {"resolved": "http://registry.example.org/npm/a.tgz"},
            "from http:",
        ),
        ("node_modules/a", {"resolved": "https://[/a.tgz"}, "from https"),
        ("node_modules/a", {"inBundle": True, "resolved": "file:../a"}, "from file:"),
        ("node_modules/a", {"inBundle": True, "integrity": ""}, "has no SHA-512"),
    ],
)
def test_what_is_not_of_the_registry_is_refused(
    place: str, entry: dict[str, Any], why: str
) -> None:
    with pytest.raises(PackageError, match="cannot be installed: in their lock") as e:
        read({place: GOOD | entry})

    assert why in e.value.message
    assert e.value.details["reason"] == "not_from_registry"


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"packages": {"a": 1}}'])
def test_a_lock_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(PackageError, match="not what npm writes"):
        NpmLock.read(data, REGISTRY)


def test_names_and_commands_are_of_packages_that_are_there(tmp_path: Path) -> None:
    bins = {"a": "./cli.js", "b": "../x.js", "../c": "cli.js", "d": "absent.js"}
    lock = read(
        {
            "node_modules/@s/a": GOOD | {"bin": bins},
            "node_modules/@s/a/node_modules/in": {"inBundle": True, "version": "2.0.0"},
            "node_modules/for-other-system": GOOD,
        }
    )
    (tmp_path / "node_modules/@s/a/node_modules/in").mkdir(parents=True)
    for name in ("node_modules/@s/a/cli.js", "node_modules/@s/x.js"):
        (tmp_path / name).touch()

    assert lock.names(tmp_path) == ["@s/a@1.0.0", "in@2.0.0"]
    found = list(lock.commands(tmp_path, ["absent", "@s/a"]))
    assert found == [PackageCommand("a", "node_modules/@s/a/cli.js")]
    assert list(lock.commands(tmp_path, ["b"])) == []


@pytest.mark.promise("door-10")
@pytest.mark.parametrize(
    "name",
    [
        *("", "../x", "a b", "a@latest", "a@file:x", "a@npm:b@1", "a@../x", "a@1||2"),
        *("a@1abc", "a@2-latest", "a@1.tgz", "a@1.2.3-b.TGZ", "a@1.2.3-b..c"),
        *("a@1.2.3+b.tar.gz", "a@1.2.3.4", "a@9999999999999999"),
        *("a@1.x.3", "a@1.X.3-b"),
        *("git+https://x/y", "https://x/y.tgz", "user/repo", "@/x", "a@", "-g --x"),
    ],
)
def test_a_package_is_a_name_and_a_version(name: str) -> None:
    with pytest.raises(ConfigError, match="npm"):
        SandboxConfig(npm=(name,))


def test_names_that_cannot_stand_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one version"):
        SandboxConfig(npm=("a@1", "a@2"))
    with pytest.raises(ConfigError, match="node_modules"):
        mount = Mount(source=str(tmp_path), target="/node_modules/a")
        SandboxConfig(npm=("a",), mounts=(mount,))
    exact = ("c@1.2.3-beta.1", "f@1.2.3-rc-1.0+b.2", "g@2026.8.31")
    kept = SandboxConfig(npm=("a", "@s/b@^1.2", "D_d@~2", "e@>=3", "h@1.x", *exact))
    assert len(kept.npm) == 8


@pytest.mark.parametrize(
    "address",
    [
        *("https://me:secret@registry.example.org", "http://registry.example.org"),
        *(
            "http://127.0.0.1.example.org",
            "https://x:99999",
            "https://[x/",
            "https://ä",
        ),
    ],
)
def test_a_registry_is_an_address_that_nobody_can_pretend_to_have(address: str) -> None:
    with pytest.raises(ConfigError, match="npm_registry"):
        PackageRules(npm_registry=address)


@pytest.mark.parametrize(
    "registry",
    [
        *("https://registry.example.org:443/npm", "https://Registry.Example.org"),
        *("https://registry.example.org./",),
    ],
)
def test_a_registry_is_the_same_in_every_spelling(registry: str) -> None:
    assert PackageRules(npm_registry=registry)
    lock = {"packages": {"node_modules/a": GOOD}}
    NpmLock.read(json.dumps(lock).encode(), registry)


@pytest.mark.parametrize(
    ("backend", "level"),
    [("subprocess", "confined"), ("process", "process"), ("foreign", "kernel")],
)
def test_cells_that_cannot_show_them_are_refused(backend: str, level: Any) -> None:
    traits = CellTraits(backend=backend, level=level, layers=(), enforced_by={})
    config = SandboxConfig(npm=("a@1",), minimum_isolation="process")
    with pytest.raises(SandboxUnavailableError, match="no packages of npm"):
        check_strength(config, traits)
