"""Checks for checkpointers of your own: each is one promise of `Checkpointer`.

`check_flow_checkpointer` runs all of them. A check raises AssertionError at the first
broken promise and names it, so each of `FLOW_CHECKPOINTER_CHECKS` can be a test.
"""

from __future__ import annotations

from .protocol_checks import (
    check_a_copy_is_whole,
    check_old_threads_are_removed,
    check_saved_states,
    check_threads_are_listed_by_pattern,
)
from .threads import (
    check_a_commit_ends_the_step,
    check_a_lost_lease_writes_nothing,
    check_a_thread_has_one_owner,
    check_a_thread_is_made_anew,
    check_a_write_is_whole,
    check_an_owner_that_is_gone_is_replaced,
    check_answers_are_to_the_step_that_runs,
    check_checkpoints_are_paged,
    check_deleting_is_of_one_thread,
    check_reading_begins_at_a_whole_checkpoint,
    check_texts_of_every_kind,
    check_the_first_answer_counts,
    check_threads_are_found,
    check_threads_that_are_not_there,
    check_what_was_written_is_read,
)
from .values import OpenOne


async def check_flow_checkpointer(open_one: OpenOne) -> None:
    """Check a checkpointer of threads.

    Args:
        open_one: Returns an async context manager of a new instance, each time on the
            same storage, which is empty at first. A store that dies with its instance
            may return the same instance again.

    Raises:
        AssertionError: It breaks a promise.
    """
    for check in FLOW_CHECKPOINTER_CHECKS:
        await check(open_one)


FLOW_CHECKPOINTER_CHECKS = (
    check_what_was_written_is_read,
    check_a_commit_ends_the_step,
    check_a_write_is_whole,
    check_a_thread_has_one_owner,
    check_a_lost_lease_writes_nothing,
    check_an_owner_that_is_gone_is_replaced,
    check_the_first_answer_counts,
    check_answers_are_to_the_step_that_runs,
    check_reading_begins_at_a_whole_checkpoint,
    check_checkpoints_are_paged,
    check_threads_are_found,
    check_deleting_is_of_one_thread,
    check_a_thread_is_made_anew,
    check_texts_of_every_kind,
    check_threads_that_are_not_there,
    check_saved_states,
    check_threads_are_listed_by_pattern,
    check_a_copy_is_whole,
    check_old_threads_are_removed,
)
"""The checks, each an async function that takes `open_one`."""
