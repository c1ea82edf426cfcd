"""The example of a plain agent loop behind the guard does what it says."""

from __future__ import annotations

import json
import subprocess
import sys

from ..support.paths import ROOT


def test_the_example_of_a_plain_loop_runs() -> None:
    example = ROOT / "examples" / "guarded_loop.py"
    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, check=True
    )

    said = [line.partition(":")[2].strip() for line in done.stdout.splitlines()]
    assert said[:2] == ["3", "HELLO"]
    assert [json.loads(line)["status"] for line in said[2:]] == ["denied"] * 2
