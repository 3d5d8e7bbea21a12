"""Leases that are over, and how they ended."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from flowfabric.model.handles import Handle


class LeaseEnd(StrEnum):
    """How a lease ended."""

    #: By its holder: with a result, with a failure, or until something happens.
    COMPLETED = "completed"
    FAILED = "failed"
    SUSPENDED = "suspended"
    DELAYED = "delayed"
    WAITING_CHILDREN = "waiting_children"
    #: Its code knows no such task, or no such argument.
    DECLINED = "declined"
    #: Not by its holder: it was not renewed in time, an operator took it, another worker took over, the attempt or the
    #: whole execution ran out of time, the execution was cancelled.
    EXPIRED = "expired"
    REVOKED = "revoked"
    RECLAIMED = "reclaimed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class LeaseLook(NamedTuple):
    """What a look at some leases has found: those that are lost, and those whose execution was asked to cancel."""

    lost: list[Handle]
    cancelling: list[Handle]


class PastLease(Struct, gc=False):
    """A lease that ended before its attempt did (``ff_past_lease``); the attempt's own row tells of its last one."""

    partition: int
    uuid: str
    #: The epoch it was held under, or that its attempt had when it started over.
    lease_epoch: int
    attempt_index: int
    #: The id inside the handle, to tell this lease from the one that the attempt's row tells of; never shown.
    lease_id: str | None
    worker_id: str | None
    worker_instance_id: str | None
    began_at_ms: int
    ended_at_ms: int
    #: One of the words of ``LeaseEnd``.
    ended: str
    reason: str | None = None

    @property
    def key(self) -> tuple[int, str, int, int]:
        return (self.partition, self.uuid, self.attempt_index, self.lease_epoch)
