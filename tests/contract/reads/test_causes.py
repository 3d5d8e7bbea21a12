"""``explain`` goes to the end of the chain: what the execution waits for that another one waits for, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import (
    BudgetAsked,
    ExecutionId,
    ExhaustedBudget,
    Gate,
    Handle,
    OpenQuestion,
    OpenSuspension,
    QueuePlace,
    WaitpointCredential,
)
from flowfabric.conditions import AnyOf, ByName, Count, CountKind
from flowfabric.core.explain.causes import MAX_LINKS
from flowfabric.core.explain.explain import MAX_NAMED
from flowfabric.engine import Engine
from flowfabric.model.operations.suspension import Suspended, SuspensionReason
from flowfabric.model.operations.workflows import ChildWait
from tests.contract.graphs import Flowing
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, id_of, policy, unchanged
from tests.contract.suspending import asking, credentials

#: The clock starts at 08:00.
HOUR = 3_600_000
APPROVERS = ("finance", "legal", "ops")


async def parent(engine: Engine, handle: Handle, *children: dict[str, Any]) -> list[ExecutionId]:
    """Park an execution until all of these children have ended."""
    partition = id_of(handle).partition
    made = [{"execution_id": f"{{fp:{partition}}}:{uuid4()}", "lane_id": "children", **each} for each in children]
    ids = tuple(each["execution_id"] for each in made)
    assert (await engine.advance(handle, children=made, wait=ChildWait(ids, len(ids)))).parked
    return [ExecutionId.parse(each) for each in ids]


async def taken(engine: Engine, lane: str = "children") -> Handle:
    handle = await engine.claim(lane, (), policy())
    assert handle is not None
    return handle


async def ask(engine: Engine, handle: Handle, **more: Any) -> list[WaitpointCredential]:
    """Suspend as a question to three people does, two of whom must say yes."""
    yes = Count(2, CountKind.DISTINCT_WAITPOINTS, APPROVERS, ByName("approve"))
    no = Count(1, CountKind.DISTINCT_WAITPOINTS, APPROVERS, ByName("decline"))
    reason = SuspensionReason.WAITING_FOR_APPROVAL
    outcome = await engine.suspend(handle, asking(AnyOf((yes, no)), APPROVERS, reason_code=reason, **more))
    assert isinstance(outcome, Suspended)
    return credentials(outcome.details)


def ids(links: Sequence[Any]) -> list[str]:
    return [each.execution_id for each in links]


async def test_to_the_people_who_are_asked(engine: Engine, probe: Probe) -> None:
    top = await claimed(engine, execution_kind="release")
    [middle] = await parent(engine, top, {"execution_kind": "deploy"})
    question = {"execution_kind": "$ask", "tags": {"ff.ask": "deploy?"}}
    [end] = await parent(engine, await taken(engine), question)
    points = await ask(engine, await taken(engine), timeout_at=START_MS + 6 * HOUR)
    async with unchanged(probe):
        found = await engine.explain(id_of(top))
    assert found.sentence == "It is waiting for 2 of finance, legal, ops to answer 'deploy?', until 14:00 UTC."
    assert ids(found.chain) == [id_of(top), middle, end]
    assert [each.execution_kind for each in found.chain] == ["release", "deploy", "$ask"]
    assert [each.gate for each in found.chain] == [Gate.CHILDREN, Gate.CHILDREN, Gate.SUSPENDED]
    assert found.gate is Gate.CHILDREN
    assert found.chain[0].sentence == "It is waiting for an execution it started."
    last = found.chain[-1]
    assert last.until_ms == START_MS + 6 * HOUR
    assert isinstance(last.detail, OpenSuspension)
    assert last.detail.question == OpenQuestion("deploy?", 2, APPROVERS)
    assert found.left_out is None
    assert (await engine.explain(end)).chain == (), "it waits for no other execution"

    [legal] = [each for each in points if each.waitpoint_key == "legal"]
    await engine.deliver_signal(
        execution_id=end,
        waitpoint_id=legal.waitpoint_id,
        waitpoint_token=legal.waitpoint_token,
        signal_name="approve",
        source_type="approver",
    )
    found = await engine.explain(middle)
    assert found.sentence == "It is waiting for 1 of finance, ops to answer 'deploy?', until 14:00 UTC."
    detail = found.chain[-1].detail
    assert isinstance(detail, OpenSuspension)
    assert detail.question == OpenQuestion("deploy?", 1, ("finance", "ops"), ("legal",))


async def test_anyone_with_the_link(engine: Engine) -> None:
    handle = await claimed(engine, tags={"ff.ask": "paid?\n"})
    yes = Count(1, CountKind.DISTINCT_WAITPOINTS, ("anyone",), ByName("approve"))
    reason = SuspensionReason.WAITING_FOR_APPROVAL
    await engine.suspend(handle, asking(AnyOf((yes,)), ("anyone",), reason_code=reason))
    found = await engine.explain(id_of(handle))
    assert found.sentence == r"It is waiting for anyone with the link to answer 'paid?\n'."


async def test_to_a_sleep(engine: Engine, clock: ManualClock) -> None:
    top = await claimed(engine)
    await parent(engine, top, {"execution_kind": "nap"})
    handle = await taken(engine)
    assert (await engine.advance(handle, wait=ChildWait((), 0, START_MS + 6 * HOUR))).parked
    found = await engine.explain(id_of(top))
    assert found.sentence == "It is waiting for nap: it is sleeping until 14:00 UTC."
    assert found.chain[-1].until_ms == START_MS + 6 * HOUR
    clock.advance(-24 * HOUR)
    assert (await engine.explain(id_of(handle))).sentence == "It is sleeping until 2027-01-15 14:00 UTC."


async def test_to_a_queue_that_nobody_serves(engine: Engine) -> None:
    top = await claimed(engine)
    [child] = await parent(engine, top, {"execution_kind": "load"})
    found = await engine.explain(id_of(top))
    assert found.sentence == (
        "It is waiting for load: it is waiting for a worker; none is registered for lane children, "
        "none are ahead of it."
    )
    assert found.chain[-1].detail == QueuePlace(0, 0, 0)
    assert found.chain[-1].execution_id == child


async def test_to_a_retry(engine: Engine) -> None:
    retry = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 90_000}}}
    top = await claimed(engine)
    await parent(engine, top, {"execution_kind": "load", "policy": retry})
    await engine.fail(await taken(engine), "again")
    found = await engine.explain(id_of(top))
    assert found.sentence == "It is waiting for load: its last attempt failed; it retries in 1 min 30 s."
    assert (found.chain[-1].gate, found.chain[-1].until_ms) == (Gate.RETRY_BACKOFF, START_MS + 90_000)


async def test_to_a_rate_limit(engine: Engine) -> None:
    quota = str(uuid4())
    await engine.create_quota_policy(
        quota_policy_id=quota, window_seconds=60, max_requests_per_window=1, max_concurrent=0
    )
    top = await claimed(engine)
    await parent(engine, top, *({"policy": {"quota_policy_id": quota}} for _ in range(2)))
    [handle] = await engine.claim_many("children", (), policy(), 2)
    await engine.complete(handle)
    last = (await engine.explain(id_of(top))).chain[-1]
    assert (last.gate, last.until_ms) == (Gate.QUOTA, START_MS + 60_000)


async def spent(engine: Engine, **more: Any) -> str:
    """A budget of which nothing is left."""
    budget = str(uuid4())
    await engine.create_budget(budget_id=budget, dimensions=["tokens"], hard_limits=[10], soft_limits=[0], **more)
    await engine.report_usage_admin(budget_id=budget, dimensions=["tokens"], deltas=[10])
    return budget


async def test_to_a_budget_by_its_name(engine: Engine) -> None:
    budget = await spent(engine, scope_type="named", scope_id="articles")
    top = await claimed(engine)
    await parent(engine, top, {"execution_kind": "write", "policy": {"budget_ids": [budget]}})
    found = await engine.explain(id_of(top))
    assert found.sentence == (
        "It is waiting for write: budget 'articles' is used up: 10 spent and 0 reserved of 10 tokens."
    )
    detail = found.chain[-1].detail
    assert isinstance(detail, ExhaustedBudget)
    assert (detail.budget_id, detail.name) == (budget, "articles")


async def test_a_scope_is_not_a_name(engine: Engine) -> None:
    budget = await spent(engine, scope_type="user", scope_id="u1")
    top = await claimed(engine)
    await parent(engine, top, {"policy": {"budget_ids": [budget]}})
    found = await engine.explain(id_of(top))
    assert f"budget {budget} is used up" in found.sentence
    assert found.sentence.startswith("It is waiting for another execution: ")


async def test_to_a_budget_that_asks(engine: Engine) -> None:
    budget = str(uuid4())
    await engine.create_budget(
        budget_id=budget,
        dimensions=["tokens"],
        hard_limits=[10],
        soft_limits=[0],
        on_hard_limit="ask",
        scope_type="named",
        scope_id="articles",
    )
    top = await claimed(engine)
    await parent(engine, top, {"policy": {"budget_ids": [budget]}})
    assert isinstance(await engine.reserve_budget(await taken(engine), budget, {"tokens": 11}), BudgetAsked)
    found = await engine.explain(id_of(top))
    assert found.sentence == (
        "It is waiting for anyone with the link to answer \"may it spend beyond budget 'articles'?\"."
    )


async def test_dependencies_are_followed_too(engine: Engine) -> None:
    flow = await Flowing.submit(engine, "abc", [("a", "b"), ("b", "c")])
    found = await engine.explain(flow.members["c"])
    assert ids(found.chain) == [flow.members[name] for name in "cba"]
    assert [each.gate for each in found.chain] == [Gate.DEPENDENCIES, Gate.DEPENDENCIES, Gate.WAITING_FOR_WORKER]


async def test_which_of_many_is_followed(engine: Engine) -> None:
    """What needs somebody comes before what only needs time, and that before what runs."""
    await engine.register_worker(worker_id="w", worker_instance_id="i", lanes=["children", "asked", "late"])
    top = await claimed(engine)
    running, asleep, queued, asked = await parent(
        engine, top, {"lane_id": "running"}, {"lane_id": "late"}, {}, {"lane_id": "asked"}
    )
    await taken(engine, "running")
    assert (await engine.advance(await taken(engine, "late"), wait=ChildWait((), 0, START_MS + HOUR))).parked
    await ask(engine, await taken(engine, "asked"))
    for expected in (asked, asleep, queued, running):
        assert (await engine.explain(id_of(top))).chain[-1].execution_id == expected
        await engine.cancel_execution(execution_id=expected, reason="next")


async def test_a_queue_without_workers_needs_somebody(engine: Engine) -> None:
    await engine.register_worker(worker_id="w", worker_instance_id="i", lanes=["served", "late"])
    top = await claimed(engine)
    _, _, unserved = await parent(engine, top, {"lane_id": "served"}, {"lane_id": "late"}, {"lane_id": "unserved"})
    assert (await engine.advance(await taken(engine, "late"), wait=ChildWait((), 0, START_MS + HOUR))).parked
    assert (await engine.explain(id_of(top))).chain[-1].execution_id == unserved


async def test_only_so_many_children_are_looked_at(engine: Engine) -> None:
    top = await claimed(engine)
    await parent(engine, top, *({} for _ in range(MAX_NAMED)))
    assert (await engine.explain(id_of(top))).left_out is None
    other = await claimed(engine)
    await parent(engine, other, *({} for _ in range(MAX_NAMED + 1)))
    found = await engine.explain(id_of(other))
    assert found.left_out == (
        f"{id_of(other)} is waiting for {MAX_NAMED + 1} executions; {MAX_NAMED} of them were checked."
    )
    assert len(found.chain) == 2


@pytest.mark.parametrize("more", [0, 3])
async def test_only_so_many_links_are_followed(engine: Engine, more: int) -> None:
    top = handle = await claimed(engine)
    for _ in range(MAX_LINKS - 1 + more):
        await parent(engine, handle, {})
        handle = await taken(engine)
    found = await engine.explain(id_of(top))
    assert len(found.chain) == MAX_LINKS
    assert (found.chain[-1].execution_id == id_of(handle)) is (more == 0)
    assert found.left_out == (f"The chain is longer; its first {MAX_LINKS} links were followed." if more else None)


async def test_children_are_read_together(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read = engine.store.read

    async def counted(*arguments: Any) -> None:
        nonlocal reads
        reads += 1
        await read(*arguments)

    monkeypatch.setattr(engine.store, "read", counted)
    counts = []
    for number in (2, MAX_NAMED):
        top = await claimed(engine)
        lane = f"lane-{number}"
        await parent(engine, top, *({"lane_id": lane} for _ in range(number)))
        for _ in range(number):
            await ask(engine, await taken(engine, lane))
        reads = 0
        assert (await engine.explain(id_of(top))).chain[-1].gate is Gate.SUSPENDED
        counts.append(reads)
    assert counts[0] == counts[1]


async def test_nothing_of_other_namespaces_is_named_or_counted(engine: Engine) -> None:
    top = await claimed(engine, namespace="mine")
    mine, theirs = await parent(
        engine,
        top,
        {"namespace": "mine", "lane_id": "m", "execution_kind": "own"},
        {"namespace": "theirs", "lane_id": "t", "execution_kind": "secret", "tags": {"ff.ask": "secret?"}},
    )
    await taken(engine, "m")
    await ask(engine, await taken(engine, "t"))
    assert (await engine.explain(id_of(top))).chain[-1].execution_id == theirs
    found = await engine.explain(id_of(top), namespaces=["mine"])
    assert ids(found.chain) == [id_of(top), mine]
    assert found.chain[0].sentence == "It is waiting for an execution it started."
    assert "secret" not in repr(found)
    await engine.cancel_execution(execution_id=mine, reason="next")
    found = await engine.explain(id_of(top), namespaces=["mine"])
    assert (found.chain, found.sentence) == ((), "It is waiting for executions it started.")
