"""All cases, in the order they run."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from bench.cases import (
    backlog,
    budgets,
    bulk,
    drain,
    events,
    flows,
    http,
    idle,
    importing,
    lifecycle,
    limits,
    memory,
    pickup,
    renew,
    routing,
    signals,
    worker,
    workflows,
)
from bench.context import Case


def every_case() -> list[Case]:
    """All there are."""
    modules = (
        *(lifecycle, budgets, bulk, flows, renew, events, drain, worker, workflows, limits, http),
        *(pickup, signals, backlog, routing, memory, idle, importing),
    )
    return [case for module in modules for case in module.cases()]


def chosen(patterns: Iterable[str]) -> list[Case]:
    """Those whose names contain or match one of the patterns; all of them without patterns."""
    wanted = list(patterns)
    return [case for case in every_case() if not wanted or any(matches(case.name, each) for each in wanted)]


def matches(name: str, pattern: str) -> bool:
    """``lifecycle``, ``lifecycle/postgres/256`` and ``*/sqlite/*`` all choose something."""
    if any(sign in pattern for sign in "*?["):
        return fnmatch.fnmatchcase(name, pattern)
    steps, wanted = name.split("/"), pattern.strip("/").split("/")
    return any(steps[start : start + len(wanted)] == wanted for start in range(len(steps)))
