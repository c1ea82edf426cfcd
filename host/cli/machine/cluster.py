"""`toolcell cluster`: this machine as a node, and a look at all of them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolcell.core import InvalidInputError

from ...terminal.exit_codes import EXIT_COULD_NOT_RUN
from ...terminal.output import print_json, print_notice, print_table
from ...terminal.signals import run_async
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from toolcell.cluster.spi import Directory, NodeStatus

    from ...config.host_config import HostConfig
    from ...runtime.cluster import ClusterParts

cluster = typer.Typer(
    help="Run programs on many machines: docs/cluster.md.", no_args_is_help=True
)
_LOOK_SECONDS = 1.0
_LOOKS_BETWEEN_NOTICES = 10
Seconds = Annotated[
    float, typer.Option("--seconds", min=0, help="Seconds for what runs there.")
]


@cluster.command()
def up(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Make this machine a node, until a signal or `drain` ends it.

    The first signal drains it, for `cluster.drain_seconds`. With `cluster.address` have
    a node on each machine of Ray instead, from now on.
    """
    settings = _read(config)
    on_ray = settings.cluster is not None and settings.cluster.address is not None
    run_async(_start_on_ray if on_ray else _serve, settings, as_json)


@cluster.command()
def status(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """List the nodes, their state, and the runs that wait."""
    _show(*_look(_read(config), check=False), as_json=as_json)


@cluster.command()
def doctor(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Have each node say whether it can make cells.

    Exits with 4 if one cannot.
    """
    found, waiting = _look(_read(config), check=True)
    _show(found, waiting, as_json=as_json)
    if not found or any(node.problem for node in found):
        raise typer.Exit(EXIT_COULD_NOT_RUN)


@cluster.command()
def prefetch(
    packages: Annotated[
        list[str], typer.Argument(help='Packages, such as "numpy==2.1.*".')
    ],
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="Seconds that a node has.")
    ] = 600.0,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Have each node install packages, before a run needs them.

    Exits with 4 if one cannot.
    """

    async def fetch(parts: ClusterParts) -> dict[str, str]:
        return await parts.admin().prefetch(packages, seconds)

    from ...runtime.cluster import cluster_parts

    with cluster_parts(_read(config)) as parts:
        found = run_async(fetch, parts)
    if as_json:
        print_json(found)
    else:
        print_table(("node", "problem"), list(found.items()))
    if not found or any(found.values()):
        raise typer.Exit(EXIT_COULD_NOT_RUN)


@cluster.command()
def drain(
    node: Annotated[str, typer.Argument(help="The node's name.")],
    seconds: Seconds = 300.0,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Let a node take nothing new, and end when nothing runs there."""
    _drain(_read(config), (node,), seconds, as_json=as_json)


@cluster.command()
def undrain(
    node: Annotated[str, typer.Argument(help="The node's name.")],
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Let a node that drains take runs again, and stay."""

    async def show(parts: ClusterParts) -> None:
        await parts.admin().undrain(node)

    from ...runtime.cluster import cluster_parts

    with cluster_parts(_read(config)) as parts:
        run_async(show, parts)
    if as_json:
        print_json({"undrained": node})
    else:
        print(f"undrained: {node}")


@cluster.command()
def down(
    seconds: Seconds = 30.0,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Drain all nodes.

    With `cluster.address` no more are started on machines of Ray.
    """
    settings = _read(config)
    names = [node.name for node in _look(settings, check=False)[0] if node.version]
    _drain(settings, names, seconds, as_json=as_json, for_good=True)


class Kind(StrEnum):
    """The programs of Kubernetes that start nodes."""

    DAEMONSET = "daemonset"
    KUBERAY = "kuberay"


@cluster.command()
def manifest(
    image: Annotated[
        str,
        typer.Option(
            help="An image with toolcell and its extra `cluster`, or `cluster-ray` and "
            "Ray."
        ),
    ],
    kind: Annotated[
        Kind,
        typer.Option(
            help="A node on each machine, or a Ray cluster whose workers are nodes."
        ),
    ] = Kind.DAEMONSET,
    min_nodes: Annotated[
        int | None, typer.Option(min=0, help="With kuberay: nodes at least; default 1.")
    ] = None,
    max_nodes: Annotated[
        int | None, typer.Option(min=1, help="With kuberay: nodes at most; default 10.")
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With kuberay: a Redis server with which Ray outlives its head.",
        ),
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Print a Kubernetes manifest for nodes."""
    import yaml

    settings, text = _read(config), config.read_text()
    if kind is Kind.KUBERAY:
        from .kuberay_manifest import kuberay_manifest

        made = kuberay_manifest(
            settings,
            text,
            image,
            min_nodes=1 if min_nodes is None else min_nodes,
            max_nodes=10 if max_nodes is None else max_nodes,
            redis=redis,
        )
    elif (min_nodes, max_nodes, redis) == (None, None, None):
        from .cluster_manifest import cluster_manifest

        made = cluster_manifest(settings, text, image)
    else:
        raise InvalidInputError(
            "a DaemonSet has a node on each machine, and no Redis of its own",
            hint="--min-nodes, --max-nodes and --redis are for --kind kuberay",
        )
    if as_json:
        print_json(made)
    else:
        print(yaml.safe_dump_all(made, sort_keys=False), end="")


def _read(path: Path) -> HostConfig:
    from ...config.host_config import HostConfig

    return HostConfig.from_file(path)


async def _serve(settings: HostConfig, as_json: bool) -> None:
    import anyio

    from toolcell.sandbox import SandboxManager

    from ...http.metrics import serve_metrics
    from ...runtime.cluster import cluster_parts
    from ...runtime.telemetry import export_telemetry

    with cluster_parts(settings) as parts:
        await _wait_for(parts.directory, as_json)
        async with (
            AsyncExitStack() as stack,
            serve_metrics(settings),
            SandboxManager(settings.sandbox) as sandbox,
            parts.agent(sandbox) as agent,
        ):
            export_telemetry(settings, stack)
            record = agent.record
            if as_json:
                print_json(record.model_dump())
            else:
                print(f"{record.name} is up at {record.host}:{record.port}", flush=True)
            try:
                await agent.retired()
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    seconds = parts.settings.drain_seconds
                    await agent.retire(seconds, for_good=True)
                    await agent.retired()
                raise


async def _wait_for(directory: Directory, as_json: bool) -> None:
    """Return when the directory answers: machines that start together need it."""
    import anyio

    from toolcell.core import SandboxUnavailableError

    looks = 0
    while True:
        try:
            await directory.waiting()
            return
        except SandboxUnavailableError as error:
            if looks % _LOOKS_BETWEEN_NOTICES == 0:
                print_notice(f"waits for the directory: {error}", as_json=as_json)
        looks += 1
        await anyio.sleep(_LOOK_SECONDS)


async def _start_on_ray(settings: HostConfig, as_json: bool) -> None:
    from ...runtime.cluster import cluster_parts

    with cluster_parts(settings) as parts:
        await parts.start_on_ray(settings.sandbox)
    if as_json:
        print_json({"started": True})
    else:
        print("each machine of Ray with the resource `toolcell` is a node from now on")


def _look(settings: HostConfig, *, check: bool) -> tuple[tuple[NodeStatus, ...], int]:
    """Return the nodes, and how many runs wait."""

    async def look(parts: ClusterParts) -> tuple[tuple[NodeStatus, ...], int]:
        admin = parts.admin()
        return await admin.status(check=check), await admin.waiting()

    from ...runtime.cluster import cluster_parts

    with cluster_parts(settings) as parts:
        return run_async(look, parts)


def _drain(
    settings: HostConfig,
    names: list[str] | tuple[str, ...],
    seconds: float,
    *,
    as_json: bool,
    for_good: bool = False,
) -> None:
    async def drain(parts: ClusterParts) -> None:
        for name in names:
            await parts.admin().drain(name, seconds)
        if for_good:
            await parts.stop_on_ray(seconds)

    from ...runtime.cluster import cluster_parts

    with cluster_parts(settings) as parts:
        run_async(drain, parts)
    if as_json:
        print_json({"draining": list(names)})
    else:
        print(f"draining: {', '.join(names) or 'no node'}")


def _show(found: tuple[NodeStatus, ...], waiting: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"nodes": [node.model_dump() for node in found], "waiting": waiting})
        return
    columns = ("node", "address", "state", "busy", "slots", "drivers", "problem")
    print_table(columns, [_row(node) for node in found])
    if not found:
        text = "there is no node: `toolcell cluster up` makes a machine one"
        print_notice(text, as_json=as_json)
    if waiting:
        print(f"runs that wait for a place: {waiting}")


def _row(node: NodeStatus) -> tuple[object, ...]:
    use = (node.busy, node.slots, node.drivers)
    return (node.name, node.address, node.state, *use, node.problem)
