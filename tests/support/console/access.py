"""What keeps people from a page: what axe-core finds, the keyboard, and 200 % zoom."""

from __future__ import annotations

import os
from pathlib import Path

from ...conftest import missing
from .browser import Browser

RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then(
  (found) => done(found.violations.map((each) => ({
    id: each.id, impact: each.impact, nodes: each.nodes.map((node) => node.html)
  }))), (error) => done([{ id: String(error), impact: "critical", nodes: [] }]));
"""
OPEN_ALL = """for (const each of document.querySelectorAll("details")) {
  each.removeAttribute("name");
  each.open = true;
}"""
ACTIVE = "a, button, summary, textarea, select, input:not([type=hidden]), [tabindex]"
OUT_OF_REACH = f"""
{OPEN_ALL}
const active = [...document.querySelectorAll("{ACTIVE}, .wide, pre.tall")];
const outOfReach = active.filter((each) => each.checkVisibility()).filter((each) => {{
  each.focus({{ focusVisible: true }});
  const isReached = document.activeElement === each
    && (each.tabIndex === 0 || each.id === "main");
  const isSeen = getComputedStyle(each).outlineStyle !== "none" || each.id === "main";
  return !(isReached && isSeen);
}}).map((each) => each.outerHTML);
"""
WITHOUT_ID = f"""
const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
const withoutId = [...document.querySelectorAll("[data-live]")]
  .flatMap((part) => [part, ...part.querySelectorAll("details, {ACTIVE}")])
  .filter((each) => ids.filter((id) => id === each.id).length !== 1)
  .map((each) => each.outerHTML);
"""


def read_axe() -> str:
    """Return the script of axe-core."""
    path = Path(os.environ.get("TOOLCELL_AXE", "-"))
    if not path.is_file():
        missing("TOOLCELL_AXE names no axe.min.js of npm's axe-core")
    return path.read_text()


def serious(page: Browser, axe: str) -> list[object]:
    """Return what axe-core finds serious on the page."""
    page.script(OPEN_ALL)
    # Buttons wait for a moment, and their colours with them; others fade to new ones.
    page.waits_for_buttons()
    page.until(lambda: not page.script("return document.getAnimations().length"))
    page.script(axe)
    found = page.driver.execute_async_script(RUN_AXE)
    return [each for each in found if each["impact"] in ("serious", "critical")]


def prefer(page: Browser, value: str, feature: str = "prefers-color-scheme") -> None:
    """Have the browser prefer light or dark pages, or what another feature says."""
    media = {"features": [{"name": feature, "value": value}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def wider(page: Browser, width: int) -> int:
    """Return the pixels by which the page is wider than a window of so many."""
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 450, "deviceScaleFactor": 2, "mobile": False},
    )
    found = page.script(
        f"{OPEN_ALL} const page = document.documentElement;"
        "return page.scrollWidth - page.clientWidth"
    )
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    return int(found)


def unreached(page: Browser) -> list[object]:
    """Return what the keyboard does not reach, or reaches and does not show.

    What is in a part that is replaced needs an id, too, to keep the focus.
    """
    # A part may be replaced at any time, its buttons wait again: one moment counts.
    moment = f"""
      if (document.querySelector("[aria-disabled]")) return null;
      {OUT_OF_REACH} {WITHOUT_ID} return {{ found: [...outOfReach, ...withoutId] }};
    """
    return list(page.until(lambda: page.script(moment))["found"])


def barriers(page: Browser, axe: str) -> dict[str, object]:
    """Return all that is wrong with the page that is open; empty: nothing."""
    found: dict[str, object] = {}
    for scheme in ("light", "dark"):
        prefer(page, scheme)
        found[scheme] = serious(page, axe)
    # At 200 % a window of 1,200 pixels is 600 wide; 320 is that of a telephone.
    found |= {f"{width} pixels": wider(page, width) for width in (600, 320)}
    found["keyboard"] = unreached(page)
    return {name: each for name, each in found.items() if each}
