"""A page in a real browser that fails the test for whatever should never happen in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from playwright.async_api import BrowserContext, ConsoleMessage, Dialog, Locator, Page, Request, expect

from tests.conftest import full_run

AXE = (Path(__file__).resolve().parents[1] / "vendor" / "axe.min.js").read_text()
AXE_RULES: dict[str, Any] = {"resultTypes": ["violations"]}
#: Of these, the ones that look at colours.
AXE_COLOURS = {**AXE_RULES, "runOnly": ["color-contrast", "link-in-text-block"]}
VIOLATIONS = """
globalThis.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  globalThis.violations.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}`));
"""
#: By way of a page that is not there.
TURN = """
async (place) => {
  const lost = () => document.querySelector("h1")?.textContent === "Page not found";
  location.hash = "#/nowhere";
  while (!lost()) await new Promise(requestAnimationFrame);
  location.hash = `#/${place}`;
  while (lost()) await new Promise(requestAnimationFrame);
}
"""
WAIT_MS = 60_000  # a request that gets no answer is given up after a while and made again
expect.set_options(timeout=WAIT_MS)


class Watched:
    """A page, and everything that went wrong in it."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.wrong: list[str] = []
        self.requests: list[Request] = []
        #: Statuses that the test provokes; the browser writes them to its console.
        self.provoked: set[int] = set()

    @classmethod
    async def opened(cls, context: BrowserContext, base: str) -> Watched:
        await context.add_init_script(VIOLATIONS)
        page = await context.new_page()
        page.set_default_timeout(WAIT_MS)
        watched = cls(page, base)
        page.on("console", watched._console)
        page.on("pageerror", lambda error: watched.wrong.append(f"error: {error}"))
        page.on("request", watched._request)
        page.on("dialog", watched._dialog)
        page.on("crash", lambda _: watched.wrong.append("the page crashed"))
        return watched

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(
            f"status of {each}" in message.text for each in self.provoked
        ):
            if "net::ERR_" in message.text and 0 in self.provoked:
                return
            self.wrong.append(f"{message.type}: {message.text} ({message.location})")

    async def _dialog(self, dialog: Dialog) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _request(self, request: Request) -> None:
        self.requests.append(request)
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.wrong.append(f"asked elsewhere: {request.url}")

    async def go(self, place: str = "") -> None:
        """Open a page of the console, anew."""
        await self.page.bring_to_front()
        await self.page.goto("about:blank")
        await self.page.goto(f"{self.base}#/{place}" if not place.startswith("answer") else f"{self.base}{place}")

    async def turn(self, place: str) -> None:
        """Open a page without loading the console again; what was shown before is gone by then."""
        await self.page.bring_to_front()
        await self.page.evaluate(TURN, place)

    async def open(self, identity: str) -> None:
        """Open one execution."""
        await self.go(f"executions/{quote(identity, safe='')}")
        await expect(self.page.locator("[data-why]")).to_be_visible()

    def at(self, selector: str) -> Locator:
        """A place in the page."""
        return self.page.locator(selector)

    def button(self, name: str, exact: bool = False) -> Locator:
        """A button by what it says."""
        return self.page.get_by_role("button", name=name, exact=exact)

    async def choose(self, menu: str, item: str) -> None:
        """Open a menu and take one of its entries."""
        await self.button(menu).first.click()
        await self.page.get_by_role("menuitem", name=item).click()

    async def confirm(self, label: str) -> None:
        """Say yes to the dialog that asks."""
        await self.page.locator("dialog").get_by_role("button", name=label, exact=True).click()
        await expect(self.page.locator("dialog")).to_have_count(0)

    async def check(self) -> None:
        """Nothing that should never happen has happened."""
        violations = await self.page.evaluate("globalThis.violations || []")
        assert not violations, violations
        assert not self.wrong, self.wrong

    async def findings(self, within: str | None = None) -> list[str]:
        """What axe finds serious or worse, in the theme that the page is in and then in the other. In a plain run only
        ``within`` an element, if the page around it was looked at without it."""
        # Scripts of tests come in through the debugger, which no policy of the page applies to.
        if not await self.page.evaluate("'axe' in globalThis"):
            await self.page.evaluate(AXE + "; undefined")
        within = None if full_run() else within
        found = await self._violations(AXE_RULES, within)
        theme = await self.page.evaluate("document.documentElement.dataset.theme")
        other = "light" if theme == "dark" else "dark"
        # The page is the same one, in other colours. The next one that is opened begins with these.
        await self.page.emulate_media(color_scheme=other)  # type: ignore[arg-type]
        await expect(self.page.locator(f"html[data-theme={other}]")).to_be_attached()
        return found + await self._violations(AXE_RULES if full_run() else AXE_COLOURS, within)

    async def _violations(self, rules: dict[str, Any], within: str | None) -> list[str]:
        found: Any = await self.page.evaluate(
            "([rules, within]) => axe.run(within ? { include: within } : document, rules)", [rules, within]
        )
        return [
            f"{each['id']}: {each['help']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]


def path_of(url: str) -> str:
    """A URL's path."""
    return urlsplit(url).path
