"""The files of ours that an operation goes through."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from .paths import ROOT


class Trace:
    """Takes up the files whose functions run, in threads that have its `profile`.

    Class bodies, comprehensions and modules that are imported do not count.
    """

    def __init__(self) -> None:
        self.on = False
        self.files: set[str] = set()

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call" and not frame.f_code.co_name.startswith("<"):
            path = frame.f_code.co_filename
            inside = path.removeprefix(f"{ROOT}/")
            if inside != path and not inside.startswith((".", "tests/")):
                self.files.add(inside)

    def start(self) -> None:
        """Watch this thread, and threads that begin later."""
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)

    def stop(self) -> None:
        """Watch this thread no more."""
        sys.setprofile(None)
        threading.setprofile(None)
