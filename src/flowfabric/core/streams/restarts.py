"""Where output begins, and whether it starts over.

The head of a stream remembers which parts of a run have emitted, and under which epoch each began to: one part for
every step of a workflow, and one for what no step emits. An append that opens a part which has emitted before is
preceded by a restart frame. A restart that is not needed does no harm, a missing one does: what is not known counts as
emitted.
"""

from __future__ import annotations

from flowfabric.core.batch.view import View
from flowfabric.core.streams.heads import Parts, parts_of
from flowfabric.model import states as lit
from flowfabric.model.decisions import Get, Need
from flowfabric.model.handles import HandlePayload
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.past_leases import LeaseEnd, PastLease
from flowfabric.model.records.streams import StreamHead
from flowfabric.model.streams.frames import Frame, Opening
from flowfabric.model.streams.restarts import RESTART_FRAME, Restart, RestartReason, write_restart

#: Attempts that are looked back upon.
MOST_ATTEMPTS = 64

_ENDS = {
    LeaseEnd.EXPIRED: RestartReason.WORKER_LOST,
    LeaseEnd.RECLAIMED: RestartReason.WORKER_LOST,
    LeaseEnd.REVOKED: RestartReason.GIVEN_BACK,
    LeaseEnd.SUSPENDED: RestartReason.RESUMED,
    LeaseEnd.DELAYED: RestartReason.RESUMED,
    LeaseEnd.WAITING_CHILDREN: RestartReason.RESUMED,
    LeaseEnd.COMPLETED: RestartReason.REPLAYED,
    LeaseEnd.FAILED: RestartReason.REPLAYED,
    LeaseEnd.CANCELLED: RestartReason.REPLAYED,
    LeaseEnd.TIMED_OUT: RestartReason.REPLAYED,
}
_TYPES = {
    lit.TYPE_RETRY: RestartReason.RETRY,
    lit.TYPE_RECLAIM: RestartReason.WORKER_LOST,
    lit.TYPE_REPLAY: RestartReason.REPLAYED,
}


def needs(handle: HandlePayload, frame: Frame) -> tuple[Need, ...]:
    """The heads of the attempts before, when output starts."""
    if frame.opens != Opening.START or not handle.attempt_index:
        return ()
    return tuple(Get(StreamHead, (handle.execution_id, index)) for index in _before(handle.attempt_index))


def _before(attempt_index: int) -> range:
    """The attempts that are looked back upon, the latest one first."""
    return range(attempt_index - 1, max(-1, attempt_index - 1 - MOST_ATTEMPTS), -1)


def restart_of(
    handle: HandlePayload, frame: Frame, own: Parts, execution: Execution, attempt: Attempt, view: View
) -> Frame | None:
    """The restart frame that goes before a frame, if its part has emitted before. ``own`` are the parts of the
    attempt's stream."""
    if frame.opens != Opening.START:
        return None
    reason: RestartReason | None = None
    epoch = own.epoch(frame.step, handle.lease_epoch)
    if epoch is not None:
        reason = _same_attempt(execution, attempt, handle.lease_epoch, epoch, view)
    else:
        for index in _before(handle.attempt_index):
            parts = parts_of(view.get(StreamHead, (handle.execution_id, index)))
            if parts.epoch(frame.step, handle.lease_epoch) is not None:
                reason = _TYPES.get(attempt.attempt_type or "", RestartReason.RETRY)
                break
        else:
            if handle.attempt_index > MOST_ATTEMPTS:
                reason = _TYPES.get(attempt.attempt_type or "", RestartReason.RETRY)
    if reason is None:
        return None
    told = Restart(handle.attempt_index + 1, frame.step, reason)
    return Frame(write_restart(told), frame_type=RESTART_FRAME, step=frame.step)


def _same_attempt(execution: Execution, attempt: Attempt, epoch: int, before: int, view: View) -> RestartReason:
    """Why a part begins again within an attempt."""
    if before == epoch:
        return RestartReason.RETRY
    past = view.get(PastLease, (execution.partition, execution.uuid, attempt.attempt_index, before))
    if past is not None:
        return _ENDS.get(LeaseEnd(past.ended), RestartReason.WORKER_LOST)
    return RestartReason.REPLAYED if attempt.attempt_type == lit.TYPE_REPLAY else RestartReason.WORKER_LOST
