"""Type checkers accept right calls and refuse wrong ones: a snippet is checked, and its comments say what must be said.

``# E: text`` expects an error on its line that contains the text; every other line has to be without any.
``# R: type`` expects that type to be revealed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

SNIPPET = """
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from flowfabric import (
    App, Budget, Ctx, Depends, Limit, Rate, Retry, Run, RunFrame, RunStatus, Step, Task, Workflow,
    days, gather, injected, minutes, seconds, sleep,
)

app = App("memory://")
App("memory://", name="x")  # E: Unexpected keyword argument "name"
App()  # E: Missing positional argument "url"


@dataclass
class Doc:
    url: str


class Client:
    pass


def client() -> Client:
    return Client()


@app.task
async def fetch(doc: Doc, retries: int = 3) -> bytes:
    return b""


@app.task(retry=Retry(5, give_up_on=(ValueError,)), timeout=minutes(2), limits=[Limit(4), Rate(5, per=days(1))])
def count(text: str, *, limit: int | None = None) -> int:
    return len(text)


@app.task
async def with_context(ctx: Ctx, text: str) -> str:
    return text


@app.task(retry=3)
def blocking_with_context(ctx: Ctx, text: str) -> str:
    return text


@app.task
async def provided(text: str, http: Annotated[Client, Depends(client)] = injected, ctx: Ctx = injected) -> str:
    return text


@app.step
def publish(text: str) -> str:
    return text


@app.step(retry=3)
async def aside(ctx: Ctx, n: int) -> int:
    return n


@app.workflow(id="review:{doc.url}", version="1")
async def review(doc: Doc) -> str:
    body = await fetch(doc)
    reveal_type(body)  # R: bytes
    n, text = await gather(count("x"), publish("y"))
    reveal_type(n)  # R: int
    reveal_type(text)  # R: str
    await sleep(minutes(5))
    await sleep(5)  # E: incompatible type "int"
    await publish(5)  # E: incompatible type "int"; expected "str"
    await fetch()  # E: Missing positional argument "doc"
    reveal_type(await aside.using(key="a")(5))  # R: int
    return await publish(text)


@app.workflow  # E: incompatible type
def not_async(doc: Doc) -> str:
    return ""


@app.task(retries=3)  # E: Unexpected keyword argument "retries"
async def unknown_option() -> None: ...


@app.task(timeout=30)  # E: No overload variant
async def bare_number() -> None: ...


@app.step(limits=[Limit(1)])  # E: Unexpected keyword argument "limits"
async def limited_step() -> None: ...


reveal_type(fetch)  # R: Task[[doc: snippet.Doc, retries: int =], bytes]
reveal_type(count)  # R: Task[[text: str, *, limit: int | None =], int]
reveal_type(with_context)  # R: Task[[text: str], str]
reveal_type(blocking_with_context)  # R: Task[[text: str], str]
reveal_type(publish)  # R: Step[[text: str], str]
reveal_type(aside)  # R: Step[[n: int], int]
reveal_type(review)  # R: Workflow[[doc: snippet.Doc], str]


async def starting(doc: Doc) -> None:
    run = await fetch.start(doc, retries=5)
    reveal_type(run)  # R: Run[bytes]
    reveal_type(await run.result())  # R: bytes
    wrong: str = await run.result()  # E: Incompatible types in assignment
    reveal_type(await run.result(timeout=minutes(5)))  # R: bytes
    await run.result(timeout=5)  # E: incompatible type "int"
    await fetch.start()  # E: Missing positional argument "doc"
    await fetch.start("url")  # E: incompatible type "str"; expected "Doc"
    await fetch.start(doc, retries="5")  # E: incompatible type "str"; expected "int"
    await fetch.start(doc, priority=5)  # E: Unexpected keyword argument "priority"
    await count.start("x", 5)  # E: Too many positional arguments
    await count.start("x", limit=5)
    await with_context.start("x")
    await with_context.start(5)  # E: incompatible type "int"; expected "str"
    await provided.start("x")
    await provided("x")
    reveal_type(await count("x"))  # R: int
    reveal_type(await (await review.start(doc)).result())  # R: str
    await publish.start("x")  # E: has no attribute "start"


async def options(doc: Doc) -> None:
    special = fetch.using(
        priority=5, delay=minutes(1), deadline=days(1), tags={"team": "docs"}, lane="fast", key="a", id="x",
        budget=Budget("acme", usd=20, every=days(1), on_breach="ask"), reuse="reject",
    )
    reveal_type(special)  # R: Task[[doc: snippet.Doc, retries: int =], bytes]
    reveal_type(await special.start(doc))  # R: Run[bytes]
    fetch.using(prio=5)  # E: Unexpected keyword argument "prio"
    fetch.using(delay=60)  # E: incompatible type "int"
    fetch.using(reuse="always")  # E: incompatible type "Literal['always']"
    fetch.using(tags={"team": 5})  # E: expected "str": "str"
    await special.start("url")  # E: incompatible type "str"; expected "Doc"
    runs = await fetch.start_many([doc, (doc, 5), fetch.bind(doc, retries=5)])
    reveal_type(runs)  # R: list[flowfabric.sdk.runs.run.Run[bytes]]
    fetch.bind("url")  # E: incompatible type "str"; expected "Doc"


async def looking(id: str) -> None:
    reveal_type(await app.run(id, review).result())  # R: str
    reveal_type(await app.run(id).result())  # R: Any
    app.run(id, publish)  # E: No overload variant
    run: Run[str] = app.run(id, review)
    state: RunStatus = await run.status()
    async for frame in run.frames(after=0):
        reveal_type(frame)  # R: RunFrame
        reveal_type(frame.text)  # R: str
    await run.cancel(reason=5)  # E: incompatible type "int"
    run.results()  # E: has no attribute "results"


Retry("3")  # E: incompatible type "str"
Retry(3, first=1)  # E: incompatible type "int"
Limit(4, per=minutes(1))  # E: Unexpected keyword argument "per"
Rate(4)  # E: Missing positional argument "per"
Budget("a", usd=20, on_breach="explode")  # E: incompatible type "Literal['explode']"
Budget("a", usd=[])  # E: incompatible type "list[Never]"
minutes("5")  # E: incompatible type "str"


def without_await(doc: Doc) -> None:
    with app.sync as blocking:
        run = blocking.start(fetch, doc)
        reveal_type(run)  # R: BlockingRun[bytes]
        reveal_type(run.result(timeout=minutes(1)))  # R: bytes
        run.result(timeout=5)  # E: incompatible type "int"
        blocking.start(fetch, "url")  # E: incompatible type "str"; expected "Doc"
        blocking.start(fetch)  # E: Missing positional argument
        reveal_type(blocking.start(fetch.using(priority=5), doc))  # R: BlockingRun[bytes]
        reveal_type(run.status())  # R: PublicState
        for frame in run.frames():
            reveal_type(frame)  # R: RunFrame
        reveal_type(blocking.run("id", review).result())  # R: str


def takes(task: Task[..., Any], step: Step[..., Any], flow: Workflow[..., Any]) -> None: ...


takes(fetch, publish, review)
takes(review, publish, review)  # E: incompatible type
with app.override(client, Client):
    pass
app.override(client)  # E: Missing positional argument "replacement"
"""


def test_types(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(snippet)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    said: dict[int, list[str]] = defaultdict(list)
    for line in ran.stdout.splitlines():
        found = re.match(r".*snippet\.py:(\d+): (error|note): (.*)", line)
        if found and (found[2] == "error" or found[3].startswith("Revealed type is")):
            said[int(found[1])].append(found[3])
    problems = []
    for number, line in enumerate(SNIPPET.splitlines(), 1):
        wanted = re.search(r"# ([ER]): (.*)$", line)
        messages = said.pop(number, [])
        if wanted is None:
            problems += [f"{number}: not expected: {message}" for message in messages]
        elif not any(_fits(message, wanted[1], wanted[2]) for message in messages):
            problems.append(f"{number}: wanted {wanted[2]!r}, said {messages}")
    assert not problems, "\n".join(problems)
    assert not said


def _fits(message: str, kind: str, wanted: str) -> bool:
    if kind == "E":
        return wanted in message
    shown = message.removeprefix("Revealed type is ").strip('"')
    return shown == wanted or shown.endswith("." + wanted)
