"""Everything that can be done in the console, done in it, and looked up in the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import expect

from flowfabric import Cron, FlowGraph, Fresh, SuspendArgs
from flowfabric.conditions import ByName, Single
from flowfabric.engine import Engine
from flowfabric.model.operations.executions import ClaimPolicy
from flowfabric.model.operations.workflows import NewStep, StepOutcome
from flowfabric.model.states import LaneState
from tests.console.conftest import Pages, Shop
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
WORKER = ClaimPolicy("w", "w-1", 600_000)


@pytest_asyncio.fixture(loop_scope="session")
async def engine(shop: Shop) -> AsyncIterator[Engine]:
    """Another process's look at the same store."""
    async with await Engine.open(shop.server.store, single_node=True) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def watched(shop: Shop, pages: Pages) -> Watched:
    return await pages.of(shop.url)


async def made(engine: Engine, lane: str, **more: object) -> str:
    created = await engine.create_execution(namespace="tests", lane_id=lane, execution_kind=f"{lane}_kind", **more)  # type: ignore[arg-type]
    return str(created.execution_id)


async def test_cancel_and_replay(watched: Watched, engine: Engine) -> None:
    identity = await made(engine, "one")
    await watched.open(identity)
    await watched.button("Cancel…").click()
    await expect(watched.at("dialog")).to_contain_text("It ends now. It has not started")
    await watched.at("#field-reason").fill("no longer wanted")
    await watched.confirm("Cancel")
    await expect(watched.at(".badge").first).to_have_text("cancelled")
    assert await engine.read_execution_state(identity) == "cancelled"
    assert (await engine.read_history(identity)).cancellation_reason == "no longer wanted"
    await expect(watched.button("Replay…")).to_be_disabled()
    failed = await made(engine, "two")
    handle = await engine.claim("two", policy=WORKER)
    assert handle is not None
    await engine.fail(handle, "broken", "permanent")
    await watched.open(failed)
    await expect(watched.at("[data-failure]")).to_have_text("broken")
    await watched.button("Replay…").click()
    await expect(watched.at("[data-foreseen]")).to_contain_text("It runs again from the start")
    await watched.confirm("Replay")
    await expect(watched.at(".badge").first).to_have_text("waiting")
    assert await engine.read_execution_state(failed) == "waiting"
    running = await engine.claim("two", policy=WORKER)
    assert running is not None
    await expect(watched.at(".badge").first).to_have_text("active")
    await watched.button("Cancel…").click()
    await watched.confirm("Cancel")
    await expect(watched.at(".badge").first).to_have_text("cancelled")
    assert [each.ended for each in (await engine.read_history(failed)).leases] == ["failed", "cancelled"]


async def test_a_workflow_cleans_up_unless_it_is_terminated(watched: Watched, engine: Engine) -> None:
    identity = await made(engine, "polite", policy={"cancel_grace_ms": 600_000})
    assert await engine.claim("polite", policy=WORKER) is not None
    await watched.open(identity)
    await watched.button("Cancel…").click()
    await expect(watched.at("[data-foreseen]")).to_have_text(
        "It gets 10 min to clean up. Then it is cancelled, whether or not it is done."
    )
    await watched.at("#field-reason").fill("too late")
    await watched.confirm("Cancel")
    await expect(watched.at(".toast").filter(has_text="it cleans up first")).to_be_visible()
    assert await engine.read_execution_state(identity) == "active"
    await watched.choose("More", "Terminate")
    await expect(watched.at("dialog")).to_contain_text("without cleaning up")
    await watched.confirm("Terminate")
    await expect(watched.at(".badge").first).to_have_text("cancelled")
    assert (await engine.read_history(identity)).cancellation_reason == "too late"


async def test_priority_revoke_and_fork(watched: Watched, engine: Engine) -> None:
    identity = await made(engine, "three")
    await watched.open(identity)
    await watched.choose("More", "Change priority")
    await watched.at("#field-priority").fill("7")
    await watched.confirm("Change")
    await expect(watched.at(".facts")).to_contain_text("7")
    info = await engine.read_execution_info(identity)
    assert info is not None
    assert info.priority == 7
    handle = await engine.claim("three", policy=WORKER)
    assert handle is not None
    await engine.advance(handle, steps=[NewStep("first", b"1"), NewStep("second", b"2"), NewStep("third", b"3")])
    await expect(watched.at(".badge").first).to_have_text("active")
    await watched.choose("More", "Revoke lease")
    await expect(watched.at("[data-foreseen]")).to_contain_text("w-1 loses the lease")
    await watched.confirm("Revoke")
    await expect(watched.at(".badge").first).to_have_text("waiting")
    assert [each.ended for each in (await engine.read_history(identity)).leases] == ["revoked"]
    await watched.page.get_by_role("tab", name="Steps").click()
    await watched.at(".step").get_by_text("third").click()
    await watched.at(".step[open]").get_by_role("button", name="Fork from here").click()
    await expect(watched.at("dialog")).to_contain_text("It keeps 2 steps.")
    await watched.confirm("Fork")
    await expect(watched.at("[data-id]")).not_to_have_text(identity)
    forked = await watched.at("[data-id]").inner_text()
    assert [each.name for each in await engine.read_steps(forked)] == ["first", "second"]
    await expect(watched.page.get_by_text("Forked from")).to_be_visible()
    await watched.open(identity)
    for step, kept in (("2. second", ["first"]), ("After the last step", ["first", "second", "third"])):
        before = await watched.at("[data-id]").inner_text()
        await watched.choose("More", "Fork from a step")
        await watched.at("#field-step").select_option(label=step)
        await watched.confirm("Fork")
        await expect(watched.at("[data-id]")).not_to_have_text(before)
        forked = await watched.at("[data-id]").inner_text()
        assert [each.name for each in await engine.read_steps(forked)] == kept
        assert (await engine.read_history(forked)).forked_from == identity
        await watched.open(identity)


async def test_a_workflow_that_failed_keeps_its_steps(watched: Watched, engine: Engine) -> None:
    identity = await made(engine, "stumbled")
    handle = await engine.claim("stumbled", policy=WORKER)
    assert handle is not None
    broken = NewStep("ship!0", b"no", StepOutcome.ERROR)
    await engine.advance(handle, steps=[NewStep("charge", b"1"), broken, NewStep("!failed 0", b"")])
    await engine.fail(handle, "no courier", "permanent")
    await watched.open(identity)
    await watched.button("Replay…").click()
    await expect(watched.at("[data-foreseen]")).to_contain_text("1 recorded step is kept and not run again")
    assert not await watched.findings()
    await watched.at("dialog").get_by_role("button", name="Cancel").click()
    await watched.choose("More", "Fork from a step")
    await expect(watched.at("#field-step")).to_have_value("ship!0")
    await expect(watched.at("#field-step option").nth(1)).to_have_text("2. ship (failed)")
    await expect(watched.at("[data-foreseen]")).to_contain_text("It keeps 1 step.")
    await watched.confirm("Fork")
    await expect(watched.at("[data-id]")).not_to_have_text(identity)
    forked = await watched.at("[data-id]").inner_text()
    assert [each.name for each in await engine.read_steps(forked)] == ["charge"]


async def test_start_and_start_again(watched: Watched, engine: Engine) -> None:
    await watched.go("executions")
    await watched.button("Start…").click()
    for field, text in (("kind", "pack"), ("lane", "started"), ("namespace", "tests"), ("input", '{"order": ')):
        await watched.at(f"#field-{field}").fill(text)
    await watched.at("dialog").get_by_role("button", name="Start").click()
    await expect(watched.at("dialog [role=alert]")).to_contain_text("The input is not JSON")
    await watched.at("#field-input").fill('{"order": 12345678901234567890}')
    assert not await watched.findings()
    await watched.confirm("Start")
    await expect(watched.at("[data-why]")).to_be_visible()
    first = await watched.at("[data-id]").inner_text()
    context = await engine.read_execution_context(first)
    assert (context.execution_kind, context.input_payload) == ("pack", b'{"order": 12345678901234567890}')
    handle = await engine.claim("started", policy=WORKER)
    assert handle is not None
    await engine.advance(handle, steps=[NewStep("one", b"1")])
    await watched.open(first)
    await watched.choose("More", "Start again with edited input")
    await expect(watched.at("#field-input")).to_have_value('{"order": 12345678901234567890}')
    await watched.at("#field-input").fill('{"order": 8}')
    await watched.confirm("Start")
    await expect(watched.at("[data-id]")).not_to_have_text(first)
    again = await watched.at("[data-id]").inner_text()
    context = await engine.read_execution_context(again)
    assert (context.execution_kind, context.input_payload) == ("pack", b'{"order": 8}')
    assert await engine.read_steps(again) == []


async def test_send_a_signal(watched: Watched, engine: Engine) -> None:
    identity = await made(engine, "signalled")
    handle = await engine.claim("signalled", policy=WORKER)
    assert handle is not None
    await engine.suspend(
        handle,
        SuspendArgs(waitpoints=[Fresh(waitpoint_key="door")], resume_condition=Single("door", ByName("arrived"))),
    )
    await watched.open(identity)
    await watched.choose("More", "Send a signal")
    await expect(watched.at("dialog")).to_contain_text("Waiting for signal 'arrived'")
    await expect(watched.at("#field-signal")).to_have_value("arrived")
    await watched.at("#field-payload").fill('{"by": "van"}')
    await watched.confirm("Send")
    await expect(watched.at(".badge").first).to_have_text("resumable")
    [signal] = (await engine.read_history(identity)).signals
    assert (signal.signal_name, signal.payload, signal.source_type) == ("arrived", b'{"by": "van"}', "operator")


async def test_many_at_once(watched: Watched, engine: Engine) -> None:
    ids = [await made(engine, "bulk") for _ in range(12)]
    await watched.go("executions?q=lane%3Abulk")
    await expect(watched.at(".list-row")).to_have_count(12)
    for row in (0, 1):
        await watched.at(".list-row input").nth(row).check()
    await watched.at(".bulk").get_by_role("button", name="Cancel…").click()
    await watched.confirm("Cancel")
    await expect(watched.at(".list-row .badge").filter(has_text="cancelled")).to_have_count(2)
    await watched.button("waiting", exact=True).click()
    await expect(watched.at(".list-row")).to_have_count(10)
    await watched.choose("Bulk actions", "Cancel all matches")
    await expect(watched.at("[data-preview]")).to_have_text("10")
    late = await made(engine, "bulk")
    await watched.at("#bulk-reason").fill("cleaning up")
    await watched.confirm("Cancel 10")
    await expect(watched.at(".toast").filter(has_text="10 executions cancelled")).to_be_visible()
    states = [await engine.read_execution_state(each) for each in ids]
    assert set(states) == {"cancelled"}
    assert await engine.read_execution_state(late) == "waiting", "what came after the preview is not meant"


async def test_many_run_again(watched: Watched, engine: Engine) -> None:
    ids = [await made(engine, "again") for _ in range(5)]
    for handle in await engine.claim_many("again", policy=WORKER, limit=5):
        await engine.fail(handle, "broken", "permanent")
    await watched.go("executions?q=lane%3Aagain")
    await expect(watched.at(".list-row .badge").filter(has_text="failed")).to_have_count(5)
    await watched.at(".list-row input").nth(2).check()
    await watched.at(".bulk").get_by_role("button", name="Replay…").click()
    await expect(watched.at("dialog")).to_contain_text("runs again from the start")
    await watched.confirm("Replay")
    await expect(watched.at(".list-row .badge").filter(has_text="waiting")).to_have_count(1)
    assert sorted([await engine.read_execution_state(each) for each in ids]) == ["failed"] * 4 + ["waiting"]
    await watched.choose("Bulk actions", "Replay all matches")
    await expect(watched.at("[data-preview]")).to_have_text("4")
    await watched.confirm("Replay 4")
    await expect(watched.at(".toast").filter(has_text="4 executions replayed")).to_be_visible()
    await expect(watched.at(".list-row .badge").filter(has_text="waiting")).to_have_count(5)
    assert {await engine.read_execution_state(each) for each in ids} == {"waiting"}


async def test_lanes(watched: Watched, engine: Engine) -> None:
    await made(engine, "quay")
    await watched.go("workers")
    row = watched.at("[data-lane=quay]")
    for item, label, state in (("Pause", "Pause", "paused"), ("Drain", "Drain", "draining"),
                               ("Close", "Close", "disabled"), ("Resume", "Resume", "active")):  # fmt: skip
        await row.get_by_role("button", name="Change").click()
        await watched.page.get_by_role("menuitem", name=item).click()
        await watched.at("#field-reason").fill(f"{item} for a test")
        await watched.confirm(label)
        await expect(row.locator(".badge").first).to_have_text(state)
        lane = await engine.describe_lane("quay")
        assert lane is not None
        assert (lane.state, lane.state_reason) == (LaneState(state), f"{item} for a test")


async def test_schedules(watched: Watched, engine: Engine) -> None:
    await engine.put_schedule("sweep", spec=Cron("0 4 * * *", "UTC"), execution_kind="sweep", namespace="shop")
    await watched.go("schedules")
    row = watched.at("[data-schedule=sweep]")
    await expect(row).to_contain_text("0 4 * * *")
    await row.get_by_role("button", name="Pause").click()
    await expect(row).to_contain_text("paused")
    schedule = await engine.get_schedule("sweep", "shop")
    assert schedule is not None
    assert schedule.paused
    await row.get_by_role("button", name="Resume").click()
    await expect(row.get_by_role("button", name="Pause")).to_be_visible()
    await row.get_by_role("button", name="Start").click()
    await watched.confirm("Start")
    await expect(row.get_by_role("link")).to_have_count(2)
    schedule = await engine.get_schedule("sweep", "shop")
    assert schedule is not None
    assert (schedule.paused, schedule.started_count) == (False, 1)


async def test_budgets(watched: Watched, engine: Engine) -> None:
    budget = "22222222-2222-4222-8222-222222222222"
    await engine.create_budget(
        budget_id=budget, scope_type="named", scope_id="lunch", dimensions=["eur", "plates"],
        hard_limits=[10_000_000, 5], soft_limits=[0, 0],
    )  # fmt: skip
    await engine.report_usage_admin(budget_id=budget, dimensions=["eur", "plates"], deltas=[2_500_000, 2])
    await watched.go(f"budgets/{budget}")
    card = watched.at(f'[data-budget="{budget}"]')
    await expect(card).to_contain_text("€2.50 of €10.00")
    await card.get_by_role("button", name="Limits").click()
    await watched.at("#limit-eur").fill("12.5")
    await watched.confirm("Change")
    await expect(card).to_contain_text("€2.50 of €12.50")
    await card.get_by_role("button", name="Reset").click()
    await watched.confirm("Reset")
    await expect(card).to_contain_text("0 of 5")
    status = await engine.get_budget_status(budget)
    assert (status.hard_limits, status.usage["plates"]) == ({"eur": 12_500_000, "plates": 5}, 0)


async def test_flows(watched: Watched, engine: Engine) -> None:
    nodes = {name: {"lane_id": "graph", "namespace": "shop", "execution_kind": name} for name in ("a", "b", "c")}
    flow = await engine.submit_flow(FlowGraph(nodes=nodes, edges=[("a", "b"), ("b", "c")], namespace="shop"))
    await watched.go(f"flows/{flow.flow_id}")
    await expect(watched.at(".graph[data-placed=true]")).to_be_visible()
    await expect(watched.at("canvas")).to_have_attribute("data-drawn", "3")
    await watched.button("Cancel…").click()
    await expect(watched.at("dialog")).to_contain_text("3 have not ended: 0 started, 3 waiting")
    await watched.at("#field-reason").fill("wrong input")
    await watched.confirm("Cancel")
    await expect(watched.page.get_by_text("Cancelled: wrong input")).to_be_visible()
    await expect(watched.page.get_by_text("3 cancelled")).to_be_visible()
    found = await engine.describe_flow(flow.flow_id)
    assert found is not None
    assert found.cancel_reason == "wrong input"


@pytest.mark.parametrize(
    ("choice", "states"),
    [
        ("Only executions that have not started", ["active", "cancelled"]),
        ("Nothing: only the flow itself", ["active", "waiting"]),
    ],
)
async def test_part_of_a_flow(watched: Watched, engine: Engine, choice: str, states: list[str]) -> None:
    lane = f"part {states[-1]}"
    nodes = {name: {"lane_id": lane, "namespace": "shop", "execution_kind": name} for name in ("a", "b")}
    flow = await engine.submit_flow(FlowGraph(nodes=nodes, edges=[], namespace="shop"))
    handle = await engine.claim(lane, policy=WORKER)
    assert handle is not None
    await watched.go(f"flows/{flow.flow_id}")
    await watched.button("Cancel…").click()
    await expect(watched.at("dialog")).to_contain_text("2 have not ended: 1 started, 1 waiting")
    await watched.at("#field-policy").select_option(label=choice)
    await watched.confirm("Cancel")
    await expect(watched.button("Cancel…")).to_have_count(0)
    found = [str(await engine.read_execution_state(each)) for each in flow.execution_ids.values()]
    assert sorted(found) == states


async def test_an_execution_opens_from_the_graph(watched: Watched, engine: Engine) -> None:
    nodes = {"only": {"lane_id": "graph", "namespace": "shop", "execution_kind": "only_one"}}
    flow = await engine.submit_flow(FlowGraph(nodes=nodes, namespace="shop"))
    await watched.go(f"flows/{flow.flow_id}")
    await expect(watched.at("canvas")).to_have_attribute("data-drawn", "1")
    await watched.at("canvas").click()
    await expect(watched.page.get_by_role("heading", name="only_one")).to_be_visible()


async def test_the_audit_log_has_it_all(watched: Watched, engine: Engine) -> None:
    identity = await made(engine, "audited")
    await watched.open(identity)
    await watched.button("Cancel…").click()
    await watched.confirm("Cancel")
    await watched.go("audit")
    row = watched.at("tr").filter(has=watched.at(f'a[title="{identity}"]'))
    await expect(row).to_contain_text("Cancellation requested")
    await row.get_by_role("link").click()
    await expect(watched.at("[data-id]")).to_have_text(identity)
    assert quote(identity, safe="") in watched.page.url


async def test_what_is_refused_is_told(watched: Watched, engine: Engine) -> None:
    identity = await made(engine, "refused")
    await watched.open(identity)
    await watched.button("Cancel…").click()
    cancel = watched.at("dialog").get_by_role("button", name="Cancel", exact=True)
    # The dialog has looked: what it then finds impossible cannot be confirmed at all.
    await expect(cancel).to_be_enabled()
    await engine.cancel_execution(execution_id=identity)
    watched.provoked.add(409)
    watched.provoked.add(400)
    await cancel.click()
    await expect(watched.at("dialog [role=alert], .toast").first).to_be_visible()
