"""Makes programs from requests, within the limits of one configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from toolcell.core import InvalidInputError, SandboxUnavailableError

from ..cell.wire.contract import CELL_END
from ..client.backend import Backend
from ..client.types import Program, Spawn
from ..config.argument_checks import check_kinds
from ..config.host_rules import loopback_addresses
from ..config.network import Network
from ..config.settings import Limits, SandboxConfig
from ..network.name_resolution import NameResolver
from ..programs.program import RunRequest, make_program

if TYPE_CHECKING:
    from pydantic import SecretStr

    from ..credentials.agents import Credentials
    from ..network.egress import Egress
    from ..network.gate import RequestGate
    from ..network.inspector import Inspector
    from ..network.types import OnConnection, Resolver
    from ..packages.distributions import OnStep, OpenBuilder
    from ..packages.installer import PackageInstaller


def not_open() -> SandboxUnavailableError:
    """Return the error for a manager that is not entered, or was left."""
    return SandboxUnavailableError(
        "the manager is not open", hint="use it in `async with`"
    )


class ProgramFactory:
    """Checks requests and makes the programs that cells run.

    A manager and its sessions share one, so the same limits, code policy, packages and
    network rules hold for all of their runs. It keeps the layers of packages that it
    has handed out from being pruned until it is closed.

    Args:
        config: The configuration of the manager; no request exceeds it.
        backend: Makes the cells that the programs are for.
        spawn: Starts tasks that may live as long as the manager.
        resolver: Looks up the names that programs may reach; None asks this machine's.
        open_builder: Opens the sandbox in which a package is built.
        inspector: Says whose HTTPS is inspected; None: no one's.
        credentials: Those that programs use and never have; None: there are none.
        index_password: That of the index of packages, if it wants one.
    """

    def __init__(
        self,
        config: SandboxConfig,
        backend: Backend,
        *,
        spawn: Spawn,
        resolver: Resolver | None,
        open_builder: OpenBuilder,
        inspector: Inspector | None = None,
        credentials: Credentials | None = None,
        index_password: SecretStr | None = None,
    ) -> None:
        self.config = config
        self._backend = backend
        self._restricted = backend.traits.level == "process"
        self.spawn = spawn
        self._resolver = resolver
        self._inspector = inspector
        self._credentials = credentials
        self._index_password = index_password
        self._lookups = NameResolver()
        self._open_builder = open_builder
        self._packages: PackageInstaller | None = None
        self._closed = False

    def make(
        self, request: RunRequest, *, final: bool, branch: str | None = None
    ) -> Program:
        """Return a program for a request, with neither packages nor network yet.

        Args:
            request: What a caller asks to run.
            final: True if its cell runs no other program afterwards.
            branch: The interpreter that runs it and keeps its state; None is a new
                one.

        Raises:
            InvalidInputError: The request cannot be used.
            SandboxUnavailableError: The manager is not open.
        """
        self._require_open()
        check_kinds(limits=(request.limits, Limits))
        own = self.config.limits
        return make_program(
            request,
            own if request.limits is None else own.narrowed_by(request.limits),
            restricted=self._restricted,
            final=final,
            branch=branch,
        )

    async def judged(self, program: Program) -> Program:
        """Return a program as it may run, or with reasons to refuse it; see `judge`."""
        if self.config.code_policy is None and program.restricted_imports is None:
            return program
        from ..programs.judgement import judge

        return await judge(program, self.config.code_policy)

    async def install(
        self, packages: Sequence[str] = (), *, on_step: OnStep | None = None
    ) -> str:
        """Install packages, with those of the configuration; see `SandboxManager`.

        Returns:
            Where cells find them; empty if there are none.
        """
        self._require_open()
        if not packages and not self.config.packages:
            return ""
        if self._packages is None:
            from ..packages.installer import PackageInstaller

            self._packages = PackageInstaller(
                self.config,
                self._backend,
                self._open_builder,
                self._index_password,
            )
        return await self._packages.layer(packages, on_step)

    async def with_packages(self, program: Program, packages: Sequence[str]) -> Program:
        """Return a program that finds its packages. Raises as `install`."""
        layer = await self.layer(packages)
        return program._replace(packages=layer) if layer else program

    async def layer(self, packages: Sequence[str]) -> str:
        """Return the path of packages in cells, empty for none. Raises as `install`."""
        if not packages and not self.config.packages:
            return ""
        return await self.install(packages)

    async def with_own_packages(
        self, program: Program, install: Callable[[Sequence[str]], Awaitable[object]]
    ) -> Program:
        """Install what a cell of a notebook names in lines of `pip install`.

        Args:
            program: The program.
            install: Installs packages for it.
        """
        is_cell = program.branch is not None or program.source.endswith(CELL_END)
        if not is_cell or "install" not in program.source:
            return program
        from ..packages.pip_lines import install_lines

        return await install_lines(program, install)

    def narrowed_network(self, network: Network | None) -> Network:
        """Return the configuration's network, or one within it.

        Raises:
            InvalidInputError: It reaches further, or is no Network.
        """
        own = self.config.network
        if network is None:
            return own
        if not isinstance(network, Network):
            raise InvalidInputError(
                "network must be a Network", hint="use Network.allow([...])"
            )
        return own.narrowed_by(network)

    def with_network(
        self,
        program: Program,
        network: Network | None,
        on_connection: OnConnection | None,
        agent_id: str | None,
        gate: RequestGate | None,
    ) -> Program:
        """Return a program that reaches the hosts of a network, if there are any.

        Raises:
            InvalidInputError: As `narrowed_network`.
        """
        allowed = self.narrowed_network(network)
        if allowed.mode == "none":
            return program
        return self.with_egress(program, allowed, on_connection, agent_id, gate)

    def with_egress(
        self,
        program: Program,
        network: Network,
        on_connection: OnConnection | None,
        agent_id: str | None,
        gate: RequestGate | None,
    ) -> Program:
        """Return a program that reaches a network through its own proxy.

        Args:
            program: The program; its limits hold for the connections.
            network: The hosts that it may reach.
            on_connection: Called with each connection when it has ended or was refused.
            agent_id: The agent whose share of the name lookups it uses.
            gate: Judges what goes to a guarded network.
        """
        egress = self.egress(network, program.limits, on_connection, agent_id, gate)
        return program._replace(egress=egress)

    def egress(
        self,
        network: Network,
        limits: Limits,
        on_connection: OnConnection | None,
        agent_id: str | None,
        gate: RequestGate | None,
    ) -> Egress:
        """Return a proxy to a network, for one run or one command.

        Args:
            network: The hosts that it may reach.
            limits: They hold for its connections.
            on_connection: Called with each connection when it has ended or was refused.
            agent_id: The agent whose credentials it has, and whose shares of name
                lookups and held bodies.
            gate: Judges what goes to a guarded network.
        """
        from ..network.egress import Egress

        return Egress(
            network,
            limits,
            resolve=self._resolver or self._lookups.of_run(agent_id),
            spawn=self.spawn,
            on_connection=on_connection,
            addresses=loopback_addresses(self.config.network.hosts),
            gate=gate,
            inspector=self._inspector,
            credentials=self._credentials.of(agent_id) if self._credentials else None,
            agent_id=agent_id,
        )

    def close(self) -> None:
        """Make no further programs, and let go of the layers of packages."""
        self._closed = True
        if self._packages is not None:
            self._packages.close()

    def _require_open(self) -> None:
        if self._closed:
            raise not_open()
