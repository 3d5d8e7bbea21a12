"""Log lines: one JSON document each, what the filter says, nothing that identifies anybody."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from flowfabric import TraceContext, trace_context
from flowfabric.telemetry.logs import BadFilter, configure, read_filter, redacted, request_id


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What is written, everything; loggers are as they were afterwards."""
    names = ("", "flowfabric", "audit", "flowfabric.timers")
    before = {name: logging.getLogger(name or None).level for name in names}
    stream = io.StringIO()
    handler = configure("debug", stream)
    yield stream
    logging.getLogger().removeHandler(handler)
    for name, level in before.items():
        logging.getLogger(name or None).setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line(written: io.StringIO) -> None:
    trace = TraceContext.read("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    token = request_id.set("r-1")
    with trace_context(trace):
        logging.getLogger("flowfabric.x").warning("%s of %d", "one", 2, extra={"lane": "a", "odd": object})
    request_id.reset(token)
    (line,) = lines(written)
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "flowfabric.x",
        "message": "one of 2",
        "request_id": "r-1",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "lane": "a",
        "odd": "<class 'object'>",
    }


def test_an_error_is_one_line(written: io.StringIO) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("flowfabric.x").exception("it failed")
    (line,) = lines(written)
    assert line["error"].startswith("Traceback")
    assert line["error"].endswith("two\nlines")


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("", {"": logging.WARNING, "flowfabric": logging.INFO, "audit": logging.INFO}),
        ("debug", {"": logging.DEBUG, "audit": logging.INFO}),
        ("error", {"": logging.ERROR, "audit": logging.INFO}),
        ("flowfabric.timers=debug", {"flowfabric.timers": logging.DEBUG, "flowfabric": logging.INFO}),
        ("audit=off, flowfabric=WARN", {"audit": 51, "flowfabric": logging.WARNING}),
    ],
)
def test_filters(text: str, levels: dict[str, int]) -> None:
    found = read_filter(text)
    assert {name: found.get(name) for name in levels} == levels


@pytest.mark.parametrize("text", ["loud", "flowfabric=loud", "=info", "a=b=c"])
def test_filters_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadFilter, match="FF_LOG"):
        read_filter(text)


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("token k1:" + "0f" * 32 + " refused", "token k1:<REDACTED> refused"),
        ("ff_1a2b3c_SECRETSECRET", "<REDACTED>"),
        ("Authorization: Bearer abc.def", "Authorization: <REDACTED>"),
        ("authorization=BEARER abc", "authorization=<REDACTED>"),
        ("postgresql://me:hunter2@db/x", "postgresql://me:<REDACTED>@db/x"),
        ("valkeys://:hunter2@db:6379/0?prefix=x", "valkeys://:<REDACTED>@db:6379/0?prefix=x"),
        ("{fp:7}:11111111-1111-4111-8111-111111111111", "{fp:7}:11111111-1111-4111-8111-111111111111"),
    ],
)
def test_what_identifies_somebody_is_taken_out(written: io.StringIO, secret: str, shown: str) -> None:
    assert redacted(secret) == shown
    log = logging.getLogger("flowfabric.x")
    log.info("%s", secret, extra={"more": {"deep": secret}})
    (line,) = lines(written)
    assert line["message"] == shown
    assert line["more"] == {"deep": shown}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["a", "a.", "ff_", "a:", "a://", "bearer ", "x@", "0f"])
def test_a_long_text_takes_no_longer_than_it_is_long(piece: str) -> None:
    text = ":" + piece * (1_000_000 // len(piece))
    assert len(redacted(text)) <= len(text) + 20
