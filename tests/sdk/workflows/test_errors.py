"""A workflow meets the same errors whether it has been parked in between or not."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from http import HTTPStatus
from typing import Any

import pytest

from flowfabric import App, Retry, days, gather, seconds, sleep
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.sdk.errors import RunFailed, StepFailed
from flowfabric.sdk.workflows.recorded_errors import error_step, remembered_error

SHORT = timedelta(milliseconds=20)


class ApiError(Exception):
    """Takes other arguments than it hands on."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class Charged(ValueError):
    """Would say it twice if it were made from its arguments."""

    def __init__(self, amount: Decimal) -> None:
        super().__init__(f"charged {amount}")
        self.amount = amount


class Told(Exception):
    """Says what it says by an attribute."""

    def __init__(self, *, why: str) -> None:
        super().__init__()
        self.why = why

    def __str__(self) -> str:
        return f"because {self.why}"


class Holding(Exception):
    """Holds something that cannot be stored."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.connection = object()
        self.code = HTTPStatus.NOT_FOUND


def _json_error() -> Exception:
    try:
        json.loads("{nothing")
    except ValueError as error:
        return error
    raise AssertionError


def _missing_file() -> Exception:
    try:
        open("/nowhere/at all")  # noqa: SIM115
    except OSError as error:
        return error
    raise AssertionError


def _caused() -> Exception:
    try:
        try:
            raise ApiError(503, "away")
        except ApiError as error:
            raise RuntimeError("no receipt") from error
    except RuntimeError as error:
        return error


AWKWARD: dict[str, Callable[[], Exception]] = {
    "other arguments": lambda: ApiError(503, "x"),
    "said twice": lambda: Charged(Decimal("1.50")),
    "its own text": lambda: Told(why="of rain"),
    "a missing file": _missing_file,
    "json": _json_error,
    "a key": lambda: KeyError("a"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "a cause": _caused,
    "long": lambda: ValueError("x" * 40_000),
    "too long": lambda: ApiError(500, "x" * 400_000),
    "a lone surrogate": lambda: ValueError("\ud800 file"),
    "numbers": lambda: ValueError(Decimal("0.10"), float("inf"), 2**80, (1, [2]), {3: {4}}, b"\x00", timedelta(1)),
    "a status": lambda: ValueError(HTTPStatus.CONFLICT),
    "not to be stored": lambda: Holding("kept"),
    "an object": lambda: ValueError(object()),
    "a group": lambda: ExceptionGroup("both", [ApiError(1, "a"), ExceptionGroup("inner", [KeyError("b")])]),
    "nothing": TimeoutError,
    "a note": lambda: _noted(ValueError("x")),
}


def _noted(error: Exception) -> Exception:
    error.add_note("in the third row")
    return error


def shown(error: BaseException | None) -> Any:
    """All that code can see of an error."""
    if error is None:
        return None
    parts = [shown(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    plain = {name: value for name, value in vars(error).items() if type(value) is not object}
    return (type(error), repr(error.args), str(error), plain, shown(error.__cause__), parts)


@pytest.mark.parametrize("name", AWKWARD)
def test_an_error_is_what_it_was(name: str) -> None:
    error = AWKWARD[name]()
    found = remembered_error("call", error_step("call!0", error))
    assert type(found) is type(error)
    again = remembered_error("call", error_step("call!0", found))
    assert shown(again) == shown(found)
    if name == "too long":
        assert str(found) == str(error)[:8_000]
    elif name == "a group":
        assert [type(each) for each in found.exceptions] == [ApiError, ExceptionGroup]  # type: ignore[attr-defined]
        assert found.exceptions[0].status == 1  # type: ignore[attr-defined]
    elif name == "a lone surrogate":
        assert found.args == error.args
    elif name == "an object":
        assert str(found) == str(error)
    else:
        assert shown(found) == shown(error)


def test_what_a_file_error_says_is_there() -> None:
    found = remembered_error("call", error_step("call!0", _missing_file()))
    assert isinstance(found, FileNotFoundError)
    assert (found.errno, found.filename) == (2, "/nowhere/at all")


def test_a_class_that_cannot_be_found_is_said_by_name() -> None:
    class Local(Exception):
        pass

    found = remembered_error("call", error_step("call!0", Local("gone")))
    assert isinstance(found, StepFailed)
    assert str(found).endswith("Local: gone")


class Both:
    """What a workflow saw, each time it ran."""

    def __init__(self) -> None:
        self.seen: list[Any] = []


@pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)
async def test_both_passes_meet_the_same(store_url: str) -> None:
    app = App(store_url)

    class Local(Exception):
        pass

    makers = [*AWKWARD.values(), lambda: Local("gone")]
    makers.remove(AWKWARD["an object"])  # its text has an address in it
    both = Both()

    @app.step
    async def fail(number: int) -> None:
        raise makers[number]()

    @app.workflow
    async def careful() -> int:
        seen = []
        for number in range(len(makers)):
            try:
                await fail.using(key=str(number))(number)
            except Exception as error:
                seen.append((shown(error), error.__context__))
        both.seen.append(seen)
        await sleep(days(1))
        return len(seen)

    async with app.testing(store=store_url, second_pass=False):
        run = await careful.start()
        assert await run.result() == len(makers)
    first, second = both.seen
    assert first == second
    assert {context for _, context in first} == {None}


@pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)
async def test_steps_have_arguments_of_their_own(app: App) -> None:
    tries = 0

    @app.step(retry=Retry(1, first=timedelta(milliseconds=1)))
    async def append(names: list[str]) -> list[str]:
        nonlocal tries
        tries += 1
        names.append("step")
        if tries == 1:
            raise ConnectionError
        return names

    @app.workflow
    async def listing() -> list[list[str]]:
        names = ["workflow"]
        call = append(names)
        names.append("later")
        return [await call, names]

    async with app.worker():
        run = await listing.start()
        assert await run.result(seconds(30)) == [["workflow", "step"], ["workflow", "later"]]


@pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)
async def test_what_a_step_calls_is_not_durable(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return number * 2

    @app.step
    async def inner(number: int) -> int:
        await sleep(timedelta(0))
        return number + 1

    @app.step
    async def outer(number: int) -> int:
        return sum(await gather(inner(number), double(number)))

    @app.step
    def in_a_thread(number: int) -> str:
        return str(inner(number).cr_code.co_name)  # type: ignore[attr-defined]

    @app.workflow
    async def nested() -> int:
        return await outer(3)

    async with app.worker():
        run = await nested.start()
        assert await run.result(seconds(30)) == 10
    assert [step.name for step in await run.steps()] == ["outer"]


class Own(BaseException):
    """No ``Exception``."""


LEAVING = (SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Own("no"))


@pytest.mark.parametrize("error", LEAVING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["step", "thread", "branch", "helper", "body"])
@pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)
async def test_what_is_no_exception_fails_the_run_and_not_the_worker(
    app: App, where: str, error: BaseException
) -> None:
    @app.step
    async def leave() -> None:
        raise error

    @app.step
    def leave_thread() -> None:
        raise error

    async def helper() -> None:
        raise error

    @app.workflow
    async def leaving() -> str:
        if where == "body":
            raise error
        if where == "branch":
            await gather(sleep(SHORT), leave())
        if where == "helper":
            await gather(sleep(SHORT), helper())
        await (leave() if where == "step" else leave_thread())
        return "stayed"

    @app.workflow
    async def other() -> str:
        await sleep(SHORT)
        return "done"

    async with app.worker():
        run, beside = await leaving.start(), await other.start()
        with pytest.raises(RunFailed, match=type(error).__name__):
            await run.result(seconds(30))
        assert await beside.result(seconds(30)) == "done"


@pytest.mark.parametrize("operation", ["read_steps", "now_ms", "read_ends"])
@pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)
async def test_a_store_that_is_away_for_a_moment_is_no_failure(
    app: App, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def child(number: int) -> int:
        return number

    @app.workflow
    async def parent() -> int:
        total = 0
        for number in range(2):
            await sleep(SHORT)
            total += await child(number)
        return total

    async with app.worker():
        engine = app.engine
        real = getattr(engine, operation)
        away = 0

        async def hiccup(*args: Any, **kwargs: Any) -> Any:
            nonlocal away
            # The engine's timers call it, too, and are not what is tested.
            if sys._getframe(1).f_globals["__name__"].startswith("flowfabric.sdk."):
                away += 1
                fails = away % 2 == 1
            else:
                fails = False
            if fails:
                raise Transport("test", TransportKind.TRANSPORT, "the connection was lost")
            return await real(*args, **kwargs)

        monkeypatch.setattr(engine, operation, hiccup, raising=False)
        run = await parent.start()
        assert await run.result(seconds(30)) == 1
        assert away > 1
