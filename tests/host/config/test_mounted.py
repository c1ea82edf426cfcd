"""Mounts of a host's cells: none leads to its own files, or changes another's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolcell.core import ConfigError
from toolcell.host import HostConfig
from toolcell.host.config import mcp_servers
from toolcell.host.config.mcp_servers import MCPServerConfig

from ...support.paths import ROOT

pytestmark = pytest.mark.promise("P-30")

CONFIG = """
policy_files = ["rules/policies.toml"]
[state]
folder = "state"
[audit]
path = "log/audit.jsonl"
[sandbox]
backend = "subprocess"
{of_programs}
[tools]
folders = ["lib"]
[tools.mcp.notes]
command = "notes"
[tools.mcp.notes.cell]
{of_server}
"""


def configured(
    folder: Path, of_programs: str = "", of_server: str = "", **environ: str
) -> HostConfig:
    """Return a configuration; a mount that is named `+` is one that is written to."""
    for name in ("rules", "state", "log", "lib", "data/inner"):
        (folder / name).mkdir(parents=True, exist_ok=True)

    def mounts(name: str) -> str:
        if not name:
            return ""
        path = folder / name.removeprefix("+")
        read_only = str(not name.startswith("+")).lower()
        return (
            f'mounts = [{{ source = "{path}", target = "/mnt", '
            f"read_only = {read_only} }}]"
        )

    text = CONFIG.format(of_programs=mounts(of_programs), of_server=mounts(of_server))
    (folder / "toolcell.toml").write_text(text)
    return HostConfig.from_file(folder / "toolcell.toml", environ=environ)


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        ("state", "would show .*/state to programs"),
        ("log", "would show .*/log/audit.jsonl to programs"),
        (".", "would show .*/state to programs"),
        ("link", "would show .*/state to programs"),
        ("+rules", "would let programs change .*/rules/policies.toml"),
        ("+lib", "would let programs change .*/lib;"),
        ("+linked", "would let programs change .*/linked/toolcell.toml"),
    ],
)
@pytest.mark.parametrize("of_programs", [True, False])
def test_no_cell_shows_or_changes_what_a_host_trusts(
    tmp_path: Path, mount: str, why: str, of_programs: bool
) -> None:
    """Attack: a program writes itself a policy, a token, or a tool of the host."""
    linked = tmp_path / "linked"
    linked.mkdir()
    (tmp_path / "link").symlink_to("state")
    if mount == "+linked":
        (linked / "toolcell.toml").touch()
        (tmp_path / "toolcell.toml").symlink_to("linked/toolcell.toml")
    given = (mount, "") if of_programs else ("", mount)

    with pytest.raises(ConfigError, match=why):
        configured(tmp_path, *given)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("AUDIT__KEY", "file:data/x"),
        ("STATE__REDIS_URL", "file:data/x"),
        ("FLOWS__REDIS_URL", "file:data/x"),
        (
            "SANDBOX__PACKAGE_RULES",
            '{ index_url = "https://a.example", index_password = "file:data/x" }',
        ),
        ("CLUSTER", '{ directory = "file:data/x", token = "env:X" }'),
        ("CLUSTER", '{ directory = "env:X", token = "file:data/x" }'),
        (
            "CLUSTER",
            '{ directory = "env:X", token = "env:X", drivers = { a = "file:data/x" } }',
        ),
        (
            "CONSOLE__OIDC",
            '{ issuer = "https://a.example", client_id = "a", people = { a = '
            '{ name = "a", role = "viewer" } }, client_secret = "file:data/x" }',
        ),
        (
            "WEBHOOKS",
            '[{ name = "a", url = "https://a.example/", secret = "file:data/x" }]',
        ),
        (
            "TOOLS__MCP",
            '{ a = { url = "https://a.example/", bearer = "file:data/x" } }',
        ),
        (
            "TOOLS__OPENAPI",
            '{ a = { document = "a.json", server = "https://a.example", '
            'secrets = { key = "file:data/x" } } }',
        ),
    ],
)
def test_no_cell_shows_a_file_with_a_secret(
    tmp_path: Path, key: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=r"data would show .*/data/x to programs"):
        configured(tmp_path, "data", **{f"TOOLCELL__{key}": value})


NETWORK = '{ mode = "allow", hosts = ["a.example:443"], inspect = ["a.example:443"] }'


def test_no_cell_shows_the_value_of_a_credential(tmp_path: Path) -> None:
    credentials = (
        '[{ name = "a", value = "file:data/x", hosts = ["a.example:443"], '
        'variable = "TOKEN" }]'
    )

    with pytest.raises(ConfigError, match=r"data would show .*/data/x to programs"):
        configured(
            tmp_path,
            "data",
            TOOLCELL__SANDBOX__NETWORK=NETWORK,
            TOOLCELL__SANDBOX__CREDENTIALS=credentials,
        )


ON_HOST = '{ a = { where = "host", folder = "FOLDER", command = "RUN" } }'
WITH = '{ a = { where = "host", folder = "lib", command = "python3", MORE } }'
API = '{ a = { document = "data/x", server = "https://a.example" } }'


@pytest.mark.parametrize(
    "environ",
    [
        {"TOOLS__MCP_PINS": "data/x"},
        {"TOOLS__OPENAPI_PINS": "data/x", "TOOLS__OPENAPI": API.replace("data/", "")},
        {"TOOLS__OPENAPI": API},
        {"LOGGING__PATH": "data/x"},
        {"POLICY_FILES": '["rules/linked.toml"]'},
        {"POLICY_FILES": '["rules/*.toml"]'},
        {"SANDBOX__NETWORK": NETWORK.replace("}", ', server_ca = "{folder}/data/x" }')},
        {"SANDBOX__PACKAGE_RULES__FOLDER": "{folder}/data/x"},
        {"SANDBOX__NODE": "{folder}/data/x"},
        {"SANDBOX__PACKAGE_RULES__INDEX_URL": "file://{folder}/dat%61/x"},
        {"TOOLS__DATABASE__PATH": "data/x"},
        {"TOOLS__MCP": ON_HOST.replace("FOLDER", "data/x").replace("RUN", "notes")},
        {"TOOLS__MCP": ON_HOST.replace("FOLDER", "lib").replace("RUN", "../data/x")},
        {"TOOLS__MCP": '{ a = { where = "host", command = "{folder}/data/x" } }'},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["{folder}/data/x"]')},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["-m", "--file={folder}/data/x"]')},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["-I{folder}/data/x"]')},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["file://{folder}/data/x"]')},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["../data/x"]')},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["-I../data/x"]')},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["@{folder}/data/x"]')},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["-c", "exec {folder}/data/x"]')},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["-c", "a>{folder}/data/x&"]')},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["-c", "\'{folder}/data/x\'"]')},
        {"TOOLS__MCP": WITH.replace("MORE", 'args = ["--args", "/a {folder}/data/x"]')},
        {"TOOLS__MCP": WITH.replace("MORE", "env = { A = '[\"{folder}/data/x\"]' }")},
        {"TOOLS__MCP": WITH.replace("MORE", 'env = { A = "/x:{folder}/data/x" }')},
    ],
)
def test_no_cell_changes_what_a_host_reads(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Attack: a program approves a tool for itself, or leads the log elsewhere."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/linked.toml").symlink_to("../data/x")
    variables = {
        f"TOOLCELL__{key}": value.replace("{folder}", str(tmp_path))
        for key, value in environ.items()
    }

    assert configured(tmp_path, "data", **variables).sandbox.mounts
    with pytest.raises(ConfigError, match=r"data would let programs change .*/data/x;"):
        configured(tmp_path, "+data", **variables)


@pytest.mark.parametrize("text", ["PATH", "--file=PATH", "exec 'PATH' a"])
def test_no_cell_changes_a_file_whose_path_has_a_space(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "my data").mkdir()
    args = text.replace("PATH", f"{tmp_path}/my data/x")
    servers = WITH.replace("MORE", f'args = ["{args}"]')

    with pytest.raises(ConfigError, match=r"would let programs change .*/my data/x;"):
        configured(tmp_path, "+my data", TOOLCELL__TOOLS__MCP=servers)


IS_DATA = WITH.replace("MORE", 'MORE, data = ["data"]')


@pytest.mark.parametrize(
    "more",
    [
        'args = ["run.py", "--root={folder}/data/x", "{folder}/data"]',
        'args = ["../data/x"]',
        'env = { ROOT = "{folder}/data", MEMORY_FILE_PATH = "{folder}/data/x.json" }',
        'env = { DB_PATH = "../data/x.db", VAULT_PATH = "../data" }',
    ],
)
def test_cells_may_write_what_a_server_on_the_host_has_as_data(
    tmp_path: Path, more: str
) -> None:
    servers = IS_DATA.replace("MORE", more).replace("{folder}", str(tmp_path))

    assert configured(tmp_path, "+data", TOOLCELL__TOOLS__MCP=servers).sandbox.mounts


@pytest.mark.parametrize(
    "server",
    [
        IS_DATA.replace("MORE", 'args = ["{folder}"]'),
        IS_DATA.replace("MORE", 'args = ["{folder}/data/../data2/x"]'),
        IS_DATA.replace("python3", "{folder}/data/x").replace("MORE", "args = []"),
        IS_DATA.replace('"lib"', '"data"').replace("MORE", "args = []"),
        IS_DATA.replace("MORE", 'env = { NODE_OPTIONS = "-r ../data/x" }'),
        *(
            IS_DATA.replace("MORE", f'env = {{ {name} = "/a:../data/x" }}')
            for name in ("PATH", "PYTHONPATH", "PERL5LIB", "LD_AUDIT", "BASH_ENV")
        ),
    ],
)
def test_what_a_server_on_the_host_loads_is_no_data(
    tmp_path: Path, server: str
) -> None:
    """Attack: a program writes what the host runs, where only data was to be."""
    (tmp_path / "data2").symlink_to("data/inner")
    servers = server.replace("{folder}", str(tmp_path))

    with pytest.raises(ConfigError, match="would let programs change"):
        configured(tmp_path, "+data", TOOLCELL__TOOLS__MCP=servers)


def test_the_variables_that_the_guide_calls_code_are_no_data() -> None:
    page = (ROOT / "docs/mcp_client.md").read_text()
    table = page.partition("| of | variables that are code |")[2].partition("\n\n")[0]
    names = re.findall(r"`(\w+)`", table)

    assert sorted(names) == sorted(vars(mcp_servers)["_OF_CODE"])
    for name in [*names, "npm_config_prefix", "DB_PATH"]:
        server = MCPServerConfig(
            where="host", command="a", data=(Path("/data"),), env={name: "/b:/data/x"}
        )
        assert (Path("/data/x") in server.host_files) == (name != "DB_PATH"), name


def test_an_option_of_one_letter_names_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    servers = '{ a = { where = "host", command = "npx", args = ["-y", "x"] } }'
    monkeypatch.chdir(tmp_path)

    assert configured(tmp_path, "+data", TOOLCELL__TOOLS__MCP=servers).sandbox.mounts


def test_no_cell_writes_beside_what_a_server_on_the_host_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: an interpreter imports what lies in the folder that it runs in."""
    (tmp_path / "data").mkdir()
    servers = (
        '{ a = { where = "host", command = "notes", args = ["."], data = ["."] } }'
    )
    monkeypatch.chdir(tmp_path)
    below = configured(tmp_path, "+data", TOOLCELL__TOOLS__MCP=servers)
    monkeypatch.chdir(tmp_path / "data")

    assert below.sandbox.mounts
    with pytest.raises(ConfigError, match=r"for the server a: give it a `folder`"):
        configured(tmp_path, "+data", TOOLCELL__TOOLS__MCP=servers)
    with_folder = servers.replace("args", 'folder = "lib", args')
    assert configured(tmp_path, "+data", TOOLCELL__TOOLS__MCP=with_folder).tools.mcp
    assert configured(tmp_path, "data", TOOLCELL__TOOLS__MCP=servers).tools.mcp


@pytest.mark.parametrize("source", ["+data", "+data/bin", "+data/lib"])
def test_no_server_changes_the_interpreter_of_cells(
    tmp_path: Path, source: str
) -> None:
    """Attack: a server replaces the file that the host runs for its next cell."""
    for name in ("bin", "lib"):
        (tmp_path / "data" / name).mkdir(parents=True)
    python = tmp_path / "data/bin/python3"
    python.touch()
    environ = {"TOOLCELL__SANDBOX__PYTHON": str(python)}

    assert configured(tmp_path, "", source[1:], **environ).sandbox.python
    assert configured(tmp_path, "", "+data/inner", **environ).sandbox.python
    with pytest.raises(ConfigError, match=r"would let programs change .*/data/\w+"):
        configured(tmp_path, "", source, **environ)


@pytest.mark.parametrize("given", [("+data", "data/inner"), ("data/inner", "+data")])
def test_no_cell_may_put_a_link_where_another_mounts(
    tmp_path: Path, given: tuple[str, str]
) -> None:
    with pytest.raises(ConfigError, match=r"data/inner is inside of .*/data, where"):
        configured(tmp_path, *given)


@pytest.mark.parametrize(
    "given",
    [("+data", "+data"), ("data", "+data/inner"), ("rules", "lib"), ("+data", "")],
)
def test_other_mounts_are_as_they_are_written(
    tmp_path: Path, given: tuple[str, str]
) -> None:
    assert configured(tmp_path, *given).tools.mcp.keys() == {"notes"}


@pytest.mark.parametrize(
    "source", ["data/link", "data/chain", "data/link/inner", "data/inner/../../safe"]
)
@pytest.mark.parametrize("of_programs", [True, False])
def test_no_cell_may_lead_another_mount_elsewhere(
    tmp_path: Path, source: str, of_programs: bool
) -> None:
    """Attack: a program replaces a link, or a folder, on the way to a source."""
    for name in ("safe/inner", "data/inner"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/link").symlink_to("../safe")
    (tmp_path / "there").symlink_to(tmp_path / "safe")
    (tmp_path / "data/chain").symlink_to("../there")
    given = ("+data", source) if of_programs else (source, "+data")

    with pytest.raises(ConfigError, match=r"/data/\w+ is inside of .*/data, where"):
        configured(tmp_path, *given)


@pytest.mark.parametrize(
    ("name", "link", "target"),
    [
        ("rules/policies.toml", "rules", "data/rules"),
        ("state", "state", "data/state"),
        ("log/audit.jsonl", "log", "data/log"),
    ],
)
def test_no_cell_may_lead_a_host_elsewhere(
    tmp_path: Path, name: str, link: str, target: str
) -> None:
    """Attack: a program replaces a link on the way to a file that a host trusts."""
    (tmp_path / "data").mkdir()
    (tmp_path / "safe").mkdir()
    (tmp_path / link).symlink_to(target)
    (tmp_path / target).symlink_to("../safe")

    with pytest.raises(ConfigError, match=rf"would let programs change .*/{target}"):
        configured(tmp_path, "+data")


def test_a_link_to_itself_is_not_followed_for_ever(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/policies.toml").symlink_to("policies.toml")

    with pytest.raises(ConfigError, match=r"policies.toml leads over more than 40"):
        configured(tmp_path, "+data")


@pytest.mark.parametrize(
    ("links", "why"), [(40, "would show .*/state"), (41, "leads over more than 40")]
)
def test_no_mount_leads_over_many_links_to_the_state(
    tmp_path: Path, links: int, why: str
) -> None:
    (tmp_path / "link1").symlink_to("state")
    for number in range(1, links):
        (tmp_path / f"link{number + 1}").symlink_to(f"link{number}")

    with pytest.raises(ConfigError, match=why):
        configured(tmp_path, f"+link{links}")
