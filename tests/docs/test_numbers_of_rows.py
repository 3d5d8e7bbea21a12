"""Rows of tables with numbers in them, made of what the code has."""

from __future__ import annotations

import inspect
import re

import pytest

from flowfabric import App
from flowfabric.cli import application
from flowfabric.core.admission.budgets import CANCELLED_AT_ONCE
from flowfabric.core.admission.charge import DEDUP_MS as REPORT_KEPT_MS
from flowfabric.core.explain.causes import MAX_LINKS
from flowfabric.core.explain.explain import MAX_NAMED
from flowfabric.core.invariants.executions import MAX_PRIORITY
from flowfabric.core.leases.decline import FIRST_PAUSE_MS
from flowfabric.core.streams.heads import MOST_PARTS
from flowfabric.core.streams.restarts import MOST_ATTEMPTS
from flowfabric.core.suspension.suspend import DEDUP_MS as SUSPEND_KEPT_MS
from flowfabric.engine.operations.access import KEPT_MS as ANSWER_KEPT_MS
from flowfabric.engine.operations.claim import _MAX_WAIT_MS, MIN_KEY, SAFETY_POLL_S
from flowfabric.engine.operations.signals import DEDUP_TTL_MS, GRACE_MS
from flowfabric.engine.reads.subscriptions import RETRY_FIRST_S, RETRY_LAST_S
from flowfabric.engine.timers.cron import LATE_MS
from flowfabric.engine.timers.executions import HISTORY_MS
from flowfabric.engine.timers.loop import MIN_INTERVAL_MS, TIMERS
from flowfabric.model.conditions import Effect
from flowfabric.model.limits import (
    AUDIT_KEPT_MS,
    BUDGET_IDLE_MS,
    CLOCK_STEP_MS,
    DECLINED_MOST_MS,
    DECLINED_MS,
    DECLINED_PAUSE_MS,
    GATE_KNOWN_MS,
    GONE_KEPT_MS,
    KIND_KEPT_MS,
    MAX_BULK,
    MAX_COMPOSITE_DEPTH,
    MAX_FLOW_NODES,
    MAX_JSON_DEPTH,
    MAX_LEASES_SHOWN,
    MAX_PAYLOAD_BYTES,
    QUOTA_IDLE_MS,
    REFUSED_KEPT_MS,
    RETENTION_MS,
    WAITPOINTS_KEPT,
)
from flowfabric.model.operations.schedules import CatchUp, Overlap
from flowfabric.model.operations.suspension import TimeoutBehavior
from flowfabric.model.policy import DEFAULT_DEDUP_WINDOW_MS, DEFAULT_RETENTION_MAXLEN, WHILE_KEPT_MS
from flowfabric.model.quoting import MAX_QUOTED
from flowfabric.model.reads.explain import Gate
from flowfabric.model.reads.samples import SAMPLES_KEPT_MS
from flowfabric.model.states import LaneState
from flowfabric.model.streams.logs import MAX_LOG
from flowfabric.sdk.asks.answer_checks import MAX_STEPS as MAX_CHECK_STEPS
from flowfabric.sdk.asks.ask import MOST_ASKED
from flowfabric.sdk.options import CANCEL_GRACE
from flowfabric.sdk.remote.calls import PATIENCE_S as CALL_PATIENCE_S
from flowfabric.sdk.schemas.checks import MAX_NODES as MAX_SCHEMA_PARTS
from flowfabric.sdk.worker.processes import STOPPING_S
from flowfabric.sdk.worker.worker import AHEAD_S, UNWIND_S, Worker
from flowfabric.sdk.workflows.conductor import LOOK_AGAIN_MS
from flowfabric.sdk.workflows.recorded_errors import _MAX_MESSAGE, _MAX_RECORD
from flowfabric.server.config import MIN_TOKEN, SECRET_DIGITS
from flowfabric.server.http.limits import MADE_BYTES
from flowfabric.server.routes.remote import MAX_CALLS, MAX_WAIT_MS
from flowfabric.server.telemetry.samples import FINE, STEP_MS
from flowfabric.stores.beside import MOST_AT_ONCE
from flowfabric.stores.postgres.connect import STATEMENT_S
from flowfabric.stores.postgres.feed import PATIENCE_S, TAIL_PATIENCE_S
from flowfabric.stores.postgres.notify import ASK_EVERY_S
from flowfabric.stores.postgres.store import PostgresStore
from flowfabric.stores.sqlite.store import LOCK_WAIT_S
from flowfabric.stores.valkey.commit import MOST_ARGUMENTS
from flowfabric.stores.valkey.connection import OLDEST_SERVER
from flowfabric.stores.valkey.durability import REPLICATED_TIMEOUT_S
from flowfabric.stores.valkey.losses import _TOLD_FOR_S
from flowfabric.stores.wakeups import UNHURRIED_INTERVAL_S
from flowfabric.telemetry.engine_metrics import MAX_LANES
from flowfabric.telemetry.metrics import BUCKETS
from tests.docs.test_numbers import DAY_MS, rows
from tests.docs.test_tables import DOCS

HOUR_MS = 3_600_000
LOST_WORKERS = inspect.signature(App).parameters["lost_workers"].default
CATCH_UP = inspect.signature(App.cron).parameters["catch_up_limit"].default
LEASE_TTL = inspect.signature(Worker).parameters["lease_ttl"].default


def days(milliseconds: int) -> str:
    """As the guide says it."""
    whole, rest = divmod(milliseconds, DAY_MS)
    assert rest == 0
    return "a day" if whole == 1 else f"{whole} days"


def hours(milliseconds: int) -> str:
    """As the guide says it."""
    return f"{milliseconds // HOUR_MS} hours"


def in_words(number: float) -> str:
    """A small number as people write it."""
    words = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[int(number)] if number == int(number) and number < len(words) else f"{number:g}"


def milliseconds(seconds: float) -> str:
    """As the guide says it."""
    return f"{seconds * 1_000:.0f} ms"


def interval(timer: str) -> int:
    """Seconds between two runs of a timer."""
    return next(each.interval_ms for each in TIMERS if each.name == timer) // 1_000


EVERY_TABLE = "| Table | A row for | Deleted |"
KEPT = "| What | Kept for |"
WORKERS = "`ff_worker_registry`, `ff_worker_gone`, `ff_worker_registry_event`"

#: A page, the head of a table, how a row begins, and what its other cells say.
ROWS = [
    (
        "coming-from/celery.md",
        "| | Celery | FlowFabric |",
        "The worker dies",
        f"the lease runs out ({LEASE_TTL.total_seconds():.0f} s by default)",
    ),
    (
        "coming-from/prefect.md",
        "| | Prefect | FlowFabric |",
        "Arguments and results",
        f"at most {MAX_PAYLOAD_BYTES // 1_048_576} MB.",
    ),
    (
        "coming-from/temporal.md",
        "| | Temporal | FlowFabric |",
        "At most once",
        f"`App(lost_workers={LOST_WORKERS})` times",
    ),
    ("coming-from/temporal.md", "| | Temporal | FlowFabric |", "Payloads", f"| {MAX_PAYLOAD_BYTES // 1_048_576} MB; "),
    ("operating.md", "| | SQLite | PostgreSQL | Valkey |", "Needs", f"version {'.'.join(map(str, OLDEST_SERVER))} or"),
    ("operating.md", "| | SQLite | PostgreSQL | Valkey |", "Members", f"{MAX_FLOW_NODES:,} | {MAX_FLOW_NODES:,} | "),
    (
        "operating.md",
        "| `?durability=` | The server must have | A commit is acknowledged when |",
        "`replicated`",
        f"If that takes longer than {REPLICATED_TIMEOUT_S:.0f} s",
    ),
    ("operating.md", KEPT, "frames", f"the newest {DEFAULT_RETENTION_MAXLEN:,} of an attempt"),
    ("operating.md", KEPT, "samples", f"{hours(SAMPLES_KEPT_MS)}: one row a minute, {SAMPLES_KEPT_MS // 60_000:,} in"),
    ("operating.md", KEPT, "idempotency keys", f"(2^{WHILE_KEPT_MS.bit_length() - 1} or more: as long as it is kept)"),
    ("operating.md", KEPT, "idempotency keys", f"for a `suspend` {days(SUSPEND_KEPT_MS)}"),
    (
        "operating.md",
        EVERY_TABLE,
        "`ff_exec_core`",
        f"the latest {MAX_LEASES_SHOWN:,} to {2 * MAX_LEASES_SHOWN:,} leases are kept",
    ),
    ("operating.md", EVERY_TABLE, "`ff_stream_meta`", f"beyond the newest {DEFAULT_RETENTION_MAXLEN:,}"),
    ("operating.md", EVERY_TABLE, "`ff_suspension_current`", f"the latest {WAITPOINTS_KEPT:,} or so waitpoints"),
    ("operating.md", EVERY_TABLE, "`ff_suspend_dedup`", f"after {days(SUSPEND_KEPT_MS)}"),
    ("operating.md", EVERY_TABLE, "`ff_exec_idempotency`", f"after {hours(DEFAULT_DEDUP_WINDOW_MS)} or"),
    (
        "operating.md",
        EVERY_TABLE,
        "`ff_quota_window`",
        f"within {interval('quota_reconciler')} seconds",
    ),
    ("operating.md", EVERY_TABLE, "`ff_quota_policy`", f"nothing has used them for {days(QUOTA_IDLE_MS)}"),
    ("operating.md", EVERY_TABLE, "`ff_budget_policy`", f"nothing has used them for {days(BUDGET_IDLE_MS)}"),
    ("operating.md", EVERY_TABLE, "`ff_lease_event`", f"after {days(HISTORY_MS)}"),
    ("operating.md", EVERY_TABLE, "`ff_enqueue_request`", f"refused ones after {days(REFUSED_KEPT_MS)}"),
    ("operating.md", EVERY_TABLE, WORKERS, f"after {hours(GONE_KEPT_MS)}; after {days(HISTORY_MS)}"),
    ("operating.md", EVERY_TABLE, "`ff_kind_definition`", f"{days(KIND_KEPT_MS)} after"),
    ("operating.md", EVERY_TABLE, "`ff_sample`", f"after {hours(SAMPLES_KEPT_MS)}"),
    ("operating.md", EVERY_TABLE, "`ff_kept_answer`", f"after {hours(ANSWER_KEPT_MS)}"),
    ("operating.md", EVERY_TABLE, "`ff_audit`", f"after {days(AUDIT_KEPT_MS)}"),
    ("states.md", "| Word | Meaning |", "**priority**", f"0 to {MAX_PRIORITY}"),
    ("remote.md", "| Request | What it does |", "`POST /v1/remote/claim`", f"(at most {MAX_WAIT_MS:,})"),
    ("remote.md", "| Request | What it does |", "`POST /v1/remote/calls`", f"up to {MAX_CALLS:,} engine calls"),
    ("guarantees.md", "| Call | Repeated |", "`create_execution` with an idempotency", hours(DEFAULT_DEDUP_WINDOW_MS)),
    ("guarantees.md", "| Call | Repeated |", "`suspend` with an idempotency", days(SUSPEND_KEPT_MS)),
    ("guarantees.md", "| Call | Repeated |", "a request to a server", f"for {days(ANSWER_KEPT_MS)}"),
]


@pytest.mark.parametrize(("page", "head", "begins", "says"), ROWS, ids=lambda text: str(text)[:20])
def test_rows(page: str, head: str, begins: str, says: str) -> None:
    [row] = [" | ".join(cells) for cells in rows(page, head) if cells[0].startswith(begins)]
    assert says in row


def test_exit_codes() -> None:
    told = {int(row[0]) for row in rows("commands.md", "| Exit code | Meaning |")}
    assert told == {
        application.OK,
        application.REFUSED,
        application.MISUSED,
        application.PROBLEMS,
        application.INTERRUPTED,
    }
    assert {int(row[1]) for row in rows("workflows.md", "| | Exit code |")} == {application.OK, application.PROBLEMS}


def named(page: str, head: str) -> list[str]:
    """What stands as code in the first column of a table."""
    return [name for row in rows(page, head) for name in re.findall(r"`\"?(\w+)\"?`", row[0])]


def test_tables_name_every_value() -> None:
    assert set(named("signals.md", "| `effect` | Meaning |")) == {str(each) for each in Effect}
    assert named("signals.md", "| `timeout_behavior` | What happens |") == [str(each) for each in TimeoutBehavior]
    assert named("schedules.md", "| `overlap` | |") == [str(each) for each in Overlap]
    assert named("schedules.md", "| `catch_up` | |") == [str(each) for each in CatchUp]
    assert named("scheduling.md", "| State | Gives out work | Accepts new work |") == [str(each) for each in LaneState]
    assert set(named("scheduling.md", "| Gate | The execution |")) == {str(each) for each in Gate}


#: Sentences with a number in them that are no rows.
SAID = [
    ("../README.md", f"this may take up to {LEASE_TTL.total_seconds():.0f} seconds (`app.worker(lease_ttl=…)`)"),
    ("asks.md", f"After {in_words(MOST_ASKED)} rounds it is a `BadAnswer`"),
    ("budgets.md", f"{'a hundred' if CANCELLED_AT_ONCE == 100 else CANCELLED_AT_ONCE} per commit"),
    ("budgets.md", f"is remembered for {days(REPORT_KEPT_MS)}"),
    ("console.md", f"A server samples the whole every {in_words(STEP_MS / 1_000)} seconds"),
    ("console.md", f"stay for {'an hour' if FINE * STEP_MS == HOUR_MS else FINE} in the memory of the server"),
    ("engine.md", f"The key is remembered for {hours(DEFAULT_DEDUP_WINDOW_MS)}"),
    ("engine.md", f"(0 to {MAX_PRIORITY})"),
    ("events.md", f"Events are kept for {days(HISTORY_MS)}"),
    ("events.md", f"at most every {milliseconds(UNHURRIED_INTERVAL_S)};"),
    ("events.md", f"It also checks every {PostgresStore.event_poll_s:.0f} seconds"),
    ("events.md", f"first after {milliseconds(RETRY_FIRST_S)}, at most every {RETRY_LAST_S:.0f} s"),
    ("events.md", f"when an id has been missing for {milliseconds(PATIENCE_S)}"),
    ("events.md", f"writing for longer than {milliseconds(TAIL_PATIENCE_S)}"),
    ("flows.md", f"up to {interval('dependency_reconciler')} seconds"),
    ("guarantees.md", f"goes back by more than {in_words(CLOCK_STEP_MS / 1_000)} seconds is followed"),
    ("guarantees.md", f"still checks every {'second' if SAFETY_POLL_S == 1 else SAFETY_POLL_S}"),
    ("internals.md", f"A head keeps the latest {MOST_PARTS} parts"),
    ("internals.md", f"more than {MOST_ATTEMPTS} attempts old"),
    ("operating.md", f"waits up to {LOCK_WAIT_S:.0f} seconds for another one's write lock"),
    ("operating.md", f"A statement, a commit included, may take {STATEMENT_S:.0f} seconds"),
    ("operating.md", f"is asked every {ASK_EVERY_S:.0f} seconds whether it lives"),
    ("operating.md", f"need more than {MOST_ARGUMENTS:,} arguments"),
    ("operating.md", f"takes up to {MAX_BULK:,} executions in one call"),
    ("operating.md", f"(`{{prefix}}:losses`, kept for {days(_TOLD_FOR_S * 1_000)})"),
    ("operating.md", f"anything below {MIN_INTERVAL_MS} ms means {MIN_INTERVAL_MS} ms"),
    ("operating.md", f"A wait for a claim (`max_wait`) is at most {hours(_MAX_WAIT_MS)}"),
    ("operating.md", f"Priorities range from 0 to {MAX_PRIORITY};"),
    ("operating.md", f"The server must be Valkey {'.'.join(map(str, OLDEST_SERVER))} or newer"),
    ("quickstart.md", f"has run out (two seconds here, {LEASE_TTL.total_seconds():.0f} by default)"),
    ("reference.md", f"{CANCEL_GRACE.total_seconds():.0f} seconds by default"),
    ("reference.md", f"and {MAX_LOG // 1_024} kB are stored each time a worker takes the run"),
    ("reference.md", f"an ended run is deleted {hours(RETENTION_MS)} after its end"),
    ("reference.md", f"up to {MAX_BULK:,}, in one transaction"),
    ("reference.md", f"from 0 to {MAX_PRIORITY}; higher goes first"),
    ("remote.md", f"is retried for up to {CALL_PATIENCE_S:.0f} seconds if that is safe"),
    ("remote.md", f"With a random `key` of at least {MIN_KEY} characters"),
    ("schedules.md", f"at most the latest `catch_up_limit` ({CATCH_UP} by default)"),
    ("schedules.md", f"within {LATE_MS // 1_000} s counts as on time"),
    ("server.md", f"is quoted, escaped and cut after {MAX_QUOTED} characters"),
    ("server.md", f"from the {MAX_LANES}nd on, lanes share the name `other`"),
    ("server.md", f"with buckets from {milliseconds(BUCKETS[0])} to {BUCKETS[-1]:.0f} s"),
    ("server.md", f"have produced {MADE_BYTES // 1_048_576} MB"),
    ("server.md", f"Stored JSON may nest at most {MAX_JSON_DEPTH} levels"),
    ("server.md", f"about more than {MOST_AT_ONCE:,} executions and edges"),
    ("server.md", f"at most {MAX_SCHEMA_PARTS:,} parts"),
    ("server.md", f"The check takes at most {MAX_CHECK_STEPS:,} steps"),
    ("server.md", f"need at least {SECRET_DIGITS} hexadecimal digits, an even number of them"),
    ("server.md", f"`FF_API_TOKEN` at least {MIN_TOKEN} characters"),
    ("signals.md", f"conditions nest up to {in_words(MAX_COMPOSITE_DEPTH)} levels deep"),
    ("signals.md", f"`dedup_ttl_ms` ({days(DEDUP_TTL_MS)} by default)"),
    ("signals.md", f"(`FF_WAITPOINT_HMAC_GRACE_MS`, {days(GRACE_MS)} by default)"),
    ("tasks.md", f"repeat it once {'an hour' if GATE_KNOWN_MS == HOUR_MS else GATE_KNOWN_MS}"),
    ("tasks.md", f"does not return within {in_words(STOPPING_S)} seconds"),
    ("workers.md", f"within {'a tenth of a second' if AHEAD_S == 0.1 else AHEAD_S}"),
    ("workers.md", f"{in_words(UNWIND_S)} seconds more for handlers that are cancelled"),
    ("workers.md", f"({'a quarter of a second' if FIRST_PAUSE_MS == 250 else FIRST_PAUSE_MS}, then twice as long"),
    ("workers.md", f"each time, up to {DECLINED_PAUSE_MS // 1_000} seconds)"),
    ("workers.md", f"have declined it for {in_words(DECLINED_MS / 60_000)} minutes, or after {days(DECLINED_MOST_MS)}"),
    ("workflows.md", f"It follows at most {MAX_LINKS} runs, and checks at most {MAX_NAMED} of"),
    ("workflows.md", f"all but the class and {_MAX_MESSAGE:,} characters of the message"),
    ("workflows.md", f"an error of more than {_MAX_RECORD // 1_000} kB"),
    ("workflows.md", f"up to {in_words(LOOK_AGAIN_MS / 1_000)} seconds late"),
]


@pytest.mark.parametrize(("page", "sentence"), SAID)
def test_sentences(page: str, sentence: str) -> None:
    assert sentence in " ".join((DOCS / page).read_text().split())
