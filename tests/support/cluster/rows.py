"""Tests of one machine that say nothing of a cluster."""

from __future__ import annotations

NOT_YET = {
    "test_the_next_run_of_the_same_cell_has_nothing": "looks into a manager",
    "test_a_cell_that_is_lost_is_our_failure": "looks into a session",
}
"""Tests that cannot pass on the row `cluster`, each with its reason."""
