"""Shares of n tokens among clients that want different numbers of them.

The naive share is n divided by the number of clients. It starves the busy ones and wastes what the quiet ones hold.
The next idea divides in proportion to what each client wants. It rewards a client for asking for more than it
needs, and one greedy client presses all others to nothing.

*Max-min fair* shares do neither. Fill all clients from one tap, like glasses of different sizes: the water rises in
all of them alike, and a glass that is full takes no more. What a small glass leaves is for the larger ones. The
height at which the water stands is the *level*, and a client's share is the smaller of its want and the level. No
client can gain by asking for more than it needs, and none can be pressed below the level by the greed of another.

Worked example, 12 tokens, wants of 2, 4 and 10. An equal part is 4. The first client is content with 2, so 10 are
left for two clients: 5 each. The second is content with 4, so the third gets 6. The level is 6, the shares are 2, 4
and 6.

Three things are added for tokens that move over a network.

**Fractions.** A want is a predicted rate times a span, 8.42 tokens, and rounding each up would ask for 27 tokens
where 20 are enough. So wants are counted in thousandths (`MILLI`), and shares become whole at the end: each is
rounded down, and what is left goes to the largest fractions. A client that already holds more than its share
rounded down comes before all others there, because a token that stays where it is costs no call.

**What is left over.** If all wants together are less than n, a part of the rest is spread evenly over the clients, so
that a sudden request finds a token. The other part stays in the ledger, for clients that are yet to come: of a rest r
each of m clients is offered r / (m + NEWCOMERS). A first client gets a quarter of everything, not everything.

**What moves.** Shares say what a client may have, not what it must give up. Tokens are recalled from a client only
while another one is short. Then those go first that lie idle. Of those that cool, an even sample goes (`sample`):
the earliest ones would leave the giver with nothing to spend for a while, the latest ones would do that to the
receiver.

All of it is arithmetic on integers in a stated order, so that a script on a server gets the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

MILLI = 1000
NEWCOMERS = 3


def level(n: int, wants: Sequence[int]) -> int:
    """How high the water stands: the largest level at which the shares are n together at most.

    Enough for all: the largest want. In the unit of the wants, rounded down.

    >>> level(12, [2, 4, 10]), level(12, [1, 2, 3]), level(12, [10, 10, 10])
    (6, 3, 4)
    """
    left, count = n, len(wants)
    for want in sorted(wants):
        if want * count >= left:
            return left // count
        left -= want
        count -= 1
    return max(wants, default=0)


def shares(n: int, wants: Sequence[int], held: Sequence[int]) -> list[int]:
    """The whole tokens each client may have of n, for wants in thousandths and what each holds already.

    >>> shares(12, [2000, 4000, 10_000], [0, 0, 0])
    [2, 4, 6]

    A fraction goes to the client that has it already:

    >>> shares(5, [2500, 2500], [2, 2]), shares(5, [2500, 2500], [2, 3])
    ([3, 2], [2, 3])

    Of eleven tokens that are not wanted, two clients are offered a fifth each, and the ledger keeps the others:

    >>> shares(20, [6000, 3000], [0, 0])
    [9, 5]
    """
    if not wants:
        return []
    whole = n * MILLI
    total = sum(wants)
    if total < whole:
        more = (whole - total) // (len(wants) + NEWCOMERS)
        fractional = [want + more for want in wants]
    else:
        top = level(whole, wants)
        fractional = [want if want < top else top for want in wants]
    parts = [share // MILLI for share in fractional]
    left = -(-sum(fractional) // MILLI) - sum(parts)
    if left > 0:
        order = [i for i, share in enumerate(fractional) if share % MILLI]
        order.sort(key=lambda i: (held[i] <= parts[i], -(fractional[i] % MILLI), i))
        for i in order[:left]:
            parts[i] += 1
    return parts


def sample(counts: Sequence[int], m: int) -> list[int]:
    """How many to take of each of these counts so that m are taken, evenly over all of them.

    Token number j of the total of t is taken when `j * m // t` steps up: the spacing of what is taken differs by
    one at most, and so does the spacing of what stays.

    >>> sample([4, 4, 4], 3), sample([1, 1, 1, 1, 1, 1], 3), sample([5, 1], 6)
    ([1, 1, 1], [0, 1, 0, 1, 0, 1], [5, 1])
    """
    total = sum(counts)
    if total == 0:
        return [0] * len(counts)
    taken, before, seen = [], 0, 0
    for count in counts:
        seen += count
        upto = seen * m // total
        taken.append(upto - before)
        before = upto
    return taken
