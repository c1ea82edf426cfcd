"""No cell takes the kernel's accounts from its neighbours, or from its host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ...support.kernel import accounts
from ...support.kernel.accounts import ACCOUNTS

pytestmark = [pytest.mark.timeout(1200), pytest.mark.promise("A7")]

LOWER = """
sysctl -qw fs.epoll.max_user_watches=4000 fs.pipe-user-pages-soft=1024
sysctl -qw kernel.pty.max=32 kernel.pty.reserve=8
"""
"""What there is on this kernel, made so little that one cell can take it."""

ROOT_RUNS = f'{LOWER} exec "$@"'
USER_RUNS = f"""{LOWER}
chmod 755 /root
exec setpriv --reuid 1000 --regid 1000 --clear-groups "$@"
"""
BOOTS = {
    "root": ({"groups": "v2"}, ROOT_RUNS),
    "user": ({"groups": "none"}, USER_RUNS),
}
# As root each cell is a user of its own; an ordinary user is that of all its cells.
MOST = {
    "open_files": {"root": 4 * 128, "user": 4 * 128},
    "files_in_flight": {"root": 129, "user": 129},
    "waiting_signals": {"root": 4096, "user": 1024},
    "timers": {"root": 4096, "user": 1024},
    "posix_queues": {"root": 6, "user": 1},
    "locked_memory": {"root": 4, "user": 4},
    "shared_memory": {"root": 4096, "user": 4096},
    "processes": {"root": 24, "user": 24},
    "pseudo_terminals": {"root": 16, "user": 16},
}
"""How much of it one cell can have, where something bounds it closely."""

TAKEN_FROM_THE_USER = {
    # account: (what a neighbour gets, what the host's user gets)
    "files_in_flight": ("ETOOMANYREFS", ""),
    "epoll_watches": ("ENOSPC", "ENOSPC"),
}
"""What docs/security.md says of cells that an ordinary user makes."""


@pytest.fixture(scope="module", params=["root", "user"])
def who(request: pytest.FixtureRequest) -> str:
    """Who makes the cells."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def said(
    who: str, throw_away_kernel: Callable[..., subprocess.CompletedProcess[str]]
) -> dict[str, Any]:
    """What `kernel_accounts` says on a kernel of its own, by account."""
    options, script = BOOTS[who]
    command = [sys.executable, "-W", "ignore", accounts.__file__]
    done = throw_away_kernel(
        ["sh", "-c", script, "sh", *command], seconds=900, **options
    )
    assert done.returncode == 0, done.stdout
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["account"]: line for line in lines}


@pytest.mark.parametrize("account", ACCOUNTS)
def test_a_full_cell_leaves_the_others_their_share(
    said: dict[str, Any], who: str, account: str
) -> None:
    line = said[account]
    share = ACCOUNTS[account][3]
    everything = [share, ""]

    assert "ended" not in line, line
    taken = sum(count for count, *_ in line["cell"])
    assert share <= taken <= MOST.get(account, {}).get(who, taken)
    neighbour, host = (json.loads(line[each]) for each in ("neighbour", "host"))
    if who == "user" and account in TAKEN_FROM_THE_USER:
        assert (neighbour[1], host[1]) == TAKEN_FROM_THE_USER[account]
    else:
        assert (neighbour[:2], host[:2]) == (everything, everything)


def test_pipes_of_others_keep_their_size(said: dict[str, Any], who: str) -> None:
    line = said["pipes"]

    sizes = [json.loads(line[each])[2] for each in ("neighbour", "host")]

    # What is left to a user who has too many pipes: two pages each.
    assert sizes == [65_536 if who == "root" else 8192] * 2


@pytest.mark.promise("A5")
def test_a_cell_with_many_record_locks_leaves_all_else_to_others(
    said: dict[str, Any],
) -> None:
    line = said["record_locks"]

    [[taken, why, each_bytes]] = line["cell"]
    others = [json.loads(line[each])[:2] for each in ("neighbour", "host")]

    # Nobody counts them: what docs/security.md says of their size is all there is.
    assert (taken, why) == (ACCOUNTS["record_locks"][1], "")
    assert 200 <= each_bytes <= 330
    assert others == [[ACCOUNTS["record_locks"][3], ""]] * 2
