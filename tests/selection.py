"""What a plain run leaves to a full one, and what starts first; a table in CONTRIBUTING.md says it in short.

A full run runs everything, and any run runs what is named by its id. What no list here names runs on every store in
both. Paths are patterns as in ``fnmatch``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STORES = ("memory", "sqlite", "postgres", "valkey")

#: Their rule is in ``core``: a store only keeps the rows that it decides on. All of them run in memory, each function
#: with its first case on SQLite, and every fourth one with its first case on each other store. Whatever asks a store
#: something that it could answer in its own way is not listed: commits, order, locks, types, queries, cursors, limits
#: of SQL. ``test_every_operation_is_answered`` calls every operation on every store in each run.
RULES_OF_CORE = (
    "contract/admission/test_admit.py",
    "contract/admission/test_block.py",
    "contract/admission/test_budget_asks.py",
    "contract/admission/test_budget_ledger.py",
    "contract/admission/test_budgets.py",
    "contract/admission/test_quotas.py",
    "contract/admission/test_reservations.py",
    "contract/engine/test_bad_input.py::test_bad_values_are_refused_without_a_trace",
    "contract/engine/test_json_depth.py",
    "contract/engine/test_observer.py",
    "contract/executions/test_cancel.py",
    "contract/executions/test_cancel_request.py",
    "contract/executions/test_complete.py",
    "contract/executions/test_due.py",
    "contract/executions/test_end.py",
    "contract/executions/test_fail.py",
    "contract/executions/test_late_timers.py",
    "contract/executions/test_repeats.py",
    "contract/executions/test_replay.py",
    "contract/executions/test_revoke_and_priority.py",
    "contract/flows/test_flows_build.py",
    "contract/flows/test_flows_cancel.py",
    "contract/flows/test_flows_end.py",
    "contract/flows/test_flows_random.py",
    "contract/flows/test_flows_resolution.py",
    "contract/flows/test_flows_siblings.py",
    "contract/flows/test_flows_submit.py",
    "contract/lanes/test_lanes.py",
    "contract/leases/test_claim_by_name.py",
    "contract/leases/test_delay_and_children.py",
    "contract/leases/test_epochs.py",
    "contract/leases/test_fences.py",
    "contract/leases/test_grant_keys.py",
    "contract/leases/test_grants.py",
    "contract/leases/test_handle_gate.py",
    "contract/leases/test_lease_expiry.py",
    "contract/leases/test_past_leases.py",
    "contract/leases/test_reclaim.py",
    "contract/leases/test_renew_and_progress.py",
    "contract/ownership/test_limited_callers.py",
    "contract/ownership/test_owners.py",
    "contract/reads/test_causes.py",
    "contract/reads/test_explain.py",
    "contract/reads/test_preview.py",
    "contract/reads/test_subscribe_events.py",
    "contract/streams/test_restarts.py",
    "contract/suspension/test_resume.py",
    "contract/suspension/test_signal_tokens.py",
    "contract/suspension/test_signals.py",
    "contract/suspension/test_signing_keys.py",
    "contract/suspension/test_suspend.py",
    "contract/suspension/test_suspend_again.py",
    "contract/suspension/test_suspension_ends.py",
    "contract/suspension/test_suspension_timeouts.py",
    "contract/suspension/test_waitpoints.py",
    "contract/workflows/test_steps.py",
)

#: The same for what the SDK does with an engine, whatever its store. Most of these run through a server as well, which
#: has its rows on SQLite: of those only a sample runs on SQLite directly.
RULES_OF_SDK = (
    "sdk/asks/test_answers.py",
    "sdk/asks/test_asking_again.py",
    "sdk/asks/test_asks.py",
    "sdk/definitions/test_announce.py",
    "sdk/definitions/test_depends.py",
    "sdk/runs/test_frames.py",
    "sdk/runs/test_limits.py",
    "sdk/runs/test_logs.py",
    "sdk/runs/test_restarts.py",
    "sdk/runs/test_tasks.py",
    "sdk/test_context.py",
    "sdk/test_middleware.py",
    "sdk/test_options.py",
    "sdk/worker/test_worker.py",
    "sdk/worker/test_worker_leases.py",
    "sdk/worker/test_worker_processes.py",
    "sdk/workflows/test_cancellation.py",
    "sdk/workflows/test_workflows.py",
)

#: Cases that differ in what is given, which is judged before a store is asked: all of them in memory, each function
#: with its first case on each other store.
CASES_OF_INPUT = (
    "contract/executions/test_create.py",
    "contract/executions/test_enqueue.py::test_what_is_refused_is_kept",
    "contract/executions/test_tags.py::test_a_dotted_key_is_one_flat_name",
    "contract/lanes/test_workers.py::test_reasons_that_are_refused",
    "contract/leases/test_claim.py",
    "contract/leases/test_unique_grants.py",
    "contract/orders/test_list_order.py::test_cursors_that_are_none",
    "contract/reads/test_reads.py",
    "contract/streams/test_stream_reads.py",
    "contract/streams/test_stream_writes.py",
    "contract/test_schedules.py",
)

#: The same for whatever is done twice or not at all, which the engine and the servers decide: all cases in memory, and
#: on each other store a tenth, others on each.
TENTH_ELSEWHERE = ("disturbed/test_every_operation.py",)

#: Journeys whose cases differ in size or place, not in what they prove: each function with its first case only.
ONE_CASE = (
    "chaos/test_budget_processes.py",
    "chaos/test_followers.py",
    "chaos/test_journeys.py::test_workers_die_at_any_moment",
    "bench/test_bench_cases.py::test_every_case_runs",
    "chaos/test_remote_workers.py",
    "contract/engine/test_year.py",
    "examples/test_programs.py::test_an_example_on_valkey",
    "sdk/worker/test_worker_processes.py::test_a_run_that_kills_its_workers_ends_as_failed",
    "server/attacks/test_connections.py::test_a_thousand_that_do_not_read",
    "server/attacks/test_large_answers.py",
)

#: Whole processes that work, are stopped or killed, on any store: each function on one of its stores, the next function
#: of the file on the next one.
ONE_STORE = (
    "programs/test_service.py",
    "sdk/runs/test_restarts.py::test_a_step_of_a_lost_worker_starts_over_alone",
    "server/test_processes.py::test_a_request_under_way_is_finished",
    "server/test_processes.py::test_charts_outlive_the_server_that_sampled_them",
    "server/test_processes.py::test_followers_lose_nothing_when_a_server_is_killed",
    "server/test_processes.py::test_nothing_that_was_acknowledged_is_lost_by_a_stop_under_load",
)

#: The same with many cases: a fifth of them, of all stores and kinds.
FIFTH_CASES = (
    "chaos/test_crash.py::test_crash_around_the_commit_of_a_c[lr]*",
    "chaos/test_journeys.py::test_crash_around_a_commit",
    "chaos/test_journeys.py::test_whoever_comes_too_late_is_refused",
    "cli/test_server.py::test_refusals_end_with_one_sentence",
    "cli/test_worker.py::test_a_module_that_runs_on_import_is_refused",
    "console/plans/test_plans.py::test_plans_find_what_was_wrong",
    "examples/test_programs.py::test_an_example_on_postgres",
    "sdk/runs/test_restarts.py::test_whatever_is_killed_when",
    "sdk/worker/test_worker_processes.py::test_a_second_signal_stops_at_once_and_gives_runs_back",
    "server/attacks/test_clocks.py::test_what_a_caller_says_of_the_time_moves_no_clock",
    "server/attacks/test_loop_patterns.py::test_the_worst_text_takes_as_long_as_it_is",
    "server/attacks/test_loop_requests.py::test_paths_queries_and_headers",
    "server/attacks/test_loop_requests.py::test_remote_calls",
    "server/attacks/test_revocation.py::test_a_revocation_elsewhere_arrives",
    "server/attacks/test_revocation.py::test_the_first_credential_ends_what_nobody_in_particular_waits_for",
    "server/attacks/test_tenants.py::test_a_breach_tells_nothing_of_others",
    "server/attacks/test_tenants.py::test_a_foreign_name_is_as_good_as_an_unknown_one",
    "server/attacks/test_tenants.py::test_a_used_up_foreign_budget_does_not_show",
    "server/attacks/test_tenants.py::test_nobody_*",
    "server/attacks/test_tenants.py::test_what_is_ones_own_may_be_named",
    "server/attacks/test_tenants.py::test_whoever_comes_first_takes_no_ids_of_apps",
    "simulation/coordination/test_coordination_mutants.py",
    "simulation/test_mutants.py",
)

#: In full runs only.
FULL_ONLY = (
    "chaos/test_processes.py::test_nothing_acknowledged_is_lost_when_*",
    "console/test_size.py::test_very_many_executions",
    "console/test_stores.py",
    "demo/test_demo.py::test_a_broken_promise_is_named_and_ends_with_1",
    "demo/test_demo.py::test_drawn_in_place_on_a_terminal",
    "programs/test_agent.py::test_it_runs_twice",
    "programs/test_importing.py::test_it_runs_twice",
)

#: In the order in which they start, the longest first: those that wait for browsers, processes and clocks.
LONGEST = (
    "console/test_hostile.py",
    "console/*",
    "demo/*",
    "chaos/*",
    "programs/*",
    "sdk/workflows/*",
    "sdk/*",
    "server/test_processes.py",
    "bench/*",
    "stores/*",
    "disturbed/*",
    "cli/*",
    "docs/*",
    "examples/*",
    "server/http/*",
)
#: Those that compute. Half of the workers begin with them, from the end; all others are in between.
COMPUTING = ("server/*", "contract/*", "simulation/*")


def left_to_full(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Those of a plain run's tests that only a full run runs; for files that were collected whole."""
    numbers: dict[str, dict[str, int]] = {}
    cases: Counter[tuple[str, str]] = Counter()
    served = {name_of(item) for item in items if parameter(item, "store_url") == "remote"}
    totals = Counter(name_of(item) for item in items if is_in(name_of(item), ONE_STORE))
    for item in items:
        path, store, name = path_of(item), store_of(item), name_of(item)
        number = numbers.setdefault(path, {}).setdefault(name, len(numbers[path]))
        case = cases[name, store]
        on_another = name in totals and cases[name, ""] != number % totals[name]
        if (
            on_another
            or is_journey_left(name, cases[name, ""])
            or is_rule_left(name, store, number, case, served=name in served)
        ):
            yield item
        cases.update({(name, ""), (name, store)})


def is_journey_left(name: str, case: int) -> bool:
    """Whether a plain run leaves out this case of a function."""
    if is_in(name, FULL_ONLY) or (case and is_in(name, ONE_CASE)):
        return True
    # One of each five, and the next one in the next five: values of a parameter may come round every five cases.
    return bool((case - case // 5) % 5) and is_in(name, FIFTH_CASES)


def is_rule_left(name: str, store: str, number: int, case: int, *, served: bool) -> bool:
    """Whether a plain run leaves out this case of a function on this store. The number is the function's place in its
    file; ``served`` says whether it runs through a server as well."""
    if is_in(name, TENTH_ELSEWHERE) and store not in ("", "memory"):
        return bool((case - STORES.index(store)) % 10)
    if store in ("", "memory"):
        return False
    if is_in(name, CASES_OF_INPUT):
        return bool(case)
    if store == "sqlite":
        if is_in(name, RULES_OF_CORE):
            return bool(case)
        is_rule = served and is_in(name, RULES_OF_SDK)
    else:
        is_rule = is_in(name, RULES_OF_CORE) or is_in(name, RULES_OF_SDK)
    return is_rule and (bool(case) or number % len(STORES) != STORES.index(store))


def longest_first(items: list[pytest.Item]) -> None:
    """Put them in the order in which they start."""
    ranks = {path: rank(path) for path in {path_of(item) for item in items}}
    items.sort(key=lambda item: ranks[path_of(item)])


def rank(path: str) -> int:
    """The place of a file in that order."""
    for at, pattern in enumerate((*LONGEST, *COMPUTING)):
        if is_in(path, (pattern,)):
            return at if at < len(LONGEST) else at + 1
    return len(LONGEST)


@cache
def is_in(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the patterns means this test, or its file."""
    path = name.partition("::")[0]
    return any(fnmatchcase(name, pattern) or fnmatchcase(path, pattern) for pattern in patterns)


def name_of(item: pytest.Item) -> str:
    """Its function, as the lists name it."""
    return f"{path_of(item)}::{getattr(item, 'originalname', None) or item.name}"


def path_of(item: pytest.Item) -> str:
    """Its file, as the lists name it."""
    return _below_tests(item.path)


@cache
def _below_tests(path: Path) -> str:
    return path.relative_to(ROOT / "tests").as_posix() if path.is_relative_to(ROOT / "tests") else ""


def store_of(item: pytest.Item) -> str:
    """The store it runs on, or nothing."""
    store = parameter(item, "store_url")
    return store if store in STORES else ""


def parameter(item: pytest.Item, name: str) -> str:
    """What a fixture was given for it, or nothing."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get(name, "")
