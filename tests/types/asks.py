"""What type checkers say about questions. ``./dev check`` reads this with mypy and pyright; it is never run.

``assert_type`` holds what must be told, and a ``type: ignore`` stands where a call must be refused: both checkers
complain about one that is not needed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict, assert_type

from msgspec import Meta
from pydantic import BaseModel

from flowfabric import App, Ask, days, first, gather, sleep

app = App("memory://")


@dataclass
class Verdict:
    ok: bool
    note: str = ""


class Payment(BaseModel):
    cents: int


class Place(TypedDict):
    city: str


Small = Annotated[int, Meta(le=9)]


@app.step
def publish(text: str) -> str:
    return text


async def yes_or_no() -> None:
    assert_type(Ask("go?"), Ask[bool])
    assert_type(await Ask("go?"), bool)
    assert_type(await Ask("go?", show=1, of={"ann"}, need=1, within=days(1), key="k"), bool)
    assert_type(await Ask("go?", of="ann", within=None), bool)
    assert_type(await Ask("go?", show=1, of={"ann"}, need=1, within=days(1), otherwise=False, key="k"), bool)
    assert_type(await Ask("go?", within=days(1), otherwise=None), bool | None)
    assert_type(await Ask("go?", within=days(1), otherwise=days(2)), bool | timedelta)


async def typed() -> None:
    assert_type(await Ask("what?", bool), bool)
    assert_type(await Ask("what?", Verdict), Verdict)
    assert_type(await Ask("what?", Payment, show=1, of={"ann"}, need=1, within=days(1), key="k"), Payment)
    assert_type(await Ask("what?", Place), Place)
    assert_type(await Ask("what?", list[int]), list[int])
    assert_type(await Ask("what?", dict[str, Verdict]), dict[str, Verdict])
    assert_type(await Ask("what?", int | str), int | str)
    assert_type(await Ask("what?", Verdict | None), Verdict | None)
    assert_type(await Ask("what?", list[int] | Verdict), list[int] | Verdict)
    assert_type(await Ask("what?", Literal["a", "b"]), Literal["a", "b"])
    assert_type(await Ask("what?", Small), int)
    assert_type(await Ask("what?", answer=int), int)
    assert_type(await Ask[int | str]("what?", int | str), int | str)


async def typed_with_a_default() -> None:
    assert_type(await Ask("what?", Verdict, within=days(1), otherwise=None), Verdict | None)
    assert_type(await Ask("what?", Verdict, within=days(1), otherwise=Verdict(ok=False)), Verdict)
    assert_type(await Ask("what?", Payment, show=1, of="ann", need=1, within=days(1), otherwise=None), Payment | None)
    assert_type(await Ask("what?", list[int], within=days(1), otherwise=list[int]()), list[int])
    assert_type(await Ask("what?", list[int], within=days(1), otherwise=None), list[int] | None)
    assert_type(await Ask("what?", int | str, within=days(1), otherwise=0), int | str)
    assert_type(await Ask("what?", int | str, within=days(1), otherwise=None), int | str | None)
    assert_type(await Ask("what?", int | None, within=days(1), otherwise=None), int | None)
    assert_type(await Ask("what?", int, within=days(1), otherwise=days(2), key="k"), int | timedelta)


async def with_other_calls() -> None:
    assert_type(await gather(Ask("what?", int), publish("x")), tuple[int, str])
    assert_type(await first(Ask("what?", int), sleep(days(1))), int | None)
    awaited: Generator[Any, Any, bool] = Ask("go?").__await__()
    assert_type(next(awaited), Any)
    # An answer is only given: where a wider one is wanted, a narrower one will do.
    wide: Ask[int | None] = Ask("what?", int)
    await wide


async def refused(limit: timedelta | None) -> tuple[int, Verdict]:
    number: int = await Ask("what?", str)  # type: ignore[arg-type]
    verdict: Verdict = await Ask("what?", Verdict, within=days(1), otherwise=None)  # type: ignore[arg-type]
    Ask("what?", 5)  # type: ignore[call-overload]
    Ask("what?", within=5)  # type: ignore[call-overload]
    Ask("what?", otherwise=True)  # type: ignore[call-overload]
    Ask("what?", int, otherwise=5)  # type: ignore[call-overload]
    Ask("what?", int, within=limit, otherwise=5)  # type: ignore[arg-type]
    Ask("what?", int, until=days(1))  # type: ignore[call-overload]
    Ask()  # type: ignore[call-overload]
    return number, verdict
