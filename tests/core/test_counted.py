"""A number and its noun agree."""

from __future__ import annotations

from toolcell.core.text.counted import counted


def test_one_is_singular_and_every_other_number_plural() -> None:
    assert [counted(n, "set") for n in (0, 1, 2)] == ["0 sets", "1 set", "2 sets"]
    assert counted(1, "policy", "policies") == "1 policy"
    assert counted(2, "policy", "policies") == "2 policies"
