"""Images and packages: runs go where they are."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from toolcell.cluster import ClusterSandbox, FixedNodes, NodeAgent, new_token
from toolcell.cluster.spi import ClusterAdmin, NodeRecord
from toolcell.core import PackageError
from toolcell.sandbox import PackageRules, SandboxConfig, SandboxManager

from ..conftest import IMAGE, SUBPROCESS, why_no_docker
from ..support.cells.package_index import Index
from ..support.cluster.patience import LONG, givers, refusal
from ..support.polling import until

pytestmark = pytest.mark.anyio
TOKEN = new_token()


@asynccontextmanager
async def node(
    name: str, config: SandboxConfig, check_seconds: float = 3600.0
) -> AsyncIterator[NodeRecord]:
    async with (
        SandboxManager(config) as cells,
        NodeAgent(cells, token=TOKEN, name=name, check_seconds=check_seconds) as agent,
    ):
        yield agent.record


@pytest.fixture
def index(tmp_path: Path) -> Index:
    made = Index(tmp_path)
    made.wheel("kind", {"kind.py": "answer = 42\n"})
    return made


def with_packages(index: Index, folder: str) -> SandboxConfig:
    rules: PackageRules = index.rules(index.root / folder, "kind", "absent")
    return SUBPROCESS.config(max_concurrency=4, package_rules=rules)


def sets(sandbox: ClusterSandbox) -> dict[str, set[tuple[str, ...]]]:
    """Return the packages that each node tells of."""
    return {each.record.name: set(each.packages) for each in sandbox._nodes.open}


@pytest.mark.promise("cluster-44")
async def test_runs_go_where_their_packages_are(index: Index) -> None:
    async with (
        node("one", with_packages(index, "a")) as one,
        node("two", with_packages(index, "b")) as two,
        ClusterSandbox(FixedNodes([one, two]), token=TOKEN) as sandbox,
    ):
        await until(lambda: givers(sandbox) == {"one", "two"})
        async with sandbox.session(packages=["kind"]) as first:
            assert (await first.run("import kind; kind.answer")).value == 42
            has = first.node
            await until(lambda: sets(sandbox)[has] == {("kind",)})
        lacks = ({"one", "two"} - {has}).pop()
        # The node that lacks them is idle, and still it gets none of these.
        code = "import kind; kind.answer"
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(lambda: sandbox.run(code, packages=["kind"]))
        assert sets(sandbox) == {has: {("kind",)}, lacks: set()}

        # When they have no room the other one installs them.
        async with (
            sandbox.session(packages=["kind"]) as one_of,
            sandbox.session(packages=["kind"]),
            sandbox.session(packages=["kind"]),
            sandbox.session(packages=["kind"]),
            sandbox.session(packages=["kind"]) as last,
        ):
            assert (one_of.node, last.node) == (has, lacks)


@pytest.mark.promise("cluster-44")
async def test_packages_that_nobody_has_are_an_error_of_their_own(index: Index) -> None:
    async with (
        node("one", with_packages(index, "a")) as one,
        ClusterSandbox(FixedNodes([one]), token=TOKEN) as sandbox,
    ):
        with pytest.raises(PackageError):
            await sandbox.run("1", packages=["absent"])
        with pytest.raises(PackageError, match="not allowed here: the package other"):
            await sandbox.run("1", packages=["other"])
        assert sets(sandbox) == {"one": set()}


@pytest.mark.promise("cluster-44")
async def test_packages_are_fetched_before_a_run_needs_them(index: Index) -> None:
    async with (
        node("one", with_packages(index, "a")) as one,
        node("two", with_packages(index, "b")) as two,
    ):
        gone = one.model_copy(update={"name": "gone", "port": 1})
        admin = ClusterAdmin(FixedNodes([one, two, gone]), token=TOKEN)
        found = await admin.prefetch(["kind"], 60)
        assert (found["one"], found["two"]) == ("", "")
        assert "Error" in found["gone"]
        told = await admin.status()
        assert [each.packages for each in told] == [(), (("kind",),), (("kind",),)]
        refused = await admin.prefetch(["other"], 60)
        assert "not allowed" in refused["one"]


def removed(image: str) -> bool:
    """Remove an image, unless a running container uses it."""
    command = ["docker", "rmi", "-f", image]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.returncode == 0 or "No such image" in done.stderr


def id_of(image: str) -> str:
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", image]
    return subprocess.check_output(command, text=True).strip()


@pytest.fixture
def other_image() -> Iterator[str]:
    """An image that is nobody else's, and that a test may remove."""
    if why := why_no_docker(None):
        pytest.skip(why)
    name = f"toolcell-test:{uuid.uuid4().hex}"
    text = f"FROM {IMAGE}\nLABEL test={name}\n"
    subprocess.run(
        ["docker", "build", "-q", "-t", name, "-"],
        input=text,
        check=True,
        capture_output=True,
        text=True,
    )
    yield name
    removed(name)


@pytest.mark.promise("cluster-44")
@pytest.mark.docker
async def test_runs_go_where_the_image_is(other_image: str) -> None:
    def config(image: str) -> SandboxConfig:
        return SandboxConfig(backend="docker", image=image, max_concurrency=2)

    image_id = id_of(other_image)
    async with (
        node("one", config(IMAGE)) as one,
        node("two", config(other_image), check_seconds=0.5) as two,
    ):
        nodes = FixedNodes([one, two])
        async with ClusterSandbox(nodes, token=TOKEN, image=other_image) as sandbox:
            async with sandbox.session() as first, sandbox.session() as second:
                assert (first.node, second.node) == ("two", "two")
        await refused(nodes, "no-such-image:1", "not 'no-such-image:1'")

        async with ClusterSandbox(nodes, token=TOKEN) as sandbox:
            await until(lambda: givers(sandbox) == {"one", "two"})
            # By its id: while a try of the node runs, a name is no more than untagged.
            await until(lambda: removed(image_id))
            await until(lambda: set(sandbox._nodes.states) == {"ready", "sick"})
            async with sandbox.session() as first, sandbox.session() as second:
                assert (first.node, second.node) == ("one", "one")
        [_, told] = await ClusterAdmin(nodes, token=TOKEN).status()
        assert f"has no image {other_image!r}" in told.problem
        await refused(nodes, other_image, "has no image", sick=("sick",))


async def refused(
    nodes: FixedNodes, image: str, words: str, *, sick: tuple[str, ...] = ()
) -> None:
    """Run where no node has the image; where one had it, that one is sick."""
    sandbox = ClusterSandbox(nodes, token=TOKEN, image=image, wait_seconds=LONG)
    error = await refusal(
        sandbox,
        lambda sandbox: (
            sandbox._nodes._saw_other_image and sandbox._nodes.states == sick
        ),
    )
    assert words in error.message
    assert error.details["reason"] == "image_missing"
