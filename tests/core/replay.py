"""Seeded traces on limits of ordinary and of extreme size, as checksums; a program, to run in the other form.

python -m core.replay prints {"compiled": ..., "traces": {name: [checksum after each command, ...]}}.
"""

from __future__ import annotations

import json
import sys
import zlib
from random import Random

from core.traces import VERBS, Command, Player, look, random_commands, rule_of
from headway.clock import compiled
from headway.core.limits import Bucket, Concurrency, FixedWindow, Limit, Spacing, Window
from headway.core.remote import Remote
from headway.errors import InvalidArgument

SEEDS = 20
COMMANDS = 500
HUGE = 2**62
LONG = f"{HUGE}ns"
LATEST = 2**61  # a wall clock shows this in 2043

SHORT_WAY = Remote(resolution="3ns", drift_ppm=250, max_transit="50ns")
LONG_WAY = Remote(resolution=0, drift_ppm=0, max_transit=LONG, back_latency=LONG)

# Each with the limits that it may be changed into, and the unit of its time.
CASES: dict[str, tuple[int, list[Limit]]] = {
    "bucket": (
        1,
        [Bucket((3, "10ns"), burst=4), Bucket((7, "5ns"), burst=2), Bucket((0, 1)), Bucket((1, "9ns"))],
    ),
    "long bucket": (2**56, [Bucket((1, f"{HUGE - 1}ns")), Bucket((3, LONG), burst=2), Bucket((1, "1ns"))]),
    "dense bucket": (1, [Bucket((1, "1ns"), burst=HUGE // 2), Bucket((HUGE, f"{HUGE - 1}ns"))]),
    "fractions": (1, [Bucket((HUGE // 5, "1s"), burst=5), Bucket((10**9 + 7, "1s"), burst=4 * 10**9)]),
    "window": (1, [Window(5, per="20ns"), Window(2, per="30ns"), Window(0, per="9ns")]),
    "remote": (
        1,
        [
            Window(5, per="20ns", remote=SHORT_WAY),
            Window(3, per="9ns"),
            Window(4, per="9ns", remote=SHORT_WAY),
        ],
    ),
    "coarse": (300, [Window(2000, per="5us"), Window(3000, per="4us", remote=Remote(max_transit="7us"))]),
    "long window": (2**56, [Window(HUGE, per=LONG), Window(3, per=LONG)]),
    "long way": (
        2**56,
        [Window(3, per=LONG, remote=LONG_WAY), Window(HUGE, per=f"{HUGE // 2}ns", remote=LONG_WAY)],
    ),
    "spacing": (
        1,
        [Spacing("6ns", max_reserved=3), Spacing("4ns", expire_after="2ns"), Spacing("9ns", strict=False)],
    ),
    "long spacing": (2**56, [Spacing(LONG, max_reserved=0)]),
    "many slots": (
        2**40,
        [Spacing("1ns", max_reserved=HUGE - 1), Spacing(f"{2**40}ns", max_reserved=2**22 - 1)],
    ),
    "fixed window": (1, [FixedWindow(5, per="10ns"), FixedWindow(3, per="7ns"), FixedWindow(0, per="day")]),
    "long fixed window": (
        2**56,
        [FixedWindow(HUGE, per=LONG), FixedWindow(5, per="month", tz="Europe/Berlin")],
    ),
    "concurrency": (1, [Concurrency(3), Concurrency(1), Concurrency(HUGE)]),
    "leases": (1, [Concurrency(3), Concurrency(1), Concurrency(HUGE)]),
    "ticks": (1, [Bucket((3, "10us"), burst=4), Bucket((7, "1us"), burst=2), Bucket((1, "3ns"), burst=900)]),
    "remote ticks": (
        300,
        [Window(2000, per="5ms"), Window(3000, per="4ms", remote=Remote(max_transit="7ms"))],
    ),
    "spaced ticks": (1, [Spacing("6us", expire_after="1500ns"), Spacing("4us", expire_after="2us")]),
    "calendar ticks": (1, [FixedWindow(5, per="10us"), FixedWindow(3, per="7500ns")]),
}
# In ticks of so many nanoseconds, with a lease of so many; the others in nanoseconds, without one.
IN_TICKS = dict.fromkeys(("ticks", "remote ticks", "spaced ticks", "calendar ticks"), (1000, 2_000_000))
SHARED = IN_TICKS | {"leases": (1, 20)}


def open_player(name: str) -> Player:
    unit, limits = CASES[name]
    rules = [rule_of(limit, *SHARED.get(name, (1, 0))) for limit in limits]
    player = Player(rules[0].open(), unit)
    player.others = rules
    return player


def step(player: Player, command: Command) -> int:
    before = player.now
    player.log.clear()
    try:
        player.play([command])
    except InvalidArgument:
        player.log.append(-1)
    player.now = min(player.now, max(LATEST, before))  # no clock lives to see its end
    return zlib.crc32(repr((player.log, look(player), player.ledger.state())).encode())


def commands_of(seed: int) -> list[Command]:
    verbs = (*VERBS, "adopt", "exhaust", "copy", "renew")
    commands: list[Command] = random_commands(Random(seed), COMMANDS, verbs, HUGE + 1)
    return commands


def replay(name: str, seed: int) -> list[int]:
    player = open_player(name)
    return [step(player, command) for command in commands_of(seed)]


def replay_all() -> dict[str, list[list[int]]]:
    return {name: [replay(name, seed) for seed in range(SEEDS)] for name in CASES}


if __name__ == "__main__":
    json.dump({"compiled": compiled, "traces": replay_all()}, sys.stdout)
