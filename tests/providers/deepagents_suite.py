"""LangChain's standard tests of a DeepAgents sandbox, on toolcell.

It runs in an environment that has DeepAgents: see run_suite in environment.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from toolcell.providers.deepagents import ToolcellSandbox
from toolcell.sandbox import SandboxConfig


class TestToolcell(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[ToolcellSandbox]:
        text = os.environ["TOOLCELL_SUITE_CONFIG"]
        with ToolcellSandbox(SandboxConfig.model_validate_json(text)) as sandbox:
            yield sandbox
