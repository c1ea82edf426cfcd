"""A check of a whole round: each answer recounted, and all of them put in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

from toolcell.guard.stores.base import RateHit

from .random_rounds import SECOND, Call, Round, Seen, seen_in
from .worker import Event


def rate_room(hit: RateHit, calls: Sequence[int], now: int) -> tuple[int, int]:
    """Return how long more calls must wait, and how many may come now.

    Args:
        hit: The rate, and how many calls more.
        calls: When all others came, in their order.
        now: The time.
    """
    if not hit.interval:
        recent = [at for at in calls if at > now - hit.window]
        room = hit.limit - len(recent)
        if hit.calls <= room:
            return 0, room
        if hit.calls > hit.limit:
            return hit.window, room
        return recent[hit.calls - room - 1] + hit.window - now, room
    tokens, last = Fraction(hit.limit), 0
    for at in calls:
        tokens += Fraction(at - last, hit.interval)
        tokens, last = min(tokens, Fraction(hit.limit)) - 1, at
    tokens = min(tokens + Fraction(now - last, hit.interval), Fraction(hit.limit))
    return max(int((hit.calls - tokens) * hit.interval), 0), int(tokens)


def check(round_: Round, *, reaps: bool = False) -> None:
    """Fail unless every answer is right.

    Args:
        round_: What was asked and answered.
        reaps: Whether the store lets no hold of a dead process refuse a call.
    """
    answers = list(_answers(round_))
    for call, seen, _ in answers:
        _check_holds(round_, call, seen)
        _check_answer(round_, call, seen, reaps=reaps)
    _check_order(answers)
    _check_times(round_, answers)


_Answer = tuple[Call, Seen, Event]


def _answers(round_: Round) -> Iterator[_Answer]:
    for call in round_.calls.values():
        if call.asked is not None and call.asked.outcome is not None:
            yield call, seen_in(call.asked.outcome), call.asked


def _admitted(event: Event) -> bool:
    return event.outcome is not None and event.outcome.admitted


def _check_holds(round_: Round, call: Call, seen: Seen) -> None:
    """Each hold that an answer shows must be there, and be as it is."""
    known = 0
    for other in round_.calls.values():
        bit, job = other.job.bit, other.job
        if other.asked is None or _admitted(other.asked):
            known |= bit
        over = other.expires <= call.at
        assert not (bit & seen.open and over), "a hold outlived its end"
        charged = job.settles and job.cost is None
        assert not bit & seen.ended or over or charged or other.died is not None, (
            "a hold ended before its time"
        )
    assert not seen.taken & ~known, "a refused call was taken"


def _check_answer(round_: Round, call: Call, seen: Seen, *, reaps: bool) -> None:
    outcome = call.asked and call.asked.outcome
    assert outcome is not None
    taken = [each for each in round_.calls.values() if each.job.bit & seen.taken]
    request = call.job.request
    rooms = []
    for hit in request.hits:
        times = [
            each.at
            for each in taken
            for other in each.job.request.hits
            if other.key == hit.key
            for _ in range(other.calls)
        ]
        rooms.append(rate_room(hit, sorted(times), call.at))
    levels = []
    for charge in request.charges:
        places = [
            (each, place)
            for each in taken
            for place, other in enumerate(each.job.request.charges)
            if other.key == charge.key
        ]
        used = sum(each.charged(place, seen) for each, place in places)
        held = sum(each.held(place, seen) for each, place in places)
        rest = max(charge.limit - used - held, 1)
        levels.append((used, held, rest if charge.amount is None else charge.amount))
    fits = all(
        sum(level) <= charge.limit
        for charge, level in zip(request.charges, levels, strict=True)
    )
    assert list(outcome.levels) == levels
    assert [*zip(outcome.waits, outcome.room, strict=True)] == rooms
    assert outcome.admitted is (fits and not any(wait for wait, _ in rooms))
    if reaps and not outcome.admitted:
        dead = [
            each.job.bit
            for each in taken
            if each.died is not None and each.died <= call.at - SECOND
        ]
        assert not seen.open & sum(dead), "a dead process's hold refused a call"


def _check_order(answers: Sequence[_Answer]) -> None:
    """There must be one order of all that was done in which each answer is right."""
    ordered = sorted(answers, key=lambda answer: answer[1].size)
    for (_, seen, _), (_, later, _) in itertools.pairwise(ordered):
        assert later.follows(seen)
    before = 0
    for _, group in itertools.groupby(ordered, key=lambda answer: answer[1]):
        same = list(group)
        assert not before & ~same[0][1].taken, "an admitted call is lost"
        bits = [call.job.bit for call, _, event in same if _admitted(event)]
        assert len(bits) <= 1, "two calls were given the same place"
        before |= sum(bits)


def _check_times(round_: Round, answers: Sequence[_Answer]) -> None:
    """An answer must show all that was done before it was asked, and nothing later."""
    for _, seen, asked in answers:
        for call, _, event in answers:
            bit = call.job.bit
            if _admitted(event) and event.ended < asked.began:
                assert bit & seen.taken, "an admitted call is forgotten"
            if asked.ended < event.began:
                assert not bit & seen.taken
        for event in round_.settled:
            if event.settled and event.ended < asked.began:
                assert event.bit & (seen.told | seen.ended), "a settlement is lost"
                if round_.calls[event.bit].job.cost is not None:
                    assert event.bit & seen.told, "a settlement is lost"
    for bit, call in round_.calls.items():
        said = [event.settled for event in round_.settled if event.bit == bit]
        assert said == [True, False][: len(said)]
        if not round_.in_doubt:
            assert call.asked is not None
            assert len(said) == (call.job.settles if _admitted(call.asked) else 0)
