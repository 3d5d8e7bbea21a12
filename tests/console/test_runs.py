"""The page of one run and the pages of flows: why it waits or failed, what its steps were called, how far a flow is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.console.conftest import Pages, Shop

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: What happened to a run within one millisecond, as the tab tells it.
AT_ONCE = """
async () => {
  const { eventsOf } = await import("/console/history.js");
  const at = 1_800_000_000_000;
  const lease = (number, ended) => (
    { attempt_index: 0, worker_instance_id: `w${number}`, began_at: at, ended_at: at, ended, reason: null });
  const history = {
    created_at: at, creator_identity: "", ended_at: at, leases: [lease(1, "suspended"), lease(2, "completed")],
    attempts: [{ attempt_index: 0, ended_at: at, outcome: "success", retry_at: null }],
    suspension: { suspended_at: at, reason: "waiting_for_signal", timeout_at: null, closed_at: at,
      close_reason: "resumed" },
    waitpoints: [{ waitpoint_id: "w", waitpoint_key: "k", created_at: at }],
    signals: [{ signal_name: "go", waitpoint_key: "k", accepted_at: at, effect: "counted", source_identity: "ann" }],
  };
  return eventsOf({ info: { lane_id: "l", public_state: "completed" }, history, steps: [] }).map((each) => each.text);
}
"""
STATES = """
() => ["waiting", "delayed", "rate_limited", "waiting_children", "active", "suspended", "resumable", "completed",
  "failed", "cancelled", "expired", "skipped"].map((state) => {
  const badge = document.body.appendChild(document.createElement("span"));
  badge.className = "badge";
  badge.dataset.tone = state;
  const { color, backgroundColor } = getComputedStyle(badge);
  badge.remove();
  return `${color} on ${backgroundColor}`;
})
"""
#: A layout that takes longer than the time between two refreshes.
SLOW = """
const Real = globalThis.Worker;
globalThis.killed = 0;
globalThis.Worker = class extends Real {
  postMessage(message) { setTimeout(() => super.postMessage(message), 6000); }
  terminate() { globalThis.killed += 1; super.terminate(); }
};
"""


async def test_events_of_one_millisecond(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    await watched.open(shop.seeded.shipment)
    assert await watched.page.evaluate(AT_ONCE) == [
        "Created in lane l",
        "Attempt 1 started on worker w1",
        "The lease of w1 ended: suspended",
        "Suspended: waiting for signal",
        "Waitpoint k was created",
        "Signal go for k from ann: counted",
        "Resumed",
        "Attempt 1 continued on worker w2",
        "Attempt 1 ended: completed",
        "Completed",
    ]


async def test_a_run_that_failed(shop: Shop, pages: Pages, tmp_path: Path) -> None:
    watched = await pages.of(shop.url)
    await watched.open(shop.seeded.shipment)
    await expect(watched.at("[data-why] strong")).to_have_text("Failed (no retries left)")
    trace = watched.at("[data-errors] .trace").first
    await expect(trace.locator("pre")).to_be_hidden()
    await trace.locator("summary").click()
    own = await trace.locator("pre").inner_text()
    assert own.startswith("Traceback (most recent call last):\n")
    assert "seeding.py" in own
    assert "flowfabric/sdk/worker" not in own, "the worker's own frames are not the first"
    await expect(watched.button("Copy the traceback").first).to_be_visible()
    await expect(watched.at("[data-errors] summary")).to_have_text(["Traceback", "All frames"])
    await watched.page.get_by_role("tab", name="Steps").click()
    await expect(watched.at(".step summary .clip")).to_have_text(["check[A-1044]", "book_courier"])
    await expect(watched.at("[role=tabpanel]")).to_contain_text(re.compile("Times are in (UTC|GMT)"))
    for each in await watched.at(".step [data-took]").all():
        assert (await each.inner_text()).endswith(("ms", "s"))
    await expect(watched.at(".timeline .name a")).to_have_text(["check[A-1044]", "book_courier"])
    assert "!" not in (await watched.at(".timeline").inner_text())
    await watched.page.get_by_role("tab", name="Events").click()
    assert "!" not in (await watched.at(".events").inner_text())
    async with watched.page.expect_download() as downloading:
        await watched.button("Download as JSON").click()
    await (await downloading.value).save_as(tmp_path / "run.json")
    saved = json.loads((tmp_path / "run.json").read_text())
    assert saved["execution_id"] == shop.seeded.shipment
    assert [each["type"] for each in saved["errors"]] == ["RunFailed"]
    await watched.at("[data-culprit] a").click()
    await expect(watched.page.get_by_role("heading", level=1)).to_have_text("book_courier")
    await expect(watched.at("[data-error]")).to_have_count(2)
    await expect(watched.at("[data-error]").first).to_contain_text("Attempt 2")
    await expect(watched.at("[data-error]").first).to_contain_text("JSONDecodeError: Expecting value")
    assert not await watched.findings()


async def test_why_a_run_waits(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    await watched.open(shop.seeded.deploy)
    why = watched.at("[data-why]")
    await expect(why).to_contain_text("Waiting for 1 of bob, carol · deploy to everybody? · until")
    await expect(why.locator("[data-chain]")).to_contain_text("→ question: deploy to everybody?")
    await expect(why.locator("time")).to_have_attribute("title", re.compile(r"\d (UTC|GMT)"))
    await watched.open(shop.seeded.streaming)
    await expect(why).to_contain_text("Running on llm-worker-1 · lease expires in")
    await expect(why.get_by_role("link", name="llm-worker-1")).to_have_attribute("href", re.compile("q=worker%3Allm"))
    await watched.page.get_by_role("tab", name="Usage").click()
    await expect(watched.at("[role=tabpanel] td a").first).to_have_text("tenant:acme")
    await watched.page.get_by_role("tab", name="Stream").click()
    await expect(watched.button("Copy the output")).to_be_visible()
    await watched.go("executions?q=lane%3Aexports&state=waiting")
    await watched.at(".list-row .name").first.click()
    await expect(why).to_contain_text("Lane exports is paused")
    await why.get_by_role("link", name="Lanes").click()
    await expect(watched.at("[data-lane=exports]")).to_contain_text("paused")


async def test_flows_by_state_and_kind(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    await watched.go("flows")
    row = watched.at("tbody tr").filter(has_text="order A-1044")
    await expect(row.locator("a")).to_have_text("ship")
    await expect(row.locator(".badge")).to_have_text("failed")
    await watched.at("[data-state=blocked]").click()
    await expect(row).to_have_count(0)
    await expect(watched.at("tbody tr").filter(has_text="deploy")).to_have_count(1)
    await watched.at("[data-state=completed]").click()
    await expect(watched.page.get_by_text("No matches.")).to_be_visible()
    await watched.page.go_back()
    await expect(watched.at("[data-state=blocked]")).to_have_attribute("aria-current", "true")
    await watched.page.get_by_label("Kind of flow").fill("SHI")
    await expect(watched.page.get_by_text("No matches.")).to_be_visible()
    await watched.at("[data-state=failed]").click()
    await expect(row).to_have_count(1)
    assert watched.page.url.endswith("#/flows?kind=SHI&state=failed")
    await row.locator("a").click()
    await expect(watched.at("[data-tree] .kin-row a")).to_have_text(["ship", "check[A-1044]", "book_courier"])
    await expect(watched.at("canvas")).to_have_count(0)
    await expect(watched.at(".page-head .badge")).to_have_text("failed")
    await watched.at("[data-tree] a").filter(has_text="book_courier").click()
    await expect(watched.page.get_by_role("heading", level=1)).to_have_text("book_courier")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_states_that_differ_look_different(shop: Shop, pages: Pages, theme: str) -> None:
    watched = await pages.of(shop.url, theme=theme)
    await watched.go("flows")
    await expect(watched.at("tbody tr").first).to_be_visible()
    colours = await watched.page.evaluate(STATES)
    assert len(set(colours)) == 12, colours
    assert not await watched.findings()


async def test_a_layout_is_finished_although_the_flow_goes_on(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    await watched.page.add_init_script(SLOW)
    await watched.go(f"flows/{shop.seeded.flow}")
    await expect(watched.at(".graph")).to_have_attribute("data-placed", "true")
    assert await watched.page.evaluate("globalThis.killed") == 0


async def test_the_address_names_the_tab_and_the_step(shop: Shop, pages: Pages) -> None:
    watched = await pages.of(shop.url)
    await watched.open(shop.seeded.deploy)
    tab = watched.page.get_by_role("tab", selected=True)
    await watched.page.get_by_role("tab", name="Events").click()
    await watched.at(".timeline .tick[title*=build]").first.click()
    await expect(tab).to_contain_text("Steps")
    assert watched.page.url.endswith("?tab=steps&step=1")
    await watched.page.reload()
    await expect(tab).to_contain_text("Steps")
    await expect(watched.at(".step[open] summary .clip")).to_have_text("build")
    await watched.page.go_back()
    await expect(tab).to_have_text("Events")
    await watched.page.go_back()
    await expect(tab).to_have_text("Input and result")
    await watched.page.go_forward()
    await expect(tab).to_have_text("Events")
