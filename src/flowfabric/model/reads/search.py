"""Lists of executions as people see them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from flowfabric.model.ids import ExecutionId, FlowId
from flowfabric.model.states import PublicState

#: How much of a message a list shows.
MAX_SHOWN = 300
#: What stands before the tags of the SDK's users: ``team`` is stored as ``user.team``.
USER_TAGS = "user."


class ExecutionSummary(Struct, frozen=True):
    """One line of a list."""

    execution_id: ExecutionId
    namespace: str
    lane_id: str
    execution_kind: str
    public_state: PublicState
    priority: int
    created_at: int
    started_at: int | None
    completed_at: int | None
    current_attempt_index: int
    flow_id: FlowId | None
    blocking_reason: str | None
    #: The message of the last failure, at most ``MAX_SHOWN`` characters of it.
    error: str | None = None
    #: Why it was cancelled.
    cancellation_reason: str | None = None
    tags: Mapping[str, str] = {}
    #: The execution that started it; ``None`` for a root.
    parent: ExecutionId | None = None


class QueueDepth(Struct, frozen=True):
    """What can be claimed in a lane right now, and how long the oldest of it has been there."""

    lane_id: str
    waiting: int
    oldest_age_ms: int


class SearchPage(Struct, frozen=True):
    """What was found, newest first; ``next_cursor`` leads on, ``None`` says there is no more.

    A search in texts looks at a bounded number of executions for each page, so a page may be short, or empty, and
    still have a ``next_cursor``: the search goes on from there.
    """

    executions: tuple[ExecutionSummary, ...]
    next_cursor: str | None


class StateCounts(Struct, frozen=True):
    """How many executions are in each state; states without any are left out.

    The newest ones are counted. ``oldest`` is ``None`` if those are all; otherwise what was created before that moment
    is not counted.
    """

    counts: Mapping[str, int]
    total: int
    oldest: int | None


class FailureGroup(Struct, frozen=True):
    """Failures of one kind with the same error, but for numbers and ids in it."""

    execution_kind: str
    #: The message of the newest one.
    error: str
    #: The longest text that all of them have in common, for a search.
    common: str
    count: int
    first_at: int
    last_at: int
    newest: ExecutionId


class FailureGroups(Struct, frozen=True):
    """Failures by error, the largest group first. What was created before ``oldest`` was not looked at; ``None`` says
    that everything was."""

    groups: tuple[FailureGroup, ...]
    failures: int
    oldest: int | None
