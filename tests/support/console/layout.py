"""What is wrong with how a page is laid out on a screen: measured in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .access import OPEN_ALL
from .browser import Browser

PHONE, TABLET, DESK = 360, 768, 1280
HEAD_PIXELS = 64
"""The height of a head of one line."""

TARGET_PIXELS = 44
"""The least width and height of what a finger touches."""

MEASURE = f"""
const [width, headPixels, targetPixels] = arguments;
{OPEN_ALL}
if (document.querySelector(".menu")?.checkVisibility())
  document.getElementById("pages").showPopover();
const found = [];
const seen = (each) => each.checkVisibility({{ visibilityProperty: true }})
  && !each.closest(".unseen, .skip");
const name = (each) => each.outerHTML.slice(0, 160);
const page = document.documentElement;
if (page.scrollWidth > width) found.push(`the page is ${{page.scrollWidth}} wide`);
const head = document.querySelector("header.top").getBoundingClientRect();
if (head.height > headPixels) found.push(`the head is ${{head.height}} high`);

// Words: what is not a program or an id may break between words alone.
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const range = document.createRange();
const words = /(?<!\\w)[\\p{{L}}\\p{{N}}]{{2,24}}(?!\\w)/gu;
while (texts.nextNode()) {{
  const text = texts.currentNode, parent = text.parentElement;
  if (parent.closest("pre, code, textarea, option") || !seen(parent)) continue;
  for (const word of text.data.matchAll(words)) {{
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    const tops = [...range.getClientRects()].map((box) => Math.round(box.top));
    if (new Set(tops).size > 1) found.push(`"${{word[0]}}" in ${{name(parent)}}`);
  }}
}}

const targets = "a, button, input:not([type=hidden]), select, summary, textarea";
for (const each of document.querySelectorAll(`td, th, dd, pre, ${{targets}}`)) {{
  if (!seen(each)) continue;
  const box = each.getBoundingClientRect();
  const frame = each.closest(".wide")?.getBoundingClientRect();
  const right = Math.min(width, frame?.right ?? width);
  if (box.right > right + 1 || box.left < -1) found.push(`hidden: ${{name(each)}}`);
  if (!each.matches(targets) || !targetPixels) continue;
  // A link within a sentence is as high as its line, as WCAG 2.5.8 allows.
  if (each.matches("a") && getComputedStyle(each).display === "inline") {{
    const around = each.parentElement.textContent.trim();
    if (around.length > each.textContent.trim().length) continue;
  }}
  const target = each.matches("[type=checkbox], [type=radio]")
    ? each.closest("label").getBoundingClientRect() : box;
  if (target.height < targetPixels - 0.5 || target.width < targetPixels - 0.5)
    found.push(`${{target.width}} x ${{target.height}}: ${{name(each)}}`);
}}
return found;
"""


@contextmanager
def on_screen(page: Browser, width: int) -> Iterator[None]:
    """Show the page on a screen of so many pixels; those but a desk's are touched."""
    touch, command = width < DESK, page.driver.execute_cdp_cmd
    command(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 780, "deviceScaleFactor": 1, "mobile": touch},
    )
    command("Emulation.setTouchEmulationEnabled", {"enabled": touch})
    try:
        yield
    finally:
        command("Emulation.setTouchEmulationEnabled", {"enabled": False})
        command("Emulation.clearDeviceMetricsOverride", {})


def wrong_at(page: Browser, width: int) -> list[str]:
    """Return what is wrong with the open page on a screen of so many pixels."""
    with on_screen(page, width):
        target = TARGET_PIXELS if width < DESK else 0
        found = page.script(MEASURE, width, HEAD_PIXELS, target)
    return [str(each) for each in found]
