"""Flows for tests: building them, moving their members, and looking at how they stand."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Any

from flowfabric import ApplyDependencyResult, EdgePolicy, ExecutionId, FailureClass, FlowGraph, FlowId, Handle
from flowfabric.engine import Engine
from flowfabric.model.partitions import flow_partition
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Edge, EdgeGroup
from tests.contract.probe import Probe, policy


class Flowing:
    """A flow under test, its members by name, each on a lane of its own."""

    def __init__(self, engine: Engine, flow_id: str, members: dict[str, ExecutionId]) -> None:
        self.engine = engine
        self.flow_id = flow_id
        self.members = members
        self.handles: dict[str, Handle] = {}

    @classmethod
    async def submit(
        cls,
        engine: Engine,
        names: Iterable[str],
        edges: Iterable[Any] = (),
        groups: dict[str, EdgePolicy] | None = None,
        **nodes: dict[str, Any],
    ) -> Flowing:
        """A whole graph at once; ``nodes`` adds arguments of single members."""
        lane = uuid.uuid4().hex[:8]
        found = {name: {"lane_id": f"{lane}-{name}", "input_payload": b"in", **nodes.get(name, {})} for name in names}
        answer = await engine.submit_flow(FlowGraph(found, edges, groups or {}))
        return cls(engine, answer.flow_id, answer.execution_ids)

    @classmethod
    async def build(cls, engine: Engine, names: Iterable[str]) -> Flowing:
        """A flow with members and no edges, step by step."""
        flow_id = FlowId.new()
        await engine.create_flow(flow_id=flow_id, flow_kind="dag", namespace="default")
        flow = cls(engine, flow_id, {})
        for name in names:
            await flow.add(name)
        return flow

    async def add(self, name: str, **arguments: Any) -> ExecutionId:
        """One more member."""
        identity = ExecutionId.for_flow(self.flow_id, self.engine.partitions)
        arguments.setdefault("lane_id", f"{identity.uuid_text[-8:]}-{name}")
        await self.engine.create_execution(execution_id=identity, **arguments)
        await self.engine.add_execution_to_flow(flow_id=self.flow_id, execution_id=identity)
        self.members[name] = identity
        return identity

    async def revision(self) -> int:
        """The flow's graph revision."""
        found = await self.engine.describe_flow(self.flow_id)
        assert found is not None
        return found.graph_revision

    async def stage(self, upstream: str, downstream: str, edge_id: str | None = None, **more: Any) -> str:
        """An edge written down."""
        edge_id = edge_id or str(uuid.uuid4())
        revision = more.pop("revision", None)
        await self.engine.stage_dependency_edge(
            flow_id=self.flow_id,
            edge_id=edge_id,
            upstream_execution_id=self.members[upstream],
            downstream_execution_id=self.members[downstream],
            expected_graph_revision=await self.revision() if revision is None else revision,
            **more,
        )
        return edge_id

    async def apply(self, upstream: str, downstream: str, edge_id: str, **more: Any) -> Any:
        """A staged edge counts."""
        return await self.engine.apply_dependency_to_child(
            flow_id=self.flow_id,
            edge_id=edge_id,
            upstream_execution_id=self.members[upstream],
            downstream_execution_id=self.members[downstream],
            **more,
        )

    async def join(self, upstream: str, downstream: str, **more: Any) -> str:
        """An edge that counts."""
        edge_id = await self.stage(upstream, downstream, **more)
        assert isinstance(await self.apply(upstream, downstream, edge_id), ApplyDependencyResult.Applied)
        return edge_id

    async def lane(self, name: str) -> str:
        """The lane of a member."""
        view = await self.engine._view(*_get(self.members[name]))
        found = view.execution(self.members[name])
        assert found is not None
        return found.lane_id

    async def start(self, name: str) -> Handle:
        """Claim a member; it must be claimable."""
        handle = await self.engine.claim(await self.lane(name), (), policy())
        assert handle is not None, f"{name} is not claimable"
        self.handles[name] = handle
        return handle

    async def claimable(self, name: str) -> bool:
        """Whether a worker could take a member now."""
        return bool(await self.engine.scan_eligible_executions(await self.lane(name)))

    async def complete(self, name: str, result: bytes | None = b"done") -> None:
        """Run a member to its good end."""
        handle = self.handles.pop(name, None) or await self.start(name)
        self.handles.pop(name, None)
        await self.engine.complete(handle, result)

    async def fail(self, name: str) -> None:
        """Run a member to its bad end."""
        handle = self.handles.pop(name, None) or await self.start(name)
        self.handles.pop(name, None)
        await self.engine.fail(handle, "broken", FailureClass.PERMANENT)

    async def states(self, *names: str) -> dict[str, str]:
        """Public states by name, of all members or of some."""
        found = {}
        for name in names or self.members:
            found[name] = str(await self.engine.read_execution_state(self.members[name]))
        return found

    async def state(self, name: str) -> str:
        """The public state of one member."""
        return (await self.states(name))[name]

    async def group(self, probe: Probe, name: str) -> EdgeGroup:
        """The counters of the edges into a member."""
        partition = flow_partition(self.flow_id, self.engine.partitions)
        where = {"partition": partition, "flow_id": str(self.flow_id), "downstream": self.members[name].uuid_text}
        (found,) = await probe.select(EdgeGroup, **where)
        assert isinstance(found, EdgeGroup)
        return found

    async def counts(self, probe: Probe, name: str) -> tuple[int, int, int, int, str]:
        """Successes, failures, skips, running, and the group's state."""
        group = await self.group(probe, name)
        return group.success_count, group.fail_count, group.skip_count, group.running_count, group.group_state

    async def edges(self, probe: Probe) -> list[Edge]:
        """All edges of the flow."""
        partition = flow_partition(self.flow_id, self.engine.partitions)
        return await probe.select(Edge, partition=partition, flow_id=str(self.flow_id))


def _get(execution_id: str) -> Any:
    from flowfabric.model.decisions import Get

    return (Get(Execution, execution_id),)


async def settle(engine: Engine) -> None:
    """Wait until everything that carries on what was committed has been done."""
    while engine._going_on:
        await asyncio.sleep(0)
        await asyncio.gather(*engine._going_on, return_exceptions=True)
