"""What is remembered by texts that callers choose takes little memory, however long they make them."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

import flowfabric
from flowfabric import ClaimPolicy
from flowfabric.engine import Engine, record_cache
from flowfabric.model.errors import Validation
from flowfabric.model.limits import MAX_POLICY_BYTES
from flowfabric.model.ownership import owned_name
from flowfabric.model.policy import _parse_cached, _read_policy, parse_policy, read_policy
from flowfabric.model.records.executions import Execution
from flowfabric.model.remembering import MAX_REMEMBERED, remembered_by_text
from flowfabric.stores.valkey import store

LONG = "x" * (MAX_REMEMBERED + 1)
#: Caches whose keys are no texts of callers, or are kept short by whoever asks them.
SHORT = {
    "flowfabric.model.policy._parse_cached": "asked with short texts alone",
    "flowfabric.model.policy._read_policy": "asked with short texts alone",
    "flowfabric.sdk.schemas.patterns._read": "asked with patterns of at most MAX_PATTERN characters",
    "flowfabric.sdk.definitions.signature.injected_parameters": "functions of this process",
    "flowfabric.sdk.definitions.depends._wanted": "functions of this process",
    "flowfabric.sdk.worker.tracebacks._libraries": "one thing",
    "flowfabric.stores.valkey.sort_keys._partition_key": "parts of ids that were read",
    "flowfabric.stores.valkey.sort_keys._partition": "parts of ids that were read",
    "flowfabric.stores.valkey.sort_keys.wire_key": "ids that were read",
    "flowfabric.stores.valkey.sort_keys.encoded_name": "names of lanes, namespaces and the like, of bounded size",
}


def caches() -> dict[str, Any]:
    """All that are bounded by a number of entries; those without are for kinds and numbers."""
    found = {}
    for each in pkgutil.walk_packages(flowfabric.__path__, "flowfabric."):
        module = importlib.import_module(each.name)
        for name, value in vars(module).items():
            parameters = getattr(value, "cache_parameters", None)
            if parameters is None or parameters()["maxsize"] is None or value.__module__ != module.__name__:
                continue
            found[f"{module.__name__}.{name}"] = value
    return found


def test_every_cache_is_known() -> None:
    assert caches().keys() == SHORT.keys(), "use model.remembering for texts, or say what its keys are"


def test_long_texts_are_worked_out_each_time() -> None:
    asked: list[str] = []

    @remembered_by_text(8)
    def length(text: str, more: str | None = None) -> int:
        asked.append(text)
        return len(text)

    for text, times in (("short", 1), (LONG, 2)):
        asked.clear()
        assert [length(text), length(text)] == [len(text)] * 2
        assert len(asked) == times
    assert length("a", LONG) == 1
    assert length.memory.cache_info().currsize == 1  # type: ignore[attr-defined]


def test_long_policies_and_ids_leave_nothing_behind() -> None:
    caches_of_texts = (_parse_cached, _read_policy, owned_name.memory)  # type: ignore[attr-defined]
    before = [each.cache_info().currsize for each in caches_of_texts]
    policy = parse_policy(f'{{"more": "{LONG}"}}')
    assert read_policy(policy).budget_ids == ()
    owned_name(LONG, "namespace")
    assert [each.cache_info().currsize for each in caches_of_texts] == before


def test_a_policy_has_a_size() -> None:
    # What is left out is stored with its default.
    least = len(parse_policy('{"more":""}') or "")

    def of(size: int) -> str:
        return f'{{"more":"{"x" * (size - least)}"}}'

    assert len(parse_policy(of(MAX_POLICY_BYTES)) or "") == MAX_POLICY_BYTES
    with pytest.raises(Validation, match="at most 65,536 bytes, this one 65,537"):
        parse_policy(of(MAX_POLICY_BYTES + 1))


@pytest.mark.parametrize("fixture", ["postgres_dsn", "valkey_url"])
async def test_lanes_without_end_are_forgotten(
    fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_cache, "MOST_LANES", 5)
    monkeypatch.setattr(store, "_MOST_REGISTERED", 5)
    names = [f"lane-{number:02}" for number in range(20)]
    async with await Engine.open(request.getfixturevalue(fixture)) as engine:
        for _ in range(2):
            for name in names:
                await engine.create_execution(lane_id=name, namespace=f"of {name}")
        assert len(engine._settings.held._lanes) == 5
        assert len(getattr(engine.store, "_registered", ())) < 20
        assert (await engine.list_lanes()).lanes == tuple(names)
        assert {each.lane_id: each.waiting for each in await engine.queue_depths()} == dict.fromkeys(names, 2)
        policy = ClaimPolicy("w", "w-1", 30_000)
        assert all([len(await engine.claim_many(name, (), policy, 3)) == 2 for name in names])


@pytest.mark.parametrize("what", ["policy", "tags"])
async def test_what_runs_is_held_without_long_texts(postgres_dsn: str, what: str) -> None:
    """It is read again instead."""
    given: dict[str, Any] = {"policy": {"more": LONG}, "tags": {"cairn.instance_id": LONG}}
    async with await Engine.open(postgres_dsn) as engine:
        made = await engine.create_execution(**{what: given[what]})
        handle = await engine.claim("default", (), ClaimPolicy("w", "w-1", 30_000))
        assert handle is not None
        await engine.renew(handle)
        held = engine._settings.held
        assert not held.find(Execution, str(made.execution_id))[1]
        assert not held._attempts
        await engine.complete(handle, b"done")
        plain = await engine.create_execution()
        assert await engine.claim("default", (), ClaimPolicy("w", "w-1", 30_000)) is not None
        assert held.find(Execution, str(plain.execution_id))[1]
        assert len(held._attempts) == 1
