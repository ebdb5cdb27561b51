"""What headers cannot say: for each vendor, which answers are refusals, and where else a wait is told.

A profile is data, and at most two small functions. It is chosen by name, or by the host that was called. What is
written here is what the vendors document, or what their own clients do; a vendor without peculiarities needs no
profile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headway.errors import InvalidArgument
from headway.feedback import bodies
from headway.feedback.stated import PERIODS, StatedLimit
from headway.feedback.values import count, until

REFUSALS: Final = frozenset({429, 503})

Headers = Mapping[str, str]
Judge = Callable[[int, Headers, Any], bool]
"""Whether an answer of another status is a refusal: its status, its headers, its body."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How a vendor differs from the others.

    `hosts`: a leading dot stands for all subdomains. `windows`: of limits whose headers do not tell them. `wait`:
    seconds that its documentation asks for where an answer tells none. `full_refill`: its resets tell when
    *everything* is there again, so that they are no reason to wait while there is any other way. `scope`: headers
    that say what was limited. `part_of`: the header that names the part of the API, of several with limits of their
    own, that a limit without a name is of; it is that of all requests where the name is "core".
    """

    name: str
    hosts: tuple[str, ...] = ()
    statuses: frozenset[int] = REFUSALS
    windows: Mapping[str, float] = field(default_factory=lambda: PERIODS)
    wait: float | None = None
    full_refill: bool = False
    scope: tuple[str, ...] = ()
    part_of: str = ""
    refuses: Judge | None = None
    body_wait: Callable[[Any], float | None] | None = None
    more: Callable[[Headers, Any, float], tuple[StatedLimit, ...]] | None = None
    """Limits that are stated in a form of its own: from headers, the body, and the server's clock."""
    reads_bodies: bool = False
    """Whether its refusals come with statuses that tell nothing, so that the body has to be read."""


# -- judges and forms of single vendors --------------------------------------------------------------------------

AWS_CODES: Final = frozenset(
    {
        "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottledException", "RequestThrottled",
        "TooManyRequestsException", "ProvisionedThroughputExceededException", "TransactionInProgressException",
        "RequestLimitExceeded", "BandwidthLimitExceeded", "LimitExceededException", "SlowDown",
        "PriorRequestNotComplete", "EC2ThrottledException",
    }
)  # fmt: skip


def _github(status: int, headers: Headers, body: Any) -> bool:
    """A limit is told by a 403 as often as by a 429; so is a wrong token."""
    if status != 403:
        return False
    if headers.get("x-ratelimit-remaining", "").strip() == "0" or "retry-after" in headers:
        return True
    message = bodies.text_at(body, "message").lower()
    return "secondary rate limit" in message or "abuse detection" in message


def _aws(status: int, headers: Headers, body: Any) -> bool:
    return status >= 400 and bodies.aws_code(headers.get("x-amzn-errortype", ""), body) in AWS_CODES


def _google(status: int, headers: Headers, body: Any) -> bool:  # noqa: ARG001
    return status == 403 and bodies.google_reason(body) in {
        "rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED",
    }  # fmt: skip


def _shopify(status: int, headers: Headers, body: Any) -> bool:  # noqa: ARG001
    """Its GraphQL refuses with a 200."""
    return status == 200 and bodies.shopify_throttled(body)


def _shopify_limits(headers: Headers, body: Any, now: float) -> tuple[StatedLimit, ...]:  # noqa: ARG001
    used, slash, quota = headers.get("x-shopify-shop-api-call-limit", "").partition("/")
    taken, of = count(used), count(quota)
    if slash and taken is not None and of is not None:
        # What a bucket holds, and no count of requests in a time.
        return (StatedLimit("calls", quota=of, remaining=max(0.0, of - taken), unit="calls"),)
    return bodies.shopify_limits(body)


_X_DAY: Final = re.compile(r"x-(app|user)-limit-24hour-(limit|remaining|reset)")


def _x_day(headers: Headers, body: Any, now: float) -> tuple[StatedLimit, ...]:  # noqa: ARG001
    """The limits of a day: x-app-limit-24hour-limit and its like."""
    found: dict[str, dict[str, float | None]] = {}
    for name, value in headers.items():
        if match := _X_DAY.fullmatch(name):
            read = until(value, now) if match[2] == "reset" else count(value)
            found.setdefault(match[1], {})[match[2]] = read
    return tuple(
        StatedLimit(f"{whose}-24hour", said.get("limit"), 86400.0, said.get("remaining"), said.get("reset"))
        for whose, said in found.items()
    )


# -- the table ---------------------------------------------------------------------------------------------------

_MINUTE: Final = {**PERIODS, "requests": 60.0, "tokens": 60.0, "input-tokens": 60.0, "output-tokens": 60.0}

PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile("airtable", ("api.airtable.com",), wait=30.0),
        Profile(
            "anthropic", ("api.anthropic.com",), REFUSALS | {529}, windows=_MINUTE, full_refill=True,
        ),
        Profile("aws", (".amazonaws.com", ".amazonaws.com.cn"), refuses=_aws, reads_bodies=True),
        Profile(
            "azure_openai", (".openai.azure.com", ".cognitiveservices.azure.com"), windows=_MINUTE,
            full_refill=True, body_wait=bodies.try_again,
        ),
        Profile(
            "discord", ("discord.com", "discordapp.com"), scope=("x-ratelimit-scope",), part_of="x-ratelimit-bucket",
            body_wait=bodies.retry_after,
        ),
        Profile(
            "github", ("api.github.com", "uploads.github.com"), windows={**PERIODS, "": 3600.0}, wait=60.0,
            scope=("x-ratelimit-resource",), part_of="x-ratelimit-resource", refuses=_github, reads_bodies=True,
        ),
        Profile("gitlab", ("gitlab.com",), windows={**PERIODS, "": 60.0}, scope=("ratelimit-name",)),
        Profile(
            "google", (".googleapis.com", "www.googleapis.com"), refuses=_google, body_wait=bodies.google_retry,
            reads_bodies=True,
        ),
        Profile("hubspot", ("api.hubapi.com", "api.hubspot.com"), scope=("x-hubspot-ratelimit-policyname",)),
        Profile("jira", (".atlassian.net", "api.atlassian.com"), scope=("ratelimit-reason", "x-ratelimit-reason")),
        Profile("notion", ("api.notion.com",)),
        Profile("openai", ("api.openai.com",), windows=_MINUTE, full_refill=True, body_wait=bodies.try_again),
        Profile("reddit", ("oauth.reddit.com", "www.reddit.com")),
        Profile(
            "shopify", (".myshopify.com",), REFUSALS | {430}, refuses=_shopify, body_wait=bodies.shopify_wait,
            more=_shopify_limits, reads_bodies=True,
        ),
        Profile("slack", ("slack.com", ".slack.com")),
        Profile("stripe", ("api.stripe.com",), scope=("stripe-rate-limited-reason",)),
        Profile("twitch", ("api.twitch.tv",), windows={**PERIODS, "": 60.0}),
        Profile("x", ("api.x.com", "api.twitter.com"), REFUSALS | {420}, more=_x_day),
    )
}  # fmt: skip

GENERIC: Final = Profile("", body_wait=bodies.any_wait)


def profile_of(host: str) -> str | None:
    """The profile of a host, if there is one.

    >>> profile_of("api.github.com"), profile_of("shop.myshopify.com:443"), profile_of("example.com")
    ('github', 'shopify', None)
    """
    name = host.rpartition("@")[2].partition(":")[0].rstrip(".").lower()
    for profile in PROFILES.values():
        if any(name.endswith(known) if known.startswith(".") else name == known for known in profile.hosts):
            return profile.name
    return None


def find(profile: str | None) -> Profile:
    """The profile of this name; raises `InvalidArgument` where there is none."""
    if profile is None:
        return GENERIC
    found = PROFILES.get(str(profile))
    if found is None:
        raise InvalidArgument("profile", profile, f"None or one of: {', '.join(sorted(PROFILES))}")
    return found
