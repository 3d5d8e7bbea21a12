"""Figures of workers and servers: what they are called, how they are asked for, and how many there can be."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from flowfabric import App, ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.sdk.errors import BadOptions
from flowfabric.sdk.middleware import Hooks
from flowfabric.sdk.worker import run_worker
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.telemetry.metrics import ServerMetrics
from flowfabric.telemetry.metrics import Counter, Gauge, Histogram, Registry
from flowfabric.telemetry.worker import WorkerMetrics, metrics_app, serve
from tests.server.conftest import client_of
from tests.server.making import created

_SAMPLE = re.compile(r'^[a-z_]+(\{([a-z_]+="([^"\\\n]|\\.)*",?)+\})? -?[0-9.e+-]+$')


def is_exposition(text: str) -> None:
    """Every line is one that Prometheus reads; every sample stands under its own head."""
    name = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
        elif not line.startswith("# HELP "):
            assert _SAMPLE.match(line), line
            assert re.sub(r"_(bucket|sum|count)$", "", line.split("{")[0].split(" ")[0]) in (name, line.split(" ")[0])


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that comes by itself."""
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_text() -> None:
    counter = Counter("c_total", "Counts.", ("a", "b"))
    counter.add(('quo"te', "back\\slash\nline"))
    gauge = Gauge("g", "Goes up and down.")
    gauge.set(1.5)
    times = Histogram("t_seconds", "Takes.", ("lane",), buckets=(0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7):
        times.observe(seconds, ("x",))
    text = Registry([counter, gauge, times]).text().decode()
    is_exposition(text)
    assert 'c_total{a="quo\\"te",b="back\\\\slash\\nline"} 1\n' in text
    assert "\ng 1.5\n" in text
    assert 't_seconds_bucket{lane="x",le="0.1"} 2\n' in text
    assert 't_seconds_bucket{lane="x",le="+Inf"} 4\n' in text
    assert 't_seconds_sum{lane="x"} 7.65\n' in text


def test_large_counts_are_told_to_the_last_one() -> None:
    counter = Counter("c_total", "Counts.")
    counter.add(amount=12_345_678)
    assert list(counter.lines()) == ["c_total 12345678"]


def test_label_sets_are_bounded() -> None:
    assert ServerMetrics().most < 1_000
    assert WorkerMetrics().most < 1_000
    for metric in (Counter("c", "", ("a",), 4), Histogram("h", "", ("a",), 4)):
        for number in range(100):
            if isinstance(metric, Histogram):
                metric.observe(1.0, (str(number),))
            else:
                metric.add((str(number),))
        assert len(metric.values) == 4
        assert ("other",) in metric.values


async def test_a_worker_counts(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/ff.db", lane="work", layers=[Hooks()])

    @app.task
    async def double(value: int) -> int:
        await asyncio.sleep(0.01)
        return 2 * value

    async with app, app.worker(concurrency=2) as worker:
        runs = await double.start_many([1, 2, 3, 4, 5, 6])
        assert [await run.result() for run in runs] == [2, 4, 6, 8, 10, 12]
        async with serve("127.0.0.1", 0, app.metrics, app.engine) as port, httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{port}"
            response = await client.get(f"{url}/metrics")
            assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            text = response.text
            assert (await client.get(f"{url}/other")).status_code == 404
            assert (await client.post(f"{url}/metrics")).status_code == 405
            head = await client.head(f"{url}/metrics")
            assert (head.status_code, head.content) == (200, b"")
        assert worker.metrics is app.metrics
    is_exposition(text)
    lines = text.splitlines()
    assert 'ff_attempt_outcome_total{lane="work",outcome="ok"} 6' in lines
    assert 'ff_claim_to_start_seconds_count{lane="work"} 6' in lines
    assert 'ff_execution_ended_total{outcome="success"} 6' in lines
    assert "ff_workers 1" in lines
    assert any(line.startswith('ff_scanner_cycle_total{scanner="lease_expiry",result="ok"}') for line in lines)
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}", text)


async def test_a_worker_without_room(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/ff.db")
    go = asyncio.Event()

    @app.task
    async def wait() -> None:
        await go.wait()

    async with app, app.worker(concurrency=1):
        runs = await wait.start_many([() for _ in range(4)])
        await until(lambda: app.metrics.at_capacity.values[()] > 0)
        assert app.metrics.running.values[()] == 1
        go.set()
        for run in runs:
            await run.result()
        await until(lambda: app.metrics.running.values[()] == 0)


async def test_a_worker_that_counts_nothing(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/ff.db")

    @app.task
    async def one() -> int:
        return 1

    async with app, app.worker(metrics=False) as worker:
        assert await (await one.start()).result() == 1
        assert (worker.metrics, app.engine.observer) == (None, None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(metrics_app(None)), base_url="http://w") as client:
        response = await client.get("/metrics")
        assert (response.status_code, response.content) == (200, b"")


async def test_an_application_to_mount(tmp_path: Path) -> None:
    metrics = WorkerMetrics()
    metrics.at_capacity.add()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(metrics_app(metrics)), base_url="http://w") as client:
        assert "ff_worker_at_capacity_total 1" in (await client.get("/metrics")).text.splitlines()
        assert (await client.post("/metrics")).status_code == 405


@pytest.mark.parametrize("address", ["9101", "127.0.0.1", ":9101", "host:x", "host:70000"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(BadOptions, match=r"127\.0\.0\.1:9101"):
        run_worker(App("memory://"), metrics_address=address)


async def test_a_server_counts_what_its_engine_does() -> None:
    async with await Engine.open("memory://") as engine:
        server = create_app(engine, ServerConfig())
        async with client_of(server) as client:
            await created(client, lane_id="a")
            handle = await engine.claim("a", (), ClaimPolicy("w", "w-1"))
            assert handle is not None
            await engine.complete(handle, b"")
            await engine.run_due()
            text = (await client.get("/metrics")).text
    is_exposition(text)
    assert 'ff_attempt_outcome_total{lane="a",outcome="ok"} 1' in text
    assert 'ff_scanner_cycle_total{scanner="retention_trimmer",result="ok"} 1' in text
    assert "ff_cancel_backlog_depth 0" in text


async def test_a_server_without_metrics_watches_nothing() -> None:
    async with await Engine.open("memory://") as engine:
        server = create_app(engine, ServerConfig(metrics=False))
        assert engine.observer is None
        async with client_of(server) as client:
            assert (await client.get("/metrics")).status_code == 404
