"""Seed 004: what a worker does, on rows that were put there by SQL, down to the rows it leaves."""

from __future__ import annotations

import asyncio
import json

import pytest

from flowfabric import (
    AttemptId,
    BackendTag,
    ClaimPolicy,
    Contention,
    ContentionKind,
    DurableSummary,
    ExecutionId,
    FailureClass,
    Frame,
    FrameKind,
    Handle,
    HandleKind,
    HandlePayload,
    LaneId,
    LeaseId,
    PartitionCounts,
    PartitionFamily,
    PartitionKey,
    PatchKind,
    ResumeGrant,
    ResumeToken,
    RetryScheduled,
    TerminalFailed,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.handles import encode
from tests.seeds.support import Database, is_number, now_ms

pytestmark = pytest.mark.parametrize("store_url", ["sqlite", "postgres", "valkey"], indirect=True)

LANE = LaneId("default")
POLICY = ClaimPolicy("test-worker", "test-worker-instance", 30_000, None)


async def seed_runnable_execution(engine: Engine, database: Database, *capabilities: str) -> ExecutionId:
    """A runnable, eligible execution that asks for capabilities."""
    execution_id = ExecutionId.solo(LANE, engine.partitions)
    await database.seed_runnable(execution_id, LANE, capabilities)
    return execution_id


async def seed_and_claim(engine: Engine, database: Database) -> tuple[ExecutionId, Handle]:
    execution_id = await seed_runnable_execution(engine, database)
    handle = await engine.claim(LANE, set(), POLICY)
    assert handle is not None
    return execution_id, handle


def forged(tag: BackendTag, execution_id: ExecutionId, lease_epoch: int) -> Handle:
    """A handle nobody was given, encoded and read back as one that was sent."""
    payload = HandlePayload(
        execution_id,
        0,
        AttemptId.new(),
        LeaseId.new(),
        lease_epoch,
        30_000,
        LANE,
        "test-worker-instance",
    )
    return Handle(tag, HandleKind.FRESH, encode(tag, payload))


async def read_attempt_outcome(database: Database, execution_id: ExecutionId, attempt_index: int) -> str | None:
    return await database.attempt_column(execution_id, attempt_index, "outcome")


# -- claim -------------------------------------------------------------------------------------------------------------


async def test_claim_happy_path_mints_handle_and_transitions_state(engine: Engine, database: Database) -> None:
    execution_id = await seed_runnable_execution(engine, database, "capA")

    handle = await engine.claim(LANE, {"capA"}, POLICY)
    assert handle is not None
    assert handle.backend is database.tag
    assert handle.kind is HandleKind.FRESH

    assert await database.column(execution_id, "lifecycle_phase") == "active"
    # The stored literal is `running`; readers map it to the canonical `active`.
    assert await database.column(execution_id, "public_state") == "running"
    assert await read_attempt_outcome(database, execution_id, 0) is None


async def test_claim_returns_none_when_no_eligible_rows(engine: Engine) -> None:
    assert await engine.claim(LANE, set(), POLICY) is None


async def test_claim_capability_mismatch_skips_and_returns_none(engine: Engine, database: Database) -> None:
    execution_id = await seed_runnable_execution(engine, database, "capA", "capB")

    assert await engine.claim(LANE, {"capA"}, POLICY) is None
    assert await database.column(execution_id, "lifecycle_phase") == "runnable"


# -- complete ----------------------------------------------------------------------------------------------------------


async def test_complete_writes_terminal_and_clears_lease(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)

    await engine.complete(handle, b"result")

    assert await database.column(execution_id, "lifecycle_phase") == "terminal"
    assert await read_attempt_outcome(database, execution_id, 0) == "success"


async def test_complete_fence_mismatch_returns_contention(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)

    with pytest.raises(Contention) as refused:
        await engine.complete(forged(database.tag, execution_id, 999), None)
    assert refused.value.kind is ContentionKind.LEASE_CONFLICT

    # The refusal left nothing behind: the real holder goes on.
    await engine.complete(handle, None)


async def test_handle_from_valkey_rejected_on_complete(engine: Engine, database: Database) -> None:
    # On Valkey itself, one from elsewhere is.
    other = BackendTag.SQLITE if database.tag is BackendTag.VALKEY else BackendTag.VALKEY
    foreign = forged(other, ExecutionId.solo(LANE, PartitionCounts()), 1)

    with pytest.raises(Validation) as refused:
        await engine.complete(foreign, None)
    assert refused.value.kind is ValidationKind.HANDLE_FROM_OTHER_BACKEND
    assert other.value in refused.value.detail


# -- fail --------------------------------------------------------------------------------------------------------------


async def test_fail_transient_schedules_retry_and_reruns_runnable(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)

    outcome = await engine.fail(handle, "transient boom", FailureClass.TRANSIENT)
    assert isinstance(outcome, RetryScheduled)

    assert await database.column(execution_id, "lifecycle_phase") == "runnable"
    assert await database.column(execution_id, "attempt_index") == 1
    assert await read_attempt_outcome(database, execution_id, 0) == "retry"


async def test_claim_walks_past_capability_mismatch_to_match_lower_priority(engine: Engine, database: Database) -> None:
    high, low = (ExecutionId.solo(LANE, engine.partitions) for _ in range(2))
    await database.seed_runnable(high, LANE, ("capB",), priority=10)
    await database.seed_runnable(low, LANE, ("capA",), priority=0)

    handle = await engine.claim(LANE, {"capA"}, POLICY)
    assert handle is not None
    assert handle.backend is database.tag
    assert await database.column(low, "lifecycle_phase") == "active"
    assert await database.column(high, "lifecycle_phase") == "runnable"


async def test_claim_and_complete_emit_lease_events(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)
    await engine.complete(handle, None)

    assert await database.lease_events(execution_id) == ["acquired", "revoked"]


async def test_fail_permanent_writes_terminal_failed(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)

    outcome = await engine.fail(handle, "permanent boom", FailureClass.PERMANENT)
    assert isinstance(outcome, TerminalFailed)

    assert await database.column(execution_id, "lifecycle_phase") == "terminal"
    assert await read_attempt_outcome(database, execution_id, 0) == "failed"


# -- progress ----------------------------------------------------------------------------------------------------------


async def shows_progress(database: Database, execution_id: ExecutionId, percent: int, message: str) -> bool:
    """Whether ``raw_fields`` holds this percentage, as a number, and this message."""
    stored = await database.raw_field(execution_id, "progress_pct")
    return is_number(stored, percent) and await database.raw_field(execution_id, "progress_message") == message


async def test_progress_writes_pct_and_message_to_raw_fields(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)

    await engine.progress(handle, 42, "halfway")
    assert await shows_progress(database, execution_id, 42, "halfway")


async def test_progress_preserves_prior_values_on_partial_update(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)

    await engine.progress(handle, 10, "starting")
    await engine.progress(handle, 75, None)
    assert await shows_progress(database, execution_id, 75, "starting")

    await engine.progress(handle, None, "winding down")
    assert await shows_progress(database, execution_id, 75, "winding down")


async def test_progress_fence_mismatch_returns_contention(engine: Engine, database: Database) -> None:
    execution_id, _ = await seed_and_claim(engine, database)

    with pytest.raises(Contention) as refused:
        await engine.progress(forged(database.tag, execution_id, 999), 50, None)
    assert refused.value.kind is ContentionKind.LEASE_CONFLICT


# -- renew -------------------------------------------------------------------------------------------------------------


async def test_renew_advances_lease_expiry_and_emits_event(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)

    before = await database.attempt_column(execution_id, 0, "lease_expires_at_ms")
    assert before is not None
    # The clock has to move, or the new expiry would be the old one.
    await asyncio.sleep(0.002)

    renewal = await engine.renew(handle)
    assert renewal.expires_at_ms > before
    assert await database.attempt_column(execution_id, 0, "lease_expires_at_ms") == renewal.expires_at_ms

    assert await database.lease_events(execution_id) == ["acquired", "renewed"]


async def test_renew_fence_mismatch_returns_contention(engine: Engine, database: Database) -> None:
    execution_id, _ = await seed_and_claim(engine, database)

    with pytest.raises(Contention) as refused:
        await engine.renew(forged(database.tag, execution_id, 999))
    assert refused.value.kind is ContentionKind.LEASE_CONFLICT


# -- append_frame ------------------------------------------------------------------------------------------------------


async def test_append_frame_durable_writes_frame_row(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)

    outcome = await engine.append_frame(handle, Frame(b"hello", FrameKind.STDOUT))
    assert outcome.frame_count == 1
    assert "-" in outcome.stream_id
    assert outcome.summary_version is None

    assert await database.frames(execution_id) == 1

    outcome = await engine.append_frame(handle, Frame(b"world", FrameKind.STDOUT))
    assert outcome.frame_count == 2


async def test_append_frame_summary_merges_document_and_bumps_version(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)
    summary = DurableSummary(patch_kind=PatchKind.JSON_MERGE_PATCH)

    outcome = await engine.append_frame(handle, Frame(b'{"a":1}', FrameKind.EVENT).with_mode(summary))
    assert outcome.summary_version == 1

    outcome = await engine.append_frame(handle, Frame(b'{"b":2}', FrameKind.EVENT).with_mode(summary))
    assert outcome.summary_version == 2

    document, version = await database.summary(execution_id)
    assert version == 2
    merged = json.loads(document)
    assert is_number(merged["a"], 1)
    assert is_number(merged["b"], 2)


async def test_append_frame_fence_mismatch_returns_contention(engine: Engine, database: Database) -> None:
    execution_id, _ = await seed_and_claim(engine, database)

    with pytest.raises(Contention) as refused:
        await engine.append_frame(forged(database.tag, execution_id, 999), Frame(b"x", FrameKind.STDOUT))
    assert refused.value.kind is ContentionKind.LEASE_CONFLICT


# -- claim_from_resume_grant -------------------------------------------------------------------------------------------


def reclaim_token(execution_id: ExecutionId) -> ResumeToken:
    partition = PartitionKey(PartitionFamily.EXECUTION, execution_id.partition)
    grant = ResumeGrant(execution_id, str(partition), "sqlite:test-grant", 2**64 - 1, LANE)
    return ResumeToken(grant, "reclaim-worker", "reclaim-worker-instance", 30_000)


async def test_claim_from_reclaim_expired_lease_mints_resumed_handle(engine: Engine, database: Database) -> None:
    execution_id, _ = await seed_and_claim(engine, database)
    await database.expire_lease(execution_id, 0, now_ms() - 1_000)

    handle = await engine.claim_from_resume_grant(reclaim_token(execution_id))
    assert handle is not None
    assert handle.backend is database.tag
    assert handle.kind is HandleKind.RESUMED

    assert await database.attempt_column(execution_id, 0, "lease_epoch") == 2
    assert await database.lease_events(execution_id) == ["acquired", "reclaimed"]


async def test_claim_from_reclaim_live_lease_returns_none(engine: Engine, database: Database) -> None:
    execution_id, _ = await seed_and_claim(engine, database)

    assert await engine.claim_from_resume_grant(reclaim_token(execution_id)) is None


# -- progress, what is left out ----------------------------------------------------------------------------------------


async def test_progress_partial_update_leaves_absent_field_absent(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)

    await engine.progress(handle, 25, None)
    # An explicit JSON null would show as the text 'null'.
    assert await database.raw_field_type(execution_id, "progress_message") is None


async def test_progress_both_none_is_no_op(engine: Engine, database: Database) -> None:
    execution_id, handle = await seed_and_claim(engine, database)

    await engine.progress(handle, None, None)
    assert await database.raw_field_type(execution_id, "progress_pct") is None
