"""Behaviours of one machine that a cluster does not have yet."""

from __future__ import annotations

_MESSAGE = "the error is the same, its text names no input"
NOT_YET = {
    "test_holes_in_files_stay_holes": "downloads pass through an archive with zeros",
    "test_file_errors_tell_why_and_what_to_do": "an existing target is named otherwise",
    "test_the_next_run_of_the_same_cell_has_nothing": "looks into a manager",
    "test_every_result_says_where_it_ran_gr_17_a_05": "a cluster has no notices",
    "test_inputs_that_cannot_cross_are_an_error_gr_21_a_03": _MESSAGE,
    "test_variables_of_the_program_gr_21_gr_23_a_02": _MESSAGE,
    "test_a_session_outlives_what_the_callers_own_functions_raise": (
        "the cell of the session is lost"
    ),
    "test_a_session_checks_like_a_run_lc_15": _MESSAGE,
    "test_a_cell_that_is_lost_is_our_failure": "looks into a session",
    "test_namespaces_are_not_the_hosts": "its table has no such row",
}
"""Tests that fail on the row `cluster`, each with its reason."""

NOT_ALL_YET = {"test_a_program_that_cannot_be_used_lc_15": _MESSAGE}
"""Tests some of whose cases fail there."""
