"""Kinds that workers announce: stored when they change and once a day, listed by name, forgotten after a month."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from flowfabric import Validation
from flowfabric.core import kind_definitions as rules
from flowfabric.core.kind_definitions import ANNOUNCED_FOR_MS
from flowfabric.engine import Engine
from flowfabric.model.errors import ValidationKind
from flowfabric.model.limits import KIND_KEPT_MS, MAX_KIND_BYTES, MAX_KINDS
from flowfabric.model.operations.kinds import (
    KindDefinition,
    KindDescription,
    KindsAnnounced,
    KindSnapshot,
    KnownKind,
)
from tests.contract.probe import ManualClock, Probe, unchanged
from tests.contract.seeding import seed

TASK: dict[str, Any] = {"noun": "task"}
SCHEMA = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}


async def listed(engine: Engine, **options: Any) -> list[tuple[str, str]]:
    return [(each.namespace, each.kind) for each in (await engine.list_kind_definitions(**options)).kinds]


async def test_what_is_announced_is_told(engine: Engine, clock: ManualClock) -> None:
    told = {
        "noun": "workflow",
        "description": "Sends an order.",
        "lane_id": "orders",
        "priority": 7,
        "tags": {"user.team": "shop"},
        "policy": {"priority": 3, "max_reclaim_count": 9},
        "input": SCHEMA,
        "id": "order:{order}",
        "reuse": "reject",
    }
    assert await engine.announce_kinds("shop", {"send": told, "bill": TASK}) == KindsAnnounced(2)
    found = await engine.read_kind_definition("shop", "send")
    assert found is not None
    assert (found.namespace, found.kind, found.announced_at) == ("shop", "send", clock.now_ms)
    assert found.definition.input == SCHEMA
    assert (found.definition.id, found.definition.reuse, found.definition.by_code) == ("order:{order}", "reject", None)
    assert found.definition.policy is not None
    assert found.definition.policy["max_reclaim_count"] == 9
    assert await engine.read_kind_definition("shop", "bill") == KindSnapshot(
        "shop", "bill", clock.now_ms, KindDescription(noun="task")
    )
    assert await engine.read_kind_definition("shop", "other") is None
    assert await engine.read_kind_definition("other", "send") is None
    assert (await engine.list_kind_definitions()).kinds == (
        KnownKind("shop", "bill", clock.now_ms),
        KnownKind("shop", "send", clock.now_ms),
    )


async def test_only_what_changes_is_written(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await engine.announce_kinds("shop", {"send": TASK, "bill": TASK})
    begun = clock.now_ms
    clock.advance(ANNOUNCED_FOR_MS - 1)
    async with unchanged(probe):
        assert await engine.announce_kinds("shop", {"send": TASK, "bill": TASK}) == KindsAnnounced(0)
        assert await engine.announce_kinds("shop", {}) == KindsAnnounced(0)
    changed = {**TASK, "description": "Sends."}
    assert await engine.announce_kinds("shop", {"send": changed, "bill": TASK}) == KindsAnnounced(1)
    assert [each.announced_at for each in (await engine.list_kind_definitions()).kinds] == [begun, clock.now_ms]
    clock.advance(1)
    assert await engine.announce_kinds("shop", {"send": changed, "bill": TASK}) == KindsAnnounced(1)
    assert [each.announced_at for each in (await engine.list_kind_definitions()).kinds] == [
        clock.now_ms, clock.now_ms - 1,
    ]  # fmt: skip
    found = await engine.read_kind_definition("shop", "send")
    assert found is not None
    assert found.definition.description == "Sends."


async def test_pages_go_by_namespace_and_name(engine: Engine) -> None:
    odd = "{fp:0}:00000000-0000-4000-8000-000000000000"
    spaces = {"a": ["x", "y", odd], "a!": ["x"], "b": ["Y", "ä", "z"], odd: ["one"], "": ["two"]}
    for space, kinds in spaces.items():
        await engine.announce_kinds(space, dict.fromkeys(kinds, TASK))
    everything = sorted((space, kind) for space, kinds in spaces.items() for kind in kinds)
    assert await listed(engine) == everything
    for space, kinds in spaces.items():
        assert await listed(engine, namespaces=[space]) == sorted((space, kind) for kind in kinds)
    assert await listed(engine, namespaces=[]) == []
    assert await listed(engine, namespaces=["none"]) == []
    for some in (None, ["a", "b"], [odd, "a!"], ["a"]):
        expected = [each for each in everything if some is None or each[0] in some]
        for size in (1, 2, 100):
            found, cursor = [], None
            while True:
                page = await engine.list_kind_definitions(namespaces=some, cursor=cursor, limit=size)
                found += [(each.namespace, each.kind) for each in page.kinds]
                assert len(page.kinds) <= size
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert found == expected


async def test_many_at_once(engine: Engine, open_engine: Callable[..., Any]) -> None:
    other = engine if engine.backend_label == "memory" else await open_engine()
    definitions = {f"kind-{number}": TASK for number in range(20)}
    await asyncio.gather(*((engine, other)[number % 2].announce_kinds("shop", definitions) for number in range(8)))
    assert len(await listed(engine)) == 20


async def test_a_namespace_has_so_many(engine: Engine, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_KINDS", 3)
    await engine.announce_kinds("shop", {"a": TASK, "b": TASK, "c": TASK})
    async with unchanged(probe):
        with pytest.raises(Validation, match="would have 4 kinds, at most 3 are allowed; use another namespace"):
            await engine.announce_kinds("shop", {"c": TASK, "d": TASK})
    # What is there can change, and others have their own.
    await engine.announce_kinds("shop", {"c": {"noun": "workflow"}})
    await engine.announce_kinds("shop!", {"d": TASK})
    await engine.announce_kinds("sho", {"d": TASK})


async def test_nobody_announces_them_any_more(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await engine.announce_kinds("shop", {"old": TASK, "new": TASK})
    clock.advance(ANNOUNCED_FOR_MS)
    await engine.announce_kinds("shop", {"new": TASK})
    clock.advance(KIND_KEPT_MS - ANNOUNCED_FOR_MS)
    async with unchanged(probe):
        await engine.run_timer("retention_trimmer")
    clock.advance(1)
    await engine.run_timer("retention_trimmer")
    assert await listed(engine) == [("shop", "new")]
    assert await engine.read_kind_definition("shop", "old") is None


async def test_definitions_are_checked(engine: Engine, probe: Probe) -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    wrong: tuple[Any, ...] = (
        {"$ask": TASK},
        {"": TASK},
        {"k": None},
        {"k": {}},
        {"k": {"noun": "step"}},
        {"k": {**TASK, "more": 1}},
        {"k": {**TASK, "lane_id": "a b\n"}},
        {"k": {**TASK, "tags": {"a": 1}}},
        {"k": {**TASK, "policy": {"retry_policy": 7}}},
        {"k": {**TASK, "input": []}},
        {"k": {**TASK, "input": {"a": deep}}},
        {"k": {**TASK, "input": {"a": object()}}},
        {"k": {**TASK, "reuse": "never"}},
        {"k": {**TASK, "id": ""}},
        {"k": {**TASK, "description": "a\x00b"}},
        {f"k{number}": TASK for number in range(MAX_KINDS + 1)},
        [("k", TASK)],
    )
    async with unchanged(probe):
        for each in wrong:
            with pytest.raises(Validation):
                await engine.announce_kinds("shop", each)
        with pytest.raises(Validation, match="bytes, at most 65536 are allowed; shorten") as caught:
            await engine.announce_kinds("shop", {"k": {**TASK, "input": {"title": "x" * MAX_KIND_BYTES}}})
    assert caught.value.kind is ValidationKind.PAYLOAD_TOO_LARGE


async def test_a_limited_caller_announces_its_own(engine: Engine, probe: Probe) -> None:
    mine = engine.limited_to(["mine"])
    await mine.announce_kinds("mine", {"k": TASK})
    async with unchanged(probe):
        for definitions in ({"k": TASK}, {}):
            with pytest.raises(Validation) as caught:
                await mine.announce_kinds("theirs", definitions)
            assert caught.value.kind is ValidationKind.UNAUTHORIZED
    assert await listed(mine, namespaces=["mine"]) == [("mine", "k")]


async def test_rows_that_nobody_can_read(engine: Engine) -> None:
    await seed(engine, KindDefinition("shop", "k", "{}", 1))
    with pytest.raises(Validation) as caught:
        await engine.read_kind_definition("shop", "k")
    assert caught.value.kind is ValidationKind.CORRUPTION
    assert await listed(engine) == [("shop", "k")]
    await engine.announce_kinds("shop", {"k": TASK})
    found = await engine.read_kind_definition("shop", "k")
    assert found is not None
    assert msgspec.to_builtins(found.definition)["noun"] == "task"
