"""Runs by what they are: the filters that ``list``, ``cancel`` and ``replay`` share."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from flowfabric.cli.terminal import Misused
from flowfabric.model.reads.search import ExecutionSummary
from flowfabric.model.states import PublicState
from flowfabric.sdk.app import App
from flowfabric.sdk.options import tag_key

PAGE = 500
_DURATION = re.compile(r"(\d+)\s*(ms|s|min|m|h|d|w)")
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def milliseconds(text: str, option: str) -> int:
    """``90s``, ``15min``, ``2h``, ``7d`` in milliseconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise Misused(f"{option} {text}: expected a duration such as 90s, 15min, 2h or 7d")
    return int(match[1]) * _UNITS[match[2]]


@Parameter(name="*")
@dataclass(frozen=True)
class Filter:
    """Which runs are meant."""

    state: Annotated[
        tuple[str, ...],
        Parameter(name=("--state", "-s"), help="Only in this state; may be repeated.", negative=(), show_default=False),
    ] = ()
    kind: Annotated[str | None, Parameter(name=("--kind", "-k"), help="Only this task or workflow.")] = None
    lane: Annotated[str | None, Parameter(help="Only in this lane.")] = None
    tag: Annotated[str | None, Parameter(help="Only with this tag: key=value.")] = None
    since: Annotated[str | None, Parameter(help="Only runs created within this time: 15min, 2h, 7d.")] = None
    before: Annotated[str | None, Parameter(help="Only runs created longer ago than this.")] = None
    query: Annotated[
        str,
        Parameter(
            name=("--query", "-q"),
            help='Only what these words find, as in the console: charge error:"timed out" worker:w-1 tag:team=red.',
            show_default=False,
        ),
    ] = ""
    namespace: Annotated[str, Parameter(name=("--namespace", "-n"), help="The namespace.")] = "default"

    @property
    def is_empty(self) -> bool:
        """Whether every run of the namespace fits."""
        return not any((self.state, self.kind, self.lane, self.tag, self.since, self.before, self.query.strip()))

    def question(self, states: tuple[str, ...] = ()) -> dict[str, Any]:
        """What ``search_executions`` takes."""
        known = [each.value for each in PublicState]
        for each in self.state:
            if each not in known:
                raise Misused(f"--state {each}: expected one of {', '.join(known)}")
        pair = None
        if self.tag is not None:
            key, equals, value = self.tag.partition("=")
            if not equals:
                raise Misused(f"--tag {self.tag}: expected key=value")
            pair = (tag_key(key), value)
        now = time.time_ns() // 1_000_000
        return {
            "namespaces": [self.namespace],
            "lane_id": self.lane,
            "states": self.state or states,
            "execution_kind": self.kind,
            "tag": pair,
            "query": self.query,
            "created_from": None if self.since is None else now - milliseconds(self.since, "--since"),
            "created_before": None if self.before is None else now - milliseconds(self.before, "--before"),
        }


ANY = Filter()


async def found(
    app: App, question: dict[str, Any], limit: int | None = None, *, builtin: bool = False
) -> AsyncIterator[ExecutionSummary]:
    """Runs that fit, newest first. What the SDK starts for itself (``$ask``) is left out unless ``builtin``."""
    cursor, left = None, limit
    while True:
        size = PAGE if left is None else min(left + 10, PAGE)
        page = await app.engine.search_executions(**question, cursor=cursor, limit=size)
        for each in page.executions:
            if not builtin and each.execution_kind.startswith("$") and question.get("execution_kind") is None:
                continue
            if left == 0:
                return
            left = None if left is None else left - 1
            yield each
        cursor = page.next_cursor
        if cursor is None or left == 0:
            return
