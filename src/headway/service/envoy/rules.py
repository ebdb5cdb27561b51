"""Rules, and which of them a descriptor matches.

The rules of a domain are a tree: every level of the configuration is a level of entries in a descriptor, and a rule is
found at exactly the depth of the descriptor. At each level the value decides first, then a value with `*`, in the order
of the file, then the key alone; there is no way back from a more specific step that leads nowhere. All of that is as
in envoyproxy/ratelimit, with one difference: it joins key and value with `_` before it compares, so that the key
"a_b" and the key "a" with the value "b" are the same there. Here they are not.

A rule has one limiter, and each set of values that can differ has a ledger of its own. What the configuration names
in full is the same for all, and is no part of the ledger's key; nor is what a `*` stands for where `share_threshold` is
set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.limits import Limit
from headway.service.envoy.messages import Entry


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A limit in the configuration. `limit` is None where it is unlimited; `path` has the key and value of each level,
    with an empty value for a key alone. `overdraft`: hits that do not fit are charged all the same."""

    domain: str
    path: tuple[Entry, ...]
    limit: Limit | None
    name: str = ""
    replaces: frozenset[str] = frozenset()
    shadow: bool = False
    detailed_metric: bool = False
    overdraft: bool = False

    @property
    def metric(self) -> tuple[str, ...]:
        """What its figures are kept under: the domain, and a part for each level."""
        return (self.domain, *(label(*entry) for entry in self.path))

    @property
    def id(self) -> str:
        """Where it is, in one string, which is another one for every other place.

        >>> Rule("shop", (Entry("plan", "trial"), Entry("user")), None).id
        'shop/plan=trial/user'
        """
        steps = [f"{escaped(key)}={escaped(value)}" if value else escaped(key) for key, value in self.path]
        return "/".join([escaped(self.domain), *steps])


def label(key: str, value: str) -> str:
    """A level as the figures name it."""
    return f"{key}_{value}" if value else key


def escaped(text: str) -> str:
    """A text without the characters that mean something in an id."""
    for mark in "\\/=":
        text = text.replace(mark, f"\\{mark}")
    return text


class Match(NamedTuple):
    """The rule of a descriptor, the ledger's key, and the name for its figures."""

    rule: Rule
    key: str | None
    metric: tuple[str, ...]


class Pattern:
    """A value with `*`, each of which stands for any text, also for none.

    >>> Pattern("/api/*/v1").matches("/api/users/v1"), Pattern("/api/*/v1").matches("/api/users/v2")
    (True, False)
    """

    __slots__ = ("first", "last", "least", "middle", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.first, *self.middle, self.last = text.split("*")
        self.least = len(text) - text.count("*")

    def matches(self, value: str) -> bool:
        """In one pass: each part is taken at its first place, and none is tried twice."""
        if len(value) < self.least or not value.startswith(self.first) or not value.endswith(self.last):
            return False
        at, end = len(self.first), len(value) - len(self.last)
        for part in self.middle:
            at = value.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True


@dataclass(slots=True, eq=False)
class Node:
    """One level of a domain: its rule, if it has one, and what is below."""

    rule: Rule | None = None
    shared: bool = False
    value_to_metric: bool = False
    exact: dict[tuple[str, str], Node] = field(default_factory=dict)
    wild: dict[str, list[tuple[Pattern, Node]]] = field(default_factory=dict)
    default: dict[str, Node] = field(default_factory=dict)

    def add(self, key: str, value: str, node: Node) -> None:
        """Put a level below this one."""
        if not value:
            self.default[key] = node
            return
        self.exact[key, value] = node
        if "*" in value:
            self.wild.setdefault(key, []).append((Pattern(value), node))

    def has(self, key: str, value: str) -> bool:
        """Whether this key and value are there already."""
        return (key, value) in self.exact if value else key in self.default

    def step(self, key: str, value: str) -> tuple[Node, str | None] | None:
        """The level below for an entry, and the value that the configuration has there: None, if only the key."""
        node = self.exact.get((key, value))
        if node is not None:
            return node, value
        for pattern, wild in self.wild.get(key, ()):
            if pattern.matches(value):
                return wild, pattern.text
        node = self.default.get(key)
        return None if node is None else (node, None)

    def rules(self) -> list[Rule]:
        """Every rule here and below, in the order of the file."""
        below = [*self.exact.values(), *self.default.values()]
        own = [] if self.rule is None else [self.rule]
        return own + [rule for node in below for rule in node.rules()]


def match(domain: str, root: Node, entries: Sequence[Entry]) -> Match | None:
    """The rule for a descriptor of this domain, or None."""
    node = root
    values: list[str] = []
    usual, detailed = [domain], [domain]
    for key, value in entries:
        pair = label(key, value)
        step = node.step(key, value)
        if step is None:
            return None
        node, written = step
        if written is None:
            # By the key alone.
            values.append(value)
            usual.append(pair if node.value_to_metric else key)
        elif node.shared:
            pair = label(key, written)
            usual.append(pair)
        elif written == value:
            usual.append(pair)
        else:
            values.append(value)
            usual.append(pair if node.value_to_metric else label(key, written))
        detailed.append(pair)
    rule = node.rule
    if rule is None:
        return None
    return Match(rule, ledger_key(values), tuple(detailed if rule.detailed_metric else usual))


def ledger_key(values: Sequence[str]) -> str | None:
    """One string for each row of values, and another for every other row of as many.

    >>> ledger_key(["a"]), ledger_key(["a", "b|c"]), ledger_key([])
    ('a', 'a|b\\\\|c', None)
    """
    if len(values) == 1:
        return values[0]
    if not values:
        return None
    return "|".join(value.replace("\\", "\\\\").replace("|", "\\|") for value in values)
