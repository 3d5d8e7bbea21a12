"""The effect that an act would have on an execution now."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.model.ids import ExecutionId


class Foreseen(Struct, frozen=True):
    """What one act would do: one or two plain sentences; if it is not ``possible``, why."""

    possible: bool
    sentence: str


class Preview(Struct, frozen=True):
    """What each act would do to an execution as it stands."""

    execution_id: ExecutionId
    #: ``request_cancel``, and ``cancel_execution`` by an operator.
    cancel: Foreseen
    terminate: Foreseen
    replay: Foreseen
    fork: Foreseen
    change_priority: Foreseen
    revoke_lease: Foreseen
    #: The step that failed last: where a fork is most likely wanted.
    fork_at: str | None = None
