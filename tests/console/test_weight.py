"""What pages weigh: printed for every page together with how long it took, and kept within bounds.

./dev test tests/console/test_weight.py -s
"""

from __future__ import annotations

import sys
import time
from urllib.parse import quote

import pytest
from playwright.async_api import expect

from tests.console.conftest import Pages, Shop

pytestmark = pytest.mark.asyncio(loop_scope="session")
#: Everything that a page fetches of the console's own files, as it comes over the wire, in bytes.
WEIGHED = """
() => performance.getEntriesByType("resource")
  .filter((each) => !new URL(each.name).pathname.startsWith("/v1/"))
  .reduce((sum, each) => sum + each.encodedBodySize, 0)
  + performance.getEntriesByType("navigation")[0].encodedBodySize
"""
HEAP = "performance.memory ? Math.round(performance.memory.usedJSHeapSize / 1_048_576 * 10) / 10 : null"
#: Page -> the most that it may weigh. A page that needs more has to be worth it.
MOST = {
    "overview": 105_000, "executions": 95_000, "execution": 95_000, "flows": 65_000, "flow": 90_000,
    "approvals": 70_000, "budgets": 50_000, "schedules": 55_000, "schedule": 55_000, "workers": 50_000,
    "kinds": 48_000, "audit": 50_000, "settings": 50_000,
}  # fmt: skip


async def test_what_pages_weigh(shop: Shop, pages: Pages, capsys: pytest.CaptureFixture[str]) -> None:
    seeded, lines, weights = shop.seeded, [], {}
    more = {
        "execution": f"executions/{quote(seeded.deploy, safe='')}",
        "flow": f"flows/{seeded.flow}",
        "schedule": "schedules/nightly%20report?namespace=shop",
    }
    for name in MOST:
        watched = await pages.of(shop.url)
        began = time.monotonic()
        await watched.go(more.get(name, name))
        await expect(watched.page.get_by_role("heading", level=1).first).to_be_visible()
        await expect(watched.at(".loading")).to_have_count(0)
        took = time.monotonic() - began
        weights[name] = await watched.page.evaluate(WEIGHED)
        heap = await watched.page.evaluate(HEAP)
        lines.append(f"{name:12} {weights[name]:>8,} bytes {took:6.2f} s {heap} MB of heap")
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
    too_heavy = {name: weight for name, weight in weights.items() if weight > MOST[name]}
    assert not too_heavy, f"heavier than {MOST}"
