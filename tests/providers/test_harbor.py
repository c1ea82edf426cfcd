"""A trial of Harbor runs in a cell: agent and verifier, files, a guard."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ..support.paths import ROOT
from .environment import BACKENDS, run

PRINTED = ["0: ", "126: a rule denies 'exec'", 'rewards: {"reward": 1.0}']


@pytest.mark.timeout(400)
@BACKENDS
def test_a_trial_runs_in_a_cell(row: Any) -> None:
    path = ROOT / "examples" / "providers" / "harbor_trial.py"
    image = {"TOOLCELL_TEST_IMAGE": row.config().image}

    printed = run(
        *(str(path), row.name),
        frameworks="harbor",
        timeout=380,
        env={**os.environ, **image},
    )

    assert printed.splitlines() == PRINTED
