"""LangChain's standard tests of a sandbox, by the SDK of E2B."""

from collections.abc import Iterator

import pytest
from e2b import Sandbox
from langchain_e2b import E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestSandboxAPI(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[E2BSandbox]:
        sandbox = Sandbox.create(timeout=600)
        yield E2BSandbox(sandbox=sandbox)
        sandbox.kill()
