"""Options are refused where they are written, with a sentence that says what to write."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import fields
from datetime import timedelta
from decimal import Decimal
from typing import Any, get_overloads

import pytest

from flowfabric import (
    App,
    BadDuration,
    BadOptions,
    Budget,
    ExponentialBackoff,
    FixedBackoff,
    IdConflict,
    Limit,
    Rate,
    Retry,
    RunFailed,
    SdkError,
    days,
    hours,
    minutes,
    seconds,
)
from flowfabric.sdk.durations import milliseconds
from flowfabric.sdk.options import Debounce, StartOptions, TaskOptions, amount, shown_amount


def test_durations() -> None:
    assert (seconds(1), minutes(1), hours(1), days(1)) == (
        timedelta(seconds=1),
        timedelta(minutes=1),
        timedelta(hours=1),
        timedelta(days=1),
    )
    assert milliseconds(seconds(1.5)) == 1_500
    assert milliseconds(timedelta(microseconds=1)) == 1
    assert milliseconds(timedelta(0)) == 0


@pytest.mark.parametrize("bad", [5, 1.5, "5m", None, True, b"5", timedelta(seconds=-1)])
def test_numbers_and_texts_are_no_durations(bad: Any) -> None:
    with pytest.raises(BadDuration, match="timeout: ") as caught:
        milliseconds(bad, "timeout")
    assert caught.value.code == "bad_duration"


@pytest.mark.parametrize("name", ["timeout", "deadline", "retention"])
def test_options_of_tasks_take_no_bare_numbers(name: str) -> None:
    with pytest.raises(BadDuration, match="write minutes"):
        TaskOptions.of(**{name: 30})  # type: ignore[arg-type]
    with pytest.raises(BadDuration, match="not above zero"):
        TaskOptions.of(**{name: seconds(0)})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["delay", "deadline"])
def test_options_of_starts_take_no_bare_numbers(name: str) -> None:
    with pytest.raises(BadDuration, match="write minutes"):
        StartOptions(**{name: "5m"})  # type: ignore[arg-type]


def test_debounce_takes_no_bare_numbers() -> None:
    for times in ({"wait": 5}, {"wait": seconds(5), "at_most": "1m"}):
        with pytest.raises(BadDuration, match="write minutes"):
            Debounce("k", **times)  # type: ignore[arg-type]
    with pytest.raises(BadOptions, match="Debounce"):
        StartOptions(debounce=seconds(5))  # type: ignore[arg-type]


def test_retries() -> None:
    policy = Retry(5, first=seconds(2), longest=minutes(5), factor=3, jitter=False).policy()
    assert policy.max_retries == 5
    assert policy.backoff == ExponentialBackoff(2_000, 300_000, 3.0, False)
    assert Retry(2, factor=1, jitter=False).policy().backoff == FixedBackoff(1_000)
    assert TaskOptions.of().retry.most == 0
    assert TaskOptions.of(retry=None).retry.most == 0
    assert TaskOptions.of(retry=3).retry == Retry(3)


def test_giving_up() -> None:
    retry = Retry(5, give_up_on=(ValueError, KeyError))
    assert retry.gives_up(UnicodeError())
    assert retry.gives_up(KeyError())
    assert not retry.gives_up(OSError())
    only = Retry(5, only_on=OSError, give_up_on=FileNotFoundError)  # type: ignore[arg-type]
    assert only.gives_up(ValueError())
    assert only.gives_up(FileNotFoundError())
    assert not only.gives_up(OSError())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(-1),
        lambda: Retry(True),
        lambda: Retry("3"),  # type: ignore[arg-type]
        lambda: Retry(1, factor=0.5),
        lambda: Retry(1, factor="2"),  # type: ignore[arg-type]
        lambda: Retry(1, give_up_on=("ValueError",)),  # type: ignore[arg-type]
        lambda: Limit(0),
        lambda: Limit(1.5),  # type: ignore[arg-type]
        lambda: Limit(1, key="doc[0]"),
        lambda: Limit(1, key="doc."),
        lambda: Limit(1, when_full="drop"),  # type: ignore[arg-type]
        lambda: Rate(0, per=minutes(1)),
        lambda: Rate(1, per=seconds(0.5)),
        lambda: Budget(""),
        lambda: Budget("a", usd="x"),
        lambda: Budget("a", usd=-1),
        lambda: Budget("a", usd=float("nan")),
        lambda: Budget("a", usd="0.0000001"),
        lambda: Budget("a", tokens=1.5),
        lambda: Budget("a", usd=1, on_breach="explode"),  # type: ignore[arg-type]
        lambda: Budget("a", under="b"),  # type: ignore[arg-type]
        lambda: TaskOptions.of(needs="gpu"),
        lambda: TaskOptions.of(run_in="fiber"),  # type: ignore[arg-type]
        lambda: TaskOptions.of(reuse="always"),  # type: ignore[arg-type]
        lambda: TaskOptions.of(priority=1.5),  # type: ignore[arg-type]
        lambda: TaskOptions.of(limits=[5]),  # type: ignore[list-item]
        lambda: TaskOptions.of(limits=[Limit(1), Limit(2)]),
        lambda: TaskOptions.of(tags={"Team": "x"}),
        lambda: TaskOptions.of(tags={"team": 5}),  # type: ignore[dict-item]
        lambda: TaskOptions.of(tags="team"),  # type: ignore[arg-type]
        lambda: StartOptions(id=""),
        lambda: StartOptions(priority="high"),  # type: ignore[arg-type]
        lambda: StartOptions(budget="x"),  # type: ignore[arg-type]
        lambda: StartOptions(reuse="never"),  # type: ignore[arg-type]
    ],
)
def test_what_means_nothing_is_refused(make: Any) -> None:
    with pytest.raises(BadOptions) as caught:
        make()
    assert caught.value.code == "bad_options"
    assert isinstance(caught.value, SdkError)


def test_limits_of_one_task_share_a_key() -> None:
    with pytest.raises(BadOptions, match="must use the same key"):
        TaskOptions.of(limits=[Limit(4, key="doc.tenant"), Rate(60, per=minutes(1), key="doc.url")])
    assert len(TaskOptions.of(limits=[Limit(4, key="a"), Rate(60, per=minutes(1), key="a")]).limits) == 2


def test_money_is_counted_in_millionths() -> None:
    assert amount("usd", 20) == 20_000_000
    assert amount("usd", 0.05) == 50_000
    assert amount("eur", "0.000001") == 1
    assert amount("usd", Decimal("1.10")) == 1_100_000
    assert amount("tokens", 4_000) == 4_000
    assert shown_amount("usd", 1_100_000) == Decimal("1.1")
    assert shown_amount("tokens", 5) == 5
    assert Budget("a", usd=20, tokens=5).limits == {"usd": 20_000_000, "tokens": 5}


def test_tags_of_users_are_prefixed() -> None:
    options = TaskOptions.of(tags={"team": "docs", "cairn.instance": "x"})
    assert options.tags == {"user.team": "docs", "cairn.instance": "x"}
    assert StartOptions(tags={"a": "b"}).tags == {"user.a": "b"}


def test_names_are_unique_and_ours_begin_with_a_dollar() -> None:
    app = App("memory://")

    @app.task
    def one() -> None: ...

    with pytest.raises(BadOptions, match="there is a task 'one' already"):
        app.task(name="one")(lambda: None)
    for name in ("", "$mine"):
        with pytest.raises(BadOptions, match="a name must not be empty"):
            app.task(name=name)(lambda: None)


@pytest.mark.parametrize("decorator", ["task", "step", "workflow"])
def test_a_decorator_says_which_option_may_be_meant(decorator: str) -> None:
    decorate = getattr(App("memory://"), decorator)
    for wrong, right in (("retries", "retry"), ("max_retries", "retry"), ("queue", "lane"), ("timeuot", "timeout")):
        with pytest.raises(BadOptions, match=rf"^@app\.{decorator}: unknown option {wrong}=; write {right}=$"):
            decorate(**{wrong: 5})
    with pytest.raises(BadOptions, match="unknown option colour=; options: name, retry, timeout, "):
        decorate(colour="red")


@pytest.mark.parametrize("decorator", ["task", "step", "workflow"])
def test_a_decorator_takes_what_its_signature_says(decorator: str) -> None:
    """An option of another decorator would be accepted and do nothing."""
    taken = inspect.signature(get_overloads(getattr(App, decorator))[-1]).parameters
    decorate = getattr(App("memory://"), decorator)
    for each in fields(TaskOptions):
        default = getattr(TaskOptions.of(), each.name)
        if each.name in taken:
            decorate(**{each.name: default})
        else:
            with pytest.raises(BadOptions, match=rf"^@app\.{decorator}: {each.name}= is only for \w+s"):
                decorate(**{each.name: default})


def test_errors_travel_between_processes() -> None:
    failed = RunFailed("it failed", run_id="r", reason="x", category="c", error_type="E", traceback="t")
    again = pickle.loads(pickle.dumps(failed))
    assert type(again) is RunFailed
    assert (str(again), again.run_id, again.traceback, again.ids) == ("it failed", "r", "t", {"run": "r"})
    conflict = pickle.loads(pickle.dumps(IdConflict("x", run_id="r", id="i")))
    assert (conflict.run_id, conflict.code) == ("r", "id_conflict")
