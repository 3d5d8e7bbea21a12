"""Who may see and do what: signing in, roles, namespaces; questions, and those who answer without an account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from playwright.async_api import expect

from flowfabric.engine import Engine
from flowfabric.model.operations.access import Scope
from tests.console.conftest import Pages, apart
from tests.console.support.running import ServerProcess, serving
from tests.console.support.seeding import Seeded, seed
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
TOKEN = "the-token-of-the-configuration"
#: Where traces are looked at.
TRACES = "https://traces.example/trace/{trace_id}"


class Guarded(NamedTuple):
    """A server that asks for credentials, and some."""

    server: ServerProcess
    seeded: Seeded
    reader: str
    operator: str
    stranger: str

    @property
    def url(self) -> str:
        return self.server.url


async def _credentials(store: str) -> dict[str, str]:
    async with await Engine.open(store, single_node=True) as engine:
        roles: dict[str, tuple[list[Scope], list[str] | None]] = {
            "reader": ([Scope.READ], None),
            "operator": ([Scope.READ, Scope.OPERATOR], ["shop"]),
            "stranger": ([Scope.READ, Scope.OPERATOR], ["elsewhere"]),
        }
        return {
            name: (await engine.create_credential(name=name, scopes=scopes, namespaces=own)).token.reveal()
            for name, (scopes, own) in roles.items()
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    store = f"sqlite:///{folder / 'shop.db'}"
    seeded = apart(seed(store, 60))
    tokens: dict[str, str] = apart(_credentials(store))
    with serving(store, FF_API_TOKEN=TOKEN, FF_LOG="debug", FF_TRACE_URL=TRACES) as server:
        yield Guarded(server, seeded, **tokens)


async def test_signing_in(guarded: Guarded, pages: Pages) -> None:
    watched = await pages.of(guarded.url)
    await watched.go("executions")
    await expect(watched.page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert not await watched.findings()
    await watched.at("#token").fill("ff_nonsense")
    await watched.button("Sign in").click()
    await expect(watched.at("[role=alert]")).to_contain_text("Unknown token")
    await watched.at("#token").fill(TOKEN)
    await watched.button("Sign in").click()
    await expect(watched.at(".list-row").first).to_be_visible()
    assert await watched.page.evaluate("document.cookie") == ""
    stored: str = await watched.page.evaluate("JSON.stringify(localStorage)")
    assert TOKEN not in stored
    assert all(TOKEN not in each.url for each in watched.requests)
    await watched.page.reload()
    await expect(watched.at(".list-row").first).to_be_visible()
    await watched.button("Sign out").click()
    await expect(watched.page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert TOKEN not in guarded.server.written()


async def test_readers_only_read(guarded: Guarded, pages: Pages) -> None:
    watched = await pages.of(guarded.url, token=guarded.reader)
    await watched.open(guarded.seeded.deploy)
    for button in ("Cancel…", "Replay…", "More"):
        await expect(watched.button(button, exact=True)).to_have_count(0)
    await expect(watched.page.get_by_role("link", name="Audit")).to_have_count(0)
    for place, text, buttons in (
        ("executions", "Bulk actions", ("Bulk actions",)),
        ("workers", "exports", ("Change",)),
        ("schedules", "nightly report", ("Pause", "Start")),
        ("budgets", "tenant:acme", ("Limits", "Reset")),
        ("approvals", "deploy to everybody?", ("Yes", "No", "Link")),
        (f"flows/{guarded.seeded.flow}", "nightly_report", ("Cancel…",)),
    ):
        await watched.go(place)
        if place != "executions":
            await expect(watched.page.get_by_text(text).first).to_be_visible()
        else:
            await expect(watched.at(".list-row").first).to_be_visible()
        for button in buttons:
            await expect(watched.button(button, exact=button in ("Yes", "No"))).to_have_count(0)
    await watched.go("audit")
    await expect(watched.page.get_by_text("Page not found")).to_be_visible()
    await watched.go("settings")
    await expect(watched.page.get_by_text("are for administrators")).to_be_visible()


async def test_those_of_a_namespace_see_theirs(guarded: Guarded, pages: Pages) -> None:
    watched = await pages.of(guarded.url, token=guarded.operator)
    await watched.go("overview")
    await expect(watched.page.get_by_text("This credential is limited to some namespaces")).to_be_visible()
    await expect(watched.at("[data-matter=asks]")).to_be_visible()
    await expect(watched.at("[data-matter=lane]").filter(has_text="exports is paused with 9 waiting")).to_be_visible()
    async with await Engine.open(guarded.server.store, single_node=True) as engine:
        await engine.create_execution(namespace="warehouse", lane_id="secret-lane")
        depths = await engine.queue_depths(namespaces=["shop"])
        counts = (await engine.count_states(namespaces=["shop"])).counts
    await expect(watched.at("[data-lanes] tbody td:first-child")).to_have_text([each.lane_id for each in depths])
    for tile, states in (("Active", ("active",)), ("Failed", ("failed", "expired")), ("Suspended", ("suspended",))):
        amount = sum(counts.get(state, 0) for state in states)
        await expect(watched.at(f"[data-tile={tile}] .value")).to_have_text(str(amount))
    await expect(watched.at("[data-failure]").first).to_be_visible()
    assert not await watched.findings()
    await watched.go("executions")
    await expect(watched.at(".list-row").first).to_be_visible()
    assert set(await watched.at(".list-row .cell-space").all_inner_texts()) == {"shop"}
    for place in ("flows", "schedules", "workers", "budgets"):
        await watched.go(place)
        await expect(watched.page.get_by_role("heading", level=1)).to_be_visible()
    await watched.open(guarded.seeded.deploy)
    await expect(watched.button("Cancel…")).to_be_visible()
    other = await pages.of(guarded.url, token=guarded.stranger)
    other.provoked.add(404)
    await other.go("executions")
    await expect(other.page.get_by_text("No executions yet.")).to_be_visible()
    await other.go(f"executions/{quote(guarded.seeded.deploy, safe='')}")
    await expect(other.at("[role=alert]")).to_contain_text("not found")
    await other.go("approvals")
    await expect(other.page.get_by_text("No open questions")).to_be_visible()
    await other.go("workers")
    await expect(other.page.get_by_text("No lanes yet.")).to_be_visible()
    await other.go(f"flows/{guarded.seeded.flow}")
    await expect(other.at("[role=alert]")).to_contain_text("not found")


async def test_runs_lead_to_their_traces(guarded: Guarded, pages: Pages) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with await Engine.open(guarded.server.store, single_node=True) as engine:
        tags = {"trace.traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        made = await engine.create_execution(namespace="traced", lane_id="traced", tags=tags)
    watched = await pages.of(guarded.url, token=guarded.reader)
    await watched.go(f"executions/{quote(str(made.execution_id), safe='')}?tab=details")
    link = watched.at("[data-trace] a")
    await expect(link).to_have_attribute("href", TRACES.replace("{trace_id}", trace))
    await expect(link).to_have_attribute("rel", "noreferrer")


async def signals(guarded: Guarded, ask: str) -> dict[str, tuple[str, bytes | None]]:
    async with await Engine.open(guarded.server.store, single_node=True) as engine:
        history = await engine.read_history(ask)
        return {each.waitpoint_key: (each.source_identity, each.payload) for each in history.signals}


async def test_questions_are_answered_here_and_with_links(guarded: Guarded, pages: Pages) -> None:
    watched = await pages.of(guarded.url, token=TOKEN)
    await watched.go("approvals")
    await expect(watched.at("[data-ask]")).to_have_count(3)
    await watched.at(f"[data-ask='{guarded.seeded.ask}']").click()
    question = watched.at("[data-question]")
    await expect(question).to_contain_text("shop:9f3c2a1")
    await expect(question).to_contain_text("looks good")
    await question.get_by_role("row").filter(has_text="carol").get_by_role("button", name="Link").click()
    link = await watched.page.get_by_label("Link", exact=True).input_value()
    assert link.startswith(f"{guarded.url}answer#")
    await watched.button("Close").click()

    outside = await pages.of(guarded.url, phone=True, theme="dark")
    await outside.page.goto(link)
    await expect(outside.page.get_by_role("heading", name="deploy to everybody?")).to_be_visible()
    secret = link.partition("#")[2]
    assert secret not in outside.page.url, "it is taken out of the address at once"
    assert not await outside.findings()
    await expect(outside.page.get_by_text("1 of 2 approvals so far")).to_be_visible()
    await outside.page.reload()
    await expect(outside.page.get_by_role("heading", name="deploy to everybody?")).to_be_visible()
    await outside.page.get_by_label("Your name").fill("Carol, on a train")
    await outside.page.get_by_label("Share").select_option(label="50 %")
    await outside.page.get_by_label("Note").fill("go ahead")
    await outside.page.get_by_label("Retries").fill("2")
    await outside.button("Yes", exact=True).click()
    await expect(outside.page.get_by_text("Answer recorded: Yes")).to_be_visible()
    for request in outside.requests:
        assert secret not in request.url
        assert "authorization" not in request.headers
        assert not request.headers.get("referer"), request.url

    await expect(watched.at("[data-ask]")).to_have_count(2)
    given = await signals(guarded, guarded.seeded.ask)
    assert given["carol"] == (
        "Carol, on a train",
        b'{"ok":true,"share":"50 %","note":"go ahead","retries":2}',
    )
    outside.provoked.add(404)
    await outside.page.goto("about:blank")
    await outside.page.goto(link)
    await expect(outside.at("[role=alert]")).to_contain_text("has no open question")
    assert secret not in guarded.server.written()
    assert secret[-24:] not in guarded.server.written()


async def test_a_tapped_question_is_in_sight(guarded: Guarded, pages: Pages) -> None:
    watched = await pages.of(guarded.url, token=guarded.operator, phone=True)
    await watched.go("approvals")
    await expect(watched.at("[data-ask]")).not_to_have_count(0)
    due = await watched.at("[data-ask] .no-wrap").all_inner_texts()
    assert [each.startswith("due") for each in due] == sorted((each.startswith("due") for each in due), reverse=True)
    await expect(watched.at("[data-question]")).to_be_hidden()
    await watched.page.get_by_label("Search questions").fill("REFUND order")
    await expect(watched.at("[data-ask]")).to_have_count(1)
    assert "q=REFUND" in watched.page.url
    await watched.at("[data-ask]").click()
    await expect(watched.at("[data-question]")).to_be_in_viewport()
    await expect(watched.at("[data-question] h2")).to_contain_text("refund order")
    await expect(watched.at(".inbox-list")).to_be_hidden()
    await watched.page.get_by_role("link", name="All questions").click()
    await watched.page.get_by_label("Search questions").fill("nothing like it")
    await watched.page.get_by_role("link", name="Clear filters").click()
    await expect(watched.at("[data-ask]")).not_to_have_count(0)
    assert not await watched.findings()


async def test_operators_answer_for_others(guarded: Guarded, pages: Pages) -> None:
    watched = await pages.of(guarded.url, token=guarded.operator)
    await watched.go("approvals")
    refund = await watched.at("[data-ask]").filter(has_text="refund order").get_attribute("data-ask") or ""
    await watched.at("[data-ask]").filter(has_text="refund order").click()
    await expect(watched.at("[data-question]")).to_contain_text("49.9")
    await watched.button("No", exact=True).click()
    await expect(watched.at(".toast")).to_contain_text("Answer recorded: No")
    await expect(watched.at("[data-ask]").filter(has_text="refund order")).to_have_count(0)
    assert [payload for _, payload in (await signals(guarded, refund)).values()] == [b"false"]
    await watched.at("[data-ask]").filter(has_text="batch of books").click()
    await expect(watched.at("[data-question]")).to_contain_text("spent")
    await watched.button("Yes", exact=True).click()
    await expect(watched.at("[data-ask]").filter(has_text="batch of books")).to_have_count(0)
    assert await signals(guarded, guarded.seeded.budget_ask)


async def test_credentials_and_keys(guarded: Guarded, pages: Pages) -> None:
    watched = await pages.of(guarded.url, token=TOKEN)
    await watched.go("settings")
    await expect(watched.page.get_by_text("reader").first).to_be_visible()
    assert not await watched.findings()
    await watched.button("New credential").click()
    assert not await watched.findings()
    await watched.page.get_by_label("Name", exact=True).fill("night watch")
    await watched.page.get_by_label("operator").check()
    await watched.page.get_by_label("Namespaces").fill("shop, warehouse")
    await watched.button("Create").click()
    token = await watched.page.get_by_label("Token", exact=True).input_value()
    await watched.button("Done").click()
    row = watched.at("tr").filter(has_text="night watch")
    await expect(row).to_contain_text("shop, warehouse")
    other = await pages.of(guarded.url, token=token)
    await other.go("executions")
    await expect(other.at(".list-row").first).to_be_visible()
    other.provoked.add(401)
    await row.get_by_role("button", name="Revoke").click()
    await watched.confirm("Revoke")
    await expect(row).to_contain_text("revoked")
    await expect(other.page.get_by_role("heading", name="Sign in")).to_be_visible()
    await watched.button("Rotate key").click()
    await expect(watched.at("#field-kid")).to_have_value("k2")
    await watched.confirm("Rotate")
    await expect(watched.page.locator("dd", has_text="k2")).to_be_visible()
    async with await Engine.open(guarded.server.store, single_node=True) as engine:
        assert (await engine.list_waitpoint_hmac_kids()).current_kid == "k2"
        stored = {each.name: each for each in (await engine.list_credentials()).credentials}
        assert await engine.verify_credential(token) is None
    assert stored["night watch"].revoked_at_ms is not None
    assert stored["night watch"].namespaces == ("shop", "warehouse")
    await watched.go("audit")
    await expect(watched.at("tr").filter(has_text="Credential created").first).to_be_visible()
    assert token not in guarded.server.written()


async def test_the_answer_page_without_a_link(guarded: Guarded, pages: Pages) -> None:
    watched: Watched = await pages.of(guarded.url)
    watched.provoked.add(404)
    await watched.page.goto(f"{guarded.url}answer")
    await expect(watched.at("[role=alert]")).to_contain_text("contains no link")
    await watched.page.goto("about:blank")
    await watched.page.goto(f"{guarded.url}answer#nonsense")
    await expect(watched.at("[role=alert]")).to_contain_text("has no open question")
    assert not await watched.findings()
    found: Any = await watched.page.evaluate("document.title")
    assert found == "A question for you"
