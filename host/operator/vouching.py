"""Passkeys that somebody else let in, and the votes that are given with them.

Whoever opens a one-time link registers a passkey, so the maker of a link could use it
and be two people. A passkey that came by the link of another person is therefore marked
for a day, and does not count beside that person where several have to approve: for that
day if it is the first one of its person, and for good if its person was here before.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolcell.core import InvalidInputError
from toolcell.guard import ApprovalRequest

from .people_file import PeopleFile

MARK_SECONDS = 86_400.0
"""Seconds for which votes with a passkey that somebody else let in are marked."""

_VOTE_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Vouched:
    """A passkey that somebody else let in. Times are seconds since 1970 (UTC)."""

    voucher: str
    """The person whose link it was."""

    made_at: float
    added: bool
    """True if its person was here before."""


class Vouching:
    """Knows which passkeys somebody else let in.

    Args:
        file: The file of people.
    """

    def __init__(self, file: PeopleFile) -> None:
        self._file = file

    def note(self, passkey: bytes, vouched: Vouched) -> None:
        """Note that somebody let a passkey in."""
        values = passkey, vouched.voucher, vouched.made_at, vouched.added
        self._file.run("INSERT INTO vouched VALUES (?, ?, ?, ?, 0)", values)

    def of_passkey(self, passkey: bytes | None) -> Vouched | None:
        """Return who let a passkey in, while that counts."""
        rows = self._file.run(
            "SELECT voucher, made_at, added FROM vouched"
            " WHERE passkey = ? AND (added OR made_at > ?)",
            (passkey, self._file.clock() - MARK_SECONDS),
        )
        return Vouched(rows[0][0], rows[0][1], bool(rows[0][2])) if rows else None

    def take_news(self, person_id: str, passkey: bytes) -> bool:
        """Return True once if others let passkeys of a person in, besides this one."""
        return bool(
            self._file.run(
                "UPDATE vouched SET told = 1 WHERE NOT told AND passkey != ? AND"
                " passkey IN (SELECT id FROM passkeys WHERE person_id = ?) RETURNING 1",
                (passkey, person_id),
            )
        )

    def vote(
        self,
        request: ApprovalRequest,
        person_id: str,
        passkey: bytes | None,
        *,
        approves: bool = True,
    ) -> None:
        """Note that a person answers, in the transaction that stores it.

        Args:
            request: The request.
            person_id: The person.
            passkey: The id of the passkey that the person signed in with.
            approves: False for a denial.

        Raises:
            InvalidInputError: The person approves, and could be one who approved
                before.
        """
        vouched, now = self.of_passkey(passkey), self._file.clock()
        mine = {person_id}
        if vouched is not None:
            mine |= self._with_vouchers(vouched.voucher)
        others = set(request.approved_by) - {person_id}
        if approves and (same := mine & (others | self._voters(request.id, person_id))):
            raise InvalidInputError(
                f"one who approved already could be you: {min(same)} let a passkey in",
                hint="another person has to approve this call",
            )
        self._file.run("DELETE FROM votes WHERE at <= ?", (now - _VOTE_SECONDS,))
        for known_as in mine:
            row = request.id, person_id, known_as, now
            self._file.run("INSERT INTO votes VALUES (?, ?, ?, ?)", row)

    def _with_vouchers(self, name: str) -> set[str]:
        """Return a person, and those who let that one in of late, and so on."""
        since, found, names = self._file.clock() - MARK_SECONDS, set[str](), {name}
        while names:
            found |= names
            rows = [
                row
                for each in names
                for row in self._file.run(
                    "SELECT voucher FROM vouched JOIN passkeys ON id = passkey"
                    " WHERE person_id = ? AND made_at > ?",
                    (each, since),
                )
            ]
            names = {row[0] for row in rows} - found
        return found

    def _voters(self, request_id: str, but: str) -> set[str]:
        """Return all people who the others that approved could be."""
        rows = self._file.run(
            "SELECT could_be FROM votes WHERE request_id = ? AND person_id != ?",
            (request_id, but),
        )
        return {row[0] for row in rows}

    def marks(self) -> dict[str, list[tuple[str, str]]]:
        """Return by request who answered with a passkey that another person let in,
        and that one."""
        found: dict[str, list[tuple[str, str]]] = {}
        for request_id, person_id, voucher in self._file.run(
            "SELECT DISTINCT request_id, person_id, could_be FROM votes"
            " WHERE could_be != person_id ORDER BY 1, 2, 3"
        ):
            found.setdefault(request_id, []).append((person_id, voucher))
        return found
