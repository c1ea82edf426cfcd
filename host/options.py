"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[
    Path, typer.Option("--config", help="The configuration of the host.")
]
DEFAULT_CONFIG = Path("toolcell.toml")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Agent = Annotated[str, typer.Option("--agent", help="The agent that calls.")]
RunId = Annotated[
    str | None, typer.Option("--run", help="The agent's run; for limits by run.")
]
Arguments = Annotated[
    str, typer.Option("--args", help="A JSON object; - reads standard input.")
]
