"""A chat about a file that its user uploads; the model is scripted.

The file, the variables of the programs and the chart belong to the session of the chat.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio

from toolcell.host import Host, HostConfig
from toolcell.tools import RunContext

CONFIG = HostConfig.model_validate(
    {
        "tools": {"builtin": ["code"]},
        "policies": [{"agent_id": "analyst", "allow": ["run_python"]}],
    }
)
UPLOAD = b"month,tea\nJan,12\nFeb,19\nMar,31\n"
READ = """
import csv
sales = {row["month"]: int(row["tea"]) for row in csv.DictReader(open("sales.csv"))}
sum(sales.values())
"""
DRAW = """
import os
os.makedirs("artifacts", exist_ok=True)
bars = [f'<rect x="{40 * n}" y="{40 - tea}" width="30" height="{tea}"/>'
        for n, tea in enumerate(sales.values())]
with open("artifacts/tea.svg", "w") as file:
    file.write(f'<svg xmlns="http://www.w3.org/2000/svg">{"".join(bars)}</svg>')
"""
CHAT = {"How much?": READ, "Draw it.": DRAW, "And in May?": "sales['May']"}
"""The user's question, and the program that a model would write."""


async def main(out: str) -> None:
    """Answer each question of the user by a program in the session of the chat.

    Args:
        out: The folder of the charts.
    """
    run = RunContext(run_id="run-1", session="chat-1", artifacts=out)
    async with Host(CONFIG) as host:
        async with host.sessions.use("analyst", "chat-1") as held:
            await held.session.write_file("sales.csv", UPLOAD)
        for question, code in CHAT.items():
            result = await host.call(
                "run_python", {"code": code}, agent_id="analyst", run=run
            )
            print(question, result.content["status"], result.content.get("value", ""))
    print("charts:", [each.name for each in Path(out).iterdir()])


with tempfile.TemporaryDirectory() as folder:
    anyio.run(main, folder)
