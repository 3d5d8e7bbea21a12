"""Bugs that plans have to find: what the console did with answers that come late, twice or not at all, put back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from playwright.async_api import Page, Route

import flowfabric.server.console

STATIC = Path(flowfabric.server.console.__file__).parent / "static"


class Bug(NamedTuple):
    """The page that shows it, and what stands where instead of what."""

    page: str
    changes: tuple[tuple[str, str, str], ...]

    async def plant(self, page: Page) -> None:
        """Serve files with the bug in them."""
        texts: dict[str, str] = {}
        for file, was, becomes in self.changes:
            text = texts.get(file) or (STATIC / file).read_text()
            assert text.count(was) == 1, f"{file} no longer says {was!r} once"
            texts[file] = text.replace(was, becomes)
        for file, text in texts.items():
            await page.route(f"**/console/{file}", partial(serve, text))


async def serve(text: str, route: Route) -> None:
    """Answer with this code."""
    await route.fulfill(body=text, content_type="text/javascript")


def bug(page: str, *changes: tuple[str, str, str]) -> Bug:
    return Bug(page, changes)


MANY, LIST, LIVE = "executions/many.js", "pages/executions.js", "live.js"
BUGS = {
    "the newest question is shown": bug("approvals", ("pages/approvals.js", "first.id ??= asks", "first.id = asks")),
    "the next approver is chosen": bug(
        "approvals",
        ("pages/approvals.js", '(free.includes(wanted) ? wanted : "")', "(free.includes(wanted) ? wanted : free[0])"),
    ),
    "the cursor keeps its place and not its row": bug(
        "executions",
        (
            "executions/moving.js",
            "Math.min(isThere ? stood.place : listing.placeOf(stood.row), listing.total - 1)",
            "Math.min(stood.place, listing.total - 1)",
        ),
    ),
    "the list that was left moves the next one": bug(
        "executions",
        (LIST, "    if (!question.open) return true;\n", ""),
        (LIST, "    const looked = listing.at(Math.floor(top / rowHeight()));\n", "    const looked = cursor;\n"),
        (
            LIST,
            "    if (stays && looked && scroller.current.top === top) anchor(looked, top);\n",
            "    if (looked >= 0) setCursor(looked + added);\n",
        ),
    ),
    "an act closes whatever dialog is open": bug("executions", ("dialogs.js", "    if (!this.open) return;\n", "")),
    "an act that fails in a dialog that was left is told nowhere": bug(
        "executions", ("dialogs.js", '      else toast(`${title}: ${problem.message}`, "bad");\n', "")
    ),
    "what was counted is taken for all": bug(
        "executions",
        (MANY, "whole: false, problem: error });", "whole: true, problem: null });"),
    ),
    "a second try begins anew": bug(
        "executions",
        (MANY, "      do {\n        draw", "      progress.cursor = undefined;\n      do {\n        draw"),
        (MANY, "await own.post(`v1/bulk", "await post(`v1/bulk"),
    ),
    "the others go on behind an error": bug(
        "executions",
        (MANY, "while (left.length && !lost && own.open)", "while (left.length)"),
        (MANY, "              lost ??= problem;\n", "              throw problem;\n"),
    ),
    "two credentials from one double click": bug(
        "settings",
        ("dialogs.js", "    if (own.busy) return;\n", ""),
        ("settings/credentials.js", "disabled=${busy || !scopes.size}", "disabled=${!scopes.size}"),
    ),
    "a dialog is left before its token is there": bug(
        "settings", ("settings/credentials.js", "own.held = true;", "own.held = false;")
    ),
    "the second click meets another button": bug(
        "schedules", ("acts.js", "await Promise.all([refresh(), twice]);", "await refresh();")
    ),
    "rows are gone while further ones are read": bug(
        "flows",
        (LIVE, "    [wanted],\n", "    [wanted, wanted.pages],\n"),
        (
            LIVE,
            "  const wanted = useMemo(() => ({ pages: first }), deps);",
            "  const [, draw] = useState(0);\n  const wanted = useMemo(() => ({ pages: first }), deps);",
        ),
        (LIVE, "data.pages + 1;\n    refresh();", "data.pages + 1;\n    draw(wanted.pages);"),
    ),
}
