"""Budgets and quotas: define, read, charge, reset."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.budgets import (
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
from flowfabric.server.http.request import Count, Millis, arguments
from flowfabric.server.http.response import Answer, plain, tagged
from flowfabric.server.operations import Call, Route, Variants


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
    #: Whose it is; without one the caller's, or the operator's if the caller is not limited to namespaces.
    namespace: str | None = None
    now: Millis | None = None


class UsageBody(Struct, kw_only=True):
    """What was used, by dimension."""

    dimensions: dict[str, Count]
    dedup_key: str | None = None
    now: Millis | None = None


class OwnerQuery(Struct, kw_only=True):
    """Whose budget it is; without one the caller's, or the operator's if the caller is not limited to namespaces."""

    namespace: str | None = None


class AfterQuery(Struct, kw_only=True):
    """Which page, and whose; without a namespace all that the caller may see."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    namespace: str | None = None


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
    #: As with budgets.
    namespace: str | None = None
    now: Millis | None = None


def _check_owner(call: Call, namespace: str | None) -> str | None:
    """The namespace that is named, if the caller may work in it."""
    if namespace is not None:
        call.check_namespace(namespace)
    return namespace


def _named(call: Call) -> dict[str, Any]:
    """The budget that the path and the query name."""
    return {"budget_id": call.budget_id, "namespace": _check_owner(call, call.query.namespace)}


def _wanted(call: Call) -> dict[str, Any]:
    """The page that the query names."""
    owner = _check_owner(call, call.query.namespace)
    return {"after": call.query.after, "limit": call.query.limit, "namespaces": None if owner is None else [owner]}


async def create(call: Call) -> Answer:
    """Define a budget."""
    _check_owner(call, call.body.namespace)
    given = {"budget_id": call.mint("budget"), **arguments(call.body)}
    result = await call.engine.create_budget(**given)
    return tagged(result, 201 if isinstance(result, CreateBudgetResult.Created) else 200)


async def status(call: Call) -> Answer:
    """Counters and limits."""
    return plain(await call.engine.get_budget_status(**_named(call)))


async def usage(call: Call) -> Answer:
    """Charge it."""
    body: UsageBody = call.body
    return tagged(
        await call.engine.report_usage_admin(
            **_named(call),
            dimensions=list(body.dimensions),
            deltas=list(body.dimensions.values()),
            dedup_key=call.mint("usage") if body.dedup_key is None and call.key is not None else body.dedup_key,
            now=body.now,
        )
    )


async def reset(call: Call) -> Answer:
    """Set its counters back to 0."""
    return tagged(await call.engine.reset_budget(**_named(call)))


async def create_quota(call: Call) -> Answer:
    """Define a quota."""
    _check_owner(call, call.body.namespace)
    given = {"quota_policy_id": call.mint("quota"), **arguments(call.body)}
    result = await call.engine.create_quota_policy(**given)
    return tagged(result, 201 if isinstance(result, CreateQuotaPolicyResult.Created) else 200)


async def list_budgets(call: Call) -> Answer:
    """Budgets by id."""
    return plain(await call.engine.list_budgets(**_wanted(call)))


async def set_limits(call: Call) -> Answer:
    """Raise or lower its limits."""
    given = arguments(call.body)
    return plain(await call.engine.set_budget_limits(**_named(call), **given))


async def list_quotas(call: Call) -> Answer:
    """Quotas by id."""
    return plain(await call.engine.list_quota_policies(**_wanted(call)))


_ID = "/v1/budgets/{id}"

ROUTES = (
    Route(
        name="list_budgets",
        method="GET",
        path="/v1/budgets",
        summary="Budgets by id",
        handler=list_budgets,
        query=AfterQuery,
        answers={200: BudgetPage},
    ),
    Route(
        name="set_budget_limits",
        method="PUT",
        path=f"{_ID}/limits",
        summary="Raise or lower limits by dimension; other limits stay",
        handler=set_limits,
        query=OwnerQuery,
        body=LimitsBody,
        answers={200: LimitsSet},
    ),
    Route(
        name="list_quota_policies",
        method="GET",
        path="/v1/quotas",
        summary="Quotas by id",
        handler=list_quotas,
        query=AfterQuery,
        answers={200: QuotaPolicyPage},
    ),
    Route(
        name="create_budget",
        method="POST",
        path="/v1/budgets",
        summary="Define a budget; repeating it changes nothing",
        handler=create,
        body=CreateBudgetBody,
        answers={201: Variants(CreateBudgetResult.Created), 200: Variants(CreateBudgetResult.AlreadySatisfied)},
    ),
    Route(
        name="get_budget_status",
        method="GET",
        path=_ID,
        summary="A budget with its counters and limits",
        handler=status,
        query=OwnerQuery,
        answers={200: BudgetStatus},
    ),
    Route(
        name="report_usage_admin",
        method="POST",
        path=f"{_ID}/usage",
        summary="Charge a budget",
        handler=usage,
        query=OwnerQuery,
        body=UsageBody,
        answers={200: Variants(Ok, SoftBreach, HardBreach, AlreadyApplied)},
    ),
    Route(
        name="reset_budget",
        method="POST",
        path=f"{_ID}/reset",
        summary="Set the counters of a budget to 0",
        handler=reset,
        query=OwnerQuery,
        answers={200: Variants(Reset)},
    ),
    Route(
        name="create_quota_policy",
        method="POST",
        path="/v1/quotas",
        summary="Define a quota; repeating it changes nothing",
        handler=create_quota,
        body=CreateQuotaBody,
        answers={
            201: Variants(CreateQuotaPolicyResult.Created),
            200: Variants(CreateQuotaPolicyResult.AlreadySatisfied),
        },
    ),
)
