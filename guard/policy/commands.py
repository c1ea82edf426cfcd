"""Conditions on commands: lists of texts that are run without a shell."""

from __future__ import annotations

from pathlib import PurePosixPath

_RUN_NOTHING = frozenset(
    "basename cat cksum cmp comm cp cut date df diff dirname du echo expr false fold "
    "grep head hostname id join ln ls md5sum mkdir mv nl od paste printf pwd readlink "
    "realpath rev rm rmdir seq sha1sum sha256sum sha512sum sleep stat strings tac tail "
    "test touch tr true uname uniq wc whoami".split()
)
"""Programs that run no other program, whatever their arguments. They may read, write
and delete files."""


def check_command(command: tuple[str, ...]) -> None:
    """Check that `*` stands for arguments of programs alone that run nothing.

    Raises:
        ValueError: Another program, or any program, would get any argument.
    """
    if "*" in command and PurePosixPath(command[0]).name not in _RUN_NOTHING:
        raise ValueError(
            f"{' '.join(command)!r} would run anything: only arguments of programs "
            "that are known to run no other program, such as cat, may be '*'; "
            "write each argument, or offer the program as a separate tool"
        )


def runs(value: object, commands: tuple[tuple[str, ...], ...]) -> bool | None:
    """Return whether a list of texts is one of some commands; None if it is no list."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return None
    return any(_fits(value, command) for command in commands)


def _fits(argv: list[str], command: tuple[str, ...]) -> bool:
    return len(argv) == len(command) and all(
        (
            part == "*"
            and not given.startswith("-")
            and given != ""
            and "\0" not in given
        )
        or part == given
        for given, part in zip(argv, command, strict=True)
    )
