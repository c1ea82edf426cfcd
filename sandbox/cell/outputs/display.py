"""`display`: sends representations of values to the supervisor.

Each waits until the supervisor has it, so that it stands between what was printed
before and after it. All of this is in the program's process: the supervisor and the
host believe nothing that comes of it.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys

from ..wire.contract import ARTIFACTS, RESULT_FD
from . import figures, message
from .bundles import PLAIN, bundle_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple


_MAX_HTML = 1024 * 1024


class Run:
    """The outputs of one run.

    Args:
        home: The work dir.
        pid: The process whose outputs they are. Its children share the descriptor,
            but would mix their messages.
    """

    def __init__(self, home: str, pid: int) -> None:
        self.artifacts = os.path.join(home, ARTIFACTS)
        self.shown: set[int] = set()
        """The ids of figures that the program displayed by name."""

        self._pid = pid
        self._lock = _thread.allocate_lock()
        self._mark = 0
        self._over = False

    def send(self, body: bytes) -> bool:
        """Send an output and wait until it is taken; False if nobody takes it."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            if self._over:
                return False
            # Later ones are not taken for the answer that a Ctrl-C cut off.
            self._mark = (self._mark + 1) & 0xFF
            self._write(message.frame(self._mark, body))
            while True:
                answer = os.read(RESULT_FD, 1)
                if not answer or answer[0] == self._mark:
                    return bool(answer)

    def _write(self, data: bytes) -> None:
        # Ctrl-C may interrupt the waiting, but never half a message.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(RESULT_FD, view) :]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end(self) -> None:
        """Take no more; threads left behind cannot write into the next run."""
        with self._lock:
            self._over = True


_run = Run("", 0)
_kept: Optional[List[Tuple[Dict[str, Any], Any]]] = None


def begin(home: str, pid: int) -> None:
    """Begin a run in a process."""
    global _run
    _run = Run(home, pid)


def end() -> None:
    """End the run."""
    _run.end()


def publish(
    data: Dict[str, Any],
    metadata: Optional[Dict[str, Any]] = None,
    is_value: bool = False,
) -> None:
    """Send representations by media type, as they are.

    Where nobody takes outputs, in a child of the program, the plain text is printed.
    """
    if _kept is not None:
        _kept.append((data, metadata))
        return
    _flush()
    if data and not _run.send(message.body_of(data, metadata or {}, is_value=is_value)):
        print(data.get(PLAIN, "<%s>" % ", ".join(map(str, data))))


@contextlib.contextmanager
def kept_in(outputs: List[Any]) -> Iterator[None]:
    """Have outputs put into a list meanwhile, and send none."""
    global _kept
    before, _kept = _kept, outputs
    try:
        yield
    finally:
        _kept = before


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def display(
    *objects: Any,
    include: Any = None,
    exclude: Any = None,
    metadata: Optional[Dict[str, Any]] = None,
    raw: bool = False,
    display_id: Any = None,
    **ignored: Any,
) -> Any:
    """Send each object as an output, with all its representations.

    Args:
        objects: Values, or with `raw` dicts of representations by media type.
        include: Media types to send; others are left out.
        exclude: Media types to leave out.
        metadata: Facts about representations, by media type.
        raw: True if the objects are bundles already.
        display_id: A name; an update of it is a further output.
        ignored: Options of IPython that mean nothing here.
    """
    for shown in objects:
        if raw:
            publish(shown, metadata)
            continue
        data, about = bundle_of(shown, include, exclude)
        if figures.is_figure(shown):
            _run.shown.add(id(shown))
        publish(data, {**about, **(metadata or {})})
    return DisplayHandle(display_id) if display_id else None


class DisplayHandle:
    """A display that can be updated; each update is a further output."""

    def __init__(self, display_id: Any = None) -> None:
        self.display_id = display_id

    def display(self, value: Any, **options: Any) -> None:
        display(value, **options)

    update = display


def show_figures() -> None:
    """Send all open figures, keep them as files, and close them."""
    for number, figure in figures.take_open():
        data = figures.bundle_of(figure)
        figures.save(_run.artifacts, number, data["image/png"])
        publish({**data, PLAIN: text_of(figure)})


def finish(value: Any, *, whole: bool = False, is_value: bool = True) -> None:
    """Send the value of a program's last expression, and open figures.

    A value with HTML is kept as files, too.

    Args:
        value: The value.
        whole: True if it is sent although it has no more than a plain text.
        is_value: True if it is the value of the run.
    """
    data, metadata = bundle_of(value)
    if whole or set(data) - {PLAIN}:
        if figures.is_figure(value):
            _run.shown.add(id(value))
        publish(data, metadata, is_value=is_value)
        _save_html(value, data.get("text/html"))
    finish_figures()


def finish_figures() -> None:
    """Keep all open figures as files, and send those that were not displayed."""
    for number, figure in figures.take_open():
        data = figures.bundle_of(figure)
        figures.save(_run.artifacts, number, data["image/png"])
        if id(figure) not in _run.shown:
            publish({**data, PLAIN: text_of(figure)})


def _save_html(value: Any, html: Any) -> None:
    if isinstance(html, str) and len(html) <= _MAX_HTML:
        os.makedirs(_run.artifacts, exist_ok=True)
        stem, number = os.path.join(_run.artifacts, "value"), 1
        while any(os.path.lexists(stem + suffix) for suffix in (".html", ".txt")):
            number += 1
            stem = os.path.join(_run.artifacts, "value-%d" % number)
        for suffix, text in ((".html", html), (".txt", str(value))):
            with open(stem + suffix, "x", encoding="utf-8", errors="replace") as file:
                file.write(text)
