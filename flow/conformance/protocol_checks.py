"""Checks of the words of `CheckpointerProtocol`, the optional ones included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from toolcell.core import CheckpointError, InvalidInputError, ThreadBusyError
from toolcell.tools.spi import check_checkpointer

from .values import OpenOne, checkpoint, commit, head, numbered, refused, require


async def check_saved_states(open_one: OpenOne) -> None:
    """It is a `CheckpointerProtocol` as well."""
    async with open_one() as store:
        await check_checkpointer(store)
        promised = store.capabilities.persistent_checkpoint_ids
        require(promised is store.durable, "its capabilities are not its durability")


async def check_threads_are_listed_by_pattern(open_one: OpenOne) -> None:
    """Ids are listed by pattern, the last changed first, in pages; one is found."""
    async with open_one() as store:
        for number in range(12):
            for name in (f"list-{number}", f"other-{number}"):
                lease = await store.create(head(name), checkpoint(0))
                await store.release(lease)
        await store.save({}, "list-saved")
        require(store.capabilities.list_threads, "its capabilities say it lists none")
        found = await store.list_threads(pattern="list-*")
        newest = ["list-saved", *(f"list-{number}" for number in range(11, -1, -1))]
        require(found == newest, "not the threads of a pattern, newest first")
        page = await store.list_threads(2, "list-*", before="list-9")
        require(page == ["list-8", "list-7"], "not the page after a thread")
        found = await store.list_threads(pattern="list-1?")
        require(found == ["list-11", "list-10"], "not the threads of a pattern")
        require(await store.list_threads(pattern="list") == [], "a part is a pattern")
        require(await store.exists("list-1"), "a thread does not exist")
        require(await store.exists("list-1", "0"), "a checkpoint does not exist")
        for wrong in (("list",), ("list-1", "9"), ("list", "0")):
            require(not await store.exists(*wrong), f"{wrong} exists")


async def check_a_copy_is_whole(open_one: OpenOne) -> None:
    """A copy has all checkpoints of its source, and is a separate thread."""
    async with open_one() as store:
        lease = await store.create(head("source"), checkpoint(0))
        for number in range(1, 5):
            await commit(store, lease, number, whole=number == 3)
        await store.release(lease)
        with refused(InvalidInputError, "it copies a thread that has not ended"):
            await store.copy_thread("source", "copy")
        lease = await store.claim("source")
        await store.append(lease, [b"{}"], head("source", "4", status="done"))
        with refused(ThreadBusyError, "it copies a thread that somebody owns"):
            await store.copy_thread("source", "copy")
        await store.release(lease)
        before = await store.read("source")
        await store.copy_thread("source", "copy")
        require(store.capabilities.branching, "its capabilities say it copies none")
        require(await store.read("source") == before, "the source is another thread")
        copied = await store.read("copy")
        assert copied is not None, "there is no copy"
        require(copied.head == head("copy", "4", status="done"), "another head")
        require(not copied.journal, "the copy has a journal")
        whole = await store.checkpoints("source", 9)
        same = await store.checkpoints("copy", 9) == whole
        require(same, "the copy has other checkpoints")
        for wanted, texts in (("2", [0, 1, 2]), ("3", [3]), ("4", [3, 4])):
            stored = await store.read("copy", wanted)
            assert stored is not None
            same = list(stored.checkpoints) == [numbered(text) for text in texts]
            require(same, f"checkpoint {wanted} of the copy is another")
        with refused(CheckpointError, "it copies over a thread"):
            await store.copy_thread("source", "copy")
        lease = await store.claim("copy")
        await commit(store, lease, 5)
        await store.release(lease)
        require(not await store.exists("source", "5"), "the copy is its source")


async def check_old_threads_are_removed(open_one: OpenOne) -> None:
    """Threads that ended long ago are deleted, others stay."""
    now = datetime.now(UTC)
    old, new = now - timedelta(days=31), now - timedelta(days=29)
    threads = {
        "old-done": ("done", old),
        "old-cancelled": ("cancelled", old),
        "old-failed": ("failed", old),
        "old-interrupted": ("interrupted", old),
        "old-running": ("running", old),
        "old-held": ("done", old),
        "new-done": ("done", new),
    }
    async with open_one() as store:
        held = None
        for name, (status, at) in threads.items():
            made = head(name, status=status, updated=at, graph="removed")
            lease = await store.create(made, checkpoint(0))
            if name == "old-held":
                held = lease
            else:
                await store.release(lease)
        assert held is not None
        require(store.capabilities.vacuum, "its capabilities say it removes none")
        removed = await store.vacuum()
        left = {each.thread_id for each in await store.heads(graph="removed")}
        require(left == threads.keys() - {"old-done", "old-cancelled"}, f"left: {left}")
        require(removed >= 2, "the number of removed threads is another")
        await store.release(held)
        await store.vacuum(28)
        left = {each.thread_id for each in await store.heads(graph="removed")}
        expected = {"old-failed", "old-interrupted", "old-running"}
        require(left == expected, f"left: {left}")
