"""The results of a comparison as a table, and as files: JSON and plots."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolcell.core import InvalidInputError, ToolcellError

from ...charts.plot import Row, plot
from .measure import MEASURES

RESULTS = "results.json"
"""The file that the plots are drawn from."""


def machine() -> dict[str, Any]:
    """Return the kind of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processors": len(os.sched_getaffinity(0)),
        "processor": names[0] if names else platform.machine(),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }


def table_rows(results: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield a row for each contender: name, version, isolation and its figures."""
    for contender in results["contenders"]:
        figures = (
            _figure_text(contender[name], unit) for name, (_, unit) in MEASURES.items()
        )
        yield (
            contender["name"],
            contender["version"],
            contender["isolation"],
            *figures,
        )


def _figure_text(figure: Mapping[str, Any], unit: str) -> str:
    if "absent" in figure:
        return str(figure["absent"])
    return "{median} ({low} to {high}) {unit}".format(**figure, unit=unit)


def plots(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each plot by the name of its file."""
    about = results["machine"]
    caption = (
        f"Median (quartiles) on {about['processors']} processors, "
        f"{about['processor']}, {about['memory_gib']} GiB, {about['system']}, "
        f"Python {about['python']}; {results['date']}"
    )
    return {
        f"{name}.svg": plot(title, unit, caption, list(_rows(results, name)))
        for name, (title, unit) in MEASURES.items()
    }


def _rows(results: Mapping[str, Any], name: str) -> Iterator[Row]:
    for contender in results["contenders"]:
        found = contender[name]
        title = f"{contender['name']} {contender['version']}".strip()
        if "absent" in found:
            yield Row(name=title, ours=contender["ours"], note=found["absent"])
            continue
        low, median, high = (found[part] for part in ("low", "median", "high"))
        if low <= 0:
            # An axis of powers of ten has no 0.
            note = f"too little to measure: {median} ({low} to {high})"
            yield Row(name=title, ours=contender["ours"], note=note)
        else:
            yield Row(name=title, ours=contender["ours"], figure=(low, median, high))


def make_folder(folder: Path) -> None:
    """Make a folder for a report, unless there is one.

    Raises:
        InvalidInputError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"cannot make the folder {folder}: {error.strerror}",
            hint="name another one with --report",
        ) from None


def write_report(folder: Path, results: Mapping[str, Any]) -> None:
    """Write the results, and the plots that are drawn from them, into a folder.

    Raises:
        ToolcellError: They cannot be written.
    """
    files = {RESULTS: json.dumps(results, indent=1) + "\n", **plots(results)}
    try:
        for name, text in files.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise ToolcellError(
            f"cannot write into {folder}: {error.strerror}",
            hint="the results are printed above; make room in that folder",
        ) from None
