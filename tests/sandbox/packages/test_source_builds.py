"""Packages without a wheel: built where their programs can do no harm."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from toolcell.core import PackageError
from toolcell.sandbox import Mount, Network, PackageRules, SandboxConfig, SandboxManager
from toolcell.sandbox.spi import list_packages, prune_packages

from ...conftest import SUBPROCESS, BackendRow, missing
from ...support.attacks.as_programs import attempt, program
from ...support.attacks.programs import host_addresses
from ...support.cells.package_index import BACKEND, Index
from ...support.toolcell_command import toolcell

pytestmark = pytest.mark.anyio

CRAFTED = """
import sys
setup(name="crafted", needs=["leaf"], code=f"made = {sys.version_info[:2]}")
"""


def fill(index: Index) -> Index:
    """Add what every build here needs."""
    hooks = {"setuptools/__init__.py": "", "setuptools/build_meta.py": BACKEND}
    index.wheel("setuptools", hooks)
    index.wheel("leaf", {"leaf.py": "name = 'leaf'\n"})
    index.source("crafted", CRAFTED)
    index.wheel("user", {"user.py": "import crafted\n"}, needs="crafted>=1")
    return index


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return fill(Index(tmp_path_factory.mktemp("index")))


@pytest.fixture
def own(tmp_path: Path) -> Index:
    """An index for one test's own sources."""
    folder = tmp_path / "index"
    folder.mkdir()
    return fill(Index(folder))


def rules(index: Index, folder: Path, *build: str, **more: object) -> PackageRules:
    found = index.rules(folder, "*")
    return found.model_copy(update={"build": build, **more})


def single(index: Index, folder: Path, *build: str, **more: object) -> SandboxConfig:
    return SUBPROCESS.config(package_rules=rules(index, folder, *build, **more))


@pytest.fixture(scope="module")
async def building(
    backend: BackendRow, index: Index, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SandboxManager]:
    folder = tmp_path_factory.mktemp("store")
    config = backend.config(package_rules=rules(index, folder, "crafted"))
    async with SandboxManager(config) as manager:
        yield manager


async def test_a_source_is_built_for_the_interpreter_of_the_cells(
    building: SandboxManager,
) -> None:
    said: list[str] = []
    await building.install(["user"], on_step=said.append)
    code = "import sys, user, leaf, crafted\ncrafted.made == sys.version_info[:2]"
    result = await building.run(code, packages=["user"])
    folder = building.config.package_rules.folder or ""
    leaks = list((Path(folder) / "layers").rglob("direct_url.json"))

    assert result.value is True, result.stderr
    assert leaks == []
    assert said[0] == "Building crafted 1.0 in a cell"
    assert "Built crafted 1.0" in said
    names = {package.packages for package in list_packages(folder)}
    assert ("crafted==1.0", "leaf==1.0", "user==1.0") in names


async def test_a_source_is_refused_unless_it_is_named(
    index: Index, tmp_path: Path
) -> None:
    async with SandboxManager(single(index, tmp_path / "store", "leaf")) as manager:
        for package in ("crafted", "user"):
            with pytest.raises(PackageError, match="crafted") as caught:
                await manager.install([package])
            assert caught.value.details["reason"] == "no_wheel"
            assert "package_rules.build" in (caught.value.hint or "")


async def test_what_is_named_to_be_built_is_not_taken_as_a_wheel(
    own: Index, tmp_path: Path
) -> None:
    own.wheel("crafted", {"crafted.py": "made = 'elsewhere'\n"})
    async with SandboxManager(single(own, tmp_path / "a", "Crafted")) as manager:
        built = await manager.run("import crafted\ncrafted.made", packages=["user"])
    async with SandboxManager(single(own, tmp_path / "b")) as manager:
        taken = await manager.run("import crafted\ncrafted.made", packages=["user"])

    assert (built.value != "elsewhere", taken.value) == (True, "elsewhere")


async def test_a_wheel_is_built_once_and_kept(own: Index, tmp_path: Path) -> None:
    said: list[str] = []
    config = single(own, tmp_path / "store", "crafted")

    async def install(*names: str) -> None:
        async with SandboxManager(config) as manager:
            await manager.install(names, on_step=said.append)

    async with anyio.create_task_group() as tasks:
        for names in (("crafted",), ("crafted",), ("user",), ("user", "leaf")):
            tasks.start_soon(install, *names)
    assert said.count("Building crafted 1.0 in a cell") == 1, said

    # A wheel that is gone is built again when its set is installed again.
    store = tmp_path / "store"
    [wheel] = store.glob("built/*/*.whl")
    wheel.unlink()
    shutil.rmtree(store / "index")
    await install("crafted")
    assert said.count("Building crafted 1.0 in a cell") == 2

    removed = prune_packages(0, str(store))
    assert {"crafted==1.0", "leaf==1.0"} in map(set, (e.packages for e in removed))
    assert not list((store / "built").iterdir())


def harm(canary: str, addresses: list[str], port: int) -> dict[str, object]:
    """Try what a set-up program is not to do; return what came of it."""
    import os
    import socket

    def tcp(address: tuple[str, int]) -> None:
        with socket.create_connection(address, 1):
            pass

    def udp(address: tuple[str, int]) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect(address)
            way.send(b"canary")

    said: dict[str, object] = {}
    for host in addresses:
        to = (host, port)
        said[f"tcp {host}"] = attempt(lambda w=to: tcp(w))  # type: ignore[misc]
        if not host.startswith("127."):
            said[f"udp {host}"] = attempt(lambda w=to: udp(w))  # type: ignore[misc]
    way_out = os.environ.get("http_proxy", "http://127.0.0.1:9")[7:].split(":")
    proxy = (way_out[0], int(way_out[1]))
    said["proxy"] = attempt(lambda: tcp(proxy))
    said["dns"] = attempt(lambda: socket.getaddrinfo("canary.example.com", 80))
    said["file"] = attempt(lambda: open(canary))
    said["mount"] = attempt(lambda: os.listdir("/data"))
    said["layers"] = attempt(lambda: os.listdir("/packages"))
    said["write"] = attempt(lambda: open("/packages/mine", "w"))
    said["env"] = [v for v in os.environ.values() if "canary" in v]
    return said


@pytest.mark.promise("E-38", "E-65", "E-66", "E-70")
async def test_a_hostile_set_up_program_reaches_nothing(
    backend: BackendRow,
    own: Index,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No host files, mounts, variables, network, nor other packages."""
    monkeypatch.setenv("TOOLCELL_TEST_SECRET", "canary")
    canary = tmp_path / "canary"
    canary.write_text("canary")
    tmp_path.chmod(0o755)
    shown = tmp_path / "shown"
    shown.mkdir()
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        arguments = f"{str(canary)!r}, {host_addresses()!r}, {port}"
        setup = program(harm, attempt).partition("\nharm(")[0]
        setup += f"\nsaid = harm({arguments})"
        setup += "\nsetup(name='nasty', code=f'said = {said!r}')"
        own.source("nasty", setup)
        config = backend.config(
            package_rules=rules(own, tmp_path / "store", "nasty"),
            network=Network.allow([f"127.0.0.1:{port}"]),
            mounts=(Mount(source=str(shown), target="/data"),),
            env={"API_KEY": "canary"},
        )
        async with SandboxManager(config) as manager:
            result = await manager.run("import nasty\nnasty.said", packages=["nasty"])
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()

    assert isinstance(result.value, dict), result.stderr
    assert result.value.pop("env") == []
    assert "done" not in result.value.values(), result.value


async def test_a_source_that_changed_is_refused(own: Index, tmp_path: Path) -> None:
    with (own.simple / "crafted" / "crafted-1.0.tar.gz").open("ab") as file:
        file.write(b"more")
    async with SandboxManager(single(own, tmp_path / "store", "crafted")) as manager:
        with pytest.raises(PackageError, match="hash") as caught:
            await manager.install(["crafted"])

    assert caught.value.details["reason"] == "failed"
    assert not list((tmp_path / "store" / "building").iterdir())


async def test_an_index_elsewhere_names_no_file_of_this_machine(
    own: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", own.url)
    config = single(own, tmp_path / "store", "crafted", index_url=None)
    async with SandboxManager(config) as manager:
        with pytest.raises(PackageError, match="a file of this machine"):
            await manager.install(["crafted"])


@pytest.mark.promise("E-70")
@pytest.mark.parametrize("way", ["http", "git+http", "file"])
async def test_a_wheel_that_was_built_leads_nowhere_else(
    own: Index, tmp_path: Path, way: str
) -> None:
    """What a wheel says that it needs is no address that this machine then fetches."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        place = "/etc/hostname" if way == "file" else f"127.0.0.1:{port}/x.whl"
        own.source(
            "nasty", f"setup(name='nasty', needs=['x @ {way}://{place}'], code='')"
        )
        async with SandboxManager(single(own, tmp_path / "store", "nasty")) as manager:
            with pytest.raises(PackageError, match="x from an address"):
                await manager.install(["nasty"])
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert not list((tmp_path / "store" / "built").iterdir())


WRONG = {
    "raises": ("raise ValueError('no compiler')", "", "no compiler"),
    "hangs": ("while True: pass", "", "timeout"),
    "renamed": ("setup(name='leaf', code='')", "", "another package: leaf"),
    "address": ("", '["leaf @ file:///etc/passwd"]', "from an address"),
    "option": ("", '["-r /etc/passwd"]', "not a package"),
    "backend": ("", '["leaf"]\nbuild-backend = "absent"', "absent"),
    "settings": ("", "7", "pyproject.toml cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_build_that_fails_says_why(
    own: Index, tmp_path: Path, name: str
) -> None:
    setup, requires, why = WRONG[name]
    files = {"pyproject.toml": f"[build-system]\nrequires = {requires}"}
    own.source("broken", setup, files if requires else {})
    seconds = 10.0 if name == "hangs" else 60.0
    config = single(own, tmp_path / "store", "broken", seconds=seconds)
    async with SandboxManager(config) as manager:
        with pytest.raises(PackageError, match=why) as caught:
            await manager.install(["broken"])

    assert caught.value.details["reason"] == "build_failed"
    assert not list((tmp_path / "store" / "built").iterdir())


def test_a_real_source_is_built_by_setuptools(tmp_path: Path) -> None:
    code = b"import docopt\nprint(docopt.docopt('Usage: x NAME', ['me'])['NAME'])"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    run = ("run", "-", "--backend", "subprocess", "--package", "docopt==0.6.2")
    refused = toolcell(*run, stdin=code, env=env)
    if b"set package_rules.index_url" in refused.stderr:
        missing(refused.stderr.decode())
    built = toolcell(*run, "--build", "docopt", stdin=code, env=env)

    assert (refused.returncode, b"package_rules.build" in refused.stderr) == (4, True)
    assert built.stdout == b"me\n", built.stderr
    assert b"toolcell: Building docopt 0.6.2 in a cell\n" in built.stderr


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_real_extension_is_compiled_in_a_cell(tmp_path: Path) -> None:
    """Its compiler is this machine's; Cython comes as a wheel to build it with."""
    if shutil.which("gcc") is None:
        missing("there is no gcc here")
    code = b"import msgpack._cmsgpack as m\nprint(m.unpackb(m.Packer().pack([1])))"
    names = ("--package", "msgpack==1.1.0", "--build", "msgpack")
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    run = ("run", "-", "--backend", "subprocess", *names)
    done = toolcell(*run, stdin=code, env=env, seconds=500)

    assert done.stdout == b"[1]\n", done.stderr
