"""Records that commands will need beyond their first needs, so that they are loaded before the rules ask.

Only a matter of speed: whatever is not foreseen is missed and loaded, and the batch is decided again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowfabric.core.admission.admit import Bound
from flowfabric.core.admission.quotas import BY_GUARD
from flowfabric.core.batch.view import View
from flowfabric.core.executions.complete import Complete, Fail
from flowfabric.core.executions.create import CreateExecution
from flowfabric.core.leases.claim import Claim
from flowfabric.core.leases.grants import ClaimForWorker
from flowfabric.model.decisions import Get, Need
from flowfabric.model.policy import read_policy
from flowfabric.model.records.budgets import QuotaPolicy
from flowfabric.model.records.executions import Execution


def bound_by_creation(commands: Sequence[Any]) -> list[Bound]:
    """Executions this batch creates under budgets or quotas and may claim at once."""
    found: list[Bound] = []
    claims = False
    for command in commands:
        kind = type(command)
        if kind is Claim or kind is ClaimForWorker:
            claims = True
        elif kind is CreateExecution and command.policy is not None:
            policy = read_policy(command.policy)
            if policy.budget_ids or policy.quota_policy_id:
                named = ",".join(dict.fromkeys(policy.budget_ids)) or None
                found.append(Bound(command.execution_id, named, policy.quota_policy_id, command.namespace))
    return found if claims else []


def ending(view: View, commands: Sequence[Any]) -> list[Need]:
    """Quotas whose guards go with executions that end in this batch."""
    needs: dict[Need, None] = {}
    for command in commands:
        if type(command) is Complete or type(command) is Fail:
            execution = view.known(Execution, command.handle.execution_id)
            if execution is not None and execution.quota_policy_id is not None and execution.admitted_at_ms == BY_GUARD:
                needs[Get(QuotaPolicy, execution.quota_policy_id)] = None
    return [need for need in needs if not view.has(need)]
