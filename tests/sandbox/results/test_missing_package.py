"""A module that a program does not find is named, and no package is guessed."""

from __future__ import annotations

import pytest

from toolcell.sandbox import SandboxManager
from toolcell.sandbox.results.missing_package import missing_package
from toolcell.sandbox.results.result import ExceptionInfo

pytestmark = pytest.mark.anyio


@pytest.mark.promise("JF3")
async def test_a_run_and_a_session_name_the_module(sandbox: SandboxManager) -> None:
    alone = await sandbox.run("import sklearn_is_not_here.svm")
    async with sandbox.session() as session:
        later = await session.run("import sklearn_is_not_here")
        fine = await session.run("1")

    [hint] = alone.warnings
    assert hint.startswith("the program says that module 'sklearn_is_not_here' is")
    assert (later.warnings, fine.warnings) == (alone.warnings, ())


@pytest.mark.parametrize("module", ["docx", "fitz", "jwt", "sklearn"])
def test_no_package_is_named_for_a_module(module: str) -> None:
    """A package of the same name is another project's, or has no code."""
    [hint] = missing_package(failed(f"No module named '{module}'"))

    assert hint == (
        f"the program says that module '{module}' is missing; its package, which may"
        " have another name, has to be in the `packages` of the sandbox"
    )


@pytest.mark.parametrize(
    "message",
    [
        "No module named 'tkinter'",
        "No module named 'numpy.nothing'",
        "No module named 'os.path.x'; 'os.path' is not a package",
        f"No module named '{'x' * 101}'",
        "No module named '\u202epandas'",
        "No module named 'a\nb'",
        "No module named ''",
        "",
    ],
)
def test_what_no_package_adds_has_no_hint(message: str) -> None:
    assert missing_package(failed(message)) == ()


def test_other_errors_have_no_hint() -> None:
    assert missing_package(None) == ()
    assert missing_package(failed("No module named 'a'", "ImportError")) == ()


def failed(message: str, kind: str = "ModuleNotFoundError") -> ExceptionInfo:
    return ExceptionInfo(type=kind, message=message, traceback="")
