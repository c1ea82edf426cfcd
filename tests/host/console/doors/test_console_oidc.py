"""Signing in with an issuer of OpenID Connect, and issuers that lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc.jwk import RSAKey

from toolcell.core import ConfigError
from toolcell.host.console.accounts.sessions import MAX_FAILURES

from ....support.console.browser import browser
from ....support.console.issuer import (
    CLIENT,
    SECRET,
    Issuer,
    oidc_table,
    served_issuer,
)
from ....support.console.served import Service, configured, served


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with served_issuer() as made:
        yield made


@pytest.fixture
def honest(issuer: Issuer) -> Iterator[Issuer]:
    issuer.lies, issuer.subject, issuer.signing = {}, "1001", issuer.key
    yield issuer


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, issuer: Issuer
) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("console")
    (folder / "secret").write_text(SECRET)
    with served(folder, oidc_table(issuer.url)) as made:
        yield made


@pytest.fixture
def http(service: Service) -> Iterator[httpx2.Client]:
    service.people._file.run("DELETE FROM failures")
    with httpx2.Client(base_url=service.url, timeout=60) as client:
        yield client


def signed_in(http: httpx2.Client, **query: str) -> httpx2.Response:
    """Go to the issuer and back, with changes of the query."""
    there = http.get("/oidc/begin?next=/people")
    back = httpx2.get(there.headers["location"], timeout=60).headers["location"]
    found = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
    return http.get("/oidc/callback", params=found | query)


def test_a_person_signs_in(honest: Issuer, service: Service) -> None:
    with browser() as page:
        page.open(f"{service.url}/people")
        page.click("a.button")
        page.until(lambda: page.driver.current_url == f"{service.url}/people")
        page.reads("anna")
        names = {cookie["name"] for cookie in page.driver.get_cookies()}
        complaints = page.complaints()

    assert "toolcell-oidc" not in names
    assert complaints == []
    anna = service.people.find("anna")
    assert anna is not None
    assert (anna.role, anna.agents, anna.issuer) == (
        "approver",
        ("builder",),
        honest.url,
    )


def test_others_whom_the_issuer_knows_are_refused(
    honest: Issuer, http: httpx2.Client
) -> None:
    honest.subject = "1002"
    answer = signed_in(http)

    assert (answer.status_code, "does not" in answer.text) == (403, True)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "lies",
    [
        {"nonce": "other"},
        {"nonce": None},
        {"aud": "another client"},
        {"aud": [CLIENT, "other"], "azp": "other"},
        {"iss": "https://evil.test"},
        {"exp": 1_700_000_000},
        {"exp": None},
        {"iat": 4_000_000_000},
        {"sub": None},
        {"sub": 1001},
    ],
    ids=str,
)
def test_a_token_that_does_not_hold_is_refused(
    honest: Issuer, http: httpx2.Client, lies: dict[str, Any]
) -> None:
    honest.lies = lies
    answer = signed_in(http)

    assert answer.status_code == 409
    assert http.get("/people").status_code == 303


def test_a_token_of_another_key_is_refused(honest: Issuer, http: httpx2.Client) -> None:
    honest.signing = RSAKey.generate_key(
        2048, {"kid": str(honest.key.kid)}, private=True
    )

    assert signed_in(http).status_code == 409


@pytest.mark.parametrize(
    "query",
    [
        {"state": "other"},
        {"state": "é"},
        {"code": "other"},
        {"iss": "https://evil.test"},
    ],
    ids=str,
)
def test_another_way_back_is_refused(
    honest: Issuer, http: httpx2.Client, query: dict[str, str]
) -> None:
    assert signed_in(http, **query).status_code == 409


def test_the_way_back_of_another_browser_is_refused(
    honest: Issuer, service: Service, http: httpx2.Client
) -> None:
    there = http.get("/oidc/begin").headers["location"]
    back = httpx2.get(there, timeout=60).headers["location"]

    assert httpx2.get(back, timeout=60).status_code == 409
    done = http.get(back)
    assert (done.status_code, http.get("/").status_code) == (200, 200)
    # Without it browsers look for /favicon.ico, which there is not.
    assert '<link rel="icon"' in done.text


def test_failures_are_limited(honest: Issuer, http: httpx2.Client) -> None:
    found = [signed_in(http, code="x").status_code for _ in range(MAX_FAILURES)]

    assert found == [409] * MAX_FAILURES
    assert http.get("/oidc/begin").status_code == 429


def test_people_follow_the_configuration(tmp_path: Path, honest: Issuer) -> None:
    (tmp_path / "secret").write_text(SECRET)
    table = oidc_table(honest.url)
    with served(tmp_path, table) as first:
        assert [each.id for each in first.people.all()] == ["anna"]
    with served(tmp_path, table.replace("approver", "viewer")) as second:
        anna = second.people.find("anna")
        assert anna is not None and anna.role == "viewer"
    with served(tmp_path) as third:
        assert third.people.all() == []
        assert httpx2.get(f"{third.url}/oidc/begin", timeout=60).status_code == 404


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("issuer", 'issuer = "http://issuer.test"'),
        ("client_secret", 'client_secret = "written here"'),
        ("name", 'name = "Anna"'),
        ("role", 'role = "root"'),
    ],
)
def test_a_table_that_is_unsafe_is_refused(
    tmp_path: Path, line: str, other: str
) -> None:
    lines = oidc_table("https://issuer.test").splitlines()
    table = "\n".join(other if each.startswith(line) else each for each in lines)

    with pytest.raises(ConfigError, match=r"console\.oidc"):
        configured(tmp_path, table)
