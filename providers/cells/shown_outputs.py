"""Outputs of programs, for the models behind frameworks."""

from __future__ import annotations

from toolcell.core import ImagePart
from toolcell.sandbox import ExecutionResult


def texts_and_pictures(result: ExecutionResult) -> tuple[list[str], list[ImagePart]]:
    """Return the texts of what a program displayed, in order, and its pictures.

    Between the texts a picture is named, by its number from 1.
    """
    texts: list[str] = []
    pictures: list[ImagePart] = []
    for output in result.outputs:
        for part in output.to_content():
            if isinstance(part, ImagePart):
                pictures.append(part)
                texts.append(f"[picture {len(pictures)}: {part.mime}]")
            else:
                texts.append(part.text)
    return texts, pictures


def printed_and_displayed(result: ExecutionResult) -> str:
    """Return what a program printed and then what it displayed, pictures by name.

    It is for frameworks whose results are texts.
    """
    texts, _ = texts_and_pictures(result)
    if not texts:
        return result.stdout
    printed = [result.stdout.removesuffix("\n")] if result.stdout else []
    return "\n".join([*printed, *texts]) + "\n"
