"""Dependencies: who provides, for how long, and who stands in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import pytest

from flowfabric import App, BadDependency, Ctx, Depends, injected
from flowfabric.sdk.definitions.depends import Dependencies, Injected
from flowfabric.sdk.definitions.signature import injected_parameters

EVENTS: list[str] = []


@pytest.fixture(autouse=True)
def _no_events() -> None:
    EVENTS.clear()


def plain() -> list[str]:
    EVENTS.append("plain")
    return ["plain"]


async def coroutine() -> str:
    EVENTS.append("coroutine")
    await asyncio.sleep(0)
    return "coroutine"


def generator() -> Iterator[str]:
    EVENTS.append("generator opens")
    yield "generator"
    EVENTS.append("generator closes")


async def async_generator() -> AsyncIterator[str]:
    EVENTS.append("async generator opens")
    yield "async generator"
    EVENTS.append("async generator closes")


@contextmanager
def manager() -> Iterator[str]:
    EVENTS.append("manager opens")
    yield "manager"
    EVENTS.append("manager closes")


@asynccontextmanager
async def async_manager() -> AsyncIterator[str]:
    EVENTS.append("async manager opens")
    yield "async manager"
    EVENTS.append("async manager closes")


def nested(
    one: Annotated[list[str], Depends(plain)], two: Annotated[str, Depends(async_generator)], more: int = 5
) -> tuple[Any, ...]:
    return (one, two, more)


def with_context(ctx: Ctx) -> str:
    return f"of {ctx}"


def attempt_generator(ctx: Ctx) -> Iterator[str]:
    EVENTS.append("attempt opens")
    yield f"of {ctx}"
    EVENTS.append("attempt closes")


async def resolved(dependencies: Dependencies, context: Any = "ctx", **wanted: Injected) -> dict[str, Any]:
    async with dependencies.attempt(context) as scope:
        return await scope.resolve(wanted)


async def test_every_kind_of_provider() -> None:
    async with Dependencies() as dependencies:
        found = await resolved(
            dependencies,
            a=Depends(plain),
            b=Depends(coroutine),
            c=Depends(generator),
            d=Depends(async_generator),
            e=Depends(manager),
            f=Depends(async_manager),
            g=Depends(nested),
            h=Depends(with_context),
        )
        assert found == {
            "a": ["plain"],
            "b": "coroutine",
            "c": "generator",
            "d": "async generator",
            "e": "manager",
            "f": "async manager",
            "g": (["plain"], "async generator", 5),
            "h": "of ctx",
        }
        assert found["g"][0] is found["a"]
        assert [each for each in EVENTS if "closes" in each] == []
    # Last opened, first closed.
    assert [each for each in EVENTS if "closes" in each] == [
        "async manager closes",
        "manager closes",
        "async generator closes",
        "generator closes",
    ]


async def test_what_has_an_end_is_of_the_worker_and_what_has_none_of_the_attempt() -> None:
    async with Dependencies() as dependencies:
        for _ in range(3):
            await resolved(dependencies, a=Depends(plain), b=Depends(plain), c=Depends(generator))
        assert EVENTS == ["plain", "generator opens", "plain", "plain"]


async def test_scopes_can_be_chosen() -> None:
    async with Dependencies() as dependencies:
        for _ in range(2):
            await resolved(dependencies, a=Depends(plain, scope="worker"), b=Depends(generator, scope="attempt"))
        assert ["plain", *["generator opens", "generator closes"] * 2] == EVENTS


async def test_what_asks_for_the_attempt_is_of_the_attempt() -> None:
    def on_top(inner: Annotated[str, Depends(attempt_generator)]) -> Iterator[str]:
        yield inner

    async with Dependencies() as dependencies:
        assert await resolved(dependencies, "one", a=Depends(on_top)) == {"a": "of one"}
        assert await resolved(dependencies, "two", a=Depends(on_top)) == {"a": "of two"}
        assert EVENTS == ["attempt opens", "attempt closes"] * 2
        with pytest.raises(BadDependency, match="but depends on something with scope 'attempt'"):
            await resolved(dependencies, a=Depends(attempt_generator, scope="worker"))


async def test_many_attempts_open_one_value() -> None:
    async def slow() -> AsyncIterator[object]:
        EVENTS.append("opens")
        await asyncio.sleep(0.01)
        yield object()

    async with Dependencies() as dependencies:
        found = await asyncio.gather(*(resolved(dependencies, a=Depends(slow)) for _ in range(20)))
        assert len({id(each["a"]) for each in found}) == 1
        assert EVENTS == ["opens"]


async def test_a_provider_that_fails_is_asked_again() -> None:
    async def moody() -> AsyncIterator[int]:
        EVENTS.append("tries")
        await asyncio.sleep(0.01)
        if len(EVENTS) == 1:
            raise OSError("not yet")
        yield 5

    async with Dependencies() as dependencies:
        answers = await asyncio.gather(
            *(resolved(dependencies, a=Depends(moody)) for _ in range(3)), return_exceptions=True
        )
        assert all(isinstance(answer, OSError) for answer in answers)
        assert await resolved(dependencies, a=Depends(moody)) == {"a": 5}
        assert EVENTS == ["tries", "tries"]


async def test_one_who_gives_up_does_not_spoil_it_for_others() -> None:
    started = asyncio.Event()

    async def slow() -> AsyncIterator[int]:
        started.set()
        await asyncio.sleep(0.02)
        yield 5

    async with Dependencies() as dependencies:
        first = asyncio.create_task(resolved(dependencies, a=Depends(slow)))
        await started.wait()
        second = asyncio.create_task(resolved(dependencies, a=Depends(slow)))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == {"a": 5}
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_what_nobody_provides() -> None:
    def needy(value: int) -> int:
        return value

    async with Dependencies() as dependencies:
        with pytest.raises(BadDependency, match="nothing provides parameter 'value'"):
            await resolved(dependencies, a=Depends(needy))
        with pytest.raises(BadDependency, match="no Ctx outside a worker"):
            await resolved(dependencies, None, a=Depends(with_context))
    with pytest.raises(BadDependency, match="pass the function"):
        Depends(5)  # type: ignore[arg-type]
    with pytest.raises(BadDependency, match="neither 'worker' nor 'attempt'"):
        Depends(plain, scope="request")  # type: ignore[arg-type]


def circle(again: Annotated[int, Depends(lambda: 1)]) -> int:
    return again


async def test_circles_are_told() -> None:
    def one(value: Any) -> Any: ...
    def two(value: Annotated[Any, Depends(one)]) -> Any: ...

    one.__annotations__["value"] = Annotated[Any, Depends(two)]
    async with Dependencies() as dependencies:
        with pytest.raises(BadDependency, match="circle"):
            await resolved(dependencies, a=Depends(one))


async def test_direct_calls_are_provided_for() -> None:
    app = App("memory://")

    @app.task
    async def task(
        text: str,
        one: Annotated[str, Depends(async_generator)],
        two: Annotated[str, Depends(coroutine)] = injected,
    ) -> str:
        assert "async generator closes" not in EVENTS
        return f"{text} {one} {two}"

    assert await task("x") == "x async generator coroutine"  # type: ignore[call-arg]
    assert EVENTS == ["async generator opens", "coroutine", "async generator closes"]
    EVENTS.clear()
    assert await task("x", one="mine", two="too") == "x mine too"
    assert EVENTS == []


async def test_overrides() -> None:
    app = App("memory://")

    @app.task
    def task(one: Annotated[str, Depends(generator)] = injected) -> str:
        return one

    def stand_in() -> Iterator[str]:
        yield "stand-in"

    with app.override(generator, stand_in):
        assert await task() == "stand-in"
        with app.override(generator, lambda: "inner"):
            assert await task() == "inner"
        assert await task() == "stand-in"
    assert await task() == "generator"
    with pytest.raises(BadDependency, match="lambda: 'x'"), app.override(generator, "x"):  # type: ignore[arg-type]
        pass


async def test_an_override_reaches_what_is_nested_and_what_was_opened() -> None:
    app = App("memory://")
    async with Dependencies(app.overrides) as dependencies:
        assert (await resolved(dependencies, a=Depends(nested)))["a"][1] == "async generator"
        with app.override(async_generator, lambda: "other"):
            assert (await resolved(dependencies, a=Depends(nested)))["a"][1] == "other"
        assert (await resolved(dependencies, a=Depends(nested)))["a"][1] == "async generator"


def test_parameters_of_any_function() -> None:
    assert set(injected_parameters(nested)) == {"one", "two"}
    assert injected_parameters(plain) == {}
