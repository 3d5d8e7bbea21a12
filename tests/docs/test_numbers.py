"""Numbers in the documents are those of the code: sizes of bodies, defaults of workers, how long things are kept."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from datetime import timedelta

from flowfabric.engine.timers.executions import HISTORY_MS
from flowfabric.model.limits import AUDIT_KEPT_MS, REFUSED_KEPT_MS, RETENTION_MS
from flowfabric.model.policy import DEFAULT_DEDUP_WINDOW_MS
from flowfabric.model.reads.samples import SAMPLES_KEPT_MS
from flowfabric.sdk.worker.worker import Worker
from flowfabric.server.http.connection import MAX_HEAD_BYTES
from flowfabric.server.http.head import MAX_HEADERS
from flowfabric.server.http.request import CONTROL, MAX_DEPTH, MAX_PARTS, MAX_QUERY_FIELDS
from flowfabric.server.routes import ROUTES
from flowfabric.server.routes.remote import MAX_WAIT_MS
from tests.docs.test_tables import DOCS


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
