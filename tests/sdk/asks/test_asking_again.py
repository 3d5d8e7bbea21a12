"""An answer that was taken and cannot be read: the question is asked again, and the run loses nothing."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from flowfabric import App, Ask, BadAnswer, BadOptions, OpenAsk, RunFailed, seconds
from flowfabric.sdk.asks import ask as asks
from flowfabric.sdk.definitions.check import base_name
from flowfabric.sdk.runs.run import Run

SOON = seconds(30)


class Even(pydantic.BaseModel):
    ok: bool
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value == 7:
            raise KeyError("seven")  # validators are code, and code may raise anything
        if value % 2:
            raise ValueError("not even")
        return value


async def only(app: App, run: Run[Any]) -> OpenAsk:
    [found] = await app.asks(run, wait=SOON)
    return found


async def test_a_question_is_asked_again(app: App) -> None:
    done: list[str] = []

    @app.step
    async def prepare() -> str:
        done.append("prepared")
        return "prepared"

    @app.workflow
    async def pick() -> str:
        before = await prepare()
        found = await Ask("which?", Even)
        return f"{before}: {found.number}"

    async with app.worker():
        run = await pick.start()
        first = await only(app, run)
        await first.answer({"ok": True, "number": 3})
        second = await only(app, run)
        assert second.id != first.id
        assert second.question.startswith("which? (asked again: the answer of anyone is not valid: ")
        assert "not even" in second.question
        await second.answer({"ok": True, "number": 7})
        third = await only(app, run)
        assert third.question == "which? (asked again: the answer of anyone is not valid: KeyError: 'seven')"
        await third.answer({"ok": False, "number": 4})
        assert await run.result(SOON) == "prepared: 4"
    assert done == ["prepared"]
    names = [each.name for each in await run.steps()]
    assert names == ["prepare", "ask:which?", "ask:which?~2", "ask:which?~3"]
    assert {base_name(each) for each in names} == {"prepare", "ask:which?"}


async def test_yeses_that_were_given_count_on(app: App) -> None:
    @app.workflow
    async def pick() -> int:
        return (await Ask("which?", Even, of={"ann", "bob", "cid"}, need=2)).number

    async with app.worker():
        run = await pick.start()
        first = await only(app, run)
        await first.answer({"ok": True, "number": 2}, by="ann")
        await first.answer({"ok": False, "number": 1}, by="bob")
        second = await only(app, run)
        assert (second.of, second.need) == (("bob", "cid"), 1)
        await second.answer({"ok": True, "number": 6}, by="cid")
        assert await run.result(SOON) == 6


async def test_it_is_not_asked_for_ever(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "MOST_ASKED", 3)

    @app.workflow
    async def pick() -> int:
        return (await Ask("which?", Even)).number

    @app.workflow
    async def careful() -> str:
        try:
            await Ask("which?", Even)
        except BadAnswer as error:
            return error.code
        return "read"

    async with app.worker():
        for workflow in (pick, careful):
            run = await workflow.start()
            seen = set()
            for _ in range(3):
                asked = await only(app, run)
                seen.add(asked.id)
                await asked.answer({"ok": True, "number": 1})
            assert len(seen) == 3
            if workflow is careful:
                assert await run.result(SOON) == "bad_answer"
                continue
            with pytest.raises(RunFailed, match="not even"):
                await run.result(SOON)


# -- what is not asked -------------------------------------------------------------------------------------------------


def said(**words: Any) -> Any:
    return Annotated[str, msgspec.Meta(extra_json_schema=words)]


@pytest.mark.parametrize(
    "pattern", [r"(?<=a)b", r"(a)\1", "(?i)a", "(?s:a)", "(?>a)", "a++", "(", "a" * 1_001, "(" * 60 + ")" * 60]
)
def test_a_pattern_that_is_not_followed_is_named(pattern: str) -> None:
    with pytest.raises(BadOptions) as refused:
        Ask("q", said(pattern=pattern))
    assert f"the pattern {pattern[:200]!r} is not supported" in str(refused.value)


@pytest.mark.parametrize(
    "word", ["not", "if", "patternProperties", "contains", "dependentRequired", "$dynamicRef", "minLenght"]
)
def test_a_word_that_is_not_checked_is_named(word: str) -> None:
    for kind in (said(**{word: {}}), list[said(**{word: {}})]):  # type: ignore[misc]
        with pytest.raises(BadOptions) as refused:
            Ask("q", kind)
        assert f"{word!r} is not supported; use $defs, $ref, additionalProperties, " in str(refused.value)


def test_notes_are_no_reason_to_refuse() -> None:
    Ask("q", said(title="t", description="d", examples=["e"], default="d", deprecated=True, **{"x-widget": "big"}))


def test_word_boundaries_are_followed() -> None:
    kind = Annotated[str, msgspec.Meta(pattern=r"\bfoo\b")]
    ask = Ask("q", kind)
    for text, fits in (("a foo b", True), ("foo", True), ("food", False), ("a_foo", False), ("", False)):
        if fits:
            assert msgspec.convert(text, kind) == text
            asks.checked(ask._stored, text)
        else:
            with pytest.raises(BadAnswer, match="does not match"):
                asks.checked(ask._stored, text)
