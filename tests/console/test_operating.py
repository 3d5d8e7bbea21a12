"""The pages around runs: what operators change there is what the store says afterwards, and nothing else."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Route, expect

from flowfabric import Cron, Every
from flowfabric.engine import Engine
from tests.console.conftest import Pages, Shop
from tests.console.support.running import ServerProcess, serving
from tests.console.support.watched_page import Watched
from tests.schedules import every

pytestmark = pytest.mark.asyncio(loop_scope="session")
HOUR = 3_600_000
MINUTE = 60_000


@pytest_asyncio.fixture(loop_scope="session")
async def engine(shop: Shop) -> AsyncIterator[Engine]:
    async with await Engine.open(shop.server.store, single_node=True) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def watched(shop: Shop, pages: Pages) -> Watched:
    return await pages.of(shop.url)


async def test_a_schedule_is_created_and_edited(watched: Watched, engine: Engine) -> None:
    await watched.go("schedules")
    await watched.button("New schedule…").click()
    await watched.at("#schedule-name").fill("tidy / up")
    await watched.at("#schedule-namespace").fill("ops")
    await watched.at("#schedule-kind").fill("tidy")
    await watched.at("#schedule-cron").fill("99 * * * *")
    await watched.at("#schedule-zone").fill("Europe/Paris")
    await watched.at("#schedule-input").fill('{"deep": true}')
    watched.provoked.add(400)
    await watched.at("dialog").get_by_role("button", name="Save").click()
    await expect(watched.at("dialog .problem")).to_contain_text("99")
    await watched.at("#schedule-cron").fill("30 6 * * *")
    await watched.confirm("Save")
    await expect(watched.page.get_by_role("heading", level=1)).to_contain_text("tidy / up")
    found = await engine.get_schedule("tidy / up", "ops")
    assert found is not None
    assert (found.spec, found.execution_kind) == (Cron("30 6 * * *", "Europe/Paris"), "tidy")
    assert json.loads(found.input_payload or b"") == {"deep": True}
    await watched.choose("More", "Edit…")
    await watched.at("#schedule-mode").select_option("every")
    await watched.at("#schedule-every").fill("90")
    await watched.at("#schedule-unit").select_option("minutes")
    await watched.confirm("Save")
    await expect(watched.at(".facts").first).to_contain_text("every 1 h 30 min")
    after = await engine.get_schedule("tidy / up", "ops")
    assert after is not None
    assert (after.spec, after.input_payload) == (Every(90 * MINUTE, 0), found.input_payload)
    await watched.choose("More", "Delete…")
    await watched.confirm("Delete")
    await expect(watched.at("[data-schedule]").first).to_be_visible()
    assert await engine.get_schedule("tidy / up", "ops") is None


async def test_a_backfill_says_what_it_starts_and_starts_that(watched: Watched, engine: Engine) -> None:
    now = int(time.time() * 1_000)
    # The form takes whole minutes; no slot is due while this runs.
    first = now - now % MINUTE - 5 * HOUR
    spec = Every(HOUR, first)
    await engine.put_schedule("hourly", spec=spec, execution_kind="filled", namespace="ops", lane_id="filled")
    await engine.backfill_schedule("hourly", first, first + 1, "ops")
    await watched.go("schedules/hourly?namespace=ops")
    await expect(watched.at("[data-slot]")).to_have_count(1)
    await watched.choose("More", "Backfill…")
    local = "(ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 16)"
    await watched.at("#backfill-from").fill(await watched.page.evaluate(local, first))
    await watched.at("#backfill-to").fill(await watched.page.evaluate(local, first + 3 * HOUR))
    await expect(watched.at("[data-preview]")).to_contain_text("3 scheduled times")
    await expect(watched.at("[data-preview]")).to_contain_text("1 run already started. Starts 2 runs.")
    await watched.confirm("Start 2 runs")
    await expect(watched.at("[data-slot]")).to_have_count(3)
    found = await engine.search_executions(namespaces=["ops"], execution_kind="filled")
    assert len(found.executions) == 3
    await watched.choose("More", "Backfill…")
    await watched.at("#backfill-from").fill(await watched.page.evaluate(local, first))
    await watched.at("#backfill-to").fill(await watched.page.evaluate(local, first + 3 * HOUR))
    await expect(watched.at("[data-preview]")).to_contain_text("Nothing to start.")
    await expect(watched.at("dialog button[type=submit]")).to_be_disabled()


async def test_kinds_are_what_the_store_says(watched: Watched, engine: Engine) -> None:
    figures = await engine.read_kinds(window_ms=24 * HOUR)
    wanted = next(each for each in figures.kinds if each.execution_kind == "charge_card")
    await watched.go("kinds?window=86400000")
    row = watched.at("[data-kind=charge_card]")
    await expect(row.locator("td[data-label=Created]")).to_have_text(f"{wanted.created:,}")
    await expect(row.locator("td[data-label=Failed]")).to_have_text(f"{wanted.failed:,}")
    await watched.button("15 min").click()
    await expect(watched.page).to_have_url(f"{watched.base}#/kinds?window=900000")
    await watched.go("kinds?window=86400000")
    await row.get_by_role("link").first.click()
    await expect(watched.at(".list-row").first).to_contain_text("charge_card")


async def test_workers_with_their_load_and_those_who_have_gone(watched: Watched, engine: Engine) -> None:
    for name in ("busy", "left", "lost"):
        await engine.register_worker(
            worker_id=name, worker_instance_id=f"{name}-1", lanes=["ops"], slots=4, namespace="ops",
            liveness_ttl_ms=1 if name == "lost" else 600_000,
        )  # fmt: skip
    await engine.mark_worker_dead(worker_instance_id="left-1", namespace="ops", reason="deploy")
    # Its time is over a millisecond later, and the server's own timer takes half a minute to notice.
    while "lost-1" not in {each.worker_instance_id for each in (await engine.read_worker_load()).gone}:
        await engine.run_timer("worker_registry_ttl_sweep")
    await watched.go("workers")
    await expect(watched.at("[data-worker=busy-1]")).to_contain_text("0 / 4")
    await expect(watched.at("[data-worker=busy-1] a")).to_have_attribute(
        "href", f"#/executions?q={quote('worker:busy-1', safe='')}"
    )
    await expect(watched.at("[data-gone=left-1]")).to_contain_text("deploy")
    await expect(watched.at("[data-gone=lost-1]")).to_contain_text("no heartbeat")
    await expect(watched.page.get_by_text("shown for 1 d")).to_be_visible()


async def test_the_audit_says_what_has_changed(watched: Watched, engine: Engine) -> None:
    made = {"credential_id": "ab12", "name": "ci", "scopes": "read", "expires_at": "2208988800000"}
    await engine.record_act(who="root", act="create_credential", subject=made, status=201)
    linked = {"execution_id": "{fp:0}:01a1f689-9315-7000-8000-000ce071a5ae", "by": "bob"}
    await engine.record_act(who="root", act="make_link", subject=linked, status=200)
    keys = {"new_kid": "k8", "previous_kid": "k7"}
    await engine.record_act(who="root", act="rotate_waitpoint_secret", subject=keys, status=200)
    await watched.go("overview")
    await watched.page.evaluate(
        """async () => {
            const { put } = await import("/console/api.js");
            await put("v1/lanes/audited/state", { state: "paused", reason: "night" });
            await put("v1/lanes/audited/state", { state: "active", reason: "" });
            await put("v1/schedules/audited?namespace=ops", { execution_kind: "x", every_ms: 5_400_000 });
        }"""
    )
    await watched.go("audit")
    rows = watched.at("tbody tr")
    paused = rows.filter(has_text="audited").filter(has_text="night")
    await expect(paused).to_contain_text("Lane state changed")
    await expect(paused).to_contain_text("active → paused")
    own = rows.filter(has_text="audited")
    await expect(own.filter(has_text="paused → active")).to_have_count(1)
    await expect(own.filter(has_text="Schedule saved").filter(has_text="every 1 h 30 min")).to_have_count(1)
    created = rows.filter(has_text="Credential created").filter(has_text="ci")
    await expect(created).to_contain_text("2040")
    await expect(rows.filter(has_text="Approval link created")).to_contain_text("for bob")
    await expect(rows.filter(has_text="Signing key rotated").filter(has_text="k7 → k8")).to_have_count(1)
    zone = await watched.page.evaluate(
        "new Intl.DateTimeFormat(undefined, { timeZoneName: 'short' }).formatToParts(0)"
        ".find((part) => part.type === 'timeZoneName').value"
    )
    await expect(rows.first.locator("td").first).to_contain_text(zone)


async def test_what_workers_decline_says_so(watched: Watched, engine: Engine) -> None:
    """It is delayed until it is offered again, and that is not why it waits."""
    made = await engine.create_execution(namespace="ops", lane_id="declined", execution_kind="unknown")
    told = (
        "2 workers declined it, because their code does not include it; it is offered again in 8 s. Declined by a, b."
    )

    async def declined(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(response=answer, json={**await answer.json(), "gate": "delayed", "sentence": told})

    await watched.page.route("**/explain", declined)
    await watched.open(str(made.execution_id))
    await expect(watched.at("[data-why] strong")).to_have_text(told.removesuffix("."))


async def test_a_search_says_what_it_looked_at(watched: Watched, engine: Engine) -> None:
    """Of a log that is longer than what is loaded, nobody can say that there are no matches."""
    await engine.record_act(who="root", act="pause_schedule", subject={"schedule_id": "s"}, status=200)

    async def long(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(response=answer, json={**await answer.json(), "next_cursor": "1"})

    await watched.page.route("**/v1/admin/audit*", long)
    await watched.go("audit?q=nobody+did+this")
    empty = watched.at(".empty")
    await expect(empty).to_have_text(re.compile(r"No matches among the newest \d+ entr(y|ies)\. Clear filters"))
    await expect(watched.button("Older")).to_be_visible()
    await empty.get_by_role("link").click()
    await expect(watched.at("[data-total]")).to_have_text(re.compile(r"\d+ entr(y|ies) or more"))
    await watched.go("budgets?q=NOTHING+LIKE+IT")
    await expect(watched.at(".empty").first).to_have_text("No matches. Clear filters")


async def test_budgets_say_when_they_are_reset(watched: Watched, engine: Engine) -> None:
    budget = "33333333-3333-4333-8333-333333333333"
    await engine.create_budget(
        budget_id=budget, scope_type="named", scope_id="daily", enforcement_mode="strict", on_hard_limit="fail",
        on_soft_limit="warn", reset_interval_ms=24 * HOUR, dimensions=["usd"], hard_limits=[5], soft_limits=[0],
    )  # fmt: skip
    await watched.go("budgets")
    card = watched.at(f'[data-budget="{budget}"]')
    await expect(card.get_by_role("link", name="daily")).to_be_visible()
    await expect(card).to_contain_text("Hard limit. Resets in 23 h.")


async def test_pages_without_a_server(store: str, pages: Pages) -> None:
    """What is shown stays, what is not there yet says why, and everything comes back by itself."""
    with serving(store) as server:
        async with await Engine.open(store, single_node=True) as engine:
            await engine.put_schedule("kept", spec=every(HOUR), execution_kind="kept")
            everywhere = await engine.create_credential(name="all", scopes=["read"])
            # Whoever is limited to namespaces has no stream that could break.
            limited = await engine.create_credential(name="some", scopes=["read"], namespaces=["default"])
            watched = await pages.of(server.url, token=everywhere.token.reveal())
            late = await pages.of(server.url, token=limited.token.reveal())
            await watched.go("schedules")
            await expect(watched.at("[data-schedule=kept]")).to_be_visible()
            await late.go("settings")
            await expect(late.page.get_by_role("heading", level=1)).to_be_visible()
            for each in (watched, late):
                each.provoked.add(0)
            server.stop()
            await expect(watched.at(".banner")).to_contain_text("The connection to the server is lost")
            await expect(watched.at("[data-schedule=kept]")).to_be_visible()
            # A page whose code was never loaded.
            await late.page.bring_to_front()
            await expect(late.at(".banner")).to_be_visible()
            await late.page.evaluate("location.hash = '#/workers'")
            await expect(late.page.get_by_role("heading", level=1)).to_have_text("The server cannot be reached")
            again = ServerProcess(store, port=server.port)
            again.start()
            try:
                await expect(late.page.get_by_role("heading", level=1)).to_have_text("Workers and lanes")
                await expect(late.at(".banner")).to_have_count(0)
                await watched.page.bring_to_front()
                await engine.pause_schedule("kept")
                await expect(watched.at("[data-schedule=kept]")).to_contain_text("paused")
                await expect(watched.at(".banner")).to_have_count(0)
                for each in (watched, late):
                    await each.page.goto("about:blank")
            finally:
                again.stop()
                again.log.close()
