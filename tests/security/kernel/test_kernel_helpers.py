"""No program in a cell has the kernel start something as root."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from ...support.kernel import helpers


@pytest.mark.promise("A2", "A3")
@pytest.mark.parametrize("user", [[], ["1000"]], ids=["root", "user"])
def test_a_cell_starts_neither_modprobe_nor_the_handler_of_cores(
    throw_away_kernel: Callable[..., subprocess.CompletedProcess[str]], user: list[str]
) -> None:
    command = [sys.executable, helpers.__file__, *user]

    done = throw_away_kernel(command, seconds=280)

    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {
        "sockets": {"status": "ok", "cell": [], "outside": ["/tmp/modprobe"]},
        "crashes": {"status": "crashed", "cell": [], "outside": ["/tmp/handler"]},
    }
