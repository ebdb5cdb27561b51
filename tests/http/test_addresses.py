"""What a URI of a service says, and what of it is shown."""

from typing import Any

import pytest

from headway import InvalidArgument, Limiter
from headway.engines.http.address import read_address
from headway.engines.uri import public


def test_a_uri_is_read():
    address = read_address(
        "https://se%2Fcret@a.example:8443,[::1],b/?lease=2&drift_ppm=50&ssl_ca_certs=/ca.pem"
    )
    assert address.hosts == (("a.example", 8443), ("::1", 443), ("b", 443))
    assert (address.token, address.tls, address.lease_ns) == ("se/cret", True, 2_000_000_000)
    assert (address.drift_ppm, address.ca_certs) == (50.0, "/ca.pem")
    assert read_address("http://localhost").hosts == (("localhost", 80),)
    assert read_address("http://user:secret@localhost:81").token == "secret"


@pytest.mark.parametrize(
    "uri",
    [
        "http://",
        "http://:80",
        "http://a:0",
        "http://a:99999",
        "http://a/path",
        "http://a?lease=0",
        "http://a?lease=x",
        "http://a?unknown=1",
        "http://a?ssl_ca_certs=",
        "http://se/cret@a",
        "http://se#cret@a",
        "http://se%20cret@a",
        "http://[::1",
        "http://a,",
    ],
)
def test_a_uri_that_makes_no_sense_is_refused_without_its_secrets(uri):
    with pytest.raises(InvalidArgument) as refused:
        Limiter("1/s", name="x", engine=uri)
    assert "cret" not in str(refused.value).replace("&", "")


def test_the_token_is_never_shown():
    limiter: Any = Limiter("1/s", name="x", engine="http://secret@127.0.0.1:1")
    try:
        engine = limiter._shared.ledgers.engine
        for shown in (
            repr(limiter),
            repr(engine),
            engine.address,
            repr(engine.where),
            public("http://secret@a:1"),
        ):
            assert "secret" not in shown
    finally:
        limiter.close()


def test_it_needs_a_name():
    with pytest.raises(InvalidArgument, match="name"):
        Limiter("1/s", engine="http://localhost")
