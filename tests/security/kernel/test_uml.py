"""The throw-away kernel: what it runs is apart from this machine, and ends."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        pytest.param({"groups": "v2"}, ["0", "0::/service"], id="root"),
        pytest.param(
            {"groups": "v1", "user": True},
            ["1000", "4:cpuacct:/service", "3:cpu:/service"],
            id="user",
        ),
    ],
)
def test_a_command_runs_on_another_kernel(
    throw_away_kernel: Run, options: dict[str, object], shown: list[str], tmp_path: Path
) -> None:
    script = (
        f"id -u; cat /proc/self/cgroup; uname -r; touch {tmp_path}/x /tmp/y; exit 3"
    )

    done = throw_away_kernel(["sh", "-c", script], **options)

    lines = done.stdout.splitlines()
    assert done.returncode == 3
    assert lines[: len(shown)] == shown
    assert platform.release() not in lines
    assert os.listdir(tmp_path) == []


def test_a_command_that_takes_too_long_is_killed(throw_away_kernel: Run) -> None:
    script = "echo begun; exec sleep 1000"

    done = throw_away_kernel(["sh", "-c", script], seconds=10)

    assert (done.returncode, done.stdout) == (124, "begun\n")
