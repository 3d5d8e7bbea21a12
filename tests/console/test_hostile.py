"""Hostile texts in every field that is shown: they are shown, and nothing of them ever runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pytest
from playwright.async_api import expect

from flowfabric import ClaimPolicy, Cron, FlowGraph, Frame, Fresh, SuspendArgs
from flowfabric.conditions import Count, CountKind, Single
from flowfabric.engine import Engine
from flowfabric.model.frames import DurableSummary
from flowfabric.model.steps import NewStep
from flowfabric.model.suspension import SuspensionReason
from flowfabric.sdk.asks import Question
from tests.console.conftest import Pages, apart
from tests.console.hostile import payloads
from tests.console.running import ServerProcess, serving
from tests.console.watching import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
ALL = payloads()
#: Elements and attributes that the console itself never makes.
FOREIGN = """
() => [...document.querySelectorAll(
  "iframe, object, embed, base, marquee, video, math, meta[http-equiv], a[href^='javascript' i]," +
  "link[href^='javascript'], [onerror], [onload], [onfocus], [ontoggle], [onbegin], [onstart], [srcdoc]"
)].map((each) => each.outerHTML.slice(0, 200))
"""


class Planted(NamedTuple):
    """A server whose store holds nothing nice."""

    server: ServerProcess
    monster: str
    flow: str
    ask: str
    link: str


async def test_there_are_enough() -> None:
    assert len(ALL) == len(set(ALL)) == 200


async def _monster(engine: Engine, whole: str) -> str:
    """One execution with all of it in every field that is its own."""
    policy = ClaimPolicy("<svg onload=alert(1)>", "<img src=x onerror=alert(1)>", 3_600_000)
    created = await engine.create_execution(
        namespace=ALL[1], lane_id="monster", execution_kind=ALL[0], creator_identity=ALL[2],
        input_payload=msgspec.json.encode({each: each for each in ALL}), payload_encoding="json",
        tags={f"x.t{number}": each for number, each in enumerate(ALL)},
        policy={"routing_requirements": {"required_capabilities": ["<b>capability</b>"]}},
    )  # fmt: skip
    handle = await engine.claim("monster", ["<b>capability</b>"], policy)
    assert handle is not None
    await engine.advance(handle, steps=[NewStep(each, msgspec.json.encode(each)) for each in ALL])
    for each in ALL:
        await engine.append_frame(handle, Frame(each.encode() + b"\n"))
    await engine.append_frame(handle, Frame(msgspec.json.encode({each: each for each in ALL}), mode=DurableSummary()))
    await engine.suspend(handle, SuspendArgs(
        waitpoints=[Fresh(str(uuid.uuid4()), "<img src=x onerror=alert(1)>")],
        resume_condition=Single("<img src=x onerror=alert(1)>"), reason_code="<script>alert(1)</script>",
    ))  # fmt: skip
    [point] = (await engine.list_pending_waitpoints(execution_id=created.execution_id)).entries
    token = await engine.read_waitpoint_token(created.execution_id.partition, point.waitpoint_id)
    await engine.deliver_signal(
        execution_id=created.execution_id, waitpoint_id=point.waitpoint_id, waitpoint_token=str.__str__(token),
        signal_name=ALL[4], source_type=ALL[5], source_identity=ALL[6], payload=whole.encode()[:60_000],
    )  # fmt: skip
    again = await engine.claim_many("monster", ["<b>capability</b>"], policy, 1)
    for handle in again:
        await engine.fail(handle, whole[:60_000], "permanent")
    return str(created.execution_id)


async def _lists(engine: Engine, whole: str) -> str:
    """Two hundred of everything that is shown in lists."""
    for number, each in enumerate(ALL):
        name = each if len(each) <= 64 and each.isascii() and each.isprintable() else f"lane {number}"
        await engine.create_execution(namespace=each, lane_id=name, execution_kind=each)
        await engine.put_schedule(
            each, spec=Cron("0 0 1 1 *", "UTC"), execution_kind=each, namespace="default", source=each
        )
        await engine.register_worker(
            worker_id=each, worker_instance_id=f"{each} {number}", lanes=[name], liveness_ttl_ms=86_400_000,
        )  # fmt: skip
        budget = str(uuid.uuid4())
        terms: dict[str, Any] = {"scope_type": each, "scope_id": each, "hard_limits": [10], "soft_limits": [0]}
        await engine.create_budget(budget_id=budget, dimensions=[each.replace(",", "")], **terms)
        await engine.record_act(who=each, act=each, subject={each: each}, status=200)
    await engine.set_lane_state("monster", "paused", whole[:60_000])
    nodes = {f"{number}": {"lane_id": "flow", "execution_kind": each} for number, each in enumerate(ALL)}
    edges = [("0", str(number)) for number in range(1, len(ALL))]
    flow = await engine.submit_flow(FlowGraph(nodes=nodes, edges=edges, flow_kind=ALL[3], namespace="default"))
    return str(flow.flow_id)


async def _ask(engine: Engine) -> tuple[str, str]:
    """A question whose every part is hostile."""
    from flowfabric.sdk.asks import make_link, waitpoint_of

    schema = {
        "type": "object", "title": ALL[7], "required": ["ok"],
        "properties": {
            "ok": {"type": "boolean", "title": ALL[8], "description": ALL[9]},
            **{each: {"type": "string", "title": each, "description": each, "default": each} for each in ALL[:60]},
            "choice": {"enum": ALL, "title": ALL[10]},
        },
    }  # fmt: skip
    payload = msgspec.json.encode(
        Question(ALL[11], {each: each for each in ALL}, (ALL[12], ALL[13]), 2, None, schema, "ok")
    )
    created = await engine.create_execution(
        namespace=ALL[14], lane_id="ask", execution_kind="$ask", input_payload=payload, tags={"ff.run": ALL[15]}
    )
    handle = await engine.claim("ask", policy=ClaimPolicy("w", "w-1"))
    assert handle is not None
    identity = str(created.execution_id)
    points = {name: waitpoint_of(identity, payload, name) for name in (ALL[12], ALL[13])}
    await engine.suspend(handle, SuspendArgs(
        waitpoints=[Fresh(point, name) for name, point in points.items()],
        resume_condition=Count(2, CountKind.DISTINCT_WAITPOINTS, tuple(points)),
        reason_code=SuspensionReason.WAITING_FOR_APPROVAL,
    ))  # fmt: skip
    token = await engine.read_waitpoint_token(created.execution_id.partition, points[ALL[13]])
    return identity, make_link(identity, points[ALL[13]], str.__str__(token))


async def _plant(store: str) -> dict[str, Any]:
    whole = "\n".join(ALL)
    async with await Engine.open(store, single_node=True) as engine:
        await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex="ab" * 32)
        monster = await _monster(engine, whole)
        flow = await _lists(engine, whole)
        ask, link = await _ask(engine)
    return {"monster": monster, "flow": flow, "ask": ask, "link": link}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    store = f"sqlite:///{tmp_path_factory.mktemp('hostile') / 'store.db'}"
    found = apart(_plant(store))
    with serving(store) as server:
        yield Planted(server, **found)


async def harmless(watched: Watched) -> None:
    """Nothing of it has become part of the page."""
    assert await watched.page.evaluate(FOREIGN) == []
    await watched.check()


async def test_one_execution(planted: Planted, pages: Pages) -> None:
    watched = await pages.of(planted.server.url)
    await watched.open(planted.monster)
    await expect(watched.page.get_by_role("heading", name=ALL[0], exact=True)).to_be_visible()
    for tab in ("Input and result", "Stream", "Steps", "Waits and signals", "Usage", "Events", "Details"):
        await watched.page.get_by_role("tab", name=tab).click()
        await expect(watched.at("[role=tabpanel]")).to_be_visible()
        if tab == "Stream":
            await expect(watched.at(".stream")).to_contain_text(ALL[-2])
        await watched.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        shown = await watched.at("[role=tabpanel]").inner_text()
        if tab in ("Steps", "Stream"):
            assert all(each.strip() in shown for each in ALL if "\t" not in each), tab
        await harmless(watched)


async def test_lists(planted: Planted, pages: Pages) -> None:
    watched = await pages.of(planted.server.url)
    await watched.go("executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    seen: set[str] = set()
    for _ in range(40):
        seen.update(await watched.at(".list-row .name").all_inner_texts())
        await watched.page.evaluate("document.querySelector('.list').scrollTop += 500")
        await watched.page.wait_for_function("() => new Promise((done) => requestAnimationFrame(() => done(true)))")
    assert {" ".join(each.split()) for each in ALL} <= {" ".join(each.split()) for each in seen}
    await harmless(watched)
    for place in ("overview", "flows", f"flows/{planted.flow}", "budgets", "schedules", "workers", "audit", "settings"):
        await watched.go(place)
        await expect(watched.page.get_by_role("heading", level=1).first).to_be_visible()
        await expect(watched.at(".loading")).to_have_count(0)
        await harmless(watched)


async def test_questions(planted: Planted, pages: Pages) -> None:
    watched = await pages.of(planted.server.url)
    await watched.go(f"approvals/{quote(planted.ask, safe='')}")
    await expect(watched.at("[data-question]")).to_contain_text(ALL[11])
    await harmless(watched)
    await watched.button("Yes", exact=True).click()
    outside = await pages.of(planted.server.url)
    await outside.page.goto(f"{planted.server.url}answer#{planted.link}")
    await expect(outside.page.get_by_role("heading", level=1)).to_have_text(ALL[11])
    await harmless(outside)


async def test_in_addresses(planted: Planted, pages: Pages) -> None:
    watched = await pages.of(planted.server.url)
    watched.provoked |= {400, 404}
    await watched.go("overview")
    for each in ALL[::20]:
        name = quote(each, safe="")
        for place in (f"executions?q={name}", f"executions/{name}", f"flows/{name}", name):
            await watched.page.evaluate("(place) => { location.hash = `#/${place}`; }", place)
            await expect(watched.at(".shell h1, .shell [role=alert]").first).to_be_visible()
        await harmless(watched)
