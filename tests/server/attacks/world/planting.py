"""A tenant whose every text is marked, so that it is found wherever it turns up."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import msgspec
from msgspec import Struct

from flowfabric import ClaimPolicy, FlowGraph, Frame, Fresh, SuspendArgs
from flowfabric.conditions import ByName, Single
from flowfabric.engine import Engine
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import FailureClass
from flowfabric.model.operations.suspension import SuspensionReason
from flowfabric.model.operations.workflows import NewStep
from flowfabric.model.states import BlockingReason
from flowfabric.model.streams.frames import DurableSummary
from flowfabric.sdk.asks.ask import ASK_KIND, Question, waitpoint_of
from flowfabric.sdk.asks.budget_asks import YES_OR_NO
from tests.schedules import every

HOUR_MS = 3_600_000
#: The lane that all tenants use.
SHARED = "shared"
#: The tag that subscribers follow.
INSTANCE = "cairn.instance_id"


class Planted(Struct, kw_only=True):
    """What a tenant has. ``names`` and ``executions`` are what calls can name, by what they are."""

    mark: str
    namespace: str
    names: dict[str, str]
    executions: dict[str, str]
    #: The fields that hold a marked text.
    fields: set[str] = msgspec.field(default_factory=set)

    def text(self, field: str) -> str:
        """The marked text of a field."""
        return f"{self.mark}-{field}"

    def marks(self) -> tuple[str, ...]:
        """How the mark looks in an answer: as it is, and as bytes in base64."""
        whole = len(self.mark) * 4 // 3
        return (self.mark, base64.b64encode(self.mark.encode()).decode()[:whole])


def unknown(like: Planted) -> Planted:
    """A tenant that is not there, with things that are not there either."""
    names = {name: _another(value) for name, value in like.names.items()}
    executions = {
        role: str(ExecutionId.of(ExecutionId(each).partition, str(uuid.uuid4())))
        for role, each in like.executions.items()
    }
    return Planted(mark="unknown", namespace="unknown-namespace", names=names, executions=executions)


def _another(value: str) -> str:
    try:
        uuid.UUID(value)
    except ValueError:
        return f"unknown-{value.rpartition('-')[2]}"
    return str(uuid.uuid4())


class Planter:
    """Fills a namespace with everything that it can hold."""

    def __init__(self, engine: Engine, mark: str, namespace: str) -> None:
        self._engine = engine
        self.planted = Planted(mark=mark, namespace=namespace, names={"namespace": namespace}, executions={})

    def _text(self, field: str) -> str:
        self.planted.fields.add(field)
        return self.planted.text(field)

    def _creation(self, lane: str) -> dict[str, Any]:
        text = self._text
        return {
            "namespace": self.planted.namespace, "lane_id": lane, "execution_kind": text("kind"),
            "creator_identity": text("creator"), "input_payload": text("payload").encode(),
            "payload_encoding": text("encoding"), "tags": {"who.tag": text("tag"), INSTANCE: text("instance-tag")},
        }  # fmt: skip

    async def _created(self, role: str, lane: str = "", **more: Any) -> ExecutionId:
        given = {**self._creation(lane or f"{self._text(role)}"), **more}
        made = await self._engine.create_execution(**given)
        self.planted.executions[role] = str(made.execution_id)
        return made.execution_id

    async def _held(self, role: str, ttl_ms: int = HOUR_MS, **more: Any) -> Handle:
        """An execution in a lane of its own, in the hands of a worker."""
        await self._created(role, **more)
        policy = ClaimPolicy(self._text("worker"), self._text("worker-instance"), ttl_ms)
        handle = await self._engine.claim(self._text(role), policy=policy)
        assert handle is not None
        return handle

    async def plant(self) -> Planted:
        """All of it."""
        await self._waiting()
        await self._running()
        await self._suspended()
        await self._ended()
        await self._surroundings()
        return self.planted

    async def _waiting(self) -> None:
        key = self._text("idempotency-key")
        await self._created("waiting", SHARED, idempotency_key=key)
        await self._created("paused", self._text("lane"))
        stopped = await self._created("stopped")
        await self._engine.block_execution_for_admission(
            execution_id=stopped, reason=BlockingReason.PAUSED_BY_OPERATOR, detail=self._text("block")
        )
        self.planted.names |= {"lane_id": self._text("lane"), "idempotency_key": key}
        await self._engine.set_lane_state(self._text("lane"), "paused", self._text("lane-reason"))
        await self._engine.set_lane_fairness(self._text("lane"), f"tag:{self._text('fair')}")

    async def _running(self) -> None:
        engine, text = self._engine, self._text
        await self._held("lost", ttl_ms=1)
        handle = await self._held("running")
        await engine.advance(handle, steps=[NewStep(text("step"), text("step-value").encode())])
        await engine.append_frame(handle, Frame(text("frame").encode()))
        document = msgspec.json.encode({"told": text("summary")})
        await engine.append_frame(handle, Frame(document, mode=DurableSummary()))

    async def _suspended(self) -> None:
        engine, text = self._engine, self._text
        handle = await self._held("suspended")
        point = str(uuid.uuid4())
        wait = SuspendArgs(
            waitpoints=[Fresh(point, text("waitpoint"))],
            resume_condition=Single(text("waitpoint"), ByName(text("wanted"))),
            reason_code=text("suspension"),
        )
        await engine.suspend(handle, wait)
        self.planted.names["waitpoint_id"] = point
        token = await engine.read_waitpoint_token(handle.execution_id.partition, point)
        await engine.deliver_signal(
            execution_id=handle.execution_id, waitpoint_id=point, waitpoint_token=token.reveal(),
            signal_name=text("signal"), source_type=text("source-type"), source_identity=text("source"),
            payload=text("signal-payload").encode(),
        )  # fmt: skip
        await self._asked()

    async def _asked(self) -> None:
        text = self._text
        question = Question(text("question"), text("shown"), (text("approver"),), 1, None, YES_OR_NO.schema, "")
        payload = msgspec.json.encode(question)
        handle = await self._held("asked", execution_kind=ASK_KIND, input_payload=payload)
        point = waitpoint_of(str(handle.execution_id), payload, text("approver"))
        wait = SuspendArgs(
            waitpoints=[Fresh(point, text("approver"))],
            resume_condition=Single(text("approver"), ByName("approve")),
            reason_code=SuspensionReason.WAITING_FOR_APPROVAL,
        )
        await self._engine.suspend(handle, wait)

    async def _ended(self) -> None:
        engine, text = self._engine, self._text
        await engine.complete(await self._held("completed"), text("result").encode())
        await engine.fail(await self._held("failed"), text("failure"), FailureClass.PERMANENT)
        await engine.cancel_execution(execution_id=await self._created("cancelled"), reason=text("cancel-reason"))
        revoked = await self._held("revoked")
        await engine.revoke_lease(execution_id=revoked.execution_id, reason=text("revocation"))

    async def _surroundings(self) -> None:
        engine, text, own = self._engine, self._text, self.planted
        await engine.put_schedule(
            text("schedule"), spec=every(HOUR_MS), namespace=own.namespace, lane_id=text("schedule-lane"),
            execution_kind=text("schedule-kind"), source=text("schedule-source"),
            tags={"who.tag": text("schedule-tag")},
        )  # fmt: skip
        await engine.register_worker(
            worker_id=text("registered"), worker_instance_id=text("registered-instance"), namespace=own.namespace,
            lanes=[SHARED, text("lane")], capabilities=[text("capability")], liveness_ttl_ms=24 * HOUR_MS,
        )  # fmt: skip
        announced = {"noun": "task", "description": text("description"), "lane_id": text("kind-lane")}
        await engine.announce_kinds(own.namespace, {text("kind"): announced, "send": {"noun": "task"}})
        alone = FlowGraph(
            nodes={"only": self._creation(SHARED)}, edges=[], flow_kind=text("flow-kind"), namespace=own.namespace
        )
        flow = str((await engine.submit_flow(alone)).flow_id)
        await engine.set_flow_tags(flow, {"who.tag": text("flow-tag")})
        await engine.cancel_flow(flow, "cancel_all", reason=text("flow-reason"))
        budget = str(uuid.uuid4())
        await engine.create_budget(budget_id=budget, namespace=own.namespace)
        own.names |= {"schedule_id": text("schedule"), "budget_id": budget, "flow_id": flow}


async def entangle(engine: Engine, first: Planted, second: Planted) -> None:
    """A flow of each tenant with members of both: an operator may build such."""
    for own, other in ((first, second), (second, first)):

        def node(tenant: Planted) -> dict[str, Any]:
            return {"namespace": tenant.namespace, "lane_id": SHARED, "execution_kind": tenant.text("member-kind")}

        nodes = {"mine": node(own), "theirs": node(other), "next": node(own), "after": node(other)}
        edges = [("mine", "next"), ("theirs", "next"), ("mine", "after"), ("theirs", "after")]
        graph = FlowGraph(nodes=nodes, edges=edges, flow_kind=own.text("mixed-kind"), namespace=own.namespace)
        made = await engine.submit_flow(graph)
        own.names["mixed"] = str(made.flow_id)
        own.executions |= {"member": str(made.execution_ids["mine"]), "dependent": str(made.execution_ids["next"])}
        other.executions |= {"guest": str(made.execution_ids["theirs"]), "last": str(made.execution_ids["after"])}
