"""Makes the pictures of docs/console.md.

.venv/bin/python -m tests.support.console.screenshots
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from toolcell.guard import Approve

from ..paths import ROOT
from .browser import Browser, browser
from .served import SECRET, Service, runs_programs, served

FOLDER = ROOT / "docs" / "images"
PAGES = ("", "runs", "sessions", "agents", "audit", "policies", "health", "people")
SCRIPT = """\
import csv

with open("orders.csv") as file:
    late = [row for row in csv.DictReader(file) if row["state"] == "late"]
for row in late:
    tools.pay(to=row["customer"], sum=5, note="Sorry for the delay.")
"""


def work(service: Service) -> None:
    """Have the agents make calls, some of which wait."""
    for number in range(24):
        service.call("note", text=f"page {number} read").result(timeout=20)
    service.call("pay", to="thief", sum=900).result(timeout=20)
    for session in ("orders", "invoices"):
        program = f"rows = [*range({len(session)} * 100_000)]"
        service.call("run_python", "analyst", session=session, code=program).result(60)
    request, _ = service.asked(to="Northern Paper Ltd", sum=120, note="Invoice 2214")
    service.deny(request)
    service.asked(
        to="Northern Paper Ltd", sum=40, note="Two boxes of A4.\nInvoice 2215"
    )
    service.asked("run_script", script=SCRIPT)
    service.asked(to="Courier", sum=12, note=f"token={SECRET}", agent="buyer")
    two, _ = service.asked(to="Landlord", sum=2400, note="Rent", agent="treasurer")
    reply = Approve(approver="berta")
    service.portal.call(service.host.approvals.answer, two.id, reply)


def take(page: Browser, path: Path, height: int = 900) -> None:
    """Take a picture of the page, once its buttons can be pressed."""
    page.waits_for_buttons()
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 1100, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    page.driver.save_screenshot(str(path))


def make(out: Path) -> None:
    """Make all pictures in a folder."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), runs_programs("analyst")) as service,
        browser() as page,
    ):
        page.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        page.join(service.link(), "anna")
        work(service)
        hidden, several = service.waiting()[-2:]
        for name in PAGES:
            page.open(f"{service.url}/{name}")
            take(page, out / f"console-{name or 'inbox'}.png")
        page.open(f"{service.url}/agents/builder")
        take(page, out / "console-agent.png")
        page.open(f"{service.url}/approvals/{hidden.id}")
        take(page, out / "console-request.png")
        page.open(f"{service.url}/approvals/{several.id}")
        take(page, out / "console-several.png", 960)


if __name__ == "__main__":
    make(FOLDER)
