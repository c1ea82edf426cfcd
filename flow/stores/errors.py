"""The errors that all stores of threads raise alike."""

from __future__ import annotations

from toolcell.core import (
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    LeaseLostError,
    ThreadBusyError,
)


def no_thread(thread: str) -> CheckpointNotFoundError:
    """Return the error for a thread that does not exist."""
    return CheckpointNotFoundError(
        "there is no such thread",
        hint="look at its id; flow.threads() lists them",
        details={"thread": thread},
    )


def no_checkpoint(thread: str, checkpoint: str) -> CheckpointNotFoundError:
    """Return the error for a checkpoint that does not exist."""
    return CheckpointNotFoundError(
        "the thread has no such checkpoint",
        hint="flow.history(thread_id) lists them",
        details={"thread": thread, "checkpoint": checkpoint},
    )


def thread_busy(thread: str) -> ThreadBusyError:
    """Return the error for a thread whose owner lives."""
    return ThreadBusyError("somebody else runs the thread", details={"thread": thread})


def lease_lost(thread: str) -> LeaseLostError:
    """Return the error for a lease that another owner has taken."""
    return LeaseLostError(
        "the thread was taken by another owner",
        hint="resume it to see how far it has come",
        details={"thread": thread},
    )


def checkpoint_exists(thread: str) -> CheckpointError:
    """Return the error for a checkpoint's id that is in use."""
    return CheckpointError(
        "the thread has a checkpoint of this id",
        hint="give each checkpoint its own id",
        details={"thread": thread},
    )


def row_changed(thread: str, what: str) -> CheckpointSerializationError:
    """Return the error for a row that is not as it was written."""
    return CheckpointSerializationError(
        f"{what} of the thread was changed, lost or moved",
        hint="restore the store from a copy, or delete the thread",
        details={"thread": thread},
    )
