"""For those who look after the whole: who they are, how it goes, what an execution went through."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import groupby
from urllib.parse import quote

import httpx
import pytest
from msgspec.structs import replace

from flowfabric import Cron, Frame, Unavailable
from flowfabric.engine import Engine
from flowfabric.model.operations.access import Scope
from flowfabric.model.operations.workflows import NewStep
from flowfabric.model.reads.samples import SAMPLES_KEPT_MS
from flowfabric.model.streams.frames import DurableSummary
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from flowfabric.server.telemetry.samples import STEPS_MS, Sampler
from tests.contract.probe import ManualClock
from tests.server.conftest import client_of
from tests.server.listening import events, listening
from tests.server.making import at, claimed, created

ROOT = "root-of-this-server"


@pytest.fixture
def clock() -> ManualClock:
    """Time that stands still until a test moves it."""
    return ManualClock()


async def test_me(engine: Engine, client: httpx.AsyncClient) -> None:
    me = (await client.get("/v1/me")).json()
    assert (me["signed_in"], me["open"], me["namespaces"], me["trace_url"]) == (True, True, None, "")
    linked = create_app(engine, ServerConfig(trace_url="https://traces.example/{trace_id}"))
    async with client_of(linked) as other:
        assert (await other.get("/v1/me")).json()["trace_url"] == "https://traces.example/{trace_id}"
    guarded = create_app(engine, ServerConfig(require_credential=True))
    made = await engine.create_credential(name="ann", scopes=[Scope.READ], namespaces=["acme"])
    async with client_of(guarded) as anonymous, client_of(guarded, made.token) as ann:
        nobody = (await anonymous.get("/v1/me")).json()
        assert nobody == {
            "signed_in": False, "open": False, "name": "", "scopes": [], "namespaces": [], "operations": [],
            "version": "", "store": "", "now": 0, "trace_url": "",
        }  # fmt: skip
        assert not (await anonymous.get("/v1/me", headers={"authorization": "Bearer nonsense"})).json()["signed_in"]
        me = (await ann.get("/v1/me")).json()
        assert (me["signed_in"], me["open"], me["scopes"], me["namespaces"]) == (True, False, ["read"], ["acme"])
        allowed = set(me["operations"])
        assert {"search_executions", "explain", "healthz"} <= allowed
        assert not {"cancel_execution", "create_execution", "overview", "list_audit"} & allowed
        assert (await ann.get("/v1/namespaces")).json() == {"namespaces": ["acme"]}


async def test_namespaces_and_flows(engine: Engine, client: httpx.AsyncClient) -> None:
    await created(client, namespace="acme")
    assert (await client.get("/v1/namespaces")).json() == {"namespaces": ["acme", "default"]}
    flow = await engine.create_flow(flow_kind="etl", namespace="acme")
    page = (await client.get("/v1/search/flows", params={"kind": "etl", "state": "open"})).json()
    assert [each["flow_id"] for each in page["flows"]] == [flow.flow_id]
    assert (await client.get("/v1/search/flows", params={"namespace": "other"})).json()["flows"] == []


async def test_schedules_and_workers_of_all_namespaces(engine: Engine) -> None:
    """Also of those that have nothing else; who may see some namespaces gets theirs."""
    for name in ("acme", "bolt"):
        await engine.put_schedule("nightly", spec=Cron("0 1 * * *", "UTC"), execution_kind="x", namespace=name)
        await engine.register_worker(
            worker_id="w", worker_instance_id="w-1", lanes=["x"], liveness_ttl_ms=60_000, namespace=name
        )
    guarded = create_app(engine, ServerConfig(api_token=ROOT))
    made = await engine.create_credential(name="ann", scopes=[Scope.READ], namespaces=["bolt"])
    async with client_of(guarded, ROOT) as client, client_of(guarded, made.token) as ann:
        assert (await client.get("/v1/namespaces")).json() == {"namespaces": ["acme", "bolt", "default"]}
        for what, field in (("schedules", "schedules"), ("workers", "entries")):
            path = f"/v1/search/{what}"
            page = (await client.get(path, params={"limit": 1})).json()
            following = page["next_cursor" if what == "schedules" else "cursor"]
            rest = (await client.get(path, params={"cursor": following})).json()
            found = [each["namespace"] for each in page[field] + rest[field]]
            assert found == ["acme", "bolt"]
            assert [each["namespace"] for each in (await ann.get(path)).json()[field]] == ["bolt"]
            assert (await ann.get(path, params={"namespace": "acme"})).json()[field] == []
            assert (await client.get(path, params={"cursor": "nonsense"})).status_code == 400


async def test_what_an_execution_went_through(engine: Engine, client: httpx.AsyncClient) -> None:
    identity = await created(client, input_payload=base64.b64encode(b'{"a": 1}').decode(), tags={"acme.team": "red"})
    handle = await claimed(engine)
    await engine.advance(handle, steps=[NewStep("one", b"1"), NewStep("two", b"2" * 70_000), NewStep("three", b"3")])
    await engine.append_frame(handle, Frame(b'{"done": 1}', mode=DurableSummary()))
    given = (await client.get(at(identity, "input"))).json()
    assert base64.b64decode(given["payload"]) == b'{"a": 1}'
    assert (given["execution_kind"], given["tags"]) == ("resize", {"acme.team": "red"})
    history = (await client.get(at(identity, "history"))).json()
    assert [each["worker_instance_id"] for each in history["attempts"]] == ["w-1"]
    assert history["has_summary"] is True
    [lease] = history["leases"]
    assert (lease["worker_instance_id"], lease["ended"], lease["ended_at"]) == ("w-1", None, None)
    page = (await client.get(at(identity, "steps"), params={"limit": 2})).json()
    assert [(each["name"], each["size"]) for each in page["steps"]] == [("one", 1), ("two", 70_000)]
    assert len(base64.b64decode(page["steps"][1]["value"])) == 65_536
    rest = (await client.get(at(identity, "steps"), params={"after": page["next_after"]})).json()
    assert ([each["name"] for each in rest["steps"]], rest["next_after"]) == (["three"], None)


async def test_fork(engine: Engine, client: httpx.AsyncClient) -> None:
    identity = await created(client)
    handle = await claimed(engine)
    await engine.advance(handle, steps=[NewStep("one", b"1"), NewStep("two", b"2")])
    key = {"idempotency-key": "once"}
    forked = await client.post(at(identity, "fork"), json={"at": "two"}, headers=key)
    assert forked.status_code == 201
    assert forked.json()["steps"] == 1
    assert (await client.post(at(identity, "fork"), json={"at": "two"}, headers=key)).json() == forked.json()
    kept = (await client.get(at(forked.json()["execution_id"], "steps"))).json()["steps"]
    assert [each["name"] for each in kept] == ["one"]
    assert (await client.post(at(identity, "fork"), json={"at": "never"})).status_code == 404
    other = await client.post(at(identity, "fork"), json={"input_payload": [1, 2]})
    given = (await client.get(at(other.json()["execution_id"], "input"))).json()
    assert base64.b64decode(given["payload"]) == b"\x01\x02"
    assert [each["act"] for each in (await client.get("/v1/admin/audit")).json()["entries"]] == ["fork_execution"] * 2


@pytest.mark.parametrize("window", [60_000, 900_000, 3_600_000, 86_400_000])
async def test_charts(engine: Engine, client: httpx.AsyncClient, window: int) -> None:
    for number in range(3):
        await created(client)
        handle = await claimed(engine)
        if number:
            await engine.complete(handle)
        else:
            await engine.fail(handle, "no", "permanent")
    await created(client, lane_id="busy")
    found = (await client.get("/v1/overview", params={"window_ms": window})).json()
    series = found["series"]
    assert series["step_ms"] in STEPS_MS
    assert len(series["times"]) == window // series["step_ms"] <= 100
    assert {name: sum(counts) for name, counts in series["ended"].items()} == {"success": 2, "failed": 1}
    assert series["lanes_waiting"]["busy"][-1] == 1
    assert series["gauges"]["active"][-1] == 0
    assert all(each is None for each in series["gauges"]["active"][:-1])
    assert [each["lane_id"] for each in found["now"]["queues"]] == ["busy"]
    lengths = {len(each) for group in ("ended", "gauges", "lanes_waiting") for each in series[group].values()}
    assert lengths == {len(series["times"])}


async def test_samples_are_shared_by_all_who_look(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    read = engine.read_pulse

    async def counted() -> object:
        nonlocal taken
        taken += 1
        return await read()

    monkeypatch.setattr(engine, "read_pulse", counted)
    sampler = Sampler(engine)
    for _ in range(20):
        await sampler.latest()
    assert taken == 1


async def test_charts_say_since_when(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that has just begun says so for windows that begin earlier, and how far back ends are counted."""
    await engine.create_execution(lane_id="default")
    await engine.complete(await claimed(engine))
    sampler = Sampler(engine)
    begun = (await sampler.latest()).pulse.at_ms
    hour = 3_600_000
    assert (sampler.series(hour, begun).sampled_from, sampler.series(hour, begun).ended_from) == (begun, None)
    later = sampler.series(hour, begun + 2 * hour)
    assert (later.sampled_from, later.ended_from) == (None, None)
    monkeypatch.setattr("flowfabric.server.telemetry.samples.MAX_COUNTED", 1)
    cut = Sampler(engine)
    await cut.latest()
    since = cut.series(hour, begun).ended_from
    assert since is not None
    assert since > begun - hour
    assert cut.series(hour, begun + 2 * hour).ended_from is None


MINUTE = 60_000
HOUR = 60 * MINUTE


def counts(values: Sequence[int | None]) -> list[tuple[int | None, int]]:
    """Each run of equal values, and how long it is."""
    return [(value, len(list(run))) for value, run in groupby(values)]


async def test_who_has_just_begun_shows_what_others_sampled(clock: ManualClock) -> None:
    """Gaps while nobody sampled stay gaps, and only what nobody has sampled is said to be missing."""
    clock.advance(HOUR - clock() % HOUR)
    async with await Engine.open("memory://", single_node=True, clock=clock) as engine:
        await engine.create_executions([{"lane_id": "mail"}] * 3)
        begun = (await Sampler(engine).latest()).pulse.at_ms
        clock.advance(MINUTE)
        await Sampler(engine).latest()
        clock.advance(20 * MINUTE)
        await engine.create_execution(lane_id="mail")
        sampler = Sampler(engine)
        await sampler.latest()

        hour = sampler.series(HOUR, clock())
        assert hour.sampled_from == begun
        assert counts(hour.lanes_waiting["mail"]) == [(None, 38), (3, 2), (None, 19), (4, 1)]
        assert counts(hour.lanes_oldest_ms["mail"])[1:] == [(0, 1), (MINUTE, 1), (None, 19), (21 * MINUTE, 1)]
        assert counts(hour.gauges["active"]) == [(None, 38), (0, 2), (None, 19), (0, 1)]

        # Everything in the window is a gap, but there was a sample before it.
        quarter = sampler.series(15 * MINUTE, clock())
        assert quarter.sampled_from is None
        assert counts(quarter.lanes_waiting["mail"]) == [(None, 89), (4, 1)]

        # Where points are closer to each other than what is stored, a sample stands for its minute.
        clock.advance(MINUTE)
        again = Sampler(engine)
        await again.latest()
        clock.advance(3 * MINUTE)
        five = again.series(5 * MINUTE, clock())
        assert (five.step_ms, five.sampled_from) == (5_000, None)
        assert counts(five.lanes_waiting["mail"]) == [(None, 11), (4, 26), (None, 23)]

        clock.advance(SAMPLES_KEPT_MS)
        day = Sampler(engine)
        assert (await day.latest()).pulse.at_ms == day.series(24 * HOUR, clock()).sampled_from


async def test_all_servers_show_the_same(clock: ManualClock) -> None:
    """The first sample of a minute holds for all, and who has missed some minutes learns of them."""
    clock.advance(HOUR - clock() % HOUR)
    async with await Engine.open("memory://", single_node=True, clock=clock) as engine:
        await engine.create_execution(lane_id="mail")
        one = Sampler(engine)
        pulse = (await one.latest()).pulse
        for number in range(5):
            clock.advance(MINUTE)
            await engine.record_sample(pulse=replace(pulse, active=10 + number), budgets={"b": number / 4})
        clock.advance(5_000)
        one._taken_at = float("-inf")
        await one.latest()
        two = Sampler(engine)
        await two.latest()
        clock.advance(MINUTE)
        both = [each.series(HOUR, clock()) for each in (one, two)]
        assert both[0] == both[1]
        assert both[0].gauges["active"][-7:] == (0, 10, 11, 12, 13, 14, None)
        assert both[0].budgets == {"b": (None,) * 54 + (0.0, 0.25, 0.5, 0.75, 1.0, None)}
        assert len((await engine.list_samples()).samples) == 6


async def test_a_store_that_keeps_no_sample_shows_the_present(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(**_: object) -> None:
        raise Unavailable("x")

    monkeypatch.setattr(engine, "record_sample", refuse)
    sampler = Sampler(engine)
    with caplog.at_level("INFO", "flowfabric.server"):
        pulse = (await sampler.latest()).pulse
    assert sampler.series(HOUR, pulse.at_ms).gauges["active"][-1] == 0
    assert sampler.series(HOUR, pulse.at_ms).sampled_from == pulse.at_ms
    assert "was not stored" in caplog.text
    monkeypatch.undo()
    sampler._taken_at = float("-inf")
    await sampler.latest()
    assert len((await engine.list_samples()).samples) == 1


async def test_what_needs_a_person(engine: Engine, client: httpx.AsyncClient, server: Server) -> None:
    assert (await client.get("/v1/attention")).json() == {"matters": []}
    await created(client, lane_id="shut")
    await engine.set_lane_state("shut", "paused", "a move")
    budget = "11111111-1111-4111-8111-111111111111"
    await engine.create_budget(
        budget_id=budget, scope_type="named", scope_id="acme", dimensions=["tokens"], hard_limits=[10], soft_limits=[0]
    )
    await engine.report_usage_admin(budget_id=budget, dimensions=["tokens"], deltas=[9])
    server.sampler = Sampler(engine)
    matters = (await client.get("/v1/attention")).json()["matters"]
    assert [(each["kind"], each["subject"]) for each in matters] == [("lane", "shut"), ("budget", budget)]
    assert matters[0]["sentence"] == "lane shut is paused with 1 waiting"
    assert matters[1]["sentence"] == "budget acme is nearly used up: 90% of its tokens"


async def test_hints(engine: Engine) -> None:
    async with listening(engine) as client:
        stream = events(client, "/v1/changes")
        assert (await anext(stream)).name == "begin"
        await created(client)
        handle = await claimed(engine)
        first = await anext(stream)
        assert (first.name, first.data) == ("changed", {"families": ["lease_history"]})
        await stream.aclose()
        await engine.complete(handle)
        again = events(client, "/v1/changes", first.identity)
        assert (await anext(again)).name == "changed", "whoever comes back is told that something has happened"
        await again.aclose()
        last = events(client, "/v1/changes")
        begun = await anext(last)
        assert begun.name == "begin"
        await last.aclose()
        settled = events(client, "/v1/changes", begun.identity)
        assert (await anext(settled)).name == "begin"
        await settled.aclose()
        wrong = await client.get("/v1/changes", headers={"last-event-id": "nonsense"})
        assert wrong.status_code == 400


async def test_keys(engine: Engine, client: httpx.AsyncClient) -> None:
    await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex="ab" * 32)
    assert (await client.get("/v1/admin/waitpoint-keys")).json()["current_kid"] == "k1"
    await client.post("/v1/admin/rotate-waitpoint-secret", json={"new_kid": "k2", "new_secret_hex": "cd" * 32})
    keys = (await client.get("/v1/admin/waitpoint-keys")).json()
    assert (keys["current_kid"], [each["kid"] for each in keys["verifying"]]) == ("k2", ["k1"])
    assert "cd" * 32 not in str(keys)


async def test_unknown_executions(client: httpx.AsyncClient) -> None:
    nobody = quote("{fp:3}:00000000-0000-4000-8000-000000000000", safe="")
    for what in ("input", "history"):
        assert (await client.get(f"/v1/executions/{nobody}/{what}")).status_code in (400, 404)
    assert (await client.get(f"/v1/executions/{nobody}/steps")).json()["steps"] == []
    assert (await client.get(f"/v1/asks/{nobody}")).status_code == 404
