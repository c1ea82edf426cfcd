"""Passkeys in a real browser, with a virtual authenticator."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx2
import pytest

from toolcell.host.console.accounts.sessions import MAX_FAILURES

from ....support.child import Child
from ....support.console.browser import Browser, browser
from ....support.console.served import Service, configured, served
from ....support.toolcell_command import TOOLCELL, toolcell

FORM = {
    "Sec-Fetch-Site": "same-origin",
    "Content-Type": "application/x-www-form-urlencoded",
}
PROOF = """
const [kind, done] = arguments;
const key = PublicKeyCredential;
(async () => {
  const answer = await fetch(`/login/options?for=${kind}`);
  const publicKey = key.parseRequestOptionsFromJSON(await answer.json());
  return JSON.stringify(await navigator.credentials.get({ publicKey }));
})().then(done, (error) => done(String(error)));
"""


def proof(anna: Browser, kind: str) -> str:
    return str(anna.driver.execute_async_script(PROOF, kind))


def signed_in(service: Service, text: str) -> int:
    headers = {**FORM, "Origin": service.url}
    return httpx2.post(
        f"{service.url}/login", data={"proof": text}, headers=headers, timeout=60
    ).status_code


def test_a_person_signs_out_and_in(service: Service, anna: Browser) -> None:
    [cookie] = anna.driver.get_cookies()
    anna.press("Sign out")
    anna.until(lambda: "Sign in" in anna.driver.title)
    anna.open(f"{service.url}/events")
    anna.open(f"{service.url}/?x=1")
    anna.press("Sign in with a passkey")
    anna.until(lambda: anna.driver.current_url == f"{service.url}/?x=1")

    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert service.sessions.find(cookie["value"]) is None
    assert anna.complaints() == []


def test_a_used_link_is_refused(service: Service, anna: Browser) -> None:
    link = service.link("viewer", person_id="berta")
    with browser() as other:
        other.open(link)
        other.open(link)
        other.press("Register a passkey")
        other.until(lambda: "Inbox" in other.driver.title)
        other.open(link)
        other.reads("good no longer")
    berta = service.people.find("berta")
    assert berta is not None and berta.role == "viewer"


@pytest.mark.parametrize("url", ["//evil.test", "https://evil.test", "/\\evil.test"])
def test_signing_in_leads_to_pages_of_ours(
    service: Service, anna: Browser, url: str
) -> None:
    anna.press("Sign out")
    anna.until(lambda: "Sign in" in anna.driver.title)
    anna.open(f"{service.url}/login?next={url}")
    anna.press("Sign in with a passkey")
    anna.until(lambda: anna.driver.current_url == f"{service.url}/")


def test_a_proof_counts_once_and_for_its_purpose(
    service: Service, anna: Browser
) -> None:
    anna.open(service.url)
    touched, good = proof(anna, "touch"), proof(anna, "login")
    changed = good.replace('"signature":"M', '"signature":"N')

    assert signed_in(service, touched) == 403
    assert changed == good or signed_in(service, changed) == 403
    assert signed_in(service, good) == 303
    # Many authenticators do not count, so the counter is no help.
    [key] = service.people.passkeys("anna")
    service.people.use_passkey(key.id, 0)
    assert signed_in(service, good) == 403


def test_a_passkey_of_another_server_is_refused(
    service: Service, anna: Browser, tmp_path: Path
) -> None:
    with served(tmp_path) as other:
        anna.open(f"{other.url}/login")
        anna.press("Sign in with a passkey")
        anna.reads("does not open the console")

    anna.open(service.url)
    assert "Inbox" in anna.driver.title


def test_attempts_are_limited(tmp_path: Path) -> None:
    with served(tmp_path) as other:
        found = [signed_in(other, "{}") for _ in range(MAX_FAILURES + 2)]
        link = httpx2.get(other.link(), timeout=60).status_code

    assert found == [*[403] * MAX_FAILURES, 429, 429]
    assert link == 429


def test_the_command_serves_the_console(tmp_path: Path) -> None:
    configured(tmp_path)
    config = ("--config", str(tmp_path / "toolcell.toml"))
    command = [TOOLCELL, "console", *config, "--address", "127.0.0.1:0", "--json"]
    with Child(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        answer = httpx2.get(told["link"], timeout=60)
        process.send_signal(signal.SIGTERM)
    open_to_all = toolcell("console", *config, "--address", "0.0.0.0:0")

    assert process.returncode == 0
    assert (answer.status_code, "an <strong>admin" in answer.text) == (200, True)
    assert told["link"].startswith(f"{told['console']}/join/")
    assert open_to_all.returncode == 2
    assert b"public_url" in open_to_all.stderr


def test_a_server_has_the_console_beside_it(tmp_path: Path) -> None:
    configured(tmp_path)
    config = ("--config", str(tmp_path / "toolcell.toml"))
    http = ("--http", "127.0.0.1:0", "--console", "127.0.0.1:0", "--json")
    command = [TOOLCELL, "serve", *config, *http]
    with Child(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [json.loads(process.stdout.readline()) for _ in range(2)]
        console = httpx2.get(told[0]["console"], follow_redirects=True, timeout=60)
        mcp = httpx2.get(told[1]["url"], timeout=60)
        process.send_signal(signal.SIGTERM)
    alone = toolcell("serve", *config, "--console", "127.0.0.1:0")

    assert process.returncode == 0
    assert (console.status_code, mcp.status_code) == (200, 401)
    assert "Sign in" in console.text
    assert alone.returncode == 2
