"""An execution that went through a lot: several workers, a question, a lost lease, a revoked one, retries."""

from __future__ import annotations

from typing import Any

import msgspec

from flowfabric import ClaimPolicy, Fresh, Handle, SuspendArgs
from flowfabric.conditions import ByName, Single
from flowfabric.engine import Engine
from flowfabric.model.operations.workflows import NewStep

LANE = "imports"
#: Worker of each lease and how it ended, oldest first.
LEASES = (
    ("import-worker-1", "suspended: waiting for signal"),
    ("import-worker-2", "expired"),
    ("import-worker-3", "revoked: its machine is being replaced"),
    ("import-worker-4", "failed"),
    ("import-worker-5", "held"),
)


async def troubled(engine: Engine, clock: Any, namespace: str) -> str:
    """Make it, and bring it to where its last worker still holds it; takes about 40 seconds of the clock's time."""

    async def take(number: int, lease_ms: int = 3_600_000) -> Handle:
        policy = ClaimPolicy("import-worker", f"import-worker-{number}", lease_ms)
        handle = await engine.claim(LANE, policy=policy)
        assert handle is not None
        clock.now += 2_500
        return handle

    created = await engine.create_execution(
        namespace=namespace,
        lane_id=LANE,
        execution_kind="import_catalogue",
        creator_identity="ann",
        input_payload=msgspec.json.encode({"supplier": "Tea & Co", "rows": 48_211}),
        payload_encoding="json",
        policy={"retry_policy": {"max_retries": 5, "backoff": {"type": "fixed", "delay_ms": 4_000}}},
    )
    identity = created.execution_id
    clock.now += 1_500
    first = await take(1)
    await engine.advance(first, steps=[NewStep("download", b'"catalogue.csv"'), NewStep("check", b"48211")])
    wait = SuspendArgs(waitpoints=[Fresh(None, "supplier")], resume_condition=Single("supplier", ByName("confirmed")))
    await engine.suspend(first, wait)
    clock.now += 6_000
    [point] = (await engine.list_pending_waitpoints(execution_id=identity)).entries
    token = await engine.read_waitpoint_token(identity.partition, point.waitpoint_id)
    await engine.deliver_signal(
        execution_id=identity,
        waitpoint_id=point.waitpoint_id,
        waitpoint_token=token,
        signal_name="confirmed",
        source_type="webhook",
        source_identity="tea-and-co",
        payload=b'{"prices": "net"}',
    )
    clock.now += 500
    await take(2, lease_ms=5_000)
    clock.now += 6_000
    await engine.run_due()
    clock.now += 1_000
    await take(3)
    await engine.revoke_lease(execution_id=identity, reason="its machine is being replaced")
    clock.now += 800
    await engine.fail(await take(4), "TimeoutError: the price service does not answer")
    clock.now += 4_000
    await engine.run_due()
    last = await take(5)
    await engine.advance(last, steps=[NewStep("prices", b'{"updated": 4102}')], known_steps=2)
    return str(identity)
