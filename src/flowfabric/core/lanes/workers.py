"""The worker registry: who is alive, on which lanes, with which capabilities."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.model.decisions import Act, Decision, Drop, Get, Need, change, insert
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.operations.executions import Marked, NotRegistered, Refreshed, Registered
from flowfabric.model.records.executions import GoneWorker, Worker, WorkerEvent

MAX_REASON_BYTES = 256
_SPACE = 0x20
_DELETE = 0x7F


class _OneWorker(Struct, gc=False):
    namespace: str
    worker_instance_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Worker, (self.namespace, self.worker_instance_id)),)


class RegisterWorker(_OneWorker, gc=False):
    """A worker process announces itself."""

    worker_id: str
    lanes: tuple[str, ...]
    capabilities: tuple[str, ...]
    liveness_ttl_ms: int
    slots: int | None = None

    def needs(self) -> tuple[Need, ...]:
        return _with_gone(self)


def _with_gone(command: _OneWorker) -> tuple[Need, ...]:
    key = (command.namespace, command.worker_instance_id)
    return (Get(Worker, key), Get(GoneWorker, key))


def is_alive(worker: Worker, now: int) -> bool:
    """Whether the worker's last sign of life is recent enough."""
    return worker.last_heartbeat_ms + worker.liveness_ttl_ms > now


def register_worker(command: RegisterWorker, view: View, context: Context) -> Decision:
    """New, or known and overwritten; an instance never changes hands while it lives."""
    known = view.get(Worker, (command.namespace, command.worker_instance_id))
    fields = {
        "worker_id": command.worker_id,
        "lanes": tuple(sorted(set(command.lanes))),
        "capabilities_csv": ",".join(command.capabilities),
        "last_heartbeat_ms": context.now,
        "liveness_ttl_ms": command.liveness_ttl_ms,
        "slots": command.slots,
    }
    event = _event(command, "registered", context.now)
    gone = view.get(GoneWorker, (command.namespace, command.worker_instance_id))
    back = () if gone is None else (Drop(gone),)
    if known is None:
        worker = Worker(
            command.namespace,
            command.worker_instance_id,
            registered_at_ms=context.now,
            **fields,  # type: ignore[arg-type]
        )
        return Decision(Registered(), (insert(worker), insert(event), *back))
    if not is_alive(known, context.now):
        return Decision(Registered(), (change(known, registered_at_ms=context.now, **fields), insert(event), *back))
    if known.worker_id != command.worker_id:
        raise Validation(ValidationKind.INVALID_INPUT, "instance_id reassigned")
    answer = Refreshed(saturate(context.now + command.liveness_ttl_ms))
    return Decision(answer, (change(known, **fields), insert(event)))


class HeartbeatWorker(_OneWorker, gc=False):
    """A worker process is still there."""


def heartbeat_worker(command: HeartbeatWorker, view: View, context: Context) -> Decision:
    """Alive for another time to live; one past its time must register again."""
    worker = view.get(Worker, (command.namespace, command.worker_instance_id))
    if worker is None or not is_alive(worker, context.now):
        return Decision(NotRegistered())
    return Decision(
        Refreshed(saturate(context.now + worker.liveness_ttl_ms)),
        (change(worker, last_heartbeat_ms=context.now), insert(_event(command, "heartbeat", context.now))),
    )


class MarkWorkerDead(_OneWorker, gc=False):
    """Somebody knows that a worker process is gone. Its leases are left to their own time."""

    reason: str

    def needs(self) -> tuple[Need, ...]:
        return _with_gone(self)


def mark_worker_dead(command: MarkWorkerDead, view: View, context: Context) -> Decision:
    """Gone from the registry, the reason kept."""
    raw = command.reason.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_REASON_BYTES:
        raise Validation(ValidationKind.INVALID_INPUT, f"reason: longer than {MAX_REASON_BYTES} bytes")
    if any(byte < _SPACE or byte == _DELETE for byte in raw):
        raise Validation(ValidationKind.INVALID_INPUT, "reason: control characters are not allowed")
    worker = view.get(Worker, (command.namespace, command.worker_instance_id))
    if worker is None:
        return Decision(NotRegistered())
    event = _event(command, "marked_dead", context.now, command.reason)
    gone = _gone(view, worker, context.now, command.reason)
    return Decision(Marked(), (Drop(worker), insert(event), *gone))


class SweepWorker(_OneWorker, gc=False):
    """Remove a worker process that has been silent for too long."""

    def needs(self) -> tuple[Need, ...]:
        return _with_gone(self)


def sweep_worker(command: SweepWorker, view: View, context: Context) -> Decision:
    """Gone from the registry if its time is up."""
    worker = view.get(Worker, (command.namespace, command.worker_instance_id))
    if worker is None or is_alive(worker, context.now):
        return Decision(False)
    gone = _gone(view, worker, context.now, None)
    return Decision(True, (Drop(worker), insert(_event(command, "ttl_swept", context.now)), *gone))


def _gone(view: View, worker: Worker, now: int, reason: str | None) -> tuple[Act, ...]:
    """Keep for a while who it was."""
    record = GoneWorker(
        worker.namespace,
        worker.worker_instance_id,
        worker.worker_id,
        worker.lanes,
        worker.capabilities_csv,
        worker.last_heartbeat_ms,
        worker.registered_at_ms,
        now,
        reason,
        worker.slots,
    )
    before = view.get(GoneWorker, worker.key)
    if before is None:
        return (insert(record),)
    return (change(before, **{name: getattr(record, name) for name in record.__struct_fields__}),)


def _event(command: _OneWorker, event_kind: str, now: int, reason: str | None = None) -> WorkerEvent:
    return WorkerEvent(command.namespace, command.worker_instance_id, event_kind, now, reason)
