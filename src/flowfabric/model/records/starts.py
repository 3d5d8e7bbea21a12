"""Records of executions to be started: schedules, requests, bursts. One small struct per row."""

from __future__ import annotations

from msgspec import Struct


class Schedule(Struct, gc=False):
    """What to start again and again (``ff_schedule``)."""

    namespace: str
    schedule_id: str
    #: Where its executions are kept: the partition of its lane.
    partition: int
    lane_id: str
    execution_kind: str
    payload: bytes | None
    payload_encoding: str | None
    priority: int
    #: JSON, as an execution has it.
    policy: str | None
    tags: str
    #: Either an expression with its time zone, or an interval with a point it goes through.
    cron: str | None
    time_zone: str | None
    every_ms: int | None
    anchor_ms: int | None
    overlap: str
    catch_up: str
    catch_up_limit: int
    jitter_ms: int
    paused: bool
    #: The slot that is started next; empty while it is paused, or if there will never be one.
    next_at_ms: int | None
    revision: int
    created_at_ms: int
    updated_at_ms: int
    #: Says which program text the content comes from, so that starting the program again changes nothing.
    source: str | None = None
    last_slot_ms: int | None = None
    last_execution_id: str | None = None
    last_started_at_ms: int | None = None
    started_count: int = 0
    last_skipped_ms: int | None = None
    last_skip_reason: str | None = None
    skipped_count: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.schedule_id)


class EnqueueRequest(Struct, gc=False):
    """An execution that somebody's own transaction has asked for (``ff_enqueue_request``); gone once it exists."""

    request_id: str
    requested_at_ms: int
    #: The id it will have; without one the request's own UUID in the partition of its lane.
    execution_id: str | None
    #: What to create, as a JSON object.
    command: str
    #: Why it was refused. It is not tried again until an operator says so.
    error: str | None = None
    refused_at_ms: int | None = None

    @property
    def key(self) -> str:
        return self.request_id


class Burst(Struct, gc=False):
    """Starts under one key that fall together, and the execution they share (``ff_debounce``)."""

    namespace: str
    debounce_key: str
    partition: int
    uuid: str
    first_at_ms: int
    #: How long the execution can be pushed back.
    until_ms: int

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.debounce_key)
