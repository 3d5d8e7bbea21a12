"""Numbers in the documents are those of the code: sizes of bodies, defaults of workers, how long things are kept."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from datetime import timedelta

import pytest

from flowfabric import App
from flowfabric.core.explain.causes import MAX_LINKS
from flowfabric.core.flows.cancel import BACKLOG_GRACE_MS, CANCEL_STEP
from flowfabric.core.flows.cascade import MAX_MOVES
from flowfabric.core.leases.reclaim import DEFAULT_RECLAIM_CAP
from flowfabric.engine import Engine
from flowfabric.engine.reads.search import MOST_FAILURES, WINDOW
from flowfabric.engine.reads.subscriptions import LARGEST_PAGE, PAGE
from flowfabric.engine.timers.cron import LATE_MS
from flowfabric.engine.timers.executions import HISTORY_MS
from flowfabric.model.limits import (
    AUDIT_KEPT_MS,
    INTAKE_MS,
    KIND_KEPT_MS,
    MAX_BACKFILL,
    MAX_BUDGET_DEPTH,
    MAX_BULK,
    MAX_KINDS_SAMPLED,
    MAX_SIGNAL_BYTES,
    MAX_WAITPOINTS,
    REFUSED_KEPT_MS,
    RETENTION_MS,
)
from flowfabric.model.policy import DEFAULT_DEDUP_WINDOW_MS, DEFAULT_MAX_RECLAIM_COUNT, DEFAULT_MAX_SIGNALS
from flowfabric.model.reads.samples import SAMPLES_KEPT_MS
from flowfabric.model.streams.logs import MAX_LINE, MAX_LINES
from flowfabric.sdk.options import CANCEL_GRACE
from flowfabric.sdk.schemas.patterns import MAX_PATTERN
from flowfabric.sdk.worker.worker import Worker
from flowfabric.server.environment import VARIABLES
from flowfabric.server.http.connection import MAX_HEAD_BYTES
from flowfabric.server.http.head import MAX_HEADERS
from flowfabric.server.http.request import CONTROL, MAX_DEPTH, MAX_PARTS, MAX_QUERY_FIELDS
from flowfabric.server.routes import ROUTES
from flowfabric.server.routes.remote import MAX_WAIT_MS
from flowfabric.stores.postgres.store import PostgresStore
from flowfabric.stores.sqlite.store import SqliteStore
from tests.docs.test_tables import DOCS

DAY_MS = 86_400_000


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of the table under this head."""
    text = (DOCS / page).read_text()
    assert text.count(head) == 1, f"{page}: {head}"
    table = text.split(head)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_sizes_of_bodies() -> None:
    paths: dict[int, list[str]] = defaultdict(list)
    for route in ROUTES:
        if route.body is not None and route.limit != CONTROL:
            paths[route.limit].append(f"`{re.sub('{.*?}', '…', route.path)}`")
    expected = [
        [f"body of {', '.join(found[:-1])} and {found[-1]}", str(limit)]
        for limit, found in sorted(paths.items(), reverse=True)
    ]
    expected += [["any other body", str(CONTROL)], ["depth of JSON", f"{MAX_DEPTH} levels"]]
    assert rows("server.md", "| Limit | Bytes |") == expected
    assert (
        f"Further limits: {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes of headers in one request, "
        f"{MAX_QUERY_FIELDS} fields in a query, {MAX_PARTS} objects and lists in a body."
    ) in " ".join((DOCS / "server.md").read_text().split())


def test_defaults_of_workers() -> None:
    parameters = inspect.signature(Worker).parameters
    told = {row[0].strip("`"): row[1] for row in rows("workers.md", "| Option | Default | |")}
    for name in ("concurrency", "lease_ttl", "drain_grace"):
        default = parameters[name].default
        shown = f"{default.total_seconds():.0f} s" if isinstance(default, timedelta) else str(default)
        assert told[name] == shown, name
    assert set(told) <= set(parameters)


def test_how_long_things_are_kept() -> None:
    kept = {row[0].split(",")[0]: row[1] for row in rows("operating.md", "| What | Kept for |")}
    day = 86_400_000
    assert kept["ended executions"].startswith(f"{RETENTION_MS // 3_600_000} hours after the end")
    assert kept["events"] == f"{HISTORY_MS // day} days"
    assert kept["idempotency keys"].startswith(f"{DEFAULT_DEDUP_WINDOW_MS // 3_600_000} hours")
    begins = {
        "samples": f"{SAMPLES_KEPT_MS // 3_600_000} hours",
        "the audit log": f"{AUDIT_KEPT_MS // day} days",
        "start requests": f"{REFUSED_KEPT_MS // day} days",
    }
    for what, told in begins.items():
        assert next(value for name, value in kept.items() if name.startswith(what)).startswith(told), what


def test_how_long_a_claim_waits_at_most() -> None:
    claim = next(row for row in rows("remote.md", "| Request | What it does |") if row[0] == "`POST /v1/remote/claim`")
    assert f"(at most {MAX_WAIT_MS:,})" in claim[1]


def test_defaults_of_opening_an_engine() -> None:
    parameters = dict(inspect.signature(Engine.open).parameters)
    for store in (PostgresStore, SqliteStore):
        parameters |= inspect.signature(store.open).parameters
    for row in rows("operating.md", "| Argument | Default | Store | Meaning |"):
        for name, told in zip(row[0].split(", "), row[1].split(", ") if ", " in row[0] else [row[1]], strict=True):
            default = parameters[name.strip("`")].default
            if default is not None:
                shown = f'"{default}"' if isinstance(default, str) else str(default)
                assert told.strip("`").replace(",", "") == shown, name


def test_defaults_of_servers() -> None:
    told = {
        name: row[2]
        for row in rows("server.md", "| Variable | Flag | Default | Meaning |")
        for name in re.findall(r"FF_\w+", row[0])
    }
    for each in VARIABLES:
        if isinstance(each.default, int | float) and not isinstance(each.default, bool):
            number = re.match(r"\d+", told[each.name])
            # How many may come in a burst follows from another one.
            assert each.name == "FF_RATE_BURST" or (number and float(number[0]) == each.default), each.name


def seconds_of(milliseconds: int) -> str:
    return f"{milliseconds // 1_000}"


#: Sentences with a number in them, made of what the code has.
SAID = [
    ("asks.md", f"Patterns have at most {MAX_PATTERN:,} characters"),
    ("budgets.md", f"(`parent_budget_id`, up to {MAX_BUDGET_DEPTH} levels)"),
    ("console.md", f"for each page such a search looks at {WINDOW:,} executions"),
    ("console.md", f"The counts by state cover the newest {WINDOW:,} executions."),
    ("console.md", f"It looks at the newest {WINDOW:,} executions, and at most {MOST_FAILURES:,} failures among them."),
    ("console.md", f"At most the newest {MAX_KINDS_SAMPLED:,} executions are looked at"),
    ("console.md", f"A backfill covers at most {MAX_BACKFILL:,} scheduled times."),
    ("console.md", f"A kind that was not announced for {KIND_KEPT_MS // DAY_MS} days is forgotten."),
    ("events.md", f"holds one page ({PAGE} events, up to {LARGEST_PAGE:,} while it is behind)"),
    ("flows.md", f"Members are cancelled in the commit that cancels the flow, {CANCEL_STEP:,} at a time."),
    ("flows.md", f"after {seconds_of(BACKLOG_GRACE_MS)} seconds the `cancel_reconciler` handles whatever is left"),
    ("flows.md", f"If an end affects more than {MAX_MOVES:,} members and edges"),
    (
        "guarantees.md",
        f"it is {DEFAULT_MAX_RECLAIM_COUNT} for executions with a policy and {DEFAULT_RECLAIM_CAP:,} for",
    ),
    ("operating.md", f"while they are younger than `FF_INTAKE_INTERVAL_MS` ({INTAKE_MS})"),
    ("reference.md", f"`start_many` starts up to {MAX_BULK:,} runs in one transaction"),
    ("reference.md", f"At most {MAX_LINES:,} lines and"),
    ("reference.md", f"a line is cut after {MAX_LINE:,} characters"),
    ("schedules.md", f"A slot that is started within {seconds_of(LATE_MS)} s counts as on time."),
    ("schedules.md", f"each once, at most {MAX_BACKFILL:,};"),
    ("signals.md", f"A signal carries at most {MAX_SIGNAL_BYTES // 1_024} KiB;"),
    ("signals.md", f"an execution takes at most {DEFAULT_MAX_SIGNALS:,} of them"),
    ("signals.md", f"a suspension has at most {MAX_WAITPOINTS} waitpoints"),
    ("workers.md", f"(`App(lost_workers={inspect.signature(App).parameters['lost_workers'].default})`)"),
    ("workflows.md", f"It follows at most {MAX_LINKS} runs"),
    ("workflows.md", f"{seconds_of(int(CANCEL_GRACE.total_seconds() * 1_000))} seconds unless the decorator sets it"),
]


@pytest.mark.parametrize(("page", "sentence"), SAID)
def test_numbers_in_sentences(page: str, sentence: str) -> None:
    assert sentence in " ".join((DOCS / page).read_text().split())
