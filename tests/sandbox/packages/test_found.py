"""Programs find all of what was installed: modules, commands and data files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from toolcell.sandbox import SandboxManager

from ...conftest import BackendRow
from ...support.cells.package_index import Index

pytestmark = pytest.mark.anyio

DATA = "tooled-1.0.data/data/share"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    index = Index(tmp_path_factory.mktemp("index"))
    index.wheel(
        "tooled",
        {
            "tooled.py": "def main():\n    print('from an entry point')\n",
            "tooled-1.0.data/scripts/tooled-script": "#!python\nimport tooled\n"
            "print('from a script')\n",
            "tooled-1.0.dist-info/entry_points.txt": "[console_scripts]\n"
            "tooled = tooled:main\n",
            f"{DATA}/tooled/words": "of a data file",
            f"{DATA}/jupyter/kernels/tooled": "",
        },
    )
    index.wheel("second", {"second.py": "x = 1\n"})
    return index


@pytest.fixture(scope="module")
async def packed(
    backend: BackendRow, index: Index, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SandboxManager]:
    rules = index.rules(tmp_path_factory.mktemp("packages") / "store", "*")
    async with SandboxManager(backend.config(package_rules=rules)) as manager:
        yield manager


COMMANDS = "from an entry point\nfrom a script\n"


@pytest.mark.promise("QP6")
async def test_commands_of_packages_are_found(packed: SandboxManager) -> None:
    shell = await packed.run(
        "tooled && tooled-script", language="bash", packages=["tooled"]
    )
    code = (
        "import shutil, subprocess\n"
        "for each in ('tooled', 'tooled-script'):\n"
        "    print(subprocess.run([shutil.which(each)], capture_output=True,"
        " text=True, check=True).stdout, end='')"
    )
    program = await packed.run(code, packages=["tooled"])

    assert (shell.status, shell.stdout) == ("ok", COMMANDS), shell.stderr
    assert (program.status, program.stdout) == ("ok", COMMANDS), program.stderr


@pytest.mark.promise("QP6")
async def test_commands_of_a_session_have_its_packages(packed: SandboxManager) -> None:
    async with packed.session(packages=["tooled"]) as session:
        command = await session.exec("tooled && python3 -c 'import tooled' && echo $A")
        first = await command.wait()
        other = await session.exec(["printenv", "PATH"], env={"PATH": "/usr/bin:/bin"})
        second = await other.wait()

    assert first.stdout == "from an entry point\n\n", first.stderr
    assert second.stdout == "/usr/bin:/bin\n"


@pytest.mark.promise("QP7")
async def test_data_files_of_packages_are_found(packed: SandboxManager) -> None:
    code = (
        "import os, sys\n"
        "print(open(os.path.join(sys.prefix, 'share/tooled/words')).read())\n"
        "print(os.listdir(os.environ['JUPYTER_PATH'].split(':')[0]))\n"
        "print(os.listdir(os.environ['XDG_DATA_DIRS'].split(':')[0] + '/tooled'))"
    )
    result = await packed.run(code, packages=["tooled"])

    expected = "of a data file\n['kernels']\n['words']\n"
    assert (result.status, result.stdout) == ("ok", expected), result.stderr


@pytest.mark.promise("QP6", "QP7")
async def test_a_session_names_its_latest_packages_alone(
    packed: SandboxManager,
) -> None:
    async with packed.session(packages=["tooled"]) as session:
        await session.run("1")
        await session.install(["second"])
        code = (
            "import os, sys\n"
            "found = [each for name in ('PATH', 'JUPYTER_PATH', 'XDG_DATA_DIRS')"
            " for each in os.environ[name].split(':') if each.startswith(sys.prefix)]\n"
            "[len(found), len(set(found)), os.environ['PYTHONPATH'] == sys.prefix]"
        )
        result = await session.run(code)

    assert result.value == [3, 3, True], result.stderr


LATER = """
import os, sys
try:
    import later
except ModuleNotFoundError:
    print("not yet")
version = "python%d.%d" % sys.version_info[:2]
folder = os.path.expanduser(f"~/.local/lib/{version}/site-packages")
os.makedirs(folder)
with open(f"{folder}/later.py", "w") as file:
    file.write("WORD = 'later'")
import later
print(later.WORD)
"""


@pytest.mark.promise("QP16")
async def test_what_lands_in_the_home_folder_is_found(packed: SandboxManager) -> None:
    async with packed.session() as session:
        first = await session.run(LATER)
        second = await session.run("import later\nlater.WORD")
        fresh = await session.run("import later\nlater.WORD", fresh=True)

    assert first.stdout == "not yet\nlater\n", first.stderr
    assert (second.value, fresh.value) == ("later", "later"), fresh.stderr


PIP = """
import importlib.util, subprocess, sys
if importlib.util.find_spec("pip") is None:
    print("no pip")
else:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index",
        "--disable-pip-version-check", "./{wheel}"], check=True)
    import tooled
    subprocess.run(["tooled"], check=True)
"""


@pytest.mark.promise("QP16")
async def test_pip_in_a_program(packed: SandboxManager, index: Index) -> None:
    [wheel] = Path(index.simple, "tooled").glob("*.whl")
    async with packed.session() as session:
        await session.write_file(wheel.name, wheel.read_bytes())
        first = await session.run(PIP.format(wheel=wheel.name))
        if first.stdout == "no pip\n":
            pytest.skip("the cell's interpreter has no pip")
        again = await session.run("import tooled\ntooled.main()")
        shell = await session.run("tooled", language="bash")

    assert (first.status, first.stdout) == ("ok", COMMANDS.splitlines(True)[0]), (
        first.stderr
    )
    assert again.stdout == shell.stdout == first.stdout, shell.stderr
