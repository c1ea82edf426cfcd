"""Whose address counts behind a proxy: that which a trusted one tells, and no other."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from toolcell.core import ConfigError
from toolcell.guard.spi import audit_page
from toolcell.host.console.accounts.sessions import MAX_FAILURES

from ....support.console.issuer import SECRET, oidc_table, served_issuer
from ....support.console.served import Service, configured, served

TRUSTED = '[console]\ntrusted_proxies = ["127.0.0.1", "10.0.0.0/24"]\n'
OTHERS = '[console]\ntrusted_proxies = ["10.0.0.0/24"]\n'


def tried(service: Service, forwarded: str) -> int:
    """Try to sign in with a proof that is none, and return the status."""
    headers = {
        "Origin": service.url,
        "Sec-Fetch-Site": "same-origin",
        "X-Forwarded-For": forwarded,
    }
    form = {"proof": "{}"}
    return httpx2.post(
        f"{service.url}/login", data=form, headers=headers, timeout=60
    ).status_code


@pytest.mark.parametrize("more", ["", OTHERS], ids=["default", "others"])
def test_a_forged_address_evades_no_limit(tmp_path: Path, more: str) -> None:
    with served(tmp_path, more) as service:
        found = [tried(service, f"203.0.113.{n}") for n in range(MAX_FAILURES + 1)]

    assert found == [*[403] * MAX_FAILURES, 429]


def test_people_behind_a_proxy_have_limits_of_their_own(tmp_path: Path) -> None:
    with served(tmp_path, TRUSTED) as service:
        # A proxy appends the address that it sees to whatever a client wrote.
        for number in range(MAX_FAILURES):
            assert tried(service, f"198.51.100.{number}, 203.0.113.1") == 403
        attacker = tried(service, "198.51.100.99, 203.0.113.1")
        by_two_proxies = tried(service, "203.0.113.1, 10.0.0.7")
        other = tried(service, "203.0.113.2")

    assert (attacker, by_two_proxies, other) == (429, 429, 403)


def test_a_link_for_this_machine_is_closed_to_those_behind_the_proxy(
    tmp_path: Path,
) -> None:
    with served(tmp_path, TRUSTED) as service:
        link = service.link(local=True)
        found = [
            httpx2.get(link, headers={"X-Forwarded-For": each}, timeout=60).status_code
            for each in ("127.0.0.1, 203.0.113.1", "203.0.113.1", "127.0.0.1")
        ]

    assert found == [404, 404, 200]


def test_sessions_and_records_have_the_address_of_the_person(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    with served_issuer() as issuer:
        table = oidc_table(issuer.url)
        with served(tmp_path, TRUSTED + table) as service:
            forwarded = {"X-Forwarded-For": "203.0.113.9"}
            with httpx2.Client(
                base_url=service.url, headers=forwarded, timeout=60
            ) as http:
                there = http.get("/oidc/begin").headers["location"]
                back = httpx2.get(there, timeout=60).headers["location"]
                assert http.get(back).status_code == 200
            [session] = service.sessions.all()
            log = service.host.config.audit.path
            assert log is not None
            records = [each.record for each in audit_page(log)]

    [signed_in] = [
        record for record in records if record["event"] == "person_signed_in"
    ]
    assert session.address == "203.0.113.9"
    assert (signed_in["by"], signed_in["address"]) == ("anna", "203.0.113.9")


@pytest.mark.parametrize(
    "proxy", ["*", "0.0.0.0/0", "::/0", "proxy.test", "10.0.0.1/8"]
)
def test_a_proxy_that_is_no_address_is_refused(tmp_path: Path, proxy: str) -> None:
    with pytest.raises(ConfigError, match="trusted_proxies"):
        configured(tmp_path, f'[console]\ntrusted_proxies = ["{proxy}"]')
