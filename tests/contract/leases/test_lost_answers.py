"""Calls that are made again because their answer was lost: numbered appends and claims with a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import ClaimPolicy, DurableSummary, Frame, Handle, HandleKind, Validation
from flowfabric.engine import Engine
from tests.contract.probe import ManualClock, Probe, claimed, create, id_of, policy, unchanged

KEY = "0123456789abcdef"


def repeated(**more: Any) -> ClaimPolicy:
    return policy(key=KEY, again=True, **more)


# -- appends ---------------------------------------------------------------------------------------------------------


async def test_an_append_with_the_same_number_is_written_once(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    handle = await claimed(engine)
    first = await engine.append_frames(handle, [Frame(b"a"), Frame(b"b")], 1)
    clock.advance(5)
    async with unchanged(probe):
        again = await engine.append_frames(handle, [Frame(b"a"), Frame(b"b")], 1)
    assert [each.stream_id for each in again] == [each.stream_id for each in first]
    second = await engine.append_frame(handle, Frame(b"c"), 2)
    async with unchanged(probe):
        assert await engine.append_frame(handle, Frame(b"c"), 2) == second
    page = await engine.read_stream(id_of(handle))
    assert [each.id for each in page.frames] == [*(each.stream_id for each in first), second.stream_id]


async def test_frames_without_a_number_do_not_disturb_those_with_one(engine: Engine) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, Frame(b"before"))
    numbered = await engine.append_frames(handle, [Frame(b"a"), Frame(b"b")], 7)
    await engine.append_frame(handle, Frame(b"between"))
    again = await engine.append_frames(handle, [Frame(b"a"), Frame(b"b")], 7)
    assert [each.stream_id for each in again] == [each.stream_id for each in numbered]
    page = await engine.read_stream(id_of(handle))
    assert [each.fields["payload"] for each in page.frames] == ["before", "a", "b", "between"]


async def test_a_summary_takes_in_a_numbered_delta_once(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    delta = Frame(b'{"a": 1}', mode=DurableSummary())
    first = await engine.append_frame(handle, delta, 1)
    async with unchanged(probe):
        assert await engine.append_frame(handle, delta, 1) == first
    assert first.summary_version == 1


async def test_numbers_rise_and_belong_to_their_frames(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.append_frames(handle, [Frame(b"a"), Frame(b"b")], 5)
    async with unchanged(probe):
        with pytest.raises(Validation, match="4 was used before; the last one was 5, with 2 frames"):
            await engine.append_frame(handle, Frame(b"c"), 4)
        with pytest.raises(Validation, match="5 was used before"):
            await engine.append_frame(handle, Frame(b"c"), 5)
        for bad in (0, -1, 2**63, "1", 1.0, True):
            with pytest.raises(Validation, match="number"):
                await engine.append_frame(handle, Frame(b"c"), bad)  # type: ignore[arg-type]
            with pytest.raises(Validation, match="number"):
                await engine.append_frames(handle, [Frame(b"c")], bad)  # type: ignore[arg-type]


async def test_another_lease_begins_to_count_anew(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, Frame(b"a"), 3)
    await engine.delay(handle, clock() + 10)
    clock.advance(20)
    await engine.run_timer("delayed_promoter")
    other = await engine.claim("lane-of-one", (), policy("other"))
    assert other is not None
    assert other.payload.attempt_index == handle.payload.attempt_index
    await engine.append_frame(other, Frame(b"b"), 1)
    page = await engine.read_stream(id_of(handle))
    assert [each.fields["payload"] for each in page.frames] == ["a", "b"]


async def test_a_holder_that_was_passed_over_is_refused_first(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=1_000)
    await engine.append_frame(handle, Frame(b"a"), 1)
    clock.advance(1_000)
    with pytest.raises(Exception, match="lease_expired"):
        await engine.append_frame(handle, Frame(b"a"), 1)


async def test_a_number_is_remembered_by_the_store(open_engine: Callable[..., Any], store_url: str) -> None:
    if store_url.startswith("memory"):
        return  # it ends with its process
    first = await open_engine()
    handle = await claimed(first)
    told = await first.append_frame(handle, Frame(b"a"), 1)
    second = await open_engine()
    assert await second.append_frame(handle, Frame(b"a"), 1) == told


# -- claims ----------------------------------------------------------------------------------------------------------


def same(one: list[Handle], other: list[Handle]) -> bool:
    return [(each.kind, each.payload) for each in one] == [(each.kind, each.payload) for each in other]


@pytest.mark.parametrize("lanes", [False, True])
async def test_a_claim_made_again_gives_what_it_gave(engine: Engine, probe: Probe, lanes: bool) -> None:
    for _ in range(5):
        await create(engine)

    async def claim(terms: ClaimPolicy, limit: int) -> list[Handle]:
        if lanes:
            return await engine.claim_from_lanes({"default": 2, "other": 1}, (), terms, limit)
        return await engine.claim_many("default", (), terms, limit)

    first = await claim(policy(key=KEY), 3)
    assert len(first) == 3
    async with unchanged(probe):
        assert same(await claim(repeated(), 3), first)
    await engine.complete(first[0], None)
    assert same(await claim(repeated(), 3), first[1:]), "what has ended is not given again"
    rest = await claim(policy(key="another key of 16"), 9)
    assert len(rest) == 2
    assert same(await claim(repeated(), 3), first[1:]), "what another claim was given is not either"


async def test_a_claim_that_was_never_made_is_made(engine: Engine) -> None:
    await create(engine)
    handles = await engine.claim_many("default", (), repeated(), 2)
    assert len(handles) == 1
    assert same(await engine.claim_many("default", (), repeated(), 2), handles)


async def test_leases_of_others_are_not_given(engine: Engine, clock: ManualClock) -> None:
    await create(engine, namespace="acme")
    [mine] = await engine.claim_many("default", (), policy(key=KEY), 1)
    assert await engine.claim_many("default", (), repeated(instance="another"), 1) == []
    assert await engine.claim_many("default", (), repeated(), 1, ["other"]) == []
    assert same(await engine.claim_many("default", (), repeated(), 1, ["acme"]), [mine])
    clock.advance(30_000)
    assert await engine.claim_many("default", (), repeated(), 1) == [], "it has run out"


async def test_what_goes_on_is_told_from_what_begins(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.delay(handle, clock() + 10)
    clock.advance(20)
    await engine.run_timer("delayed_promoter")
    await create(engine, lane_id="lane-of-one")
    handles = await engine.claim_many("lane-of-one", (), policy(key=KEY), 2)
    assert {each.kind for each in handles} == {HandleKind.FRESH, HandleKind.RESUMED}
    again = await engine.claim_many("lane-of-one", (), repeated(), 2)
    assert same(again, handles)
    for each in again:
        await engine.complete(each, None)


async def test_keys_that_are_none(engine: Engine) -> None:
    for bad in (policy(again=True), policy(key="short"), policy(key=5), policy(key=KEY, again="yes")):
        with pytest.raises(Validation, match=r"key|again"):
            await engine.claim("default", (), bad)
        with pytest.raises(Validation, match=r"key|again"):
            await engine.claim_from_lanes({"default": 1}, (), bad)
