"""Budgets and quotas: define, read, charge, reset."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from flowfabric.model.budgets import (
    AlreadyApplied,
    BudgetPage,
    BudgetStatus,
    CreateBudgetResult,
    CreateQuotaPolicyResult,
    HardBreach,
    LimitsSet,
    Ok,
    QuotaPolicyPage,
    Reset,
    SoftBreach,
)
from flowfabric.model.limits import MAX_PAGE
from flowfabric.server.access import Scope
from flowfabric.server.answers import Answer, plain, tagged
from flowfabric.server.operations import Call, Operation, Variants
from flowfabric.server.problems import refused
from flowfabric.server.requests import Count, Millis, arguments


class CreateBudgetBody(Struct, kw_only=True):
    """A new budget: limits stand beside their dimensions, 0 means none. Without an id the server mints one."""

    scope_type: str
    scope_id: str
    enforcement_mode: str
    on_hard_limit: str
    on_soft_limit: str
    reset_interval_ms: Millis
    dimensions: list[str]
    hard_limits: list[Count]
    soft_limits: list[Count]
    budget_id: str | None = None
    parent_budget_id: str | None = None
    now: Millis | None = None


class UsageBody(Struct, kw_only=True):
    """What was used, by dimension."""

    dimensions: dict[str, Count]
    dedup_key: str | None = None
    now: Millis | None = None


class AfterQuery(Struct, kw_only=True):
    """Which page."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


class LimitsBody(Struct, kw_only=True):
    """Limits by dimension, 0 for none."""

    hard_limits: dict[str, Count] | None = None
    soft_limits: dict[str, Count] | None = None


class CreateQuotaBody(Struct, kw_only=True):
    """So many in a window, so many at once; 0 means no limit. Without an id the server mints one."""

    window_seconds: Count
    max_requests_per_window: Count
    max_concurrent: Count
    quota_policy_id: str | None = None
    now: Millis | None = None


async def create(call: Call) -> Answer:
    """Define a budget."""
    body: CreateBudgetBody = call.body
    if call.principal.namespaces is not None:
        if body.scope_type != "namespace":
            text = "this credential is limited to namespaces: use scope_type 'namespace' and one of them as scope_id"
            raise refused(403, text, kind="forbidden", retryable=False)
        call.check_namespace(body.scope_id)
    given = {"budget_id": call.mint("budget"), **arguments(body)}
    result = await call.engine.create_budget(**given)
    return tagged(result, 201 if isinstance(result, CreateBudgetResult.Created) else 200)


async def status(call: Call) -> Answer:
    """Counters and limits."""
    return plain(await call.engine.get_budget_status(call.budget_id))


async def usage(call: Call) -> Answer:
    """Charge it."""
    body: UsageBody = call.body
    return tagged(
        await call.engine.report_usage_admin(
            budget_id=call.budget_id,
            dimensions=list(body.dimensions),
            deltas=list(body.dimensions.values()),
            dedup_key=body.dedup_key,
            now=body.now,
        )
    )


async def reset(call: Call) -> Answer:
    """Begin anew."""
    return tagged(await call.engine.reset_budget(budget_id=call.budget_id))


async def create_quota(call: Call) -> Answer:
    """Define a quota."""
    given = {"quota_policy_id": call.mint("quota"), **arguments(call.body)}
    result = await call.engine.create_quota_policy(**given)
    return tagged(result, 201 if isinstance(result, CreateQuotaPolicyResult.Created) else 200)


async def list_budgets(call: Call) -> Answer:
    """Budgets by id."""
    return plain(await call.engine.list_budgets(call.query.after, call.query.limit))


async def set_limits(call: Call) -> Answer:
    """Raise or lower its limits."""
    given = arguments(call.body)
    return plain(await call.engine.set_budget_limits(budget_id=call.budget_id, **given))


async def list_quotas(call: Call) -> Answer:
    """Quotas by id."""
    return plain(await call.engine.list_quota_policies(call.query.after, call.query.limit))


_ID = "/v1/budgets/{id}"

OPERATIONS = (
    Operation(
        name="list_budgets",
        method="GET",
        path="/v1/budgets",
        scope=Scope.READ,
        summary="Budgets by id",
        handler=list_budgets,
        query=AfterQuery,
        everywhere=True,
        answers={200: BudgetPage},
    ),
    Operation(
        name="set_budget_limits",
        method="PUT",
        path=f"{_ID}/limits",
        scope=Scope.OPERATOR,
        summary="Raise or lower limits by dimension; what is not named stays",
        handler=set_limits,
        body=LimitsBody,
        owner="budget",
        answers={200: LimitsSet},
        audited=True,
    ),
    Operation(
        name="list_quota_policies",
        method="GET",
        path="/v1/quotas",
        scope=Scope.READ,
        summary="Quotas by id",
        handler=list_quotas,
        query=AfterQuery,
        everywhere=True,
        answers={200: QuotaPolicyPage},
    ),
    Operation(
        name="create_budget",
        method="POST",
        path="/v1/budgets",
        scope=Scope.OPERATOR,
        summary="Define a budget; repeating it changes nothing",
        handler=create,
        body=CreateBudgetBody,
        answers={201: Variants(CreateBudgetResult.Created), 200: Variants(CreateBudgetResult.AlreadySatisfied)},
        audited=True,
    ),
    Operation(
        name="get_budget_status",
        method="GET",
        path=_ID,
        scope=Scope.READ,
        summary="A budget with its counters and limits",
        handler=status,
        owner="budget",
        answers={200: BudgetStatus},
    ),
    Operation(
        name="report_usage",
        method="POST",
        path=f"{_ID}/usage",
        scope=Scope.WORKER,
        summary="Charge a budget",
        handler=usage,
        body=UsageBody,
        owner="budget",
        answers={200: Variants(Ok, SoftBreach, HardBreach, AlreadyApplied)},
    ),
    Operation(
        name="reset_budget",
        method="POST",
        path=f"{_ID}/reset",
        scope=Scope.OPERATOR,
        summary="Set the counters of a budget to 0",
        handler=reset,
        owner="budget",
        answers={200: Variants(Reset)},
        audited=True,
    ),
    Operation(
        name="create_quota_policy",
        method="POST",
        path="/v1/quotas",
        scope=Scope.OPERATOR,
        summary="Define a quota; repeating it changes nothing",
        handler=create_quota,
        body=CreateQuotaBody,
        everywhere=True,
        answers={
            201: Variants(CreateQuotaPolicyResult.Created),
            200: Variants(CreateQuotaPolicyResult.AlreadySatisfied),
        },
        audited=True,
    ),
)
