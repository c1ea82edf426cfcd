"""The flows of a host, and the store of their threads."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from toolcell.core import ConfigError
from toolcell.core.secrets import read_secret

from .policy_names import check_agent
from .registry import imported

if TYPE_CHECKING:
    from toolcell.flow import Flow
    from toolcell.flow.spi import Checkpointer
    from toolcell.tools import ToolExecutor

    from ..config.host_config import HostConfig

THREADS_FILE = "flows.db"


async def open_threads(
    config: HostConfig, environ: Mapping[str, str], stack: AsyncExitStack
) -> Checkpointer:
    """Open the store of threads.

    Args:
        config: The configuration.
        environ: The environment, from which `env:` secrets are read.
        stack: Closes the store when it is left.

    Raises:
        ConfigError: Threads would be in memory alone, or Redis cannot be used.
        StoreUnavailableError: The file cannot be opened.
    """
    from toolcell.flow import RedisCheckpointer, SQLiteCheckpointer

    store: Checkpointer
    reference, folder = config.flows.redis_url, config.state.folder
    if reference is not None:
        try:
            url = read_secret(reference, environ).get_secret_value()
            store = RedisCheckpointer(url, prefix=config.state.redis_prefix)
        except ConfigError as error:
            # The message of redis repeats the URL, and with it a password.
            raise ConfigError(
                f"flows.redis_url: {reference} cannot be used", hint=error.hint
            ) from None
    elif folder is not None:
        config.state.make_folder()
        store = SQLiteCheckpointer(folder / THREADS_FILE)
    else:
        raise ConfigError(
            "threads are in the memory of the host alone",
            hint="name a folder in [state], or a server in flows.redis_url",
        )
    return await stack.enter_async_context(store)


async def open_flows(
    config: HostConfig,
    environ: Mapping[str, str],
    executor: ToolExecutor,
    stack: AsyncExitStack,
) -> dict[str, Flow[Any]]:
    """Return the flows of the configuration, by the names of their graphs.

    Raises:
        ConfigError: A graph cannot be imported, or two have one name.
        GraphError: A graph cannot be run.
        ToolcellError: As `open_threads`.
    """
    if not config.flows.graphs:
        return {}
    from toolcell.flow import Flow, FlowLimits, MemoryCheckpointer

    agent = config.flows.agent
    if agent is not None:
        check_agent(config.all_policies(), agent)
    graphs = _graphs(config.flows.graphs)
    if config.flows.redis_url is None and config.state.folder is None:
        store: Checkpointer = await stack.enter_async_context(MemoryCheckpointer())
    else:
        store = await open_threads(config, environ, stack)
    limits = FlowLimits(max_concurrency=config.flows.max_concurrency)
    return {
        name: Flow(
            graph,
            checkpointer=store,
            executor=executor,
            agent_id=agent,
            limits=limits,
            profile=config.profile,
        )
        for name, graph in graphs.items()
    }


def _graphs(paths: tuple[str, ...]) -> dict[str, Any]:
    from toolcell.flow import Graph

    found: dict[str, Any] = {}
    for path in paths:
        graph = imported("flows.graphs", path)
        if not isinstance(graph, Graph):
            raise ConfigError(
                f"flows.graphs: {path} is no Graph", hint="name a toolcell.flow.Graph"
            )
        if graph.name in found:
            raise ConfigError(
                f"flows.graphs: two graphs have the name {graph.name!r}",
                hint="give each graph its own name",
            )
        found[graph.name] = graph
    return found
