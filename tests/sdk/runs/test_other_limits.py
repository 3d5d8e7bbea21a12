"""A task's limit has other numbers in a later release: it is the same limit, with the numbers that were stated last."""

from __future__ import annotations

from msgspec.structs import replace

from flowfabric import App, Limit, QuotaPolicyLimits, Rate, minutes
from flowfabric.model.limits import GATE_KNOWN_MS
from flowfabric.sdk.definitions.tasks import Task
from flowfabric.sdk.worker.presence import Presence
from tests.contract.probe import shared_stores_only
from tests.sdk.doing import WORKER, claim

#: A worker that does not wait for work.
ONCE = replace(WORKER, max_wait=None)


def release(url: str, *limits: Limit | Rate) -> tuple[App, Task[[str], None]]:
    """A program with one task and these limits, as it is deployed."""
    app = App(url, namespace="n")

    @app.task(limits=list(limits))
    async def task(tenant: str) -> None: ...

    return app, task


async def limits_of(app: App) -> list[tuple[int, int, int]]:
    """All that there are: how many at once, how many in how many seconds."""
    found = (await app.engine.list_quota_policies(namespaces=["n"])).policies
    return [numbers(each.limits) for each in found]


def numbers(limits: QuotaPolicyLimits) -> tuple[int, int, int]:
    """How many at once, how many in how many seconds."""
    return limits.active_concurrency_cap, limits.max_requests_per_window, limits.requests_per_window_seconds


async def claimed(app: App) -> int:
    """How many can be claimed now."""
    return len(await app.engine.claim_many(app.lane, policy=ONCE, limit=20))


@shared_stores_only
async def test_a_smaller_limit_counts_runs_of_the_release_before(store_url: str) -> None:
    before, task = release(store_url, Limit(10))
    after, again = release(store_url, Limit(2))
    async with before, after:
        await task.start_many([("a",)] * 3)
        held = [await claim(before) for _ in range(3)]
        await task.start("a")
        await again.start("a")
        assert await limits_of(after) == [(2, 0, 60)]
        assert await claimed(after) == 0
        for handle in held[:2]:
            await before.engine.complete(handle, b"null")
        assert (await claim(after)).execution_id
        assert await claimed(after) == 0


@shared_stores_only
async def test_every_value_of_a_key_gets_the_numbers_when_it_is_used(store_url: str) -> None:
    before, task = release(store_url, Limit(10, key="tenant"), Rate(60, minutes(1), key="tenant"))
    after, again = release(store_url, Limit(2, key="tenant"), Rate(9, minutes(2), key="tenant"))
    async with before, after:
        for tenant in ("a", "b"):
            await task.start(tenant)
        await again.start("a")
        assert sorted(await limits_of(after)) == [(2, 9, 120), (10, 60, 60)]


@shared_stores_only
async def test_of_two_releases_at_once_the_later_statement_counts(store_url: str) -> None:
    before, task = release(store_url, Limit(10))
    after, again = release(store_url, Limit(2))
    async with before, after:
        now = 0.0
        before.gates.clock = after.gates.clock = lambda: now
        await task.start("a")
        await again.start("a")
        await task.start("a")  # has stated its numbers, and does not do so with every start
        assert await limits_of(after) == [(2, 0, 60)]
        now = GATE_KNOWN_MS / 1000
        await task.start("a")
        assert await limits_of(after) == [(10, 0, 60)]
        await again.start("a")  # so those of a release that has ended do not stay
        assert await limits_of(after) == [(2, 0, 60)]


@shared_stores_only
async def test_workers_state_the_limits_of_what_is_started_elsewhere(store_url: str) -> None:
    before, _ = release(store_url, Limit(10))
    after, _ = release(store_url, Limit(2))
    async with before, after:
        presence = Presence(after.worker(), 10_000)
        await presence.announced()
        assert await limits_of(after) == [(2, 0, 60)]
        await Presence(before.worker(), 10_000).announced()
        assert await limits_of(after) == [(10, 0, 60)]
        for every, chore in presence.chores:
            if every <= GATE_KNOWN_MS / 1000:
                await chore(after.engine)
        assert await limits_of(after) == [(2, 0, 60)]


@shared_stores_only
async def test_another_key_is_another_limit(store_url: str) -> None:
    before, task = release(store_url, Limit(10))
    after, again = release(store_url, Limit(2, key="tenant"))
    async with before, after:
        await task.start("a")
        await again.start("a")
        assert sorted(await limits_of(after)) == [(2, 0, 60), (10, 0, 60)]
