"""Doing a worker's part by hand, for tests that are not about workers."""

from __future__ import annotations

from typing import Any

from flowfabric import App, ClaimPolicy, FailureClass, Frame, Handle

WORKER = ClaimPolicy(worker_id="w", worker_instance_id="w-1", max_wait=10_000)


async def claim(app: App, **more: Any) -> Handle:
    """The next run of the app's lane."""
    handle = await app.engine.claim(app.lane, policy=WORKER, **more)
    assert handle is not None
    return handle


async def run_one(app: App) -> Any:
    """Claim the next run, call its function with the stored arguments, and complete it with what it gives."""
    handle = await claim(app)
    context = await app.engine.read_execution_context(handle.execution_id)
    definition = app.definition(context.execution_kind)
    result = await definition.run_here(definition.signature.unpack(context.input_payload), {})
    await app.engine.complete(handle, definition.signature.dump_result(result))
    return result


async def fail_one(app: App, reason: str, error: bytes | None = None) -> None:
    """Claim the next run and fail it for good."""
    handle = await claim(app)
    if error is not None:
        await app.engine.append_frame(handle, Frame(error, frame_type="error"))
    await app.engine.fail(handle, reason, FailureClass.PERMANENT)
