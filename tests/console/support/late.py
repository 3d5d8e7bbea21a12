"""The way between a page and its server, on which answers are held up, lost, or made up."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import unquote

import msgspec
from playwright.async_api import Error, Page, Request, Route

#: Looks again at once, as a tab does that one comes back to.
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"

NOTE = {"type": "object", "properties": {"ok": {"type": "boolean"}, "note": {"type": "string"}}, "required": ["ok"]}


class Way:
    """What is asked on one path, and when its answers arrive."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.asked: list[Request] = []
        #: Set as soon as the server has answered one: the page does not know yet.
        self.answered = asyncio.Event()
        #: Numbers of the answers that are lost, from 0; all of them if there is none.
        self.lost: set[int] | None = set()
        self._open = asyncio.Event()

    def release(self) -> None:
        """Let the answers through, those that are there and those to come."""
        self._open.set()

    @property
    def keys(self) -> list[str | None]:
        """The idempotency keys of what was asked."""
        return [each.headers.get("idempotency-key") for each in self.asked]

    async def handle(self, route: Route) -> None:
        """Ask the server at once; its answer waits here."""
        if route.request.method != self.method:
            await route.fallback()
            return
        number = len(self.asked)
        self.asked.append(route.request)
        # A page may be left while its answers wait.
        with suppress(Error):
            answer = await route.fetch()
            self.answered.set()
            await self._open.wait()
            if self.lost is None or number in self.lost:
                await route.abort()
            else:
                await route.fulfill(response=answer)


@asynccontextmanager
async def held(
    page: Page, path: str, method: str = "POST", *, lost: set[int] | None | tuple[()] = ()
) -> AsyncIterator[Way]:
    """Answers to a path (a regular expression) wait until they are released, or this ends."""
    way = Way(method)
    way.lost = set() if lost == () else lost  # type: ignore[assignment]
    pattern = re.compile(path)
    await page.route(pattern, way.handle)
    try:
        yield way
    finally:
        way.release()
        await page.unroute(pattern, way.handle)


async def made_up(page: Page, path: str, answer: Callable[[Request], Any]) -> None:
    """Answer a path from here: with JSON, or with a status, or not at all (`None`)."""

    async def handle(route: Route) -> None:
        found = answer(route.request)
        if found is None:
            await route.abort()
        elif isinstance(found, int):
            await route.fulfill(status=found, json={"error": "made up"})
        else:
            await route.fulfill(json=found)

    await page.route(re.compile(path), handle)


class Inbox:
    """Questions that are made up, and the answers given to them."""

    def __init__(self) -> None:
        self.asks: list[dict[str, Any]] = []
        self.given: list[tuple[str, Any]] = []
        #: What was answered to each idempotency key.
        self.done: dict[str, Any] = {}
        #: As many questions are on a page.
        self.page = 50

    def ask(self, number: int, of: list[str] | None = None, **more: Any) -> dict[str, Any]:
        names = ["ann"] if of is None else of
        identity = f"{{fp:0}}:00000000-0000-4000-8000-{number:012}"
        made = {
            "execution_id": identity, "run_id": identity, "question": f"question {number}?", "show": None,
            "schema": NOTE, "approves": "ok", "of": names, "need": len(names) or 1, "given": [], "open": True,
            "until": None, "asked_at": 1_700_000_000_000 + number, "namespace": "shop", **more,
        }  # fmt: skip
        self.asks.append(made)
        return made

    def answer(self, request: Request) -> Any:
        """What the server would say."""
        path, _, query = unquote(request.url).partition("?")
        if request.method == "POST":
            key = request.headers.get("idempotency-key", "")
            if key in self.done:
                return self.done[key]
            identity = path.split("/")[-2]
            self.given.append((identity, msgspec.json.decode(request.post_data or "")))
            ask = next(each for each in self.asks if each["execution_id"] == identity)
            ask["given"].append(
                {"by": self.given[-1][1]["by"], "identity": None, "said": "approve", "at": 1, "value": {}}
            )
            ask["open"] = False
            self.done[key] = {"said": "approve"}
            return self.done[key]
        if "/asks/" in path:
            return next((each for each in self.asks if path.endswith(each["execution_id"])), 404)
        start = int(query.partition("cursor=")[2] or 0)
        found = [each for each in self.asks if each["open"]]
        return {
            "asks": found[start : start + self.page],
            "next_cursor": str(start + self.page) if len(found) > start + self.page else None,
        }
