"""A Ray cluster whose processes speak TLS with each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from toolcell.cluster import ClusterSandbox, RayDirectory
from toolcell.core import ConfigError

from ...support.cluster.ray_processes import ENVIRON, TOKEN, RayProcesses, own_address

pytestmark = pytest.mark.anyio
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


def certificates(folder: Path) -> dict[str, str]:
    """Make a certificate for this machine; return the variables of Ray for it."""
    folder.mkdir()
    names = f"subjectAltName=IP:127.0.0.1,DNS:localhost,IP:{own_address()}\n"
    (folder / "names").write_text(names)
    authority = ("-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority")
    node = ("-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node")
    signed = ("-in", "node.csr", "-out", "node.crt", "-extfile", "names", "-days", "2")
    for arguments in (
        ("req", "-x509", *KEY, *authority),
        ("req", *KEY, *node),
        ("x509", "-req", *signed, "-CA", "ca.crt", "-CAkey", "ca.key"),
    ):
        subprocess.run(
            ["openssl", *arguments], cwd=folder, check=True, capture_output=True
        )
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_CA_CERT": str(folder / "ca.crt"),
        "RAY_TLS_SERVER_CERT": str(folder / "node.crt"),
        "RAY_TLS_SERVER_KEY": str(folder / "node.key"),
    }


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def ray(
    tls: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RayProcesses]:
    log = tmp_path_factory.mktemp("ray") / "log"
    started = RayProcesses(log, {**ENVIRON, **tls})
    yield started
    started.end()


async def test_nodes_are_found_in_a_cluster_with_tls(ray: RayProcesses) -> None:
    await ray.ask("add", slots=2)
    token = await ray.ask("start")
    with anyio.fail_after(120):
        while not await ray.nodes():
            await anyio.sleep(0.1)
    async with ClusterSandbox(ray, token=token, wait_seconds=60) as sandbox:
        assert (await sandbox.run("6 * 7")).value == 42


async def refused(address: str, words: str) -> None:
    directory = RayDirectory(address)
    with anyio.fail_after(60), pytest.raises(ConfigError, match=words) as caught:
        await directory.nodes()
    assert caught.value.details["reason"] == "tls"
    assert "ray" not in sys.modules


async def test_tls_that_does_not_fit_is_refused_by_name(
    ray: RayProcesses,
    tls: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    await refused(ray.address, "speaks TLS, and this process does not")

    other = certificates(tmp_path / "other")
    for name, value in other.items():
        monkeypatch.setenv(name, value)
    await refused(ray.address, "certificates do not fit")
    # The cluster's own authority; a certificate that it did not sign.
    monkeypatch.setenv("RAY_TLS_CA_CERT", tls["RAY_TLS_CA_CERT"])
    await refused(ray.address, "certificates do not fit")

    monkeypatch.setenv("RAY_TLS_CA_CERT", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="its certificates cannot be read"):
        await RayDirectory(ray.address).nodes()


async def test_a_cluster_without_tls_is_refused_where_there_should_be_some(
    tls: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RayProcesses(tmp_path / "log", ENVIRON)
    try:
        for name, value in {**tls, "RAY_AUTH_TOKEN": TOKEN}.items():
            monkeypatch.setenv(name, value)
        await refused(plain.address, "speaks no TLS, and this process does")
    finally:
        plain.end()
