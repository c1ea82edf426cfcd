"""Debian's Chromium with a virtual authenticator, driven by Selenium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.virtual_authenticator import VirtualAuthenticatorOptions
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from ...conftest import missing

T = TypeVar("T")
WAIT_SECONDS = 60.0
_WATCH = """
window.violations = [];
function isDead(button) {
  let refused = true;
  const look = (event) => { refused = event.defaultPrevented; event.preventDefault(); };
  window.addEventListener("submit", look);
  button.click();
  window.removeEventListener("submit", look);
  return refused;
}
document.addEventListener("DOMContentLoaded", () => {
  const guarded = [...document.querySelectorAll("button[data-guard]")];
  const dead = guarded.filter(isDead).length;
  Object.assign(window, { guarded: { buttons: guarded.length, dead }, missed: false });
});
window.addEventListener("click", (event) => {
  window.missed = Boolean(event.target.closest("[aria-disabled]"));
}, true);
document.addEventListener("securitypolicyviolation",
  (event) => window.violations.push(event.violatedDirective + " " + event.blockedURI));
"""


class Browser:
    """A browser of one person."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        driver.set_script_timeout(WAIT_SECONDS)
        driver.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH}
        )
        driver.add_virtual_authenticator(
            VirtualAuthenticatorOptions(
                protocol="ctap2",
                transport="internal",
                has_resident_key=True,
                has_user_verification=True,
                is_user_verified=True,
            )
        )

    def open(self, url: str) -> None:
        """Open a page."""
        self.driver.get(url)

    def until(self, condition: Callable[[], T]) -> T:
        """Wait until a condition is true, and return its value."""
        waiting = WebDriverWait(
            self.driver,
            WAIT_SECONDS,
            poll_frequency=0.05,
            ignored_exceptions=(WebDriverException,),
        )
        try:
            return waiting.until(lambda _: condition())
        except TimeoutException:
            here = self.driver.current_url
            raise AssertionError(f"{here}: {self.text}; {self.complaints()}") from None

    def all(self, css: str) -> list[WebElement]:
        """Return the elements of a selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def find(self, css: str) -> WebElement:
        """Return the first element of a selector, once it is there."""
        return self.until(lambda: self.driver.find_element(By.CSS_SELECTOR, css))

    def can_press(self, css: str) -> None:
        """Wait until a button can be pressed; it may be replaced meanwhile."""
        self.until(lambda: self.all(f"{css}:not([aria-disabled])"))

    def waits_for_buttons(self) -> None:
        """Wait until all buttons of the page can be pressed."""
        self.until(lambda: not self.all("[aria-disabled]"))

    def press(self, text: str, within: str = "") -> None:
        """Press the button with a text, once it can be pressed."""
        path = f"//{within or '*'}//button[normalize-space()='{text}']"
        self._click(By.XPATH, path)

    def click(self, css: str) -> None:
        """Click on the first element of a selector, once that can be done."""
        self._click(By.CSS_SELECTOR, css)

    def _click(self, by: str, what: str) -> None:
        def clicked() -> bool:
            # A part of the page may be replaced at any time, and this element with it.
            element = self.driver.find_element(by, what)
            if element.get_attribute("aria-disabled"):
                return False
            element.click()
            # The click fell on what replaced it, which is dead for a moment.
            return not self._missed()

        self.until(clicked)

    def _missed(self) -> bool:
        """Tell whether the last click on this page fell on a dead button."""
        try:
            return bool(self.script("return window.missed"))
        except WebDriverException:
            # It led to another page.
            return False

    def open_call(self, request_id: str) -> None:
        """Open the card of a call in the inbox."""

        def is_open() -> bool:
            if self.all(f"#call-{request_id}[open]"):
                return True
            self.driver.find_element(By.ID, f"line-{request_id}").click()
            return False

        self.until(is_open)

    def key(self, key: str) -> None:
        """Press a key, in whatever has the focus."""
        ActionChains(self.driver).send_keys(key).perform()

    def send(self, text: str, within: str = "") -> None:
        """Press a button that sends a form, and wait for the page that answers."""
        before = self.driver.find_element(By.CSS_SELECTOR, "html").id
        self.press(text, within)

        def answered() -> bool:
            now = self.driver.find_element(By.CSS_SELECTOR, "html").id
            ready = self.script("return document.readyState") == "complete"
            return ready and now != before

        self.until(answered)

    def write(self, css: str, text: str) -> None:
        """Put a text into a field, in place of the one there."""

        def written() -> bool:
            # A part of the page may be replaced until its field has the focus.
            field = self.driver.find_element(By.CSS_SELECTOR, css)
            field.clear()
            field.send_keys(text)
            return bool(field.get_attribute("value"))

        self.until(written)

    def close_others(self, own: str) -> None:
        """Close all windows but one, and go on in that one."""
        for window in {*self.driver.window_handles} - {own}:
            self.driver.switch_to.window(window)
            # Chromium may wait for ever for one that closes while its page loads.
            self.until(lambda: self.script("return document.readyState") == "complete")
            self.driver.close()
        self.driver.switch_to.window(own)

    @property
    def text(self) -> str:
        """The text of the page, as a person reads it."""
        return self.driver.find_element(
            By.CSS_SELECTOR, ":is(main, body:not(:has(main)))"
        ).text

    def reads(self, text: str) -> None:
        """Wait until the page has a text."""
        self.until(lambda: text in self.text)

    def script(self, text: str, *arguments: Any) -> Any:
        """Run a script of the test in the page."""
        return self.driver.execute_script(text, *arguments)

    def join(self, link: str, name: str) -> None:
        """Register a passkey with a one-time link."""
        self.open(link)
        self.write("[name=name]", name)
        self.press("Register a passkey")
        self.until(lambda: "Inbox" in self.driver.title)

    def allow_scripts(self, allowed: bool) -> None:
        """Let pages run scripts, or none at all, from the next page on."""
        self.driver.execute_cdp_cmd(
            "Emulation.setScriptExecutionDisabled", {"value": not allowed}
        )

    def complaints(self) -> list[str]:
        """Return errors in the console, and breaches of the policy for content."""
        logged = [each["message"] for each in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
        return logged + (self.script("return window.violations || []") or [])


@contextmanager
def browser(*, size: str = "1200,900") -> Iterator[Browser]:
    """Start a browser."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing("chromium and chromium-driver are not installed")
    options = ChromeOptions()
    options.binary_location = chromium
    for option in ("headless=new", "no-sandbox", f"window-size={size}"):
        options.add_argument(f"--{option}")
    for option in ("disable-dev-shm-usage", "disable-background-networking"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = Chrome(options=options, service=ChromeService(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()
