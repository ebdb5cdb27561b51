"""The configuration: envoyproxy/ratelimit's YAML, so that its files work here as they are.

    domain: shop
    descriptors:
      - key: remote_address           # by the key alone: each address has a limit of its own
        rate_limit: {unit: second, requests_per_unit: 10}
      - key: plan
        value: trial
        limit: "100/s burst 20"       # headway's own: any limit string in the place of rate_limit

What is read, and what each field means, is in docs/envoy.md. What is wrong is an `InvalidConfig` that names the file,
the place in it and what is accepted there; a file is read as a whole or not at all. It is stricter than
envoyproxy/ratelimit in one point: a field in a place where it has no effect is an error too.

Scalars are read as they are written: `value: 010` and `value: yes` are the texts "010" and "yes", as they are to a
reader that knows that a value is a string. So YAML's own guesses at types are switched off, and numbers and booleans
are read here, where they are expected.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from headway.core.limits import Limit
from headway.core.notation import parse_limit
from headway.errors import HeadwayError, InvalidLimit
from headway.printable import printable
from headway.service.envoy.codec import MAX_ENTRIES
from headway.service.envoy.messages import MAX_UINT32, Entry
from headway.service.envoy.rules import Match, Node, Rule, label, match
from headway.service.envoy.units import UNITS, has_concurrency, limit_of

ROOT = ("domain", "descriptors")
DESCRIPTOR = (
    "key", "value", "rate_limit", "limit", "descriptors", "shadow_mode", "detailed_metric", "value_to_metric",
    "share_threshold", "overdraft",
)  # fmt: skip
RATE_LIMIT = ("unit", "requests_per_unit", "unlimited", "limit", "name", "replaces")

TRUE, FALSE = {"true", "yes", "on"}, {"false", "no", "off", ""}

MOST_DESCRIPTORS = 100_000
"""In one file; with anchors and aliases a small file can stand for any number."""


class InvalidConfig(HeadwayError, ValueError):
    """A configuration that cannot be kept: which file, where in it, what is wrong, and what is accepted.

    >>> print(InvalidConfig("limits.yaml", "shop.plan_trial", "unit: 'mintue' is no unit", "second, minute or hour"))
    limits.yaml: shop.plan_trial: unit: 'mintue' is no unit; accepted: second, minute or hour
    """

    def __init__(self, file: str, path: str, problem: str, accepted: str) -> None:
        self.file = file
        self.path = path
        self.problem = problem
        self.accepted = accepted
        place = f"{file}: {path}" if path else file
        super().__init__(f"{printable(place)}: {printable(problem)}; accepted: {accepted}")


class Config:
    """The rules of all domains, and which one a descriptor matches.

    >>> config = read_config({"limits.yaml": "{domain: shop, descriptors: [{key: user, limit: 5/s}]}"})
    >>> found = config.match("shop", [Entry("user", "alice")])
    >>> str(found.rule.limit), found.key, found.metric
    ('5/s', 'alice', ('shop', 'user'))
    """

    def __init__(self, domains: Mapping[str, Node], *, fixed: bool = False) -> None:
        self.domains = dict(domains)
        self.fixed = fixed

    def match(self, domain: str, entries: Iterable[Entry]) -> Match | None:
        """The rule of a descriptor, or None: then nothing limits it."""
        root = self.domains.get(domain)
        return None if root is None else match(domain, root, tuple(entries))

    def rules(self) -> list[Rule]:
        """All rules, in the order of the files."""
        return [rule for root in self.domains.values() for rule in root.rules()]


def load_config(paths: Iterable[str | Path], *, fixed: bool = False, merge: bool = False) -> Config:
    """The configuration of these files, and of every `.yaml` and `.yml` in these directories.

    `fixed`: `rate_limit` counts by the calendar, as envoyproxy/ratelimit does. `merge`: one domain may be in several
    files.
    """
    files = files_of(paths)
    texts = {}
    for file in files:
        try:
            texts[str(file)] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(
                str(file), "", f"it cannot be read: {error}", "a file of YAML in UTF-8"
            ) from None
    if not texts:
        raise InvalidConfig(", ".join(map(str, paths)), "", "there is no .yaml file", "a file of YAML")
    return read_config(texts, fixed=fixed, merge=merge)


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """These files, and the `.yaml` and `.yml` files of these directories, by their names."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += sorted(
                each for each in path.iterdir() if each.suffix in (".yaml", ".yml") and each.is_file()
            )
        else:
            files.append(path)
    return files


def read_config(texts: Mapping[str, str], *, fixed: bool = False, merge: bool = False) -> Config:
    """The configuration in these texts, which are given by the names of their files."""
    domains: dict[str, Node] = {}
    for file, text in texts.items():
        for document in _documents(file, text):
            _Reader(file, fixed, merge).domain(document, domains)
    return Config(domains, fixed=fixed)


class _Text(yaml.SafeLoader):  # type: ignore[misc] # it comes without types
    """YAML whose scalars stay texts, and whose mappings have each key once."""

    # Of all that YAML guesses from the look of a scalar, only `<<` and null keep their meaning.
    yaml_implicit_resolvers = {  # noqa: RUF012 - of the base class
        first: [(tag, found) for tag, found in guesses if tag.endswith((":merge", ":null"))]
        for first, guesses in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value if isinstance(key.value, str) and key.value != "<<"]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is there twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


def _documents(file: str, text: str) -> list[Any]:
    try:
        found = [document for document in yaml.load_all(text, _Text) if document is not None]
    except yaml.YAMLError as error:
        raise InvalidConfig(file, "", " ".join(str(error).split()), "YAML") from None
    except RecursionError:
        raise InvalidConfig(file, "", "it is nested too deeply", f"at most {MAX_ENTRIES} levels") from None
    if not found:
        raise InvalidConfig(file, "", "it is empty", "a domain with its descriptors")
    return found


class _Reader:
    """Reads one document. `path` is where it is, for messages."""

    def __init__(self, file: str, fixed: bool, merge: bool) -> None:
        self.file = file
        self.fixed = fixed
        self.merge = merge
        self.seen = 0

    def fail(self, path: str, problem: str, accepted: str) -> InvalidConfig:
        return InvalidConfig(self.file, path, problem, accepted)

    def domain(self, document: Any, domains: dict[str, Node]) -> None:
        fields = self.mapping("", document, ROOT)
        domain = self.text("", "domain", fields)
        if not domain:
            raise self.fail("", "domain is missing or empty", "domain: a name")
        if domain in domains and not self.merge:
            raise self.fail(
                domain, "the domain is there twice", "each domain once, unless domains are merged"
            )
        root = domains.setdefault(domain, Node())
        self.level(domain, (), root, fields.get("descriptors"))

    def level(self, domain: str, above: tuple[Entry, ...], parent: Node, descriptors: Any) -> None:
        """Read a list of descriptors, which is at this path."""
        place = _place(domain, above)
        for index, row in enumerate(self.rows(place, "descriptors", descriptors)):
            self.seen += 1
            if len(above) >= MAX_ENTRIES or self.seen > MOST_DESCRIPTORS:
                accepted = f"{MAX_ENTRIES} levels, and {MOST_DESCRIPTORS} descriptors in all"
                raise self.fail(domain, "there are too many descriptors", accepted)
            here = f"{place}.descriptors[{index}]"
            fields = self.mapping(here, row, DESCRIPTOR)
            entry = Entry(self.text(here, "key", fields), self.text(here, "value", fields))
            if not entry.key:
                raise self.fail(here, "a descriptor without a key", "key: a name")
            self.descriptor(domain, (*above, entry), parent, fields)

    def descriptor(self, domain: str, path: tuple[Entry, ...], parent: Node, fields: dict[str, Any]) -> None:
        place, entry = _place(domain, path), path[-1]
        if parent.has(*entry):
            raise self.fail(place, "the descriptor is there twice", "each key and value once at its level")
        shared = self.flag(place, "share_threshold", fields)
        if shared and "*" not in entry.value:
            raise self.fail(
                place, "share_threshold without a * in the value", "it with a value such as files/*"
            )
        node = Node(self.rule(domain, path, fields), shared, self.flag(place, "value_to_metric", fields))
        parent.add(*entry, node)
        self.level(domain, path, node, fields.get("descriptors"))

    def rule(self, domain: str, path: tuple[Entry, ...], fields: dict[str, Any]) -> Rule | None:
        place = _place(domain, path)
        shadow, detailed, overdraft = (
            self.flag(place, name, fields) for name in ("shadow_mode", "detailed_metric", "overdraft")
        )
        block, own = fields.get("rate_limit"), fields.get("limit")
        if block is None and own is None:
            return None
        if block is not None and own is not None:
            raise self.fail(place, "both rate_limit and limit", "one of them")
        if own is not None:
            return Rule(domain, path, self.limit(place, own), "", frozenset(), shadow, detailed, overdraft)
        place += ": rate_limit"
        known = self.mapping(place, block, RATE_LIMIT)
        name = self.text(place, "name", known)
        replaces = frozenset(
            self.replaced(place, name, row) for row in self.rows(place, "replaces", known.get("replaces"))
        )
        return Rule(domain, path, self.rate_limit(place, known), name, replaces, shadow, detailed, overdraft)

    def replaced(self, place: str, name: str, row: Any) -> str:
        other = self.text(place, "name", self.mapping(f"{place}.replaces", row, ("name",)))
        if not other or other == name:
            problem = (
                f"it replaces {other!r}, which is itself" if other else "it replaces a limit without a name"
            )
            raise self.fail(f"{place}.replaces", problem, "name: the name of another rate_limit")
        return other

    def rate_limit(self, place: str, fields: dict[str, Any]) -> Limit | None:
        unit, count = self.text(place, "unit", fields), self.text(place, "requests_per_unit", fields)
        own = fields.get("limit")
        if self.flag(place, "unlimited", fields):
            if unit or count or own is not None:
                raise self.fail(
                    place, "unlimited, and a limit", "unlimited: true and neither a unit nor a limit"
                )
            return None
        if own is not None:
            if unit or count:
                raise self.fail(place, "limit, and a unit or requests_per_unit", "one of them")
            return self.limit(place, own)
        if unit.lower() not in UNITS:
            problem = f"unit: {unit!r} is no unit{_near(unit.lower(), UNITS)}" if unit else "unit is missing"
            raise self.fail(place, problem, ", ".join(UNITS))
        if not (count.isascii() and count.isdigit() and int(count) <= MAX_UINT32):
            problem = (
                f"requests_per_unit: {count!r} is no such number" if count else "requests_per_unit is missing"
            )
            raise self.fail(place, problem, f"a whole number from 0 to {MAX_UINT32}")
        return limit_of(int(count), UNITS[unit.lower()], fixed=self.fixed)

    def limit(self, place: str, written: Any) -> Limit:
        """A limit string of headway's."""
        try:
            limit = parse_limit(written)
        except InvalidLimit as error:
            raise self.fail(place, f"limit: {error}", 'a limit string such as "100/s burst 20"') from None
        if has_concurrency(limit):
            problem = f"limit: {written!r} counts calls until they end, and a rate limit service is not told of that"
            raise self.fail(place, problem, "limits per time")
        return limit

    # -- values ------------------------------------------------------------------------------------------

    def mapping(self, place: str, value: Any, known: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(place, f"{_shown(value)} is no mapping", f"a mapping with {', '.join(known)}")
        for name in value:
            if name not in known:
                raise self.fail(place, f"{name!r} is not known here{_near(name, known)}", ", ".join(known))
        return value

    def rows(self, place: str, name: str, value: Any) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.fail(place, f"{name}: {_shown(value)} is no list", f"{name}: a list of mappings")
        return value

    def text(self, place: str, name: str, fields: dict[str, Any]) -> str:
        value = fields.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.fail(place, f"{name}: {_shown(value)} is no text", f"{name}: a single value")
        return value

    def flag(self, place: str, name: str, fields: dict[str, Any]) -> bool:
        value = self.text(place, name, fields).lower()
        if value not in TRUE | FALSE:
            raise self.fail(place, f"{name}: {value!r}", "true or false")
        return value in TRUE


def _place(domain: str, path: tuple[Entry, ...]) -> str:
    return ".".join([domain, *(label(*entry) for entry in path)])


def _near(name: Any, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
