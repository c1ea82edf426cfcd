"""Lines as a terminal leaves them: what a progress bar wrote over is gone."""

from __future__ import annotations


def without_overwritten(text: str) -> str:
    """Return a text in which carriage returns have had their effect.

    Of each line the last part that is not empty is left: a program that goes back to
    the beginning of its line writes over all of it.
    """
    if "\r" not in text:
        return text
    return "\n".join(map(_last_part, text.split("\n")))


def _last_part(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
