"""Refusals name the field that the caller sent, and repeat no more of it than 64 characters, escaped.

Every field in which texts stand, of every route and every remote call, gets a text that fits nowhere, in a call that is
otherwise valid.
"""

from __future__ import annotations

import json

import httpx
import pytest

from flowfabric.model.operations.access import Scope
from tests.server.attacks.world.naming import Place, atoms, call_of, places
from tests.server.attacks.world.tenants import opened
from tests.server.conftest import client_of

#: Too long for every name, no id, no number, no known word; it would end a line and open a tag.
ODD = "odd\n<b>'\"" + "9417" * 600
#: Policies have refusals of their own (``test_flaws``); conditions need others around them.
APART = {"policy", "resume_condition", "resume_policy", "mode"}
WORDS = [each for each in places() if str in set(atoms(each.hint)) and APART.isdisjoint(each.steps[:-1])]
#: Most of what a refusal may say; lists of known words are the longest part.
MOST = 700
#: What is said without naming the field: of tokens nobody is told what is wrong, and capabilities have codes.
UNNAMED = {"waitpoint_token", "worker_capabilities"}


class Refusal:
    """What an answer refuses, if it does: with which status, and in which words."""

    def __init__(self, place: Place, response: httpx.Response) -> None:
        self.status = response.status_code
        self.text = response.text
        if place.door == "remote":
            error = response.json()["answers"][0].get("error", {})
            self.status = error.get("status", 400 if error.get("family") == "validation" else 200)
            self.text = json.dumps(error, ensure_ascii=False)


@pytest.mark.parametrize("namespaces", [None, ["a"]], ids=["anybody", "limited"])
@pytest.mark.parametrize("door", ["http", "remote"])
async def test_a_text_that_fits_nowhere(door: str, namespaces: list[str] | None) -> None:
    refusals = 0
    async with opened() as world:
        made = await world.engine.create_credential(name="all", scopes=list(Scope), namespaces=namespaces)
        async with client_of(world.server, made.token) as client:
            for place in (each for each in WORDS if each.door == door):
                call = call_of(place, world.a, ODD)
                response = await client.request(call.method, call.url, params=call.query, json=call.body)
                refusals += check(place, Refusal(place, response))
    assert refusals > (100 if namespaces is None else 60), "otherwise little of it was seen"


def check(place: Place, refusal: Refusal) -> bool:
    """Look at it; whether there is one of the kind that names a field."""
    assert refusal.status < 500, place
    if refusal.status != 400:
        return False
    assert len(refusal.text) <= MOST, (place, refusal.text)
    assert refusal.text.count("9417") <= 64 / 4, (place, refusal.text)
    assert "\n" not in json.loads(refusal.text).get("error", ""), place
    name = place.steps[-1]
    # One of a list is told by the word for one.
    named = name in refusal.text or name.removesuffix("s") in refusal.text
    assert named or name in UNNAMED, (place, refusal.text)
    return True
