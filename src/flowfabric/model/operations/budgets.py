"""Budgets and quotas as callers see them: what they hand in and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.handles import Handle
from flowfabric.model.operations.suspension import SuspendOutcomeDetails
from flowfabric.model.remembering import remembered_by_text


class OnHardLimit(StrEnum):
    """What a budget does when a charge would cross its hard limit. Any other text acts as ``fail``."""

    FAIL = "fail"
    CANCEL_PENDING = "cancel_pending"
    ASK = "ask"
    WARN = "warn"


#: The name of the signal that approves what a budget asked for.
APPROVED = "approved"
#: ``enforcement_mode`` of a budget that never refuses.
WARN_ONLY = "warn"


class BudgetTerms(Struct, frozen=True):
    """The document of a budget: limits by dimension (0 means none) and what happens at them."""

    hard_limits: dict[str, int] = {}
    soft_limits: dict[str, int] = {}
    reset_interval_ms: int = 0
    on_hard_limit: str = OnHardLimit.FAIL
    on_soft_limit: str = "warn"


_decoder = msgspec.json.Decoder(BudgetTerms)


@remembered_by_text(4_096)
def read_terms(document: str) -> BudgetTerms:
    """What a stored budget says; anything that is not a budget document is corruption."""
    try:
        return _decoder.decode(document)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Validation(ValidationKind.CORRUPTION, f"ff_budget_policy.policy_json: {error}") from None


@remembered_by_text(4_096)
def read_caps(document: str) -> tuple[tuple[str, int], ...]:
    """Dimensions with a hard limit, in order."""
    return tuple(sorted((name, limit) for name, limit in read_terms(document).hard_limits.items() if limit > 0))


class UsageDimensions(Struct, frozen=True):
    """What a worker has used. Only ``custom`` is charged, and the three others where the budget names them."""

    input_tokens: int = 0
    output_tokens: int = 0
    wall_ms: int | None = None
    custom: Mapping[str, int] = {}
    dedup_key: str | None = None


class Ok(Struct, frozen=True):
    """Charged."""


class AlreadyApplied(Struct, frozen=True):
    """Charged by an earlier call with the same key; nothing changed."""


class SoftBreach(Struct, frozen=True):
    """Charged, and a soft limit is exceeded: ``current_usage`` counts this charge. Where the budget only warns, the
    limit may be the hard one."""

    dimension: str
    current_usage: int
    soft_limit: int
    budget_id: str = ""


class HardBreach(Struct, frozen=True):
    """Not charged: the hard limit does not allow it. ``current_usage`` is what was spent before, ``reserved`` what
    others hold, ``budget_id`` the budget whose limit it is: the one named, or one above it."""

    dimension: str
    current_usage: int
    hard_limit: int
    budget_id: str = ""
    reserved: int = 0


ReportUsageResult: TypeAlias = Ok | SoftBreach | HardBreach | AlreadyApplied


class CreateBudgetResult:
    """Answers of ``create_budget``."""

    class Created(Struct, frozen=True):
        """The budget is new."""

        budget_id: str

    class AlreadySatisfied(Struct, frozen=True):
        """A budget with this id exists; nothing changed."""

        budget_id: str


class CreateQuotaPolicyResult:
    """Answers of ``create_quota_policy``."""

    class Created(Struct, frozen=True):
        """The policy is new."""

        quota_policy_id: str

    class Updated(Struct, frozen=True):
        """A policy with this id exists; it has the numbers that were given now."""

        quota_policy_id: str

    class AlreadySatisfied(Struct, frozen=True):
        """A policy with this id exists; its numbers have not changed."""

        quota_policy_id: str


class Reset(Struct, frozen=True):
    """Counters begin at 0 again; 0 means that no further reset is scheduled."""

    next_reset_at: int


class LimitsSet(Struct, frozen=True):
    """The limits of a budget as they are now."""

    budget_id: str
    hard_limits: dict[str, int]
    soft_limits: dict[str, int]


class Reserved(Struct, frozen=True):
    """The amounts are set aside until they are settled or released, or the lease ends."""

    reservation_id: str
    budget_id: str
    amounts: dict[str, int]


class Settled(Struct, frozen=True):
    """What was used is charged and the rest is free again."""

    reservation_id: str
    charged: dict[str, int]
    freed: dict[str, int]
    #: Set when the charge has crossed a soft limit.
    soft_breach: SoftBreach | None = None


class ReservationReleased(Struct, frozen=True):
    """Nothing of it is charged; ``freed`` is empty if it had ended before."""

    reservation_id: str
    freed: dict[str, int]


class BudgetAsked(Struct, frozen=True):
    """The budget asks: the execution is suspended until somebody signals. After an ``approved`` the same reservation
    goes through, once; after anything else it is the hard breach."""

    details: SuspendOutcomeDetails
    handle: Handle
    breach: HardBreach


ReserveResult: TypeAlias = Reserved | HardBreach | AlreadyApplied | BudgetAsked
SettleResult: TypeAlias = Settled | HardBreach | AlreadyApplied


class BudgetStatus(Struct, frozen=True):
    """A budget as people see it. Times are texts of milliseconds; a limit of 0 means unlimited."""

    budget_id: str
    scope_type: str
    scope_id: str
    enforcement_mode: str
    usage: dict[str, int]
    hard_limits: dict[str, int]
    soft_limits: dict[str, int]
    breach_count: int
    soft_breach_count: int
    last_breach_at: str | None = None
    last_breach_dim: str | None = None
    next_reset_at: str | None = None
    created_at: str | None = None
    reserved: dict[str, int] = {}
    on_hard_limit: str = ""
    on_soft_limit: str = ""
    parent_budget_id: str | None = None
    breached_at: str | None = None
    #: Whose it is; ``None`` means the operator's.
    namespace: str | None = None


class BudgetPage(Struct, frozen=True):
    """Some budgets in the order of their ids; ``next_cursor`` leads on, ``None`` says there are no more."""

    budgets: tuple[BudgetStatus, ...]
    next_cursor: str | None


class UsageAndLimits(Struct, frozen=True):
    """Counters and limits as texts; ``limits`` has the keys ``hard:<dimension>`` and ``soft:<dimension>``."""

    limits: dict[str, str]
    usage: dict[str, str]


class Admitted(Struct, frozen=True):
    """The request is counted."""


class AlreadyAdmitted(Struct, frozen=True):
    """The execution was admitted within the window; nothing changed."""


class RateExceeded(Struct, frozen=True):
    """The window is full; the oldest entry leaves in ``retry_after_ms``."""

    retry_after_ms: int


class ConcurrencyExceeded(Struct, frozen=True):
    """Every slot is taken."""


AdmissionResult: TypeAlias = Admitted | AlreadyAdmitted | RateExceeded | ConcurrencyExceeded


class QuotaPolicyLimits(Struct, frozen=True):
    """The numbers of a quota policy; 0 means no limit."""

    max_requests_per_window: int
    requests_per_window_seconds: int
    active_concurrency_cap: int
    jitter_ms: int = 0


class QuotaPolicyInfo(Struct, frozen=True):
    """A quota policy as people see it."""

    quota_policy_id: str
    limits: QuotaPolicyLimits
    active_concurrency: int
    created_at_ms: int
    #: Whose it is; ``None`` means the operator's.
    namespace: str | None = None


class QuotaPolicyPage(Struct, frozen=True):
    """Some policies in the order of their ids; ``next_cursor`` leads on, ``None`` says there are no more."""

    policies: tuple[QuotaPolicyInfo, ...]
    next_cursor: str | None
