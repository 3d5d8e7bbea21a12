"""Records of budgets, of quotas and of what executions hold of them: one small struct per row.

Budgets and quota policies are found by their name alone, because executions name them so: their id, and whose they are
(``model.ownership``). The rows that belong to them carry that name and their partition.
"""

from __future__ import annotations

from msgspec import Struct

#: ``Reservation.state``.
OPEN, SETTLED, RELEASED, LAPSED = "open", "settled", "released", "lapsed"


class Budget(Struct, gc=False):
    """The definition of a budget and what happened to it (``ff_budget_policy``)."""

    partition: int
    budget_id: str
    policy_json: str
    created_at_ms: int
    updated_at_ms: int
    scope_type: str = ""
    scope_id: str = ""
    enforcement_mode: str = ""
    breach_count: int = 0
    soft_breach_count: int = 0
    last_breach_at_ms: int | None = None
    last_breach_dim: str | None = None
    next_reset_at_ms: int | None = None
    #: The budgets every charge must fit too, nearest first, comma separated.
    ancestor_ids: str = ""
    #: Charges made before a reset are told from later ones by this number.
    reset_count: int = 0
    last_reset_at_ms: int | None = None
    #: Since when a reconciler has seen it over a limit; for people.
    breached_at_ms: int | None = None
    #: Since when executions may be blocked because of it; empty means that nobody waits for room.
    waiting_since_ms: int | None = None
    #: Since when waiting executions that name it are being cancelled; empty means that none is left.
    cancelling_since_ms: int | None = None
    #: Whose it is; empty means the operator's.
    namespace: str | None = None
    #: When it is looked whether anything still uses it; empty means that it stays whether or not.
    idle_check_at_ms: int | None = None

    @property
    def key(self) -> str:
        return self.budget_id


class BudgetUsage(Struct, gc=False):
    """The counter of one dimension of a budget (``ff_budget_usage``)."""

    partition: int
    budget_id: str
    dimensions_key: str
    current_value: int = 0
    last_reset_at_ms: int | None = None
    updated_at_ms: int = 0
    #: What open reservations hold. It counts against the hard limit like what is spent.
    reserved_value: int = 0
    #: What approvals allow beyond the hard limit, until it is given back or the budget is reset.
    granted_value: int = 0

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.partition, self.budget_id, self.dimensions_key)


class BudgetDedup(Struct, gc=False):
    """A report that was applied once and must not be again (``ff_budget_usage_dedup``)."""

    partition: int
    dedup_key: str
    outcome_json: str
    applied_at_ms: int
    expires_at_ms: int

    @property
    def key(self) -> tuple[int, str]:
        return (self.partition, self.dedup_key)


class BudgetSpend(Struct, gc=False):
    """What one execution has spent of one dimension, to be given back by name (``ff_budget_usage_by_exec``)."""

    partition: int
    budget_id: str
    uuid: str
    dimensions_key: str
    delta_total: int
    updated_at_ms: int
    #: The budget's ``reset_count`` when this was spent. After a reset nothing is left of it to give back.
    reset_count: int = 0
    #: The same for each ancestor, as JSON: ``{budget id: [amount, reset_count]}``.
    levels: str = "{}"

    @property
    def key(self) -> tuple[int, str, str, str]:
        return (self.partition, self.budget_id, self.uuid, self.dimensions_key)


class Reservation(Struct, gc=False):
    """An amount set aside under one lease (``ff_budget_reservation``)."""

    reservation_id: str
    partition: int
    uuid: str
    attempt_index: int
    lease_epoch: int
    budget_id: str
    #: ``{dimension: amount}`` as JSON.
    amounts: str
    state: str
    created_at_ms: int
    closed_at_ms: int | None = None
    #: What an approval allowed beyond hard limits, as JSON: ``{budget id: {dimension: amount}}``.
    granted: str = "{}"

    @property
    def key(self) -> str:
        return self.reservation_id


class BudgetAsk(Struct, gc=False):
    """An amount that an execution asked for beyond a limit, until the answer is used (``ff_budget_ask``)."""

    partition: int
    uuid: str
    budget_id: str
    amounts: str
    suspension_id: str
    asked_at_ms: int

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.partition, self.uuid, self.budget_id)


class QuotaPolicy(Struct, gc=False):
    """How often and how many at once (``ff_quota_policy``)."""

    partition: int
    quota_policy_id: str
    #: The length of the window.
    requests_per_window_seconds: int
    max_requests_per_window: int
    active_concurrency_cap: int
    active_concurrency: int
    created_at_ms: int
    updated_at_ms: int
    #: Since when executions may be blocked because of it; empty means that nobody waits for room.
    waiting_since_ms: int | None = None
    #: When the window next has room for somebody who waits.
    next_room_at_ms: int | None = None
    #: Whether somebody was admitted by a window of another length: then numbers of admissions may have gaps.
    uneven: bool = False
    #: Whose it is; empty means the operator's.
    namespace: str | None = None
    #: When it is looked whether anything still uses it; empty means that it stays whether or not.
    idle_check_at_ms: int | None = None

    @property
    def key(self) -> str:
        return self.quota_policy_id


class QuotaWindow(Struct, gc=False):
    """One admission inside a sliding window (``ff_quota_window``)."""

    partition: int
    quota_policy_id: str
    dimension: str
    admitted_at_ms: int
    execution_id: str
    expires_at_ms: int = 0
    #: Admissions of one dimension are numbered in the order of their times, so that counting some takes two looks.
    number: int = 0

    @property
    def key(self) -> tuple[int, str, str, int, str]:
        return (self.partition, self.quota_policy_id, self.dimension, self.admitted_at_ms, self.execution_id)


class QuotaAdmitted(Struct, gc=False):
    """The guard of an admitted execution: asked again, it is admitted already (``ff_quota_admitted``)."""

    partition: int
    quota_policy_id: str
    execution_id: str
    admitted_at_ms: int
    expires_at_ms: int
    #: The window its admission was counted in.
    dimension: str = ""
    #: Whether it takes one of the slots.
    counted: bool = False

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.partition, self.quota_policy_id, self.execution_id)
