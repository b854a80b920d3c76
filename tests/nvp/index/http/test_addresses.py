"""The locations of servers, by their addresses."""

from __future__ import annotations

import asyncio
import socket
import sys
from ipaddress import ip_address

import pytest

from nvp.index.http import connecting
from nvp.index.http.connecting import Nearness, NearnessFinder


@pytest.mark.parametrize(
    ("host", "nearness"),
    [
        ("127.0.0.1", Nearness.MACHINE),
        ("127.1", Nearness.MACHINE),
        ("0.0.0.0", Nearness.MACHINE),
        ("[::1]", Nearness.MACHINE),
        ("[::ffff:127.0.0.1]", Nearness.MACHINE),
        ("localhost.", Nearness.MACHINE),
        ("x.localhost.", Nearness.MACHINE),
        ("[64:ff9b::169.254.169.254]", Nearness.MACHINE),
        ("[64:ff9b::10.0.0.1]", Nearness.NETWORK),
        ("[64:ff9b::8.8.8.8]", Nearness.ELSEWHERE),
        ("[2002:7f00:1::1]", Nearness.MACHINE),
        ("[::127.0.0.1]", Nearness.MACHINE),
        ("[::ffff:0:127.0.0.1]", Nearness.MACHINE),
        ("[::ffff:10.0.0.1]", Nearness.NETWORK),
        ("[fec0::1]", Nearness.NETWORK),
        ("[4000::1]", Nearness.NETWORK),
        ("[3fff::1]", Nearness.NETWORK),
        ("[64:ff9b:1::127.0.0.1]", Nearness.NETWORK),
        ("168.63.129.16", Nearness.MACHINE),
        ("100.100.100.200", Nearness.MACHINE),
        ("[fd00:ec2::254]", Nearness.MACHINE),
        ("[fd00:ec2::254%251]", Nearness.MACHINE),
        ("[fd00:ec2::23]", Nearness.MACHINE),
        ("[fd00:ec2::253]", Nearness.MACHINE),
        ("[fd20:ce::254]", Nearness.MACHINE),
        ("[fd00:c1::a9fe:a9fe]", Nearness.MACHINE),
        ("[64:ff9b::168.63.129.16]", Nearness.MACHINE),
        ("192.0.0.192", Nearness.MACHINE),
        ("192.0.0.8", Nearness.NETWORK),
        ("a.localhost", Nearness.MACHINE),
        ("169.254.169.254", Nearness.MACHINE),
        ("[fe80::1]", Nearness.MACHINE),
        ("10.1.2.3", Nearness.NETWORK),
        ("192.168.0.1", Nearness.NETWORK),
        ("[fd00::1]", Nearness.NETWORK),
        ("93.184.216.34", Nearness.ELSEWHERE),
        ("[2606:4700::1]", Nearness.ELSEWHERE),
        ("nobody.invalid", Nearness.ELSEWHERE),
        ("x" * 300, Nearness.ELSEWHERE),
    ],
)
def test_nearness(host: str, nearness: Nearness) -> None:
    assert asyncio.run(NearnessFinder().find(f"https://{host}:8443/a")) is nearness


@pytest.mark.parametrize("given", ["192.0.2.1", "2001:db8::1"])
def test_an_own_address_is_between_loopback_and_the_network(given: str) -> None:
    family = socket.AF_INET6 if ":" in given else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        try:
            one.connect((given, 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no such address")
        own = one.getsockname()[0]
    url = f"http://[{own}]/" if ":" in own else f"http://{own}/"
    finder = NearnessFinder()
    # A firewall may protect the servers at that address, but not those on loopback.
    assert not asyncio.run(finder.may_lead("http://10.9.8.7/", url))
    assert not asyncio.run(finder.may_lead(url, "http://127.0.0.1/"))
    assert asyncio.run(finder.may_lead(url, f"{url}files/"))
    assert asyncio.run(finder.may_lead("http://127.0.0.1/", url))


@pytest.mark.parametrize(
    ("start_", "end", "may"),
    [
        ("https://10.0.0.1/", "https://192.168.0.1/", True),
        ("https://10.0.0.1/", "http://127.0.0.1/", False),
        ("https://93.184.216.34/", "https://10.0.0.1/", False),
        ("http://127.0.0.1/", "https://10.0.0.1/", True),
        ("http://127.0.0.1/", "http://localhost:1/", True),
    ],
)
def test_where_a_page_may_lead(start_: str, end: str, may: bool) -> None:
    assert asyncio.run(NearnessFinder().may_lead(start_, end)) is may


@pytest.mark.parametrize(("length", "may"), [(253, True), (254, False)])
def test_no_page_names_a_server_with_an_overlong_name(
    length: int, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page can have names of 64 KB, which would be kept: 200 MB after 50 pages."""
    found = [(0, 0, 0, "", ("93.184.216.34", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    url = f"https://{('a' * 49 + '.') * 5}{'a' * (length - 250)}./"
    finder = NearnessFinder()
    assert asyncio.run(finder.may_lead("https://93.184.216.35/", url)) is may
    assert len(finder._addresses) == may


@pytest.mark.parametrize(
    ("address", "nearness"),
    [
        ("2002:909:909::7", Nearness.OWN),
        ("64:ff9b::909:909", Nearness.OWN),
        ("2002:a00:1::7", Nearness.OWN),
        ("2002:7f00:1::7", Nearness.MACHINE),
        ("2600:1::7", Nearness.OWN),
    ],
)
def test_an_own_address_that_embeds_another_one(
    address: str, nearness: Nearness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a router, 6to4 addresses of this machine embed that of the router."""
    monkeypatch.setattr(connecting, "_is_own", lambda x: str(x) == address)
    url = f"http://[{address}]/"
    assert asyncio.run(NearnessFinder().find(url)) is nearness


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have 127.0.0.1 only")
@pytest.mark.parametrize("system", ["linux", "another"])
def test_a_further_address_of_this_machine(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system sends from the first address of its subnet, which is another one."""
    monkeypatch.setattr(sys, "platform", system)
    assert connecting._is_own(ip_address("127.0.0.2"))
    assert not connecting._is_own(ip_address("203.0.113.7"))
    assert not connecting._is_own(ip_address("2001:db8::7"))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no routes")
@pytest.mark.parametrize("tells", [True, False])
def test_sockets_may_have_any_address(
    tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ip_nonlocal_bind, all addresses were own, or none, without routes."""
    monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
    if not tells:  # systemd can take netlink away from a service
        monkeypatch.setattr(socket, "AF_NETLINK", -1)
    assert connecting._is_own(ip_address("127.8.0.0")) is tells
    assert not connecting._is_own(ip_address("203.0.113.7"))
    assert not connecting._is_own(ip_address("192.168.77.2"))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no routes")
def test_a_system_that_tells_no_kind_of_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """gVisor gives each route the same type."""
    monkeypatch.setattr(connecting, "_NEW_ROUTE", -1)
    assert connecting._is_own(ip_address("127.0.0.2"))
    assert not connecting._is_own(ip_address("203.0.113.7"))
