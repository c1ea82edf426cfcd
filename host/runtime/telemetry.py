"""Metrics of a host's cells and limits, and the export of metrics and traces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from opentelemetry import metrics, trace
from opentelemetry.metrics import Observation

from toolcell.core import ConfigError, StoreUnavailableError
from toolcell.core.gauges import Gauges
from toolcell.core.text.install_hint import install_hint

from ..config.host_config import HostConfig
from ..operator.limits import RemainingLimits, limits_left
from .assembly import HostComponents

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource

_log = logging.getLogger(__name__)


class HostMetrics:
    """The metrics of one open host."""

    def __init__(self, config: HostConfig, components: HostComponents) -> None:
        self._components = components
        self._agents = [policy.agent_id for policy in config.all_policies()]
        self._seconds = config.telemetry.budget_seconds
        self._was_read = False
        self._left: RemainingLimits = {}

    def cells(self) -> int:
        """Cells in use."""
        sandbox = self._components.sandbox
        return 0 if sandbox is None else sandbox.active_cells

    def queue(self) -> int:
        """Runs and sessions that wait for a cell."""
        sandbox = self._components.sandbox
        return 0 if sandbox is None else sandbox.pool_stats().waiting

    def pool(self) -> int:
        """Cells that are ready."""
        sandbox = self._components.sandbox
        return 0 if sandbox is None else sandbox.pool_stats().ready

    def sessions(self) -> int:
        """Sessions of code that are open."""
        return (
            0 if self._components.sessions is None else len(self._components.sessions)
        )

    def policies(self) -> Observation:
        """1 for the version of the policies in force."""
        version = self._components.guard.policy_version
        return Observation(1, {"toolcell.policy_version": version})

    def left(self) -> Iterator[Observation]:
        """Amounts that limits left at the last measurement."""
        self._was_read = True
        for agent, limits in self._left.items():
            for limit, amount in limits.items():
                labels = {"gen_ai.agent.id": agent, "toolcell.limit": limit}
                yield Observation(float(amount), labels)

    async def measure_limits(self) -> None:
        """Measure what limits leave, while somebody reads the metrics."""
        guard, registry = self._components.guard, self._components.registry
        while True:
            if self._was_read:
                self._was_read = False
                try:
                    self._left = await limits_left(guard, registry, self._agents)
                except StoreUnavailableError as error:
                    _log.warning("what limits leave could not be read: %s", error)
            await anyio.sleep(self._seconds)


_hosts = Gauges[HostMetrics]("toolcell.host")
_hosts.add_sum(
    "toolcell.cells.active",
    HostMetrics.cells,
    unit="{cell}",
    description="Cells in use by runs and sessions.",
)
_hosts.add_sum(
    "toolcell.queue.length",
    HostMetrics.queue,
    unit="{run}",
    description="Runs and sessions that wait for a cell.",
)
_hosts.add_sum(
    "toolcell.pool.ready",
    HostMetrics.pool,
    unit="{cell}",
    description="Never-used cells that are ready.",
)
_hosts.add_sum(
    "toolcell.sessions.open",
    HostMetrics.sessions,
    unit="{session}",
    description="Sessions of code that are open.",
)
_hosts.add(
    "toolcell.policies.version",
    lambda hosts: map(HostMetrics.policies, hosts),
    description="1 for the version of the policies in force.",
)
_hosts.add(
    "toolcell.budget.left",
    lambda hosts: [each for host in hosts for each in host.left()],
    description="What a rate or budget leaves an agent, in the limit's unit.",
)


async def open_telemetry(
    config: HostConfig, components: HostComponents, stack: AsyncExitStack
) -> None:
    """Report a host in metrics until the stack is left.

    Raises:
        ConfigError: OTLP or Prometheus is configured, and the SDK is not installed.
    """
    export_telemetry(config, stack)
    watch = HostMetrics(config, components)
    tasks = await anyio.create_task_group().__aenter__()
    stack.push_async_callback(tasks.__aexit__, None, None, None)
    stack.callback(tasks.cancel_scope.cancel)
    tasks.start_soon(watch.measure_limits)
    stack.enter_context(_hosts.watched(watch))


def export_telemetry(config: HostConfig, stack: AsyncExitStack) -> None:
    """Export traces and metrics, where `[telemetry]` says so, until the stack is left.

    The SDK reads the OTEL_* variables.

    Raises:
        ConfigError: The SDK is not installed.
    """
    settings = config.telemetry
    if settings.exporter != "otlp" and settings.metrics_address is None:
        return
    try:
        from opentelemetry.sdk.metrics import MeterProvider

        readers = []
        if settings.exporter == "otlp":
            readers.append(_otlp(stack))
        if settings.metrics_address is not None:
            from opentelemetry.exporter.prometheus import PrometheusMetricReader

            readers.append(PrometheusMetricReader(scope_info_enabled=False))
    except ImportError:
        raise ConfigError(
            "the table telemetry needs the OpenTelemetry SDK",
            hint=install_hint("telemetry"),
        ) from None
    counters = MeterProvider(metric_readers=readers, resource=_resource())
    metrics.set_meter_provider(counters)
    stack.push_async_callback(_end, counters.shutdown)


def _otlp(stack: AsyncExitStack) -> MetricReader:
    """Send traces over OTLP, and return the reader that sends metrics."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
        OTLPMetricExporter,
    )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    spans = TracerProvider(resource=_resource())
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(spans)
    stack.push_async_callback(_end, spans.shutdown)
    return PeriodicExportingMetricReader(OTLPMetricExporter())


def _resource() -> Resource:
    """Return what the OTEL_* variables say of this process; else it is `toolcell`."""
    from opentelemetry.sdk import resources

    given = resources.Resource.create()
    name = str(given.attributes[resources.SERVICE_NAME])
    if not name.startswith("unknown_service"):
        return given
    return given.merge(resources.Resource({resources.SERVICE_NAME: "toolcell"}))


async def _end(shutdown: Callable[[], None]) -> None:
    # It sends the rest, and waits for the network.
    await anyio.to_thread.run_sync(shutdown)
