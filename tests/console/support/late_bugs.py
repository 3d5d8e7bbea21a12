"""Bugs that plans have to find: what the console did with answers that come late, twice or not at all, put back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from playwright.async_api import Page, Route

import flowfabric.server.console

STATIC = Path(flowfabric.server.console.__file__).parent / "static"


class Bug(NamedTuple):
    """The page that shows it, what is told of it, and what stands where instead of what."""

    page: str
    tells: str
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


def bug(page: str, tells: str, *changes: tuple[str, str, str]) -> Bug:
    return Bug(page, tells, changes)


MANY, LIST, LIVE = "executions/many.js", "pages/executions.js", "live.js"
BUGS = {
    "the newest question is shown": bug(
        "approvals", "showed '.*' instead of", ("pages/approvals.js", "first.id ??= asks", "first.id = asks")
    ),
    "the next approver is chosen": bug(
        "approvals",
        "who was not chosen|chose .* instead of",
        ("pages/approvals.js", '(free.includes(wanted) ? wanted : "")', "(free.includes(wanted) ? wanted : free[0])"),
    ),
    "the cursor keeps its place and not its row": bug(
        "executions",
        "moved the cursor to another row",
        (
            "executions/moving.js",
            "Math.min(isThere ? stood.place : listing.placeOf(stood.row), listing.total - 1)",
            "Math.min(stood.place, listing.total - 1)",
        ),
    ),
    "keys are taken back by what was on its way": bug(
        "executions",
        "moved the cursor to another row",
        (
            LIST,
            "    const added = await listing.refresh();\n",
            (
                "    const stood = cursor;\n    const added = await listing.refresh();\n"
                "    if (stood >= 0) setCursor(stood + added);\n"
            ),
        ),
    ),
    "the list that was left moves the next one": bug(
        "executions",
        "set a cursor|reading 'top'",
        (LIST, "    if (!question.open) return true;\n", ""),
        (LIST, "    const looked = listing.at(Math.floor(top / rowHeight()));\n", "    const looked = cursor;\n"),
        (
            LIST,
            "    if (stays && looked && scroller.current.top === top) anchor(looked, top);\n",
            "    if (looked >= 0) setCursor(looked + added);\n",
        ),
    ),
    "an act closes whatever dialog is open": bug(
        "executions",
        "closed a dialog that it is not about",
        ("dialogs.js", "    if (!this.open) return;\n", ""),
    ),
    "an act that fails in a dialog that was left is told nowhere": bug(
        "executions",
        "nobody was told that .*request-cancel",
        ("dialogs.js", '      else toast(`${title}: ${problem.message}`, "bad");\n', ""),
    ),
    "what was counted is taken for all": bug(
        "executions",
        "were acted on, and .* were shown",
        (MANY, "whole: false, problem: error });", "whole: true, problem: null });"),
    ),
    "a second try begins anew": bug(
        "executions",
        "bulk/cancel .* was done 2 times",
        (MANY, "      do {\n        draw", "      progress.cursor = undefined;\n      do {\n        draw"),
        (MANY, "await own.post(`v1/bulk", "await post(`v1/bulk"),
    ),
    "the others go on behind an error": bug(
        "executions",
        "offers to try again while the first try is on its way",
        (MANY, "while (left.length && !lost && own.open)", "while (left.length)"),
        (MANY, "              lost ??= problem;\n", "              throw problem;\n"),
    ),
    "two credentials from one double click": bug(
        "settings",
        "offers to try again while the first try is on its way|credentials .* was done 2 times",
        ("dialogs.js", "    if (own.busy) return;\n", ""),
        ("settings/credentials.js", "disabled=${busy || !scopes.size}", "disabled=${!scopes.size}"),
    ),
    "a dialog is left before its token is there": bug(
        "settings", "a token was never shown", ("settings/credentials.js", "own.held = true;", "own.held = false;")
    ),
    "the second click meets another button": bug(
        "schedules", "nobody has pressed for", ("acts.js", "await Promise.all([refresh(), twice]);", "await refresh();")
    ),
    "rows are gone while further ones are read": bug(
        "flows",
        "the rows were gone",
        (LIVE, "    [wanted],\n", "    [wanted, wanted.pages],\n"),
        (
            LIVE,
            "  const wanted = useMemo(() => ({ pages: first }), deps);",
            "  const [, draw] = useState(0);\n  const wanted = useMemo(() => ({ pages: first }), deps);",
        ),
        (LIVE, "data.pages + 1;\n    refresh();", "data.pages + 1;\n    draw(wanted.pages);"),
    ),
}
