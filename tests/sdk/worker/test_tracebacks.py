"""What is stored of a failed attempt's traceback: the user's own frames first, all of them behind, bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric import App, Retry, seconds
from flowfabric.model.reads.overview import FRAMES_OF_OTHERS
from flowfabric.sdk.errors import RunFailed
from flowfabric.sdk.worker.tracebacks import MAX_PART, told_of


def _caught(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return told_of(error)
    raise AssertionError("nothing was raised")


def _parts(text: str) -> tuple[str, str]:
    own, _, whole = text.partition(f"\n{FRAMES_OF_OTHERS}\n")
    return own, whole


def test_frames_of_libraries_come_behind() -> None:
    own, whole = _parts(_caught(lambda: json.loads("{")))
    assert "test_tracebacks.py" in own
    assert "json/decoder.py" not in own
    assert own.rstrip().splitlines()[-1].startswith("json.decoder.JSONDecodeError: ")
    assert "test_tracebacks.py" in whole
    assert "json/decoder.py" in whole


def test_causes_and_groups_keep_their_own_frames() -> None:
    def chained() -> None:
        try:
            json.loads("{")
        except ValueError as error:
            raise RuntimeError("no good") from error

    own, _ = _parts(_caught(chained))
    assert own.index("JSONDecodeError") < own.index("direct cause") < own.index("RuntimeError: no good")
    assert "json/decoder.py" not in own

    def grouped() -> None:
        try:
            json.loads("{")
        except ValueError as error:
            raise ExceptionGroup("both", [error, KeyError("k")]) from None

    own, whole = _parts(_caught(grouped))
    assert "KeyError: 'k'" in own
    assert "json/decoder.py" not in own
    assert "json/decoder.py" in whole


def test_own_frames_alone_are_told_once_and_long_ones_cut() -> None:
    def fails(depth: int) -> None:
        if not depth:
            raise ValueError("x" * 3 * MAX_PART)
        fails(depth - 1)

    text = _caught(lambda: fails(3))
    assert FRAMES_OF_OTHERS not in text
    assert text.startswith("…\n")
    assert len(text) <= MAX_PART + 10


def test_an_error_without_own_frames_keeps_where_it_was_raised() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
    assert "json/decoder.py" in _parts(told_of(error))[0]


#: Whoever runs a function in another process looks for it in its module.
made = App("memory://")
AGAIN = Retry(1, seconds(0))


@made.task(retry=AGAIN)
async def on_the_loop(text: str) -> Any:
    """Fails where the worker runs."""
    return json.loads(text)


@made.task(retry=AGAIN, run_in="thread")
def on_a_thread(text: str) -> Any:
    """Fails beside it."""
    return json.loads(text)


@made.task(retry=AGAIN, run_in="process")
def in_a_process(text: str) -> Any:
    """Fails in another process."""
    return json.loads(text)


async def test_every_attempt_of_every_kind_of_worker_keeps_its_own() -> None:
    """Also on a thread and in another process; the worker's own frames are not before the user's."""
    async with made, made.worker():
        for task in (on_the_loop, on_a_thread, in_a_process):
            run = await task.start("{")
            with pytest.raises(RunFailed) as caught:
                await run.result(timeout=seconds(30))
            errors = (await made.engine.read_errors(run.id)).errors
            assert [each.attempt_index for each in errors] == [0, 1]
            for each in errors:
                own, whole = _parts(each.traceback)
                assert (each.type, each.category) == ("JSONDecodeError", "error")
                assert "test_tracebacks.py" in own
                assert "json/decoder.py" not in own
                assert "flowfabric/sdk" not in own
                assert "json/decoder.py" in whole
            assert caught.value.traceback == errors[-1].traceback
