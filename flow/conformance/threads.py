"""Checks of what a store of threads promises: one writer each, whole writes only."""

from __future__ import annotations

from typing import Any

import anyio

from toolcell.core import (
    CheckpointError,
    CheckpointNotFoundError,
    LeaseLostError,
    ThreadBusyError,
)

from ..stores.base import Lease
from ..stores.checkpointer import Checkpointer
from .values import OpenOne, checkpoint, commit, head, numbered, refused, require

_GONE_SECONDS = 60.0
_MANY = 10_000


async def check_what_was_written_is_read(open_one: OpenOne) -> None:
    """Another instance reads byte for byte what one wrote."""
    async with open_one() as store, open_one() as other:
        require(await store.read("written") is None, "a thread from nowhere")
        lease = await store.create(head("written"), checkpoint(0))
        await store.append(lease, [b'{"a":1}', b'{"b":2}'])
        await store.append(lease, [b'{"c":3}'], head("written", status="interrupted"))
        require(await store.put_once("written", "q", b'{"d":4}'), "an answer is lost")
        stored = await other.read("written")
        assert stored is not None, "another instance does not see the thread"
        same = stored.head == head("written", status="interrupted")
        require(same, "the head is not as it was written")
        same = list(stored.checkpoints) == [checkpoint(0)]
        require(same, "the checkpoint is not as it was written")
        same = list(stored.journal) == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
        require(same, "the journal is not as it was written")
        require(list(stored.answers) == [b'{"d":4}'], "the answer is another")
        await store.release(lease)


async def check_a_commit_ends_the_step(open_one: OpenOne) -> None:
    """A commit adds the checkpoint and deletes the journal and the answers alone."""
    async with open_one() as store:
        lease = await store.create(head("committed"), checkpoint(0))
        await store.append(lease, [b"{}"])
        await store.put_once("committed", "q", b"{}")
        await commit(store, lease, 1)
        stored = await store.read("committed")
        assert stored is not None
        left = [*stored.journal, *stored.answers]
        require(not left, "a commit leaves records of its step")
        both = [checkpoint(0), checkpoint(1, of="0")]
        require(list(stored.checkpoints) == both, "a commit changes older checkpoints")
        require(stored.head.checkpoint == "1", "a commit leaves the head as it was")
        again = store.commit(lease, checkpoint(1), head("committed", "1"), whole=True)
        with refused(CheckpointError, "two checkpoints have one id"):
            await again
        await store.append(lease, [b'{"next":1}'])
        stored = await store.read("committed")
        assert stored is not None
        same = list(stored.journal) == [b'{"next":1}']
        require(same, "after a refused commit the journal is another")
        await store.release(lease)


async def check_a_write_is_whole(open_one: OpenOne) -> None:
    """Of records of which one cannot be written none is."""
    async with open_one() as store:
        lease = await store.create(head("whole"), checkpoint(0))
        await store.append(lease, [b"{}"])
        before = await store.read("whole")
        bad: Any = [b"{}", object(), b"{}"]
        with refused(Exception, "it writes what is no bytes"):
            await store.append(lease, bad, head("whole", status="failed"))
        require(await store.read("whole") == before, "it wrote a part of the records")
        await store.append(lease, [b'{"after":1}'])
        stored = await store.read("whole")
        assert stored is not None
        same = list(stored.journal) == [b"{}", b'{"after":1}']
        require(same, "after a refused write the journal is another")
        await store.release(lease)


async def check_a_thread_has_one_owner(open_one: OpenOne) -> None:
    """Claiming, creating or deleting an owned thread is refused at once."""
    async with open_one() as store, open_one() as other:
        lease = await store.create(head("owned"), checkpoint(0))
        for owner in (store, other):
            with refused(ThreadBusyError, "two owners have one thread"):
                await owner.claim("owned")
            with refused(ThreadBusyError, "a thread is made twice"):
                await owner.create(head("owned"), checkpoint(0))
            with refused(ThreadBusyError, "a thread that runs is deleted"):
                await owner.delete("owned")
        await store.release(lease)
        claimed: list[Lease] = []

        async def claim(owner: Checkpointer) -> None:
            try:
                claimed.append(await owner.claim("owned"))
            except ThreadBusyError:
                pass

        async with anyio.create_task_group() as group:
            for owner in [store, other] * 8:
                group.start_soon(claim, owner)
        require(len(claimed) == 1, f"{len(claimed)} of 16 claims at once succeed")
        require(claimed[0].token > lease.token, "a later token is not higher")
        for owner in (store, other):
            await owner.release(claimed[0])


async def check_a_lost_lease_writes_nothing(open_one: OpenOne) -> None:
    """An owner from whom a thread was taken is refused, and changes nothing."""
    async with open_one() as store, open_one() as thief:
        stale = await store.create(head("stolen"), checkpoint(0))
        lease = await thief.claim("stolen", steal=True)
        before = await thief.read("stolen")
        with refused(LeaseLostError, "a lost lease appends"):
            await store.append(stale, [b"{}"], head("stolen", status="failed"))
        with refused(LeaseLostError, "a lost lease commits"):
            await commit(store, stale, 1)
        await store.release(stale)
        require(await thief.read("stolen") == before, "a lost lease changed the thread")
        with refused(ThreadBusyError, "releasing a lost lease frees the thread"):
            await store.claim("stolen")
        await thief.append(lease, [b"{}"])
        await thief.release(lease)


async def check_an_owner_that_is_gone_is_replaced(open_one: OpenOne) -> None:
    """The thread of an instance that was closed is free, within a minute."""
    async with open_one() as store:
        async with open_one() as closed:
            if closed is store:
                return
            old = await closed.create(head("orphan"), checkpoint(0))
            await closed.append(old, [b"{}"])
        with anyio.fail_after(_GONE_SECONDS):
            while True:
                try:
                    lease = await store.claim("orphan")
                    break
                except ThreadBusyError:
                    await anyio.sleep(0.05)
        require(lease.token > old.token, "a later token is not higher")
        stored = await store.read("orphan")
        same = stored is not None and list(stored.journal) == [b"{}"]
        require(same, "the journal of the old owner is lost")
        await store.release(lease)


async def check_the_first_answer_counts(open_one: OpenOne) -> None:
    """Of many answers to one question one counts, and the owner can still write."""
    async with open_one() as store, open_one() as other:
        lease = await store.create(head("answered"), checkpoint(0))
        counted: list[int] = []

        async def answer(each: Checkpointer, number: int) -> None:
            if await each.put_once("answered", "q", b'{"n":%d}' % number):
                counted.append(number)

        async with anyio.create_task_group() as group:
            for number in range(16):
                group.start_soon(answer, (store, other)[number % 2], number)
        require(len(counted) == 1, f"{len(counted)} of 16 answers count")
        await store.append(lease, [b"{}"])
        stored = await store.read("answered")
        assert stored is not None
        same = list(stored.answers) == [b'{"n":%d}' % counted[0]]
        require(same, "another answer is stored")
        await store.release(lease)


async def check_answers_are_to_the_step_that_runs(open_one: OpenOne) -> None:
    """An answer to a step that is over is refused; paused ones with one are found."""
    async with open_one() as store:
        for name, status in (("paused", "interrupted"), ("runs", "running")):
            made = head(name, graph="asks", status=status)
            lease = await store.create(made, checkpoint(0))
            require(await store.put_once(name, "q", b"{}", at="0"), "it is refused")
            if name == "runs":
                await commit(store, lease, 1)
                late = await store.put_once(name, "q", b"{}", at="0")
                require(not late, "an answer after its step is accepted")
            await store.release(lease)
        require(await store.answered("asks") == ["paused"], "not those with answers")
        require(await store.answered("others") == [], "those of another graph")
        await store.delete("paused")
        require(await store.answered("asks") == [], "one that was deleted")


async def check_reading_begins_at_a_whole_checkpoint(open_one: OpenOne) -> None:
    """A thread is read as of any checkpoint, from the whole one before it."""
    async with open_one() as store:
        lease = await store.create(head("read"), checkpoint(0))
        for number in range(1, 6):
            await commit(store, lease, number, whole=number == 3)
        await store.append(lease, [b"{}"])
        for wanted, texts in (("2", [0, 1, 2]), ("3", [3]), ("5", [3, 4, 5])):
            stored = await store.read("read", wanted)
            assert stored is not None
            expected = [numbered(number) for number in texts]
            same = list(stored.checkpoints) == expected
            require(same, f"checkpoint {wanted} is read with others than it needs")
            older = wanted != "5" and [*stored.journal]
            require(not older, "an older checkpoint has the journal of the latest")
        with refused(CheckpointNotFoundError, "it reads a checkpoint from nowhere"):
            await store.read("read", "9")
        await store.release(lease)


async def check_checkpoints_are_paged(open_one: OpenOne) -> None:
    """Checkpoints come newest first, and `before` goes on where a page ended."""
    async with open_one() as store:
        lease = await store.create(head("paged"), checkpoint(0))
        for number in range(1, 8):
            await commit(store, lease, number, whole=number == 3)
        newest = [numbered(number) for number in range(7, -1, -1)]
        require(await store.checkpoints("paged", 3) == newest[:3], "not the newest 3")
        rest = await store.checkpoints("paged", 99, "5")
        require(rest == newest[3:], "`before` does not go on where a page ended")
        require(await store.checkpoints("paged", 9, "0") == [], "older than the first")
        require(await store.checkpoints("nothing", 9) == [], "a thread from nowhere")
        await store.release(lease)


async def check_threads_are_found(open_one: OpenOne) -> None:
    """Threads come the last changed first, by graph and status, in pages."""
    async with open_one() as store:
        for number in range(30):
            status = "done" if number % 3 else "failed"
            made = head(f"f{number}", graph="pq"[number % 2], status=status)
            await store.release(await store.create(made, checkpoint(0)))

        async def found(**by: Any) -> list[str]:
            return [each.thread_id for each in await store.heads(**by)]

        odd = await found(graph="q", status="failed")
        require(odd == ["f27", "f21", "f15", "f9", "f3"], "not by graph and status")
        page = await found(limit=4, before="f27")
        require(page == ["f26", "f25", "f24", "f23"], "not the page after a thread")
        lease = await store.claim("f5")
        await store.append(lease, [], head("f5", graph="q", status="failed"))
        await store.release(lease)
        require((await found())[0] == "f5", "the last changed is not the first")
        require("f5" in await found(status="failed"), "not under its new status")
        require("f5" not in await found(status="done"), "still under its old status")


async def check_deleting_is_of_one_thread(open_one: OpenOne) -> None:
    """Deleting removes all of a thread, and nothing of one with an id like it."""
    names = ["d", "d2", "d%", "d_", "d*", "d:", "d/x", "D"]
    async with open_one() as store:
        for name in names:
            lease = await store.create(head(name, graph="deleted"), checkpoint(0))
            await store.append(lease, [name.encode()])
            await store.put_once(name, "q", b"{}")
            await store.release(lease)
        for name in ("d%", "d_", "d*", "d:", "d"):
            require(await store.delete(name), f"it deletes no {name}")
            require(not await store.delete(name), f"it deletes {name} twice")
            require(await store.read(name) is None, f"{name} is there")
        left = [head.thread_id for head in await store.heads(graph="deleted")]
        require(left == ["D", "d/x", "d2"], "deleting one thread removes another")
        lease = await store.create(head("d", graph="deleted"), checkpoint(0))
        stored = await store.read("d")
        assert stored is not None
        require(not [*stored.journal, *stored.answers], "something of it was left")
        await store.release(lease)


async def check_a_thread_is_made_anew(open_one: OpenOne) -> None:
    """A thread that another instance took and deleted is a new one if made again."""
    async with open_one() as store, open_one() as other:
        old = await store.create(head("anew"), checkpoint(0))
        await store.append(old, [b'{"old":1}'])
        await other.release(await other.claim("anew", steal=True))
        require(await other.delete("anew"), "it deletes no thread that was stolen")
        lease = await store.create(head("anew"), checkpoint(0))
        await store.append(lease, [b'{"new":1}'])
        stored = await other.read("anew")
        assert stored is not None
        same = list(stored.journal) == [b'{"new":1}']
        require(same, "its rows follow those of the old one")
        await store.release(lease)


async def check_texts_of_every_kind(open_one: OpenOne) -> None:
    """Any text comes back, a large one and ten thousand at once."""
    texts = [chr(plane * 0x10000 + 0xF0).encode() for plane in range(17)]
    texts += [b"", b"\x00", b"x" * (1 << 20), b'{"%s":"\\"}', b"\r\n"]
    texts += [b"%d" % number for number in range(_MANY)]
    async with open_one() as store:
        lease = await store.create(head("texts"), checkpoint(0))
        await store.append(lease, texts)
        stored = await store.read("texts")
        assert stored is not None
        require(list(stored.journal) == texts, "a text comes back as another")
        await store.release(lease)


async def check_threads_that_are_not_there(open_one: OpenOne) -> None:
    """Claiming or answering a thread that there is not is a typed error."""
    async with open_one() as store:
        with refused(CheckpointNotFoundError, "it claims a thread from nowhere"):
            await store.claim("nobody")
        with refused(CheckpointNotFoundError, "it answers a thread from nowhere"):
            await store.put_once("nobody", "q", b"{}")
        require(not await store.delete("nobody"), "it deletes a thread from nowhere")
