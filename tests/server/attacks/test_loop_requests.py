"""No request holds the loop: whatever is sent, to whichever route, costs time that grows with its size alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from msgspec import UNSET

from flowfabric.engine import Engine
from flowfabric.engine.operation_table import REMOTE
from flowfabric.engine.wire.codec import body_of as wire_body
from flowfabric.model.jsontext import openings
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from flowfabric.server.http.request import BULK, CONTROL, LARGE
from flowfabric.server.operations import Route
from flowfabric.server.routes import ROUTES
from tests.conftest import full_run
from tests.server.access.test_roles import Things, body_of, request_of, things
from tests.server.attacks.world.watching import Request

#: Processor seconds that one callback may take, and below which growth is not judged.
CEILING_S, FLOOR_S = 2.0, 0.05
GROWTH = 2.5
#: Bodies of this size, unless the route takes less; in full runs the largest that it takes.
SIZE = 2**30 if full_run() else LARGE
#: Bytes of a path or query that a server reads.
HEAD = 16_000

Make = Callable[[int], bytes]


def filled(begin: bytes, unit: bytes, end: bytes = b"") -> Make:
    """As many of something as there is room for."""
    return lambda size: begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end


def keys(size: int) -> bytes:
    return b"{" + b",".join(b'"%06d":0' % number for number in range((size - 2) // 11)) + b"}"


CORPUS: dict[str, Make] = {
    "deep lists": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "deep objects": lambda size: b'{"a":' * (size // 6) + b"0" + b"}" * (size // 6),
    "open lists": filled(b"", b"["),
    "as deep as allowed": filled(b"[", b"[" * 60 + b"]" * 60 + b",", b"0]"),
    "deep in a text": filled(b'{"link":"', b"[{", b'"}'),
    "unclosed text": filled(b'{"link":"', b"a"),
    "unclosed escapes": filled(b'{"x":[' + b"[]," * 70 + b'"', rb"\""),
    "unclosed backslashes": filled(b'{"x":[' + b"[]," * 70 + b'"', rb"\\"),
    "unclosed escapes of brackets": filled(b'{"x":[' + b"[]," * 70 + b'"', rb"\"[]"),
    "quotes": filled(b'{"x":[' + b"[]," * 70, b'"'),
    "escapes": filled(b'{"link":"', rb"\"", b'"}'),
    "unicode escapes": filled(b'{"link":"', rb"\u00e9", b'"}'),
    "nul escapes": filled(b'{"link":"', rb"\u0000", b'"}'),
    "lone surrogates": filled(b'{"link":"', rb"\ud800", b'"}'),
    "texts": filled(b"[", b'"[",', b'""]'),
    "empty texts": filled(b"[", b'"",', b'""]'),
    "no unicode": filled(b'{"link":"', b"\xff\xfe", b'"}'),
    "large number": filled(b'{"value":', b"9", b"}"),
    "large fraction": filled(b'{"value":0.', b"1", b"}"),
    "large exponent": filled(b'{"value":1e', b"9", b"}"),
    "numbers that are none": filled(b"[", b"NaN,", b"NaN]"),
    "many keys": keys,
    "one key many times": filled(b"{", b'"link":"",', b'"link":""}'),
    "wide list": filled(b"[", b"0,", b"0]"),
    "wide list of lists": filled(b"[", b"[],", b"[]]"),
    "wide list of objects": filled(b"[", b"{},", b"{}]"),
    "spaces": filled(b"", b" ", b"{}"),
    "closing": filled(b"[" * 70, b"]"),
    "zeros": filled(b"", b"\x00"),
}  # fmt: skip
#: Texts that a careless pattern may take long over, for whatever a good body has a text in.
UNITS = ["a", "\\", '"', "-", ".", "a.", "{fp:", "{fp:0}:", "0", "0-", " ", "é", "%", "=", "+/", "a:", "[", "*/", ","]

CALLED = {each.name: each for each in ROUTES}
BY_PATH = {name: each.path for name, each in CALLED.items()}
WITH_BODY = [name for name, each in CALLED.items() if each.body is not None]


@pytest.fixture
def server(engine: Engine) -> Server:
    # Answers are not to be kept from what was asked before, nor anybody refused for asking often.
    return create_app(engine, ServerConfig(metrics=False))


async def check(server: Server, what: str, make: Callable[[int], Request], size: int) -> None:
    """Ask once; whatever takes long enough to be measured is measured again, and at half its size."""
    status, held = await make(size).held(server)
    assert status < 500, (what, status)
    assert status != 401 or "authorization" in what or "create_credential" in what, what
    assert held.longest < CEILING_S, (what, held.longest)
    if held.total < FLOOR_S:
        return
    whole = min([held.total, *[(await make(size).held(server))[1].total for _ in range(3)]])
    half = min([(await make(size // 2).held(server))[1].total for _ in range(4)])
    assert whole < FLOOR_S or whole < GROWTH * half, (what, half, whole)


@pytest.mark.parametrize("name", WITH_BODY)
async def test_bodies(server: Server, engine: Engine, name: str) -> None:
    operation = CALLED[name]
    path, _ = request_of(operation, await things(engine, "mine"))
    for kind, make in CORPUS.items():
        await check(
            server,
            f"{name}: {kind}",
            lambda size, make=make: Request(operation.method, path, body=make(size)),  # type: ignore[misc]
            min(operation.limit, SIZE),
        )


def sparse(unit: bytes) -> bytes:
    """With so much space behind it that the largest body does not hold too many lists and objects."""
    return unit + b" " * (20 * openings(unit))


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"[[[[]]]],", b'["["],', b"[" * 30 + b"]" * 30 + b","])
async def test_the_largest_bodies_are_looked_at_a_piece_at_a_time(server: Server, unit: bytes) -> None:
    """Others get their turn in between, however much there is to follow."""
    body = filled(b"[" * 33, sparse(unit), b"0")(BULK)
    status, held = await Request("POST", BY_PATH["remote_calls"], body=body).held(server)
    assert status in (400, 422)
    assert held.longest < held.total / 2, held.longest


async def test_what_nests_too_deep_is_not_looked_at_to_its_end(server: Server) -> None:
    deep = filled(b"[" * 65, sparse(b"[],"), b"0")(BULK)
    flat = filled(b"[", sparse(b"[],"), b"0")(BULK)
    (status, of_deep), (_, of_flat) = [
        await Request("POST", BY_PATH["remote_calls"], body=body).held(server) for body in (deep, flat)
    ]
    assert status == 400
    assert of_deep.total < of_flat.total / 2


def with_texts(kind: Any, about: Things, unit: str, size: int) -> bytes:
    """A good body whose texts are all long ones."""
    body = body_of(kind, about)
    fields = [each.encode_name for each in msgspec.structs.fields(kind)]
    room = max((size - 4_096) // (len(fields) * max(len(msgspec.json.encode(unit)) - 2, 1)), 1)
    for name in fields:
        if isinstance(body.get(name, ""), str):
            body[name] = unit * room
        elif isinstance(body.get(name), list) and not body[name]:
            body[name] = [unit * room]
        elif isinstance(body.get(name), dict) and not body[name]:
            body[name] = {unit * room: unit}
    return msgspec.json.encode(body)


@pytest.mark.parametrize("name", WITH_BODY)
async def test_long_texts_in_good_bodies(server: Server, engine: Engine, name: str) -> None:
    operation = CALLED[name]
    about = await things(engine, "mine")
    path, _ = request_of(operation, about)
    for unit in UNITS:
        # One field at a time gets far; all of them together reach what is checked last.
        def request(size: int, unit: str = unit) -> Request:
            return Request(operation.method, path, body=with_texts(operation.body, about, unit, size))

        await check(server, f"{name}: {unit}", request, min(operation.limit, SIZE))
        for field in msgspec.structs.fields(operation.body):

            def single(size: int, unit: str = unit, field: str = field.encode_name) -> Request:
                body = {**body_of(operation.body, about), field: unit * (size // (2 * len(unit.encode())) - 4_096)}
                return Request(operation.method, path, body=msgspec.json.encode(body))

            await check(server, f"{name} {field.name}: {unit}", single, min(operation.limit, 65_536))


def called(op: str, arguments: bytes) -> Request:
    return Request(
        "POST", BY_PATH["remote_calls"], body=b'{"calls":[{"op":"%b","arguments":%b}]}' % (op.encode(), arguments)
    )


@pytest.mark.parametrize("op", REMOTE)
async def test_remote_calls(server: Server, op: str) -> None:
    for kind, make in CORPUS.items():
        await check(server, f"{op}: {kind}", lambda size, make=make: called(op, make(size)), CONTROL)  # type: ignore[misc]
    fields = {each.encode_name: each.type for each in msgspec.structs.fields(wire_body(op).kind)}
    for name in fields:
        for unit in UNITS:

            def single(size: int, name: str = name, unit: str = unit) -> Request:
                needed = {each: "x" for each, kind in fields.items() if type(UNSET) not in get_args(kind)}
                return called(op, msgspec.json.encode({**needed, name: unit * (size // (2 * len(unit.encode())))}))

            await check(server, f"{op} {name}: {unit}", single, CONTROL)


def long_path(operation: Route, unit: str, size: int) -> str:
    head, _, rest = operation.path.partition("{")
    return f"{head}{unit * (size // len(unit))}{rest.partition('}')[2]}"


@pytest.mark.parametrize("name", CALLED)
async def test_paths_queries_and_headers(server: Server, engine: Engine, name: str) -> None:
    operation = CALLED[name]
    path, options = request_of(operation, await things(engine, "mine"))
    body = msgspec.json.encode(options.get("json", {}))
    method = operation.method
    names = [] if operation.query is None else [each.encode_name for each in msgspec.structs.fields(operation.query)]
    for unit in ("a", "%7B", "%", "%%", "a&", "=", "a=b&", "/", "-", ".", "0", "%FF", "..%2F", ","):
        if "{" in operation.path:
            await check(
                server,
                f"path {unit}",
                lambda size, u=unit: Request(method, long_path(operation, u, size), body=body),
                HEAD,
            )  # type: ignore[misc]
        await check(
            server, f"query {unit}", lambda size, u=unit: Request(method, path, u * (size // len(u)), body), HEAD
        )  # type: ignore[misc]
        for field in names:
            await check(
                server,
                f"{field} {unit}",
                lambda size, u=unit, f=field: Request(method, path, f"{f}={u * (size // len(u))}", body),  # type: ignore[misc]
                HEAD,
            )
    for header in (
        "authorization",
        "idempotency_key",
        "traceparent",
        "tracestate",
        "x_request_id",
        "last_event_id",
        "host",
    ):
        for unit in ("a", "-", "0-", "Bearer ", "ff_", ",", "=", '"', ";"):
            await check(
                server,
                f"{header} {unit}",
                lambda size, h=header, u=unit: Request(method, path, "", body, **{h: u * (size // len(u))}),  # type: ignore[misc]
                HEAD,
            )


async def test_the_description_is_made_once(server: Server) -> None:
    for path in ("/openapi.json", "/docs"):
        first, _ = await Request("GET", path).ask(server), None
        totals = [(await Request("GET", path).held(server))[1].total for _ in range(5)]
        assert first[0] == 200
        assert min(totals) < 0.02
