"""Whatever is sent, the answer is one of those that were promised: never a 5xx, never a traceback."""

from __future__ import annotations

import random
import re
import string
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from flowfabric.engine import Engine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.operations import Route
from flowfabric.server.routes import ROUTES
from tests.conftest import full_run
from tests.server.access.test_roles import FOLLOWED, Things, body_of, request_of, things
from tests.server.conftest import client_of

ROUNDS = 400 if full_run() else 15
CALLED = {each.name: each for each in ROUTES if each.name not in FOLLOWED}
ODD: list[Any] = [
    None, True, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 1.5, 1e308, "", " ", "x", "\x00", "😀",
    "é" * 600, "x" * 70_000, "2" * 30, "{fp:0}:x", "{fp:99999}:00000000-0000-4000-8000-000000000000",
    "00000000-0000-4000-8000-000000000000", "ff_0_0", "0-0", "start", "../..", "%00", "' OR 1=1 --", [], [None], [[]],
    [256], ["x"], {}, {"x": None}, {"": ""}, {"a": {"b": {"c": []}}}, {"type": "fixed"}, "AQI=", "all_of", "cancel_all",
]  # fmt: skip


def odd_body(operation: Route, about: Things, chance: random.Random) -> Any:
    """A good body with some of it replaced, left out, or added."""
    if chance.random() < 0.05:
        return chance.choice(ODD)
    body = body_of(operation.body, about)
    for field in msgspec.structs.fields(operation.body):
        luck = chance.random()
        if luck < 0.25:
            body[field.encode_name] = chance.choice(ODD)
        elif luck < 0.3:
            body.pop(field.encode_name, None)
    return body


def odd_query(operation: Route, about: Things, chance: random.Random) -> dict[str, str]:
    query = {name: str(value) for name, value in body_of(operation.query, about).items()}
    for field in msgspec.structs.fields(operation.query):
        if chance.random() < 0.3:
            query[field.encode_name] = str(chance.choice(ODD))[:1_000]
    return query


def odd_path(path: str, operation: Route, chance: random.Random) -> str:
    if chance.random() < 0.8:
        return path
    text = lambda: str(chance.choice([each for each in ODD if isinstance(each, str) and each]))[:500]  # noqa: E731
    return re.sub(r"{\w+}", lambda _: quote(text(), safe=""), operation.path)


@pytest.mark.parametrize("name", CALLED)
async def test_odd_requests(engine: Engine, name: str) -> None:
    operation = CALLED[name]
    chance = random.Random(name)
    server = create_app(engine, ServerConfig())
    about = await things(engine, "mine")
    good, _ = request_of(operation, about)
    async with client_of(server) as client:
        for number in range(ROUNDS):
            options: dict[str, Any] = {}
            headers = {}
            if operation.body is not None:
                options["content"] = msgspec.json.encode(odd_body(operation, about, chance))
                headers["content-type"] = "application/json"
                if chance.random() < 0.05:
                    options["content"] = options["content"][: chance.randrange(len(options["content"]) + 1)]
            if operation.query is not None:
                options["params"] = odd_query(operation, about, chance)
            if chance.random() < 0.1:
                headers["idempotency-key"] = "".join(chance.choices(string.printable[:95], k=chance.randrange(300)))
            path = odd_path(good, operation, chance)
            response = await client.request(operation.method, path, headers=headers, **options)
            assert response.status_code < 500, (number, path, options, response.text)
            server.gate.forget()
            if name == "create_credential" and response.status_code == 201:
                identity = response.json()["credential"]["credential_id"]
                await engine.revoke_credential(identity)
                server.gate._required = False
