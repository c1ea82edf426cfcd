"""The error for a layer that a cell cannot have."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
from toolcell.sandbox.cell.kernel import confine, seccomp
def refuse(**_):
    {refusal}
seccomp.install = refuse
held = confine.seal(own_user=False)
settings = {{"rlimits": {{}}, "held": held, "uid": None, "renews": ""}}
settings["confined"] = ""
settings.update(require=["seccomp"], first_to_go=False)
try:
    confine.confine(settings)
except confine.ConfineError as error:
    print(error)
"""
_ASSEMBLES_NOTHING = """
from toolcell.sandbox.cell.kernel import seccomp
from toolcell.sandbox.cell.launcher import main
main._warm_up("mounts", "")
seccomp.assemble = None
seccomp._put_up = print
seccomp.install(own_user=True, renews="mounts")
seccomp.close()
"""


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        ("raise OSError(12, 'prctl 22: Cannot allocate memory')", "ENOMEM: prctl 22: "),
        ("raise OSError('no system call list for i686')", "no errno: no system call "),
        ("import no_ctypes_here", "No module named 'no_ctypes_here'"),
    ],
)
def test_a_missing_layer_is_named_with_its_reason(refusal: str, reason: str) -> None:
    with open("/proc/self/status", encoding="utf-8") as file:
        if "Seccomp:\t0\n" not in file.read():
            pytest.skip("this process has a filter, so the layer stands")
    command = [sys.executable, "-c", _PROGRAM.format(refusal=refusal)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)

    assert done.stdout.startswith(f"missing layers: seccomp ({reason}")


def test_filters_are_assembled_before_any_program_is_forked() -> None:
    subprocess.run([sys.executable, "-c", _ASSEMBLES_NOTHING], check=True)
