"""What clients do with an answer when something of ours fails, and which hosts share what; without a network."""

# mypy: disable-error-code="arg-type, method-assign, union-attr"

import asyncio
import pickle
from types import SimpleNamespace

import httpx
import httpx2
import pytest
import requests
from multidict import CIMultiDict
from requests.adapters import HTTPAdapter
from yarl import URL

from headway import EngineUnavailable, InvalidArgument, Limiter
from headway.integrations import aiohttp as for_aiohttp
from headway.integrations import httpx as for_httpx
from headway.integrations import httpx2 as for_httpx2
from headway.integrations import requests as for_requests
from headway.integrations.outbound import Outbound


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that tells whether it was closed."""

    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True

    async def aclose(self):
        self.closed = True


class Body2(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    close, aclose = Body.close, Body.aclose

    def __init__(self):
        self.closed = False


class Fake:
    """Each client with a remote that answers what it is told; `closed` says whether an answer was closed."""

    def __init__(self, client, monkeypatch):
        self._send = getattr(self, "with_" + client.replace(" ", "_"))
        self._patch = monkeypatch
        self.closed = []
        self.sent = 0

    def __call__(self, limit, status=200, headers=(), url="http://x.org/", **options):
        return self._send(limit, status, dict(headers), url, options)

    def _httpx(self, library, integration, body_type, status, headers):
        def answer(request):
            self.sent += 1
            body = body_type()
            self.closed.append(body)
            return library.Response(status, headers=headers, stream=body)

        return library.MockTransport(answer)

    def with_httpx(
        self, limit, status, headers, url, options, library=httpx, integration=for_httpx, body=Body
    ):
        wrapped = self._httpx(library, integration, body, status, headers)
        request = library.Request("GET", url)
        return integration.Transport(limit, wrapped, **options).handle_request(request).status_code

    def with_httpx_async(
        self, limit, status, headers, url, options, library=httpx, integration=for_httpx, body=Body
    ):
        wrapped = self._httpx(library, integration, body, status, headers)
        request = library.Request("GET", url)
        transport = integration.AsyncTransport(limit, wrapped, **options)
        return asyncio.run(transport.handle_async_request(request)).status_code

    def with_httpx2(self, limit, status, headers, url, options):
        return self.with_httpx(limit, status, headers, url, options, httpx2, for_httpx2, Body2)

    def with_httpx2_async(self, limit, status, headers, url, options):
        return self.with_httpx_async(limit, status, headers, url, options, httpx2, for_httpx2, Body2)

    def with_requests(self, limit, status, headers, url, options):
        def send(adapter, request, *args, **kwargs):
            self.sent += 1
            response = requests.Response()
            response.status_code, response.url = status, request.url
            response.headers.update(headers)
            self.closed.append(body := Body())
            response.close = body.close
            return response

        self._patch.setattr(HTTPAdapter, "send", send)
        request = requests.Request("GET", url).prepare()
        return for_requests.Adapter(limit, **options).send(request).status_code

    def with_aiohttp(self, limit, status, headers, url, options):
        async def handler(request):
            self.sent += 1
            self.closed.append(body := Body())
            return SimpleNamespace(
                status=status,
                headers=CIMultiDict(headers),
                url=request.url,
                close=body.close,
                release=body.close,
            )

        request = SimpleNamespace(url=URL(url), method="GET", body=b"")
        return asyncio.run(for_aiohttp.Middleware(limit, **options)(request, handler)).status


@pytest.fixture(params=["httpx", "httpx async", "httpx2", "httpx2 async", "requests", "aiohttp"])
def fake(request, monkeypatch):
    return Fake(request.param, monkeypatch)


def ends(limiter):
    stats = limiter.stats()
    return stats.granted, stats.completed, stats.abandoned


# -- what fails after an answer is there ----------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, OSError, KeyError])
def test_a_settle_that_fails_leaves_no_connection_and_no_permit_out(fake, error):
    def settle(response):
        raise error("settle")

    limiter = Limiter("10/hour")
    with pytest.raises(error, match="settle"):
        fake(limiter, settle=settle)
    assert [body.closed for body in fake.closed] == [True]
    assert ends(limiter) == (1, 1, 0)


def test_a_settle_that_returns_no_cost_is_an_error_and_the_call_is_counted(fake):
    limiter = Limiter("10/hour")
    with pytest.raises(InvalidArgument, match="cost"):
        fake(limiter, settle=lambda response: "much")
    assert [body.closed for body in fake.closed] == [True]
    assert ends(limiter) == (1, 1, 0)


@pytest.mark.parametrize("how", ["open", "local"])
def test_an_engine_that_is_down_keeps_no_answer_from_the_program(fake, how, caplog):
    limiter = Limiter("10/hour", name="n", engine="redis://127.0.0.1:1", on_engine_error=how)
    assert fake(limiter, 429, {"Retry-After": "5"}) == 429
    assert "n could not act on an answer: engine redis://127.0.0.1:1 is unavailable" in caplog.text


def test_a_limiter_that_is_closed_meanwhile_keeps_no_answer_from_the_program(fake):
    limiter = Limiter("10/hour")
    answered = fake(limiter, 429, {"Retry-After": "5"}, settle=lambda response: limiter.close())
    assert answered == 429


def test_a_task_that_is_cancelled_while_it_acts_on_an_answer_leaves_no_connection_out(monkeypatch):
    for library, integration, body in ((httpx, for_httpx, Body), (httpx2, for_httpx2, Body2)):
        remote = Fake("httpx async", monkeypatch)
        limiter = Limiter("10/hour")

        async def main(limiter, remote, library, integration, body):
            begun = asyncio.Event()

            async def never(*args, **options):
                begun.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(Limiter, "feedback_async", never)
            wrapped = remote._httpx(library, integration, body, 429, {})
            transport = integration.AsyncTransport(limiter, wrapped)
            call = asyncio.create_task(
                transport.handle_async_request(library.Request("GET", "http://x.org/"))
            )
            await begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

        asyncio.run(main(limiter, remote, library, integration, body))
        assert [body.closed for body in remote.closed] == [True]
        assert ends(limiter) == (1, 1, 0)


@pytest.mark.parametrize("error", [httpx.PoolTimeout, httpx2.PoolTimeout])
def test_a_call_that_found_no_connection_in_the_pool_gives_its_permit_back(error):
    def answer(request):
        raise error("exhausted")

    limiter = Limiter("10/hour")
    transport = for_httpx.Transport(limiter, httpx.MockTransport(answer))
    with pytest.raises(error):
        transport.handle_request(httpx.Request("GET", "http://x.org/"))
    assert limiter.peek().remaining == 10
    assert limiter.stats().cancelled == 1


def test_a_call_is_sent_again_where_nothing_else_is_done_about_a_refusal(fake):
    limiter = Limiter("10/hour")
    assert fake(limiter, 429, feedback=False, retries=2) == 429
    assert fake.sent == 3
    assert [body.closed for body in fake.closed] == [True, True, False]
    assert limiter.try_acquire()  # it is not paused


def test_a_refusal_that_asks_for_more_than_the_timeout_is_the_answer(fake):
    assert fake("10/hour", 429, {"Retry-After": "30"}, retries=2, timeout=5) == 429
    assert fake.sent == 1
    assert [body.closed for body in fake.closed] == [False]


def test_a_timeout_that_makes_no_sense_is_refused_before_anything_is_sent(fake):
    with pytest.raises(InvalidArgument, match="timeout=-1"):
        fake("10/hour", timeout=-1)
    assert fake.sent == 0


def test_an_unknown_profile_is_refused_before_anything_is_sent(fake):
    with pytest.raises(InvalidArgument, match="profile='nope' is not accepted"):
        fake("10/hour", profile="nope")
    assert fake.sent == 0


def test_a_session_that_was_pickled_keeps_its_limit():
    with requests.Session() as session:
        session.mount("http://", for_requests.Adapter("1/hour", name="n", engine="redis://127.0.0.1:1"))
        with pickle.loads(pickle.dumps(session)) as copy, pytest.raises(EngineUnavailable):
            copy.get("http://127.0.0.1:1/")
        session.mount("http://", for_requests.Adapter("1/hour"))
        with pytest.raises(TypeError, match=r"a limiter on memory:// cannot be pickled"):
            pickle.dumps(session)


# -- hosts ----------------------------------------------------------------------------------------------------


def test_what_one_host_says_is_no_word_of_the_others(fake):
    limiter = Limiter("10/hour")
    said = {"X-RateLimit-Limit": "1", "X-RateLimit-Global": "true", "Retry-After": "3000"}
    assert fake({"*": limiter}, 429, said, "http://hostile.test/") == 429
    assert limiter.try_acquire("hostile.test").reason == "paused"
    assert limiter.peek("x.org").remaining == 10
    assert fake({"*": limiter}) == 200


@pytest.mark.parametrize("pattern", ["bücher.example", "xn--bcher-kva.example", "BÜCHER.example."])
def test_a_name_outside_of_ascii_is_the_same_for_every_client(fake, pattern):
    limiter = Limiter("10/hour")
    assert fake({pattern: limiter}, url="http://bücher.example/") == 200
    assert limiter.peek().remaining == 9


def test_a_ledger_of_a_host_has_the_same_key_for_every_client(fake):
    limiter = Limiter("10/hour")
    assert fake({"*": limiter}, url="http://Bücher.example/") == 200
    assert limiter.peek("xn--bcher-kva.example").remaining == 9


@pytest.mark.parametrize("pattern", ["[::1]", "::1", "[0:0:0:0:0:0:0:1]"])
def test_an_address_of_ipv6_is_a_host(fake, pattern):
    limiter = Limiter("10/hour")
    assert fake({pattern: limiter}, url="http://[::1]:8000/") == 200
    assert limiter.peek().remaining == 9


@pytest.mark.parametrize("pattern", ["*x.org", "", "*.", "[::1]:80", "::zz", None])
def test_a_pattern_that_would_never_match_is_refused(pattern):
    with pytest.raises(InvalidArgument, match="without a scheme or a port"):
        Outbound({pattern: "1/s"})


def test_patterns_that_mean_the_same_are_refused():
    with pytest.raises(InvalidArgument, match="each host once"):
        Outbound({"x.org": "1/s", "X.org.": "2/s"})
