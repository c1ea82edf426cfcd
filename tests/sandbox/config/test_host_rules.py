"""What an allow-list says, and that nothing reads a host in two ways."""

from __future__ import annotations

import pytest

from toolcell.core import ConfigError, InvalidInputError
from toolcell.sandbox import Limits, Network, SandboxConfig
from toolcell.sandbox.config.host_rules import HostRules, read_authority, read_host


def test_nothing_is_allowed_by_default() -> None:
    assert SandboxConfig().network == Network.none == Network()
    assert Network.none.mode == "none"
    assert not HostRules(Network.none.hosts).allow("example.org", 443)


def test_rules_name_hosts_and_ports() -> None:
    rules = HostRules(["api.Example.org:443", "*.example.net:443", "[2001:DB8::1]:80"])
    allowed = [
        ("api.example.org", 443),
        ("a.example.net", 443),
        ("a.b.example.net", 443),
        ("2001:db8::1", 80),
    ]
    refused = [
        ("api.example.org", 80),
        ("example.org", 443),
        ("x.api.example.org", 443),
        ("example.net", 443),
        ("badexample.net", 443),
        ("example.net.evil.test", 443),
        ("2001:db8::2", 80),
        ("192.0.2.1", 443),
    ]

    assert [rules.allow(*each) for each in allowed] == [True] * len(allowed)
    assert [rules.allow(*each) for each in refused] == [False] * len(refused)


@pytest.mark.promise("E-68")
@pytest.mark.parametrize(
    "text",
    [
        *("", "example.org", "example.org:", ":443", "example.org:0", "a:65536"),
        *("a:+443", "a: 443", "a:443 ", "a:٤٤٣", "http://example.org:80"),
        *("user@example.org:80", "exa mple.org:80", "example..org:80", "*:443"),
        *("*.*.org:443", "a.*.org:443", "*.192.0.2.1:80", "*.[::1]:80", "a/b:80"),
        *("bücher.example:80", "::1:80", "[::1%lo]:80", "[127.0.0.1]:80", "-a.org:80"),
        *("2130706433:80", "0x7f000001:80", "0177.0.0.1:80", "127.1:80", "1.2.3:80"),
        *("127.0.0.0x1:80", "256.1.1.1:80", "a" * 64 + ".org:80", "a\n.org:80"),
    ],
)
def test_what_does_not_parse_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Network.allow([text])

    assert "hosts" in caught.value.message


def test_a_list_is_not_taken_without_its_mode() -> None:
    with pytest.raises(ConfigError):
        Network(hosts=("example.org:443",))
    with pytest.raises(ConfigError):
        Network.allow("example.org:443")
    with pytest.raises(ConfigError):
        Network.allow([443])  # type: ignore[list-item]
    with pytest.raises(ConfigError):
        SandboxConfig(network={"mode": "allow", "host": []})  # type: ignore[arg-type]


def test_hosts_have_one_spelling() -> None:
    assert read_host("Example.ORG.") == "example.org"
    assert read_host("127.0.0.1.") == "127.0.0.1"
    assert read_host("2001:DB8:0:0::1") == "2001:db8::1"
    # Since Python 3.13 its end is dotted.
    spelled = read_authority("[::FFFF:1.2.3.4]:80")
    assert spelled == read_authority("[0:0::ffff:102:304]:80")
    assert read_authority("example.org", 80) == ("example.org", 80)
    # The Kelvin sign is a k in lower case.
    with pytest.raises(ValueError):
        read_host("\u212aernel.org")


@pytest.mark.promise("E-67", "E-68")
def test_addresses_inside_are_reached_only_by_their_own_name() -> None:
    rules = HostRules(["db.example.org:5432", "10.0.0.5:5432", "127.0.0.1:80"])

    assert rules.allow_address("93.184.216.34", 5432)
    assert rules.allow_address("10.0.0.5", 5432)
    assert not rules.allow_address("10.0.0.5", 5433)
    assert not rules.allow_address("10.0.0.6", 5432)
    for address in (
        "::1",
        "::ffff:127.0.0.1",
        "127.0.0.2",
        "0.0.0.0",
        "64:ff9b::7f00:1",
    ):
        assert not rules.allow_address(address, 80), address


def test_a_run_can_only_narrow() -> None:
    own = Network.allow(["*.example.org:443", "192.0.2.1:80"])
    inner = Network.allow(["api.example.org:443", "*.a.example.org:443"])

    assert own.narrowed_by(inner) == inner
    assert own.narrowed_by(Network.none) == Network.none
    assert own.narrowed_by(Network.allow([])).mode == "allow"
    for wider in (["example.org:443"], ["*.org:443"], ["api.example.org:80"]):
        with pytest.raises(InvalidInputError) as caught:
            own.narrowed_by(Network.allow(wider))
        assert wider[0] in caught.value.message
    with pytest.raises(InvalidInputError):
        Network.none.narrowed_by(Network.allow([]))
    with pytest.raises(InvalidInputError):
        Limits().narrowed_by(Limits(network_bytes=2**35))


def test_loopback_belongs_to_the_cell_unless_a_rule_names_it() -> None:
    assert (
        HostRules([]).without_proxy()
        == "localhost,127.0.0.1,::1,0.0.0.0,cell,127.0.0.2,127.0.1.1,127.0.0.0/8"
    )
    machine = HostRules(["127.0.0.1:80", "[::1]:80"])
    assert machine.without_proxy() == "localhost,0.0.0.0,cell"
