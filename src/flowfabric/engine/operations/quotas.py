"""Quotas: what callers do with them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeAlias

from flowfabric.core.admission.quotas import CheckAdmission, CreateQuotaPolicy, ReleaseAdmission, in_use
from flowfabric.core.batch.view import View
from flowfabric.core.ownership.owners import found
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import budgets, values
from flowfabric.model.decisions import Get, Slots
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.budgets import (
    AdmissionResult,
    CreateQuotaPolicyResult,
    QuotaPolicyInfo,
    QuotaPolicyLimits,
    QuotaPolicyPage,
)
from flowfabric.model.ownership import places, shown_id, stored_name
from flowfabric.model.partitions import quota_partition
from flowfabric.model.records.budgets import QuotaPolicy
from flowfabric.stores.questions import ListGates

_MAX = 2**63 - 1
_Quota: TypeAlias = (
    CreateQuotaPolicyResult.Created | CreateQuotaPolicyResult.Updated | CreateQuotaPolicyResult.AlreadySatisfied
)


class Quotas(EngineBase):
    """The part of the engine that says how often, and how many at once."""

    def _policy_command(
        self,
        quota_policy_id: str,
        namespace: str | None,
        window: int,
        requests: int,
        concurrent: int,
        kept: bool = True,
        update: bool = False,
    ) -> CreateQuotaPolicy:
        identity = values.uuid(quota_policy_id, "quota_policy_id")
        partition, owner = quota_partition(identity, self.partitions), self._owner(namespace)
        name = stored_name(identity, owner)
        return CreateQuotaPolicy(partition, name, owner, window, requests, concurrent, kept, update)

    async def create_quota_policy(
        self,
        *,
        quota_policy_id: str,
        window_seconds: int = 60,
        max_requests_per_window: int = 0,
        max_concurrent: int = 0,
        namespace: str | None = None,
        kept: bool = True,
        update: bool = False,
        now: int | None = None,
    ) -> _Quota:
        """Define a quota: so many admissions in a sliding window, so many at once; 0 means no limit.

        One that exists keeps its numbers, unless ``update`` says that it gets these: they count at once, also for what
        was admitted before. A quota belongs to a namespace, whose executions may name it, or to the operator. Two
        namespaces may use one id. Unless it is ``kept``, it is deleted when nothing has used it for a day: make it
        again before each use then, or at least once an hour.
        """
        values.optional_time_ms(now, "now")
        answer: _Quota = await self._submit(
            self._policy_command(
                quota_policy_id,
                namespace,
                budgets.seconds(window_seconds, "window_seconds"),
                values.integer(max_requests_per_window, "max_requests_per_window", 0, _MAX),
                values.integer(max_concurrent, "max_concurrent", 0, _MAX),
                values.flag(kept, "kept"),
                values.flag(update, "update"),
            )
        )
        return answer

    async def check_admission(
        self,
        quota_policy_id: str,
        dimension: str = "",
        *,
        execution_id: ExecutionId | str,
        window_seconds: int,
        rate_limit: int = 0,
        concurrency_cap: int = 0,
        jitter_ms: int = 0,
        namespace: str | None = None,
        now: int | None = None,
    ) -> AdmissionResult:
        """Ask for admission by these numbers; claims ask by the policy's own. ``dimension`` names a window beside the
        plain one. The slot comes back by ``release_admission``, or when the execution ends."""
        values.optional_time_ms(now, "now")
        name = values.text(dimension, "dimension")
        command = CheckAdmission(
            self._policy_command(
                quota_policy_id,
                namespace,
                budgets.seconds(window_seconds, "window_seconds"),
                values.integer(rate_limit, "rate_limit", 0, _MAX),
                values.integer(concurrency_cap, "concurrency_cap", 0, _MAX),
            ),
            "" if name == "default" else name,
            str.__str__(values.execution_id(execution_id)),
            random.randint(0, values.integer(jitter_ms, "jitter_ms", 0, 2**31)),
        )
        answer: AdmissionResult = await self._submit(command)
        return answer

    async def release_admission(
        self, *, quota_policy_id: str, execution_id: ExecutionId | str, namespace: str | None = None
    ) -> None:
        """Give an execution's slot back; its request stays in the window. Safe to repeat."""
        identity = str.__str__(values.execution_id(execution_id))
        owner = self._owner(namespace)
        name = stored_name(values.uuid(quota_policy_id, "quota_policy_id"), owner)
        await self._submit(ReleaseAdmission(name, owner, identity, False))

    async def read_quota_policy_limits(
        self, quota_policy_id: str, namespace: str | None = None
    ) -> QuotaPolicyLimits | None:
        """The numbers of a policy, or nothing if it does not exist."""
        owner = self._owner(namespace)
        name = stored_name(values.uuid(quota_policy_id, "quota_policy_id"), owner)
        view = await self._view(*(Get(QuotaPolicy, place) for place in places(name, owner)))
        policy = found(view.get, QuotaPolicy, name, owner)
        return None if policy is None else _limits(policy)

    async def list_quota_policies(
        self, after: str | None = None, limit: int = 100, namespaces: Iterable[str] | None = None
    ) -> QuotaPolicyPage:
        """Quota policies in the order of their ids, from behind ``after`` on; only those of some namespaces if any
        are given."""
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        cursor = None if after is None else values.gate_name(after, "after")
        ids = await self._ask(ListGates("quotas", 0, cursor, size + 1, self._owners(namespaces)))
        view = await self._view(*(Get(QuotaPolicy, each) for each in ids[:size]))
        known = [policy for each in ids[:size] if (policy := view.get(QuotaPolicy, each)) is not None]
        view = await self._view(*(Slots(policy.quota_policy_id) for policy in known))
        shown = tuple(_info(view, policy) for policy in known)
        return QuotaPolicyPage(shown, ids[size - 1] if len(ids) > size else None)


def _info(view: View, policy: QuotaPolicy) -> QuotaPolicyInfo:
    identity = shown_id(policy.quota_policy_id)
    return QuotaPolicyInfo(identity, _limits(policy), in_use(view, policy), policy.created_at_ms, policy.namespace)


def _limits(policy: QuotaPolicy) -> QuotaPolicyLimits:
    numbers = (
        policy.max_requests_per_window,
        policy.requests_per_window_seconds,
        policy.active_concurrency_cap,
    )
    if min(numbers) < 0:
        raise Validation(
            ValidationKind.CORRUPTION,
            f"ff_quota_policy: policy {shown_id(policy.quota_policy_id)} has a negative limit",
        )
    return QuotaPolicyLimits(*numbers)
