"""Budgets and quotas belong to a namespace or to the operator; nobody spends, takes or sees what is somebody else's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric import (
    Admitted,
    CreateBudgetResult,
    CreateQuotaPolicyResult,
    ExecutionId,
    FlowGraph,
    Handle,
    HardBreach,
    NotFound,
    Ok,
    Reserved,
    Validation,
    ValidationKind,
)
from flowfabric.core import schedules
from flowfabric.core.ownership import owners
from flowfabric.engine import Engine
from flowfabric.model.operations.schedules import Every
from flowfabric.model.ownership import owned_name
from flowfabric.model.records.budgets import Budget, QuotaAdmitted, QuotaPolicy
from flowfabric.model.records.starts import Schedule
from tests.contract.admission.test_admit import settled
from tests.contract.admission.test_budgets import ONE, THREE, TWO, budget, report, usage
from tests.contract.admission.test_quotas import quota
from tests.contract.probe import ManualClock, Probe, create, id_of, policy, refused
from tests.contract.reads.test_examine import examined, overwrite

pytestmark = pytest.mark.usefixtures("no_pauses")

USD = {"usd": 10}


@pytest.fixture
def a(engine: Engine) -> Engine:
    """The engine as a caller of namespace a sees it."""
    return engine.limited_to({"a"})


async def run(engine: Engine, by: Engine, namespace: str = "a", lane: str = "work", **terms: Any) -> Handle:
    """A new execution that somebody creates under these terms, claimed."""
    await create(by, namespace=namespace, lane_id=lane, policy=terms or None)
    handle = await engine.claim(lane, (), policy())
    assert handle is not None
    return handle


async def own_usage(engine: Engine, namespace: str | None, budget_id: str = ONE) -> dict[str, int]:
    return (await engine.get_budget_status(budget_id, namespace)).usage


# -- one id, several owners --------------------------------------------------------------------------------------------


async def test_two_namespaces_and_the_operator_use_one_id(engine: Engine, a: Engine) -> None:
    for by, namespace in ((engine, None), (engine, "b"), (a, None)):
        answer = await by.create_budget(
            budget_id=ONE, dimensions=["usd"], hard_limits=[10], soft_limits=[0], namespace=namespace
        )
        assert answer == CreateBudgetResult.Created(ONE)
    assert await a.create_budget(budget_id=ONE) == CreateBudgetResult.AlreadySatisfied(ONE)
    assert await report(engine, ONE, usd=1) == Ok()
    assert await engine.report_usage_admin(budget_id=ONE, dimensions=["usd"], deltas=[2], namespace="b") == Ok()
    assert await report(a, ONE, usd=4) == Ok()
    assert [await own_usage(engine, each) for each in (None, "b", "a")] == [{"usd": 1}, {"usd": 2}, {"usd": 4}]
    assert await usage(a, ONE) == {"usd": 4}
    listed = (await engine.list_budgets()).budgets
    assert {(each.budget_id, each.namespace) for each in listed} == {(ONE, None), (ONE, "a"), (ONE, "b")}
    assert [each.namespace for each in (await a.list_budgets()).budgets] == ["a"]
    assert [each.namespace for each in (await a.list_budgets(namespaces=["b"])).budgets] == []


async def test_quotas_likewise(engine: Engine, a: Engine) -> None:
    for by, namespace in ((engine, None), (engine, "b"), (a, "a")):
        answer = await by.create_quota_policy(quota_policy_id=ONE, max_concurrent=1, namespace=namespace)
        assert answer == CreateQuotaPolicyResult.Created(ONE)
    assert await a.create_quota_policy(quota_policy_id=ONE) == CreateQuotaPolicyResult.AlreadySatisfied(ONE)
    assert await a.read_quota_policy_limits(TWO) is None
    assert await engine.read_quota_policy_limits(ONE, "c") is None
    assert {each.namespace for each in (await engine.list_quota_policies()).policies} == {None, "a", "b"}
    assert [each.namespace for each in (await a.list_quota_policies()).policies] == ["a"]


async def test_pages_of_budgets_go_through_all_owners(engine: Engine) -> None:
    await budget(engine, ONE, USD)
    for namespace in "abc":
        await budget(engine, ONE, USD, namespace=namespace)
    seen, after = [], None
    while True:
        page = await engine.list_budgets(after, 1)
        seen += [each.namespace for each in page.budgets]
        after = page.next_cursor
        if after is None:
            break
    assert len(seen) == 4
    assert set(seen) == {None, "a", "b", "c"}
    for bad in ("", "x", ONE[:-1], ONE + "!"):
        with pytest.raises(Validation):
            await engine.list_budgets(bad)


async def test_a_caller_of_several_namespaces_names_one(engine: Engine, probe: Probe) -> None:
    both = engine.limited_to({"a", "b"})
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await both.create_budget(budget_id=ONE)
    assert await both.create_budget(budget_id=ONE, namespace="b") == CreateBudgetResult.Created(ONE)
    with pytest.raises(NotFound):
        await both.get_budget_status(ONE, "a")


async def test_budgets_of_other_namespaces_are_refused_as_unknown_ones(engine: Engine, a: Engine, probe: Probe) -> None:
    await budget(engine, ONE, USD, namespace="b")
    await budget(engine, TWO, USD)
    unknown = "77777777-7777-4777-8777-777777777777"
    for name in (ONE, TWO, unknown):
        for namespace in (None, "a"):
            calls: list[Any] = [
                a.get_budget_status(name, namespace),
                a.reset_budget(budget_id=name, namespace=namespace),
                a.set_budget_limits(budget_id=name, hard_limits={"usd": 0}, namespace=namespace),
                a.report_usage_admin(budget_id=name, dimensions=["usd"], deltas=[1], namespace=namespace),
                a.create_budget(budget_id=THREE, parent_budget_id=name, namespace=namespace),
            ]
            for call in calls:
                async with refused(probe, NotFound) as caught:
                    await call
                assert str(caught.value) == str(NotFound("budget"))
    for call in (
        a.reset_budget(budget_id=ONE, namespace="b"),
        a.create_budget(budget_id=ONE, namespace="b"),
        a.create_quota_policy(quota_policy_id=ONE, namespace="b"),
    ):
        async with refused(probe, Validation, ValidationKind.UNAUTHORIZED):
            await call


# -- executions that name them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", ["b", None])
async def test_a_foreign_budget_is_accepted_and_never_charged(
    engine: Engine, a: Engine, probe: Probe, owner: str | None
) -> None:
    """Just as an unknown one: by a limited caller, who may not use the operator's either."""
    await budget(engine, ONE, USD, namespace=owner)
    await engine.report_usage_admin(budget_id=ONE, dimensions=["usd"], deltas=[10], namespace=owner)
    handle = await run(engine, a, budget_ids=[ONE])
    assert (await engine.read_exec_core_fields(id_of(handle).partition, id_of(handle), ["budget_ids"])) == {
        "budget_ids": ONE
    }
    for by in (engine, a):
        async with refused(probe, NotFound):
            await by.reserve_budget(handle, ONE, {"usd": 1})
    assert await own_usage(engine, owner) == {"usd": 10}
    assert (await engine.get_budget_status(ONE, owner)).breach_count == 0


async def test_its_own_budget_is_charged(engine: Engine, a: Engine) -> None:
    await budget(engine, ONE, USD)
    await budget(a, ONE, {"usd": 3})
    handle = await run(engine, a, budget_ids=[ONE])
    reserved = await a.reserve_budget(handle, ONE, {"usd": 2})
    assert isinstance(reserved, Reserved)
    assert reserved.budget_id == ONE
    breach = await engine.reserve_budget(handle, ONE, {"usd": 2})
    assert breach == HardBreach("usd", 0, 3, ONE, 2)
    await a.settle_reservation(reserved.reservation_id, {"usd": 2}, handle)
    assert [await own_usage(engine, each) for each in (None, "a")] == [{"usd": 0}, {"usd": 2}]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_unlimited_caller_means_the_operators_or_the_namespaces(engine: Engine, when: str) -> None:
    """Whether or not it is there yet when it is named; the operator's goes first."""
    if when == "before":
        await budget(engine, ONE, USD, namespace="a")
    await create(engine, namespace="a", lane_id="work", policy={"budget_ids": [ONE]})
    if when == "after":
        await budget(engine, ONE, USD, namespace="a")
    handle = await engine.claim("work", (), policy())
    assert handle is not None
    assert isinstance(await engine.reserve_budget(handle, ONE, {"usd": 1}), Reserved)
    assert (await engine.get_budget_status(ONE, "a")).reserved == {"usd": 1}
    await budget(engine, ONE, USD)
    assert isinstance(await engine.reserve_budget(handle, ONE, {"usd": 1}), Reserved)
    assert (await engine.get_budget_status(ONE)).reserved == {"usd": 1}


async def test_a_used_up_budget_holds_back_only_its_own_namespace(engine: Engine, a: Engine) -> None:
    for namespace in "ab":
        await budget(engine, ONE, {"usd": 1}, namespace=namespace)
    await report(a, ONE, usd=1)
    mine = await create(a, namespace="a", lane_id="work", policy={"budget_ids": [ONE]})
    theirs = await create(engine, namespace="b", lane_id="work", policy={"budget_ids": [ONE]})
    handles = await engine.claim_many("work", (), policy(), 10)
    assert [id_of(each) for each in handles] == [theirs]
    why = await engine.explain(mine)
    assert ONE in why.sentence
    assert "@" not in why.sentence
    await a.reset_budget(budget_id=ONE)
    await settled(engine)
    assert [id_of(each) for each in await engine.claim_many("work", (), policy(), 10)] == [mine]


@pytest.mark.parametrize("way", ["create", "bulk", "flow", "graph", "schedule", "debounce", "child", "fork"])
async def test_every_way_to_start_names_only_ones_own(engine: Engine, a: Engine, clock: ManualClock, way: str) -> None:
    for namespace in ("a", "b", None):
        await budget(engine, ONE, {"usd": 1}, namespace=namespace)
        await engine.create_quota_policy(quota_policy_id=TWO, max_concurrent=1, namespace=namespace)
    terms = {"budget_ids": [ONE], "quota_policy_id": TWO}
    started = await start(engine, a, clock, way, terms)
    handle = await engine.claim("work", (), policy())
    assert handle is not None
    assert id_of(handle) == started
    assert isinstance(await engine.reserve_budget(handle, ONE, {"usd": 1}), Reserved)
    shown = {each.namespace: each.reserved for each in (await engine.list_budgets()).budgets}
    assert shown == {"a": {"usd": 1}, "b": {}, None: {}}
    if way != "flow":
        taken = {each.namespace: each.active_concurrency for each in (await engine.list_quota_policies()).policies}
        assert taken == {"a": 1, "b": 0, None: 0}
    assert (await examined(engine))[1] == []


async def start(engine: Engine, a: Engine, clock: ManualClock, way: str, terms: dict[str, Any]) -> ExecutionId:
    plain = {"namespace": "a", "lane_id": "work"}
    given = {**plain, "policy": terms}
    match way:
        case "create":
            return await create(a, **given)
        case "bulk":
            return (await a.create_executions([given]))[0].execution_id
        case "flow":
            flow = (await a.create_flow(namespace="a", budget_ids=[ONE])).flow_id
            member = await create(a, execution_id=ExecutionId.for_flow(flow, engine.partitions), **plain)
            await a.add_execution_to_flow(flow_id=flow, execution_id=member)
            return member
        case "graph":
            graph = FlowGraph(namespace="a", nodes={"one": given})
            return (await a.submit_flow(graph)).execution_ids["one"]
        case "schedule":
            await a.put_schedule("tick", spec=Every(1_000), execution_kind="op", **given)
            return (await engine.trigger_schedule("tick", "a")).execution_ids[0]
        case "debounce":
            pushed = (await a.debounce_execution("k", given, wait_ms=1, at_most_ms=1)).execution_id
            clock.advance(1_000)
            await engine.run_due()
            return pushed
        case "child":
            parent = await run(engine, a, lane="parents")
            child = ExecutionId.of(id_of(parent).partition, "55555555-5555-4555-8555-555555555555")
            await a.advance(parent, children=[{**given, "execution_id": child}])
            return child
        case _:
            source = await create(a, **{**given, "lane_id": "old"})
            old = await engine.claim("old", (), policy())
            assert old is not None
            await engine.complete(old, None)
            fork = (await a.fork_execution(execution_id=source)).execution_id
            row = await Probe(engine).execution(fork)
            assert row.budget_ids == owned_name(ONE, "a")
            return await create(a, **given)


# -- levels ------------------------------------------------------------------------------------------------------------


async def test_a_namespace_stands_under_the_operators_budget_without_seeing_it(engine: Engine, a: Engine) -> None:
    """The operator put it there: it counts, and how much others have spent of it is not told."""
    await budget(engine, TWO, USD)
    await budget(engine, ONE, {"usd": 100}, namespace="a", parent_budget_id=TWO)
    await report(engine, TWO, usd=8)
    assert await report(a, ONE, usd=2) == Ok()
    assert await report(a, ONE, usd=1) == HardBreach("usd", 2, 100, ONE, 0)
    assert await usage(engine, TWO) == {"usd": 10}
    waiting = await create(a, namespace="a", lane_id="work", policy={"budget_ids": [ONE]})
    assert await engine.claim("work", (), policy()) is None
    told = f"{(await engine.explain(waiting)).sentence} {(await engine.describe_execution(waiting)).blocking_detail}"
    assert TWO not in told
    assert "10" not in told
    assert "in a parent budget" in told


async def test_nobody_stands_under_a_foreign_budget(engine: Engine, probe: Probe) -> None:
    await budget(engine, TWO, USD, namespace="b")
    for namespace in ("a", None):
        async with refused(probe, NotFound):
            await engine.create_budget(budget_id=ONE, parent_budget_id=TWO, namespace=namespace)


async def test_what_was_made_for_a_namespace_before_ids_had_owners(engine: Engine, a: Engine) -> None:
    """It lies under its plain id and belongs to the namespace all the same."""
    await budget(engine, ONE, USD, scope_type="namespace", scope_id="a")
    await overwrite(engine, Budget, ONE, namespace="a")
    b = engine.limited_to({"b"})
    assert await usage(a, ONE) == {"usd": 0}
    assert await usage(engine, ONE) == {"usd": 0}
    with pytest.raises(NotFound):
        await usage(b, ONE)
    assert await a.create_budget(budget_id=ONE) == CreateBudgetResult.AlreadySatisfied(ONE)
    for by, namespace in ((a, "a"), (engine, "a"), (b, "b"), (engine, "b")):
        handle = await run(engine, by, namespace, budget_ids=[ONE])
        if namespace == "a":
            assert isinstance(await by.reserve_budget(handle, ONE, {"usd": 1}), Reserved)
        else:
            with pytest.raises(NotFound):
                await by.reserve_budget(handle, ONE, {"usd": 1})
    assert (await examined(engine))[1] == []


# -- slots -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", ["b", None])
async def test_a_foreign_quota_gives_no_slot(engine: Engine, a: Engine, owner: str | None) -> None:
    await engine.create_quota_policy(quota_policy_id=ONE, max_concurrent=1, namespace=owner)
    for _ in range(2):
        await run(engine, a, quota_policy_id=ONE)
    [shown] = (await engine.list_quota_policies()).policies
    assert shown.active_concurrency == 0
    theirs = await run(engine, engine, "b", quota_policy_id=ONE)
    assert (await engine.list_quota_policies()).policies[0].active_concurrency == 1
    await engine.complete(theirs, None)
    assert (await engine.list_quota_policies()).policies[0].active_concurrency == 0


async def test_a_quota_that_is_made_after_it_was_named(engine: Engine) -> None:
    """The slots of executions that call it by its plain id are counted under the name it is stored by."""
    ids = [await create(engine, namespace="a", lane_id="work", policy={"quota_policy_id": ONE}) for _ in range(3)]
    await engine.create_quota_policy(quota_policy_id=ONE, max_concurrent=1, namespace="a")
    taken = []
    for _ in ids:
        handles = await engine.claim_many("work", (), policy(), 3)
        assert len(handles) == 1
        [shown] = (await engine.list_quota_policies()).policies
        assert shown.active_concurrency == 1
        await engine.complete(handles[0], None)
        await settled(engine)
        taken.append(id_of(handles[0]))
    assert sorted(taken) == sorted(ids)
    assert (await examined(engine))[1] == []


ENDINGS = ["complete", "fail", "cancel", "expire", "flow"]


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("names", [None, TWO])
async def test_a_slot_comes_back_whether_or_not_its_quota_is_named(
    engine: Engine, probe: Probe, clock: ManualClock, end: str, names: str | None
) -> None:
    await quota(engine, ONE, cap=1)
    await quota(engine, TWO, cap=5)
    flow = (await engine.create_flow()).flow_id
    eid = await create(
        engine,
        execution_id=ExecutionId.for_flow(flow, engine.partitions),
        lane_id="work",
        policy=None if names is None else {"quota_policy_id": names},
        execution_deadline_at=clock.now_ms + 1_000,
    )
    await engine.add_execution_to_flow(flow_id=flow, execution_id=eid)
    admitted = await engine.check_admission(ONE, execution_id=eid, window_seconds=60, concurrency_cap=1)
    assert admitted == Admitted()
    waits = await create(engine, lane_id="waiting", policy={"quota_policy_id": ONE})
    assert await engine.claim("waiting", (), policy()) is None
    handle = await engine.claim("work", (), policy())
    assert handle is not None
    match end:
        case "complete":
            await engine.complete(handle, None)
        case "fail":
            await engine.fail(handle, "no", "permanent")
        case "cancel":
            await engine.cancel_execution(execution_id=eid, reason="no", source="operator_override")
        case "expire":
            clock.advance(2_000)
            await engine.run_due()
        case _:
            await engine.cancel_flow(flow, policy="cancel_all")
            await engine.run_due()
    await settled(engine)
    again = await engine.claim("waiting", (), policy())
    assert again is not None
    assert id_of(again) == waits
    assert await probe.select(QuotaAdmitted, execution_id=str(eid)) == []
    assert (await examined(engine))[1] == []


# -- a bug would be seen -----------------------------------------------------------------------------------------------


async def test_the_examination_sees_what_crosses_namespaces(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule of owners taken out, names mean anything they are stored under."""
    await budget(engine, ONE, USD)
    await overwrite(engine, Budget, ONE, namespace="b")
    monkeypatch.setattr(owners, "is_meant", lambda owner, name, namespace: True)
    handle = await run(engine, engine, "a", budget_ids=[ONE])
    assert isinstance(await engine.reserve_budget(handle, ONE, {"usd": 1}), Reserved)
    _, found = await examined(engine)
    assert [each.invariant for each in found] == ["I36"]


async def test_the_examination_sees_a_foreign_slot(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "is_meant", lambda owner, name, namespace: True)
    await quota(engine, ONE, cap=1)
    await overwrite(engine, QuotaPolicy, ONE, namespace="b")
    await run(engine, engine, "a", quota_policy_id=ONE)
    _, found = await examined(engine)
    assert [each.invariant for each in found] == ["I36"]


async def test_the_examination_sees_a_foreign_parent(engine: Engine) -> None:
    await budget(engine, TWO, USD)
    await budget(engine, ONE, USD, parent_budget_id=TWO)
    await overwrite(engine, Budget, TWO, namespace="b")
    _, found = await examined(engine)
    assert [(each.invariant, each.subject) for each in found] == [("I36", ONE)]


@pytest.mark.parametrize("kind", ["budget", "quota"])
async def test_the_examination_sees_who_waits_at_a_foreign_gate(engine: Engine, kind: str) -> None:
    """What keeps an execution waiting was the operator's, and is another namespace's of a sudden."""
    await (budget(engine, ONE, USD) if kind == "budget" else quota(engine, ONE, cap=1))
    terms = {"budget_ids": [ONE]} if kind == "budget" else {"quota_policy_id": ONE}
    if kind == "budget":
        await report(engine, ONE, usd=10)
    else:
        await run(engine, engine, "b", **terms)
    waits = await create(engine, namespace="a", lane_id="work", policy=terms)
    assert await engine.claim("work", (), policy()) is None
    assert (await examined(engine))[1] == []
    await overwrite(engine, Budget if kind == "budget" else QuotaPolicy, ONE, namespace="b")
    _, found = await examined(engine)
    assert [(each.invariant, each.subject) for each in found] == [("I36", str(waits))]


async def test_the_examination_sees_what_a_schedule_started_elsewhere(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: every slot starts in one and the same namespace."""
    for namespace in ("a", "b"):
        await engine.put_schedule("s", spec=Every(60_000), namespace=namespace, execution_kind="op", overlap="queue")
    clock.advance(60_000)
    await engine.run_due()
    assert (await examined(engine, 1))[1] == []
    started = schedules._creation

    def astray(schedule: Schedule, *rest: Any) -> Any:
        return replace(started(schedule, *rest), namespace="a")

    monkeypatch.setattr(schedules, "_creation", astray)
    clock.advance(60_000)
    await engine.run_due()
    _, found = await examined(engine, 1)
    assert [(each.invariant, each.subject) for each in found] == [("I36", "schedule s of b")]
