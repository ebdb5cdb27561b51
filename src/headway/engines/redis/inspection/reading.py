"""Ledgers as they are stored on a server, read into `LedgerView`.

The layout is described at the top of `script/lua/header.lua`.
"""

from __future__ import annotations

import re
from struct import unpack_from
from typing import Any
from urllib.parse import unquote

from headway.engines.ledger_view import Address, Holding, LedgerView, Loan, Meta
from headway.engines.redis.script.codec import EPOCH, Stored, decode, rule_in, unnoted
from headway.engines.redis.script.protocol import META
from headway.printable import printable

FORMATS = (1, 2)
"""2: clients hold tokens."""


def read_meta(data: bytes) -> Meta | None:
    """None where another version of headway wrote it."""
    form, seq, last, quarantined, paused, expires, waiting, _, governed, born, epoch = META.unpack_from(data)
    if form not in FORMATS:
        return None
    numbers = (seq, last, quarantined, paused, expires, waiting, governed, born)
    seq, last, quarantined, paused, expires, waiting, governed, born = map(int, numbers)
    return Meta(seq, last, quarantined, paused, expires, waiting, governed, born, epoch, data[META.size :])


def read_key(key: bytes) -> Address | None:
    """The address that is written in a key of the server; None if the key is not a ledger.

    >>> read_key(b"headway:{a%3Ab:c}")[2:], read_key(b"headway:{llm}/tokens:bob")[2:]
    (('a:b', 'c', None), ('llm', 'bob', 'tokens'))
    >>> read_key(b"headway:{api}:g")
    """
    found = re.fullmatch(
        r"([^{]*:\{([^}:]*)(?::([^}]*))?\})(?:/([^:]*)(?::([^:]*))?)?", key.decode(errors="replace")
    )
    if found is None:
        return None
    root, name, own, metric, scoped = found.groups()
    texts = [None if text is None else unquote(text) for text in (own if metric is None else scoped, metric)]
    return Address(root.encode(), key, unquote(name), *texts)


def read_ledger_view(address: Address, dumped: list[Any], limit: bytes | None) -> LedgerView | None:
    """Decode what `dump.lua` returned; None if nothing is there, or nothing that this version can read."""
    data, time, *parts = dumped
    meta = None if data is None else read_meta(data)
    if meta is None:
        return None
    text = own_part((limit or b"?").decode(errors="replace"), address.metric)
    now = max(int(unpack_from("<d", time)[0]), meta.last)
    view = LedgerView(address, text, meta, now, [], [], [])
    for number, (value, cooling, out, abandoned, book) in enumerate(zip(*(iter(parts),) * 5, strict=True), 1):
        if value is None:
            continue
        stored = Stored(value, cooling, out)
        # What was written before a loss is void.
        if stored.epoch in (b"", meta.epoch):
            ledger = decode(stored)
            view.ledgers.append(ledger)
            view.lapses.append(int(abandoned or 0) + unnoted(stored, ledger, now))
            view.loans.append(read_book(book, meta.epoch, number, rule_in(stored).capacity))
    return view if view.ledgers or address.metric is None else None


def read_book(book: bytes | None, epoch: bytes, rule: int, capacity: int) -> Loan:
    """What clients hold; the layout is that of `save` in `script/lua/lease.lua`."""
    if book is None or not book.startswith(epoch):
        return Loan(rule, of=capacity)
    numbers = unpack_from("<13d", book, EPOCH)
    return Loan(rule, int(numbers[4]), int(numbers[5]), capacity, int(numbers[11]))


def read_lease(client: bytes, rule: int, lease: bytes) -> Holding:
    """One client's lease, as `pack_lease` in `script/lua/lease.lua` writes it."""
    _, _, held, wants, _, _, ends = unpack_from("<7d", lease)
    return Holding(printable(client.decode(errors="replace")), rule, int(held), int(wants), int(ends))


def own_part(text: str, metric: str | None) -> str:
    """A metric's own limits, out of the text that is stored for display.

    >>> own_part("requests: 500/minute; tokens: 30000/minute; 5 concurrent", "tokens")
    '30000/minute; 5 concurrent'
    """
    if metric is None:
        return text
    own: list[str] = []
    inside = False
    for piece in text.split("; "):
        name, colon, rest = piece.partition(": ")
        inside = name == metric if colon else inside
        if inside:
            own.append(rest if colon else piece)
    return "; ".join(own) or text
