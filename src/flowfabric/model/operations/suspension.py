"""Suspending an execution: what is asked for, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from flowfabric.model.conditions import ResumeCondition
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId
from flowfabric.model.states import PublicState
from flowfabric.model.waitpoint_tokens import Token


class SuspensionReason(StrEnum):
    """Why an execution is suspended. Other texts are stored as they are and count as waiting for a signal."""

    WAITING_FOR_SIGNAL = "waiting_for_signal"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_CALLBACK = "waiting_for_callback"
    WAITING_FOR_TOOL_RESULT = "waiting_for_tool_result"
    WAITING_FOR_OPERATOR_REVIEW = "waiting_for_operator_review"
    PAUSED_BY_POLICY = "paused_by_policy"
    PAUSED_BY_BUDGET = "paused_by_budget"
    STEP_BOUNDARY = "step_boundary"
    MANUAL_PAUSE = "manual_pause"


class SuspensionRequester(StrEnum):
    """Who asked for a suspension."""

    WORKER = "worker"
    OPERATOR = "operator"
    POLICY = "policy"
    SYSTEM_TIMEOUT_POLICY = "system_timeout_policy"


class TimeoutBehavior(StrEnum):
    """What happens when nobody signalled in time."""

    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    AUTO_RESUME = "auto_resume_with_timeout_signal"
    ESCALATE = "escalate"


class ResumeTrigger(StrEnum):
    """What made ``resume_execution`` be called."""

    SIGNAL = "signal"
    OPERATOR = "operator"
    AUTO_RESUME = "auto_resume"


class Fresh(Struct, frozen=True):
    """A new waitpoint. Without an id one is made; without a key it is ``wpk:<id>``."""

    waitpoint_id: str | None = None
    waitpoint_key: str | None = None


class UsePending(Struct, frozen=True):
    """A waitpoint that ``create_waitpoint`` made before, with the signals that came early."""

    waitpoint_id: str


WaitpointBinding: TypeAlias = Fresh | UsePending


class ResumePolicy(Struct, frozen=True):
    """How the execution goes on. Waitpoints are always closed on resume; the two signal flags are only recorded."""

    resume_target: str = "runnable"
    consume_matched_signals: bool = True
    retain_signal_buffer_until_closed: bool = False
    resume_delay_ms: int | None = None
    close_waitpoint_on_resume: bool = True


class SuspendArgs(Struct, frozen=True, kw_only=True):
    """What an execution waits for, on which waitpoints (the first one is the primary), and for how long."""

    waitpoints: Sequence[WaitpointBinding]
    resume_condition: ResumeCondition
    reason_code: str = SuspensionReason.WAITING_FOR_SIGNAL
    resume_policy: ResumePolicy = ResumePolicy()
    requested_by: str = SuspensionRequester.WORKER
    timeout_at: int | None = None
    timeout_behavior: str = TimeoutBehavior.FAIL
    continuation_metadata_pointer: str | None = None
    suspension_id: str | None = None
    idempotency_key: str | None = None
    now: int | None = None


class WaitpointCredential(Struct, frozen=True):
    """A waitpoint and the token that lets others signal it."""

    waitpoint_id: str
    waitpoint_key: str
    waitpoint_token: Token


class SuspendOutcomeDetails(Struct, frozen=True):
    """The suspension and the credentials of its waitpoints, the primary one first."""

    suspension_id: str
    waitpoint_id: str
    waitpoint_key: str
    waitpoint_token: Token
    additional_waitpoints: tuple[WaitpointCredential, ...] = ()


class Suspended(Struct, frozen=True):
    """The execution waits; its lease is gone. The handle only says what was suspended."""

    details: SuspendOutcomeDetails
    handle: Handle


class SuspendOutcome:
    """Answers of ``suspend``."""

    Suspended: TypeAlias = Suspended

    class AlreadySatisfied(Struct, frozen=True):
        """Signals that came early satisfy the condition: nothing was suspended, go on with the handle."""

        details: SuspendOutcomeDetails
        handle: Handle


class PendingWaitpoint(Struct, frozen=True):
    """A waitpoint whose token can be handed out before the execution suspends."""

    waitpoint_id: str
    hmac_token: Token


class WaitpointEntry(Struct, frozen=True):
    """An open waitpoint as lists show it: never its token."""

    waitpoint_id: str
    waitpoint_key: str
    state: str
    required_signal_names: tuple[str, ...]
    created_at: int
    activated_at: int | None
    expires_at: int | None
    execution_id: ExecutionId
    token_kid: str
    token_fingerprint: str


class WaitpointPage(Struct, frozen=True):
    """Open waitpoints of an execution, by id."""

    entries: tuple[WaitpointEntry, ...]
    next_cursor: str | None


class Resumed(Struct, frozen=True):
    """The execution can be claimed again, now (``resumable``) or after its delay (``delayed``)."""

    public_state: PublicState


class ResumeSignal(Struct, frozen=True):
    """A signal that the last suspension of an attempt waited for."""

    signal_id: str
    signal_name: str
    signal_category: str
    source_type: str
    source_identity: str
    correlation_id: str | None
    accepted_at: int
    payload: bytes | None = None
    #: The key of the waitpoint it came to, which its sender had to prove.
    waitpoint_key: str = ""


class Accepted(Struct, frozen=True):
    """The signal is recorded; ``effect`` says what it did."""

    signal_id: str
    effect: str


class DeliverSignalResult:
    """Answers of ``deliver_signal``."""

    Accepted: TypeAlias = Accepted

    class Duplicate(Struct, frozen=True):
        """The signal was delivered before; nothing changed."""

        existing_signal_id: str


class Seeded(Struct, frozen=True):
    """The store has its first signing key."""

    kid: str


class AlreadySeeded(Struct, frozen=True):
    """A key of this id was there; it was left as it is."""

    kid: str
    same_secret: bool


class RotateSecret:
    """What a rotation did to one partition."""

    class Rotated(Struct, frozen=True):
        """The new key signs; the previous one verifies until its grace is over. ``gc_count`` expired keys are gone."""

        previous_kid: str | None
        new_kid: str
        gc_count: int

    class Noop(Struct, frozen=True):
        """This key is stored already."""

        kid: str


class PartitionRotation(Struct, frozen=True):
    """One entry of ``rotate_waitpoint_hmac_secret_all``; stores with one set of keys report partition 0."""

    partition: int
    result: RotateSecret.Rotated | RotateSecret.Noop


class VerifyingKid(Struct, frozen=True):
    """A former key that still verifies; ``expires_at_ms`` is empty for one that always will."""

    kid: str
    expires_at_ms: int | None


class WaitpointKids(Struct, frozen=True):
    """Which keys sign and verify, without their secrets."""

    current_kid: str | None
    verifying: tuple[VerifyingKid, ...]
