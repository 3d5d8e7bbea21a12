"""Creating executions, and their tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowfabric.ascending import ascending_uuid
from flowfabric.core.documents import parse_document
from flowfabric.core.executions.create import KEY_REUSES, CreateExecution, CreateExecutions
from flowfabric.core.executions.debounce import DebounceExecution
from flowfabric.core.executions.tags import SetExecutionTags, SetFlowTags
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.model.decisions import Get, GetFull
from flowfabric.model.errors import Validation
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_BULK, MAX_REASON_BYTES
from flowfabric.model.operations.enqueue import Debounced
from flowfabric.model.operations.executions import CreateResult
from flowfabric.model.partitions import lane_partition
from flowfabric.model.policy import PolicyInput, parse_policy, read_policy
from flowfabric.model.quoting import quoted
from flowfabric.model.records.flows import Flow
from flowfabric.stores.beside import others_turn
from flowfabric.tracing import current_trace

#: Lanes whose partition an engine remembers.
MAX_KNOWN_LANES = 10_000


class Intake(EngineBase):
    """The part of the engine that takes work in."""

    def __init__(self, store: Any, **options: Any) -> None:
        super().__init__(store, **options)
        self._lane_partitions: dict[str, int] = {}

    async def create_execution(
        self,
        *,
        execution_id: ExecutionId | str | None = None,
        namespace: str = "default",
        lane_id: str = "default",
        execution_kind: str = "",
        input_payload: bytes | None = b"",
        payload_encoding: str | None = None,
        priority: int = 0,
        creator_identity: str = "",
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
        policy: PolicyInput = None,
        delay_until: int | None = None,
        execution_deadline_at: int | None = None,
        partition_id: int | None = None,
        now: int | None = None,
        key_reuse: str = "never",
    ) -> CreateResult:
        """Store one execution: ``Created``, or ``Duplicate`` if its id or idempotency key was there before.

        Without an id one is minted for the lane. ``partition_id`` is informational; the id's partition holds. A key
        leads to its execution for the policy's window; with ``key_reuse="ended"`` only until that has ended.
        """
        answer: CreateResult = await self._submit(
            self._creation(
                execution_id,
                namespace,
                lane_id,
                execution_kind,
                input_payload,
                payload_encoding,
                priority,
                creator_identity,
                idempotency_key,
                tags,
                policy,
                delay_until,
                execution_deadline_at,
                now,
                key_reuse,
            )
        )
        return answer

    async def create_executions(self, executions: Iterable[Mapping[str, Any]]) -> list[CreateResult]:
        """Store many executions in one transaction; answers in the order given.

        Each item holds the arguments of ``create_execution``. One bad item refuses them all.
        """
        items = []
        for position, arguments in enumerate(values.sequence(executions, "executions")):
            if position >= MAX_BULK:
                raise values.invalid(f"create_executions: more than {MAX_BULK} executions in one call")
            try:
                items.append(self._creation_of(arguments))
            except Validation as error:
                raise Validation(error.kind, f"item {position}: {error.detail}") from error
            await others_turn(position)
        if not items:
            return []
        answers: list[CreateResult] = await self._submit(CreateExecutions(tuple(items)))
        return answers

    def _lane_partition(self, lane: str) -> int:
        """The partition of a lane's own executions, worked out once per lane."""
        known = self._lane_partitions.get(lane)
        if known is None:
            known = lane_partition(lane, self.partitions)
            if len(self._lane_partitions) < MAX_KNOWN_LANES:
                self._lane_partitions[lane] = known
        return known

    def _creation_of(self, arguments: Any) -> CreateExecution:
        if not isinstance(arguments, Mapping):
            raise values.invalid(f"expected a mapping of arguments, got {type(arguments).__name__}")
        if not _KNOWN.issuperset(arguments):
            raise values.invalid(f"unknown argument {min(map(repr, arguments.keys() - _KNOWN))}")
        given = arguments.get
        return self._creation(*[given(name, default) for name, default in _DEFAULTS])

    def _creation(
        self,
        execution_id: Any,
        namespace: Any,
        lane_id: Any,
        execution_kind: Any,
        input_payload: Any,
        payload_encoding: Any,
        priority: Any,
        creator_identity: Any,
        idempotency_key: Any,
        tags: Any,
        policy: Any,
        delay_until: Any,
        execution_deadline_at: Any,
        now: Any,
        key_reuse: Any,
    ) -> CreateExecution:
        lane = values.lane(lane_id)
        if execution_id is None:
            partition, uuid = self._lane_partition(lane), ascending_uuid()
        else:
            identity = values.execution_id(execution_id)
            partition, uuid = identity.partition, identity.uuid_text
            if partition >= self.partitions.flow:
                raise values.invalid(
                    f"execution_id: there is no partition {partition}, this store has {self.partitions.flow} (from 0 "
                    "on): make ids for that many, leave the id out, or begin with a new store that has more"
                )
        stored_policy = None if policy is None else parse_policy(policy)
        stored_tags = values.tags(tags)
        if (trace := current_trace()) is not None:
            stored_tags = trace.added_to(stored_tags)
        return CreateExecution(
            f"{{fp:{partition}}}:{uuid}",
            partition,
            uuid,
            values.text(namespace, "namespace"),
            lane,
            values.text(execution_kind, "execution_kind"),
            values.encoded_payload(input_payload, "input_payload", payload_encoding),
            values.optional_text(payload_encoding, "payload_encoding"),
            values.priority(priority),
            values.text(creator_identity, "creator_identity"),
            values.optional_text(idempotency_key, "idempotency_key"),
            stored_tags,
            stored_policy,
            read_policy(stored_policy).required_capabilities if stored_policy else (),
            values.optional_time_ms(delay_until, "delay_until"),
            values.optional_time_ms(execution_deadline_at, "execution_deadline_at"),
            values.optional_time_ms(now, "now"),
            values.choice(key_reuse, "key_reuse", KEY_REUSES),
        )

    # -- tags ----------------------------------------------------------------------------------------------------

    async def set_execution_tag(self, execution_id: ExecutionId | str, key: str, value: str) -> None:
        """Set one tag; the last write wins."""
        key = values.tag_key(key)
        await self._submit(SetExecutionTags(values.execution_id(execution_id), {key: _tag_value(key, value)}))

    async def set_execution_tags(self, execution_id: ExecutionId | str, tags: Mapping[str, str]) -> None:
        """Set several tags, all or none."""
        await self._submit(SetExecutionTags(values.execution_id(execution_id), values.dotted_tags(tags)))

    async def get_execution_tag(self, execution_id: ExecutionId | str, key: str) -> str | None:
        """The value of a tag, ``None`` if the execution or the tag is missing."""
        key = values.tag_key(key)
        identity = values.execution_id(execution_id)
        execution = (await self._view(GetFull(identity))).full(identity)
        if execution is None:
            return None
        tags = parse_document(execution.raw_fields, "raw_fields").get("tags")
        found = tags.get(key) if isinstance(tags, dict) else None
        return found if isinstance(found, str) else None

    async def set_flow_tag(self, flow_id: str, key: str, value: str) -> None:
        """Set one tag of a flow."""
        key = values.tag_key(key)
        flow = values.flow_id(flow_id)
        await self._submit(SetFlowTags(self._flow_partition(flow), flow, {key: _tag_value(key, value)}))

    async def set_flow_tags(self, flow_id: str, tags: Mapping[str, str]) -> None:
        """Set several tags of a flow, all or none."""
        flow = values.flow_id(flow_id)
        await self._submit(SetFlowTags(self._flow_partition(flow), flow, values.dotted_tags(tags)))

    async def get_flow_tag(self, flow_id: str, key: str) -> str | None:
        """The value of a flow's tag, ``None`` if the flow or the tag is missing."""
        key = values.tag_key(key)
        flow = values.flow_id(flow_id)
        need = Get(Flow, (self._flow_partition(flow), flow))
        record = (await self._view(need)).get(Flow, need.key)
        found = None if record is None else parse_document(record.raw_fields, "raw_fields").get(key)
        return found if isinstance(found, str) else None


_ARGUMENTS: dict[str, Any] = {
    "execution_id": None,
    "namespace": "default",
    "lane_id": "default",
    "execution_kind": "",
    "input_payload": b"",
    "payload_encoding": None,
    "priority": 0,
    "creator_identity": "",
    "idempotency_key": None,
    "tags": None,
    "policy": None,
    "delay_until": None,
    "execution_deadline_at": None,
    "now": None,
    "key_reuse": "never",
}


_DEFAULTS = tuple(_ARGUMENTS.items())
_KNOWN = frozenset(_ARGUMENTS) | {"partition_id"}


def _tag_value(key: str, value: Any) -> str:
    return values.text(value, f"tag {quoted(key)}", MAX_REASON_BYTES)


# -- starts that fall together ---------------------------------------------------------------------------------------

_MAX_MS = 2**53
#: What a start that shares its execution with others cannot say.
_OWN = ("execution_id", "idempotency_key", "delay_until")


class Bursts(Intake):
    """The part of the engine that waits for quiet."""

    async def debounce_execution(
        self, debounce_key: str, execution: Mapping[str, Any], *, wait_ms: int, at_most_ms: int
    ) -> Debounced:
        """Start an execution once nobody has started one under the key for ``wait_ms``, at the latest ``at_most_ms``
        after the first start. Starts that fall together share one execution; the payload of the last one counts.

        ``execution`` holds arguments of ``create_execution``; those of the first start count, the payload apart.
        """
        key = values.text(debounce_key, "debounce_key", empty=False)
        wait = values.integer(wait_ms, "wait_ms", 1, _MAX_MS)
        most = values.integer(at_most_ms, "at_most_ms", 1, _MAX_MS)
        creation = self._creation_of(execution)
        for name in _OWN:
            if execution.get(name) is not None:
                raise values.invalid(f"execution.{name}: debounced starts share one execution; leave this out")
        answer: Debounced = await self._submit(DebounceExecution(key, wait, most, creation))
        return answer
