"""The doctor's facts about programs that the kernel starts outside of cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolcell.sandbox.admin import kernel_helpers


@pytest.mark.parametrize(
    ("pattern", "handler"),
    [
        ("|/usr/share/apport/apport -p%p\n", "|/usr/share/apport/apport -p%p"),
        ("@/run/systemd/coredump\n", "@/run/systemd/coredump"),
        ("core\n", ""),
        ("/var/cores/%e.%p\n", ""),
    ],
)
def test_only_cores_that_leave_for_a_handler_are_named(
    pattern: str, handler: str, tmp_path: Path
) -> None:
    file = tmp_path / "core_pattern"
    file.write_text(pattern)

    assert kernel_helpers.core_handler(file) == handler
    assert kernel_helpers.core_handler(tmp_path / "absent") == ""


def test_registered_formats_are_named_with_their_interpreters(tmp_path: Path) -> None:
    for name in ("register", "status"):
        (tmp_path / name).write_text("enabled\n")
    (tmp_path / "qemu-arm").write_text(
        "enabled\ninterpreter /usr/bin/qemu-arm\nflags: OC\noffset 0\nmagic 7f454c46\n"
    )
    (tmp_path / "odd").write_text("enabled\n")

    assert kernel_helpers.format_handlers(tmp_path) == [
        "odd: unknown",
        "qemu-arm: /usr/bin/qemu-arm",
    ]
    assert kernel_helpers.format_handlers(tmp_path / "absent") == []


def test_facts_are_told_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_helpers, "core_handler", lambda: "|/bin/handler")
    monkeypatch.setattr(kernel_helpers, "format_handlers", lambda: ["a: /a", "b: /b"])
    both = kernel_helpers.facts()
    monkeypatch.setattr(kernel_helpers, "core_handler", lambda: "")
    monkeypatch.setattr(kernel_helpers, "format_handlers", list)

    assert both == {
        "core handler": "|/bin/handler; cells allow no core",
        "file format handlers": "a: /a, b: /b",
    }
    assert kernel_helpers.facts() == {}
