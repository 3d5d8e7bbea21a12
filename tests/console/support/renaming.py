"""The overview shows a few of many: this lets every hostile text be among them."""

from __future__ import annotations

from playwright.async_api import Route

from tests.console.support.planting import ALL, lane_of


class Renamed:
    """What the server says of the whole, with other names in it.

    The charts draw twelve lanes and eight budgets of all that there are, and which ones is for the server to choose;
    it names twelve budgets that are nearly used up, and workers that are gone for as long as nobody has taken their
    work over, which is a second. So that every text has its turn in each of these places, names change from one round
    to the next. Numbers stay what they are; the matter of a worker is that of a lane with other words.
    """

    #: As many as the chart of budgets shows.
    ROUND = 8

    def __init__(self) -> None:
        self.at = 0

    @property
    def texts(self) -> list[str]:
        return ALL[self.at : self.at + self.ROUND]

    async def overview(self, route: Route) -> None:
        response = await route.fetch()
        told = await response.json()
        series = told["series"]
        for kind in ("lanes_waiting", "lanes_oldest_ms"):
            lines = list(series[kind].values())
            assert len(lines) >= self.ROUND
            series[kind] = dict(zip(map(lane_of, self.texts), lines, strict=False))
        for text, budget in zip(self.texts, told["budgets"], strict=False):
            assert budget["scope_id"] in ALL
            budget["scope_id"] = text
        await route.fulfill(response=response, json=told)

    async def attention(self, route: Route) -> None:
        response = await route.fetch()
        told = await response.json()
        kept = [each for each in told["matters"] if each["kind"] == "asks"]
        budget = next(each for each in told["matters"] if each["kind"] == "budget")
        lane = next(each for each in told["matters"] if each["kind"] == "lane")
        for text in self.texts:
            sentence = f"budget {text} is nearly used up: 90% of its {text}"
            kept.append({**budget, "sentence": sentence, "subject": text})
            kept.append(
                {**lane, "kind": "worker", "sentence": f"worker {text} is gone; it held 1 lease", "subject": text}
            )
        await route.fulfill(response=response, json={"matters": kept})
