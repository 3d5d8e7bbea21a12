"""Reading executions: states, snapshots, results, pages. Reads take no locks and see what is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import UNSET

from flowfabric.core.batch.view import View
from flowfabric.core.documents import listed_document, parse_document
from flowfabric.core.executions.cancel_request import is_asked
from flowfabric.core.flows.edges import is_waiting
from flowfabric.core.leases.lease import refusal
from flowfabric.core.suspension.waits import read_terms
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.model import states as lit
from flowfabric.model.decisions import Get, GetFull
from flowfabric.model.handles import Handle, HandlePayload
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_CLAIM, MAX_EXPIRED_PAGE, MAX_PAGE
from flowfabric.model.operations.executions import (
    AttemptSummary,
    ExecutionContext,
    ExecutionInfo,
    ExecutionPage,
    ExecutionSnapshot,
    ExpiredLease,
    ExpiredLeaseCursor,
    ExpiredLeasePage,
    LeaseSummary,
    SuspendedEntry,
    SuspendedPage,
)
from flowfabric.model.ownership import shown_id, shown_ids, shown_policy
from flowfabric.model.records.executions import Attempt, Execution, Suspension
from flowfabric.model.records.flows import EdgeGroup
from flowfabric.model.records.past_leases import LeaseLook
from flowfabric.model.records.streams import StreamHead
from flowfabric.model.states import (
    BlockingReason,
    PublicState,
    StateVector,
    TerminalOutcome,
    canonical_attempt_state,
    canonical_blocking_reason,
    canonical_eligibility,
    canonical_ownership,
    canonical_phase,
    canonical_public_state,
    derive_terminal_outcome,
)
from flowfabric.stores.questions import (
    ListExecutions,
    ListExpiredLeases,
    ListSuspended,
    ReadContexts,
    ScanEligible,
)

_ALIASES = {
    "current_attempt_index": "attempt_index",
    "completed_at": "terminal_at_ms",
    "cancel_reason": "cancellation_reason",
}
_RAW_FIELDS = ("current_waitpoint_id", "budget_ids", "quota_policy_id")
#: Names of budgets and quotas are shown as the ids they were given as.
_SHOWN: Mapping[str, Callable[[str], str | None]] = {
    "budget_ids": lambda names: ",".join(shown_ids(names)),
    "quota_policy_id": shown_id,
    "blocked_by": shown_id,
    "policy": shown_policy,
}


class Reads(EngineBase):
    """The part of the engine that answers questions."""

    async def _full(self, execution_id: Any) -> tuple[ExecutionId, Execution | None, Attempt | None]:
        identity = values.execution_id(execution_id)
        view = await self._view(GetFull(identity))
        execution = view.full(identity)
        attempt = None if execution is None else view.attempt(identity, execution.attempt_index)
        return identity, execution, attempt

    async def _present(self, execution_id: Any) -> tuple[ExecutionId, Execution, Attempt | None]:
        identity, execution, attempt = await self._full(execution_id)
        if execution is None:
            raise values.invalid(f"execution_id: {identity} does not exist")
        return identity, execution, attempt

    async def read_execution_state(self, execution_id: ExecutionId | str) -> PublicState | None:
        """The public state, ``None`` if there is no such execution."""
        identity = values.execution_id(execution_id)
        execution = (await self._view(Get(Execution, identity))).execution(identity)
        return None if execution is None else canonical_public_state(execution.public_state)

    async def read_execution_info(self, execution_id: ExecutionId | str) -> ExecutionInfo | None:
        """Identity and the whole state vector."""
        identity, execution, attempt = await self._full(execution_id)
        if execution is None:
            return None
        raw = parse_document(execution.raw_fields, "raw_fields")
        vector = state_vector(execution, attempt)
        return ExecutionInfo(
            identity,
            execution.namespace or "",
            execution.lane_id,
            execution.priority,
            _text(raw.get("execution_kind")),
            vector,
            vector.public_state,
            str(execution.created_at_ms),
            None if execution.started_at_ms is None else str(execution.started_at_ms),
            None if execution.terminal_at_ms is None else str(execution.terminal_at_ms),
            execution.attempt_index,
            execution.flow_id,
            blocking_detail(execution) or "",
        )

    async def describe_execution(self, execution_id: ExecutionId | str) -> ExecutionSnapshot | None:
        """What a person asks first: where it is, who holds it, what it waits for."""
        identity, execution, attempt = await self._full(execution_id)
        if execution is None:
            return None
        raw = parse_document(execution.raw_fields, "raw_fields")
        stream = Get(StreamHead, (identity, execution.attempt_index))
        head = (await self._view(stream)).get(StreamHead, stream.key)
        written = 0 if head is None else head.last_append_ts_ms
        reason = canonical_blocking_reason(execution.blocking_reason)
        return ExecutionSnapshot(
            identity,
            execution.flow_id,
            execution.lane_id,
            execution.namespace or "",
            canonical_public_state(execution.public_state),
            None if reason is BlockingReason.NONE else reason.value,
            blocking_detail(execution),
            None if attempt is None else AttemptSummary(attempt.attempt_id, attempt.attempt_index),
            self._lease(execution, attempt),
            await self._waitpoint(execution) or _text(raw.get("current_waitpoint_id")) or None,
            execution.created_at_ms,
            max(last_mutation(execution, attempt, raw), written),
            execution.total_attempt_count,
            _tags(raw),
        )

    async def _waitpoint(self, execution: Execution) -> str | None:
        """The primary waitpoint of a suspended execution."""
        if execution.lifecycle_phase != lit.SUSPENDED:
            return None
        key = (execution.partition, execution.uuid)
        suspension = (await self._view(Get(Suspension, key))).get(Suspension, key)
        named = () if suspension is None else read_terms(suspension).waitpoints
        return named[0] if named else None

    def _lease(self, execution: Execution, attempt: Attempt | None) -> LeaseSummary | None:
        if attempt is None or not attempt.worker_instance_id:
            return None
        return LeaseSummary(
            attempt.lease_epoch,
            attempt.worker_instance_id,
            attempt.lease_expires_at_ms,
            f"{self.store.shown}:{execution.uuid}:{attempt.attempt_index}:{attempt.lease_epoch}",
            attempt.attempt_index,
            attempt.renewed_at_ms or attempt.started_at_ms,
        )

    async def get_execution_result(self, execution_id: ExecutionId | str) -> bytes | None:
        """The bytes the current attempt ended with."""
        _, execution, _ = await self._full(execution_id)
        result = None if execution is None else execution.result
        return result if isinstance(result, bytes) else None

    async def read_execution_context(self, execution_id: ExecutionId | str) -> ExecutionContext:
        """What a worker needs to start."""
        _, execution, _ = await self._present(execution_id)
        asked = (execution.cancel_at_ms, execution.cancellation_reason)
        return _context(execution.payload, parse_document(execution.raw_fields, "raw_fields"), *asked)

    async def read_execution_contexts(
        self,
        execution_ids: Iterable[ExecutionId | str],
        most_bytes: int | None = None,
        *,
        namespaces: Iterable[str] | None = None,
    ) -> dict[ExecutionId, ExecutionContext]:
        """What a worker needs to start many, in one read; those that do not exist are left out, and with
        ``namespaces`` also those of others.

        With ``most_bytes`` the answer ends with the input that reaches it: ask again for the others."""
        given, own = list(values.sequence(execution_ids, "execution_ids")), values.sorted_namespaces(namespaces)
        most = None if most_bytes is None else values.integer(most_bytes, "most_bytes", 1, 2**62)
        if len(given) > MAX_CLAIM:
            raise values.invalid(f"execution_ids: at most {MAX_CLAIM} at once, got {len(given)}")
        ids = [values.execution_id(each, "execution_ids") for each in given]
        foreign = await self._foreign(map(str, ids), own)
        ids = [each for each in ids if each not in foreign]
        if not ids:
            return {}
        found = await self._ask(ReadContexts(tuple(dict.fromkeys(map(str, ids))), most if len(ids) > 1 else None))
        return {
            ExecutionId.unchecked(each): _context(payload, listed_document(raw, "execution_kind"), *asked)
            for each, payload, raw, *asked in found
        }

    async def read_execution_kinds(
        self, execution_ids: Iterable[ExecutionId | str], *, namespaces: Iterable[str] | None = None
    ) -> dict[ExecutionId, str]:
        """What some executions run, and nothing else of them; those that do not exist are left out, and with
        ``namespaces`` also those of others."""
        found = await self.read_execution_contexts(execution_ids, namespaces=namespaces)
        return {each: context.execution_kind for each, context in found.items()}

    async def lost_leases(self, handles: Iterable[Handle]) -> list[Handle]:
        """Those of the handles whose lease was taken away or whose execution has ended, in one read. One that has
        only run out is not among them: its renewal will tell."""
        return (await self.look_at_leases(handles)).lost

    async def look_at_leases(self, handles: Iterable[Handle]) -> LeaseLook:
        """The handles that are lost, as ``lost_leases`` says, and those whose execution was asked to cancel."""
        given = list(values.sequence(handles, "handles"))
        if len(given) > MAX_CLAIM:
            raise values.invalid(f"handles: at most {MAX_CLAIM} at once, got {len(given)}")
        payloads = [self._payload(handle) for handle in given]
        if not payloads:
            return LeaseLook([], [])
        view = await self._view(*(Get(Execution, each) for each in {payload.execution_id for payload in payloads}))
        look = LeaseLook([], [])
        for handle, payload in zip(given, payloads, strict=True):
            if _is_lost(view, payload):
                look.lost.append(handle)
            elif (execution := view.execution(payload.execution_id)) is not None and is_asked(execution):
                look.cancelling.append(handle)
        return look

    async def read_current_attempt_index(self, execution_id: ExecutionId | str) -> int:
        """The attempt the execution is at."""
        _, execution, _ = await self._present(execution_id)
        return execution.attempt_index

    async def read_total_attempt_count(self, execution_id: ExecutionId | str) -> int:
        """How many attempts were ever started."""
        _, execution, _ = await self._present(execution_id)
        return execution.total_attempt_count

    async def resolve_execution_flow_id(self, execution_id: ExecutionId | str) -> str | None:
        """The flow an execution belongs to."""
        _, execution, _ = await self._full(execution_id)
        return None if execution is None else execution.flow_id

    async def get_execution_namespace(self, execution_id: ExecutionId | str) -> str | None:
        """The tenant an execution belongs to."""
        identity = values.execution_id(execution_id)
        execution = (await self._view(Get(Execution, identity))).execution(identity)
        return None if execution is None else execution.namespace

    async def read_exec_core_fields(
        self, partition: int, execution_id: ExecutionId | str, fields: Iterable[str]
    ) -> dict[str, str | None]:
        """Single fields as text; unknown names and missing executions give ``None``."""
        identity = values.execution_id(execution_id)
        if identity.partition != values.partition(partition):
            raise values.invalid(f"partition: {partition} is not the partition of {identity}")
        names = [values.text(field, "fields") for field in values.few(fields, "fields")]
        _, execution, attempt = await self._full(identity)
        if execution is None:
            return dict.fromkeys(names)
        found = {name: self._field(execution, attempt, name) for name in names}
        if "current_waitpoint_id" in found:
            found["current_waitpoint_id"] = await self._waitpoint(execution) or found["current_waitpoint_id"]
        return found

    def _field(self, execution: Execution, attempt: Attempt | None, field: str) -> str | None:
        name = _ALIASES.get(field, field)
        if name == "required_capabilities":
            return ",".join(execution.required_capabilities)
        if name == "current_worker_instance_id":
            return (attempt.worker_instance_id if attempt else None) or ""
        if name in _RAW_FIELDS and not getattr(execution, name, None):
            # Rows written by hand may say it only there.
            found = parse_document(execution.raw_fields, "raw_fields").get(name)
            return None if found is None else str(found)
        if name in ("partition_key", "partition"):
            return str(execution.partition)
        value = getattr(execution, name, None) if name in Execution.__struct_fields__ else None
        if value is None or value is UNSET:
            return None
        if name in _SHOWN:
            return _SHOWN[name](value)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    async def evaluate_flow_eligibility(self, execution_id: ExecutionId | str) -> str:
        """Why a member may or may not run, as one word."""
        identity = values.execution_id(execution_id)
        view = await self._view(Get(Execution, identity))
        execution = view.execution(identity)
        if execution is None:
            return "not_found"
        if execution.lifecycle_phase in lit.ENDED_PHASES:
            return "terminal"
        if execution.lifecycle_phase not in lit.WAITING_PHASES:
            return "not_runnable"
        if execution.ownership_state not in lit.UNOWNED_STATES:
            return "owned"
        if execution.flow_id is not None:
            need = Get(EdgeGroup, (execution.partition, execution.flow_id, execution.uuid))
            group = (await self._view(need)).get(EdgeGroup, need.key)
            if group is not None and group.group_state == "impossible":
                return "impossible"
            if is_waiting(group):
                return "blocked_by_dependencies"
        if execution.eligibility_state == lit.BLOCKED_BY_DEPENDENCIES:
            return "blocked_by_dependencies"
        return "eligible"

    # -- pages ---------------------------------------------------------------------------------------------------

    async def list_executions(
        self, partition: int, cursor: ExecutionId | str | None = None, limit: int = 100
    ) -> ExecutionPage:
        """Ids of a partition, ascending by UUID, strictly after the cursor."""
        size = min(values.integer(limit, "limit", 0, 2**31), MAX_PAGE)
        if size == 0:
            return ExecutionPage((), None)
        after = None if cursor is None else values.execution_id(cursor, "cursor").uuid_text
        found = await self._ask(ListExecutions(values.partition(partition), after, size + 1))
        page = tuple(ExecutionId.unchecked(each) for each in found[:size])
        return ExecutionPage(page, page[-1] if len(found) > size else None)

    async def list_suspended(
        self, partition: int, cursor: ExecutionId | str | None = None, limit: int = 100
    ) -> SuspendedPage:
        """Suspended executions of a partition, longest waiting first. The cursor is the ``next_cursor`` of a page, or
        the id of an execution that is suspended."""
        size = min(values.integer(limit, "limit", 0, 2**31), MAX_PAGE)
        if size == 0:
            return SuspendedPage((), None)
        after_ms, after = values.suspended_cursor(cursor)
        found = await self._ask(ListSuspended(values.partition(partition), after, size + 1, after_ms))
        entries = tuple(SuspendedEntry(ExecutionId.unchecked(each), at, why) for each, at, why in found[:size])
        last = entries[-1] if len(found) > size else None
        return SuspendedPage(entries, None if last is None else f"{last.suspended_at_ms}.{last.execution_id}")

    async def list_expired_leases(
        self,
        *,
        as_of: int | None = None,
        after: ExpiredLeaseCursor | None = None,
        limit: int | None = None,
        max_partitions_per_call: int | None = None,
        namespace: str | None = None,
    ) -> ExpiredLeasePage:
        """Leases past their time, oldest first. Data only: nothing is reclaimed by looking."""
        size = min(values.integer(MAX_PAGE if limit is None else limit, "limit", 1, 2**31), MAX_EXPIRED_PAGE)
        moment = await self.now_ms() if as_of is None else values.time_ms(as_of, "as_of")
        after_ms, after_id = values.lease_cursor(after)
        question = ListExpiredLeases(moment, after_ms, after_id, size, values.optional_text(namespace, "namespace"))
        entries = tuple(
            ExpiredLease(
                ExecutionId.unchecked(execution.execution_id),
                f"{self.store.shown}:{execution.uuid}:{attempt.attempt_index}:{attempt.lease_epoch}",
                attempt.lease_epoch,
                attempt.worker_instance_id or "",
                attempt.lease_expires_at_ms or 0,
                attempt.attempt_index,
            )
            for execution, attempt in await self._ask(question)
        )
        last = entries[-1] if len(entries) == size else None
        return ExpiredLeasePage(
            entries, None if last is None else ExpiredLeaseCursor(last.expires_at_ms, last.execution_id)
        )

    async def scan_eligible_executions(
        self, lane_id: str, partition: int | None = None, limit: int = 100
    ) -> tuple[ExecutionId, ...]:
        """Claimable executions of a lane in claim order."""
        size = min(values.integer(limit, "limit", 0, 2**31), MAX_PAGE)
        if size == 0:
            return ()
        where = values.optional_partition(partition)
        found = await self._ask(ScanEligible(values.lane(lane_id), where, size, await self.now_ms()))
        return tuple(ExecutionId.unchecked(each) for each in found)


def state_vector(execution: Execution, attempt: Attempt | None) -> StateVector:
    """The seven dimensions in canonical words; unknown stored ones are corruption."""
    outcome: TerminalOutcome = derive_terminal_outcome(
        execution.lifecycle_phase,
        attempt.outcome if attempt else None,
        execution.terminal_outcome if isinstance(execution.terminal_outcome, str) else None,
        execution.public_state,
    )
    return StateVector(
        lifecycle_phase=canonical_phase(execution.lifecycle_phase),
        ownership_state=canonical_ownership(execution.ownership_state),
        eligibility_state=canonical_eligibility(execution.eligibility_state),
        blocking_reason=canonical_blocking_reason(execution.blocking_reason),
        terminal_outcome=outcome,
        attempt_state=canonical_attempt_state(execution.attempt_state),
        public_state=canonical_public_state(execution.public_state),
    )


def blocking_detail(execution: Execution) -> str | None:
    """The text beside a blocking reason; a row that is not blocked has none, whatever its column still says."""
    if execution.blocking_reason is None or not isinstance(execution.blocking_detail, str):
        return None
    return execution.blocking_detail or None


def last_mutation(execution: Execution, attempt: Attempt | None, raw: dict[str, Any]) -> int:
    """The latest change: of the row, of its lease, or, for rows written by hand, its creation."""
    stored = raw.get("last_mutation_at")
    times = [
        execution.last_mutation_at_ms,
        int(stored) if isinstance(stored, str) and stored.isdigit() else None,
        attempt.renewed_at_ms if attempt else None,
        execution.created_at_ms,
    ]
    return max(each for each in times if each is not None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_lost(view: View, payload: HandlePayload) -> bool:
    execution = view.execution(payload.execution_id)
    if execution is None or execution.attempt_index != payload.attempt_index:
        return True
    # Before all times no lease has run out.
    return refusal(payload, execution, view.attempt(payload.execution_id, payload.attempt_index), -1) is not None


def _context(payload: Any, raw: dict[str, Any], cancel_at: int | None, cancel_reason: Any) -> ExecutionContext:
    return ExecutionContext(
        payload if isinstance(payload, bytes) else b"",
        _text(raw.get("execution_kind")),
        _tags(raw),
        cancel_at,
        "" if cancel_at is None else _text(cancel_reason),
        replays if isinstance(replays := raw.get("replay_count"), int) else 0,
    )


def _tags(raw: dict[str, Any]) -> dict[str, str]:
    tags = raw.get("tags")
    if not isinstance(tags, dict):
        return {}
    return {key: value for key, value in sorted(tags.items()) if isinstance(value, str)}
