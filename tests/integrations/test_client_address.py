"""Whose request it is: a table of what proxies write, and of what clients write to be taken for others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import InvalidArgument
from headway.integrations.client_address import MAX_CACHED, ClientAddress, parse

pytestmark = pytest.mark.both_forms
TRUSTED = ("10.0.0.0/8", "fd00::/8")
CLIENT, OTHER = "203.0.113.7", "198.51.100.9"


@pytest.mark.parametrize(
    ("trusted", "peer", "header", "expected"),
    [
        # nothing is trusted: the peer
        ((), CLIENT, [], CLIENT),
        ((), CLIENT, [OTHER], CLIENT),
        ((), "10.0.0.1", [OTHER], "10.0.0.1"),
        # one proxy
        (TRUSTED, "10.0.0.1", [CLIENT], CLIENT),
        (TRUSTED, "10.0.0.1", [], "10.0.0.1"),
        (TRUSTED, "10.0.0.1", [""], "10.0.0.1"),
        # a client that pretends: what it wrote is on the left
        (TRUSTED, "10.0.0.1", [f"{OTHER}, {CLIENT}"], CLIENT),
        (TRUSTED, "10.0.0.1", [OTHER, CLIENT], CLIENT),
        (TRUSTED, "10.0.0.1", [f"10.9.9.9, {CLIENT}"], CLIENT),
        (TRUSTED, CLIENT, ["10.0.0.1"], CLIENT),
        (TRUSTED, CLIENT, ["127.0.0.1"], CLIENT),
        # several proxies
        (TRUSTED, "10.0.0.1", [f"{OTHER}, {CLIENT}, 10.0.0.3, 10.0.0.2"], CLIENT),
        (TRUSTED, "10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        # what is no address ends the walk
        (TRUSTED, "10.0.0.1", ["unknown"], "10.0.0.1"),
        (TRUSTED, "10.0.0.1", [f"{OTHER}, garbage, 10.0.0.2"], "10.0.0.2"),
        (TRUSTED, "10.0.0.1", [f"{CLIENT},"], "10.0.0.1"),
        # ports, brackets, zones, IPv4 within IPv6
        (TRUSTED, "10.0.0.1", [f"{CLIENT}:4711"], CLIENT),
        (TRUSTED, "10.0.0.1", ["[2001:db8:1:2:3::4]:4711"], "2001:db8:1:2::/64"),
        (TRUSTED, "10.0.0.1", ["2001:db8:1:2:3::4"], "2001:db8:1:2::/64"),
        (TRUSTED, "::ffff:10.0.0.1", [CLIENT], CLIENT),
        (TRUSTED, "fd00::1", ["::ffff:203.0.113.7"], CLIENT),
        (TRUSTED, "fd00::1%eth0", [CLIENT], CLIENT),
        # IPv6 is one client by its network
        ((), "2001:db8:1:2::ffff", [], "2001:db8:1:2::/64"),
        # a unix socket
        ((), None, [CLIENT], None),
        (TRUSTED, None, [CLIENT], None),
        (("unix",), None, [CLIENT], CLIENT),
        (("unix",), None, [f"{OTHER}, {CLIENT}"], CLIENT),
        (("unix",), None, [], None),
        (("unix",), CLIENT, [OTHER], CLIENT),
        # what a test client of a framework calls itself
        ((), "testclient", [], None),
    ],
)
def test_the_client_is_the_first_hop_that_is_not_trusted(trusted, peer, header, expected):
    assert ClientAddress(trusted).of(peer, header) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ([f"for={CLIENT}"], CLIENT),
        ([f"For={CLIENT};proto=https;by=10.0.0.1"], CLIENT),
        ([f"proto=https; for={CLIENT}"], CLIENT),
        (['for="[2001:db8:1:2::4]:4711"'], "2001:db8:1:2::/64"),
        ([f"for={OTHER}, for={CLIENT}"], CLIENT),
        ([f"for={OTHER}", f"for={CLIENT}"], CLIENT),
        (["for=unknown"], "10.0.0.1"),
        (["for=_hidden"], "10.0.0.1"),
        (["by=10.0.0.1"], "10.0.0.1"),
        ([f"{CLIENT}"], "10.0.0.1"),
        ([f"notfor={CLIENT}"], "10.0.0.1"),
    ],
)
def test_forwarded_is_read_where_it_is_the_one_that_proxies_write(header, expected):
    assert ClientAddress(TRUSTED, header="Forwarded").of("10.0.0.1", header) == expected


def test_the_other_header_is_not_looked_at():
    address = ClientAddress(TRUSTED)
    scope = {
        "client": ("10.0.0.1", 1),
        "headers": [(b"forwarded", b"for=1.2.3.4"), (b"x-real-ip", b"1.2.3.4")],
    }
    assert address.of_scope(scope) == "10.0.0.1"
    environ = {"REMOTE_ADDR": "10.0.0.1", "HTTP_FORWARDED": "for=1.2.3.4", "HTTP_X_FORWARDED_FOR": CLIENT}
    assert address.of_environ(environ) == CLIENT
    assert address.of_environ({"REMOTE_ADDR": "", "HTTP_X_FORWARDED_FOR": CLIENT}) is None


def test_an_ipv6_client_may_be_told_apart_to_the_bit():
    assert ClientAddress(ipv6_prefix=128).of("2001:db8::1", []) == "2001:db8::1"


def test_more_clients_than_are_kept_are_told_apart_all_the_same():
    address = ClientAddress()
    peers = [f"10.{n >> 8}.{n & 255}.1" for n in range(2 * MAX_CACHED + 1)]
    for _ in range(2):
        assert [address.of_scope({"client": (peer, 1)}) for peer in peers] == peers
        assert address.of_scope({"client": None}) is None
        assert address.of_scope({"client": ("no address", 1)}) is None


@given(st.text(max_size=120))
def test_any_text_is_an_address_or_none(text):
    found = parse(text)
    assert found is None or str(found)


@given(st.lists(st.text(alphabet='0123456789.:,fordunkw=;"[] ', max_size=60), max_size=4))
def test_a_client_can_never_be_taken_for_another_one_by_what_it_writes(written):
    """The proxy appends the address of its client to whatever stood there before."""
    address = ClientAddress(TRUSTED)
    assert address.of("10.0.0.1", [*written, CLIENT]) == CLIENT
    assert address.of(CLIENT, written) == CLIENT


@pytest.mark.parametrize("trusted", [["10.0.0.1/8"], ["*"], ["localhost"], [5], ["10.0.0.0/33"]])
def test_what_is_no_network_is_refused(trusted):
    with pytest.raises(InvalidArgument, match="trusted="):
        ClientAddress(trusted)


def test_other_bad_options_are_refused():
    with pytest.raises(InvalidArgument, match="header='x-real-ip' is not accepted"):
        ClientAddress(header="x-real-ip")
    with pytest.raises(InvalidArgument, match="ipv6_prefix=0 is not accepted; give bits from 1 to 128"):
        ClientAddress(ipv6_prefix=0)
