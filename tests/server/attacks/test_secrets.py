"""Known secrets are planted everywhere, and looked for wherever something can be read."""

from __future__ import annotations

import importlib
import io
import json
import logging
import pickle
import pkgutil
import pprint
import re
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any, get_type_hints
from urllib.parse import quote

import httpx
import msgspec
import pydantic
import pytest
from rich.console import Console

import flowfabric
from flowfabric import ClaimPolicy, ExecutionId
from flowfabric.conditions import ByName, Single
from flowfabric.core.suspension.signing import RotateKey, SeedSecret
from flowfabric.engine import Engine, credential_tokens
from flowfabric.model.decisions import Get
from flowfabric.model.errors import EngineError
from flowfabric.model.handles import Handle
from flowfabric.model.operations.access import Credential
from flowfabric.model.operations.executions import Granted, ResumeGrant
from flowfabric.model.operations.suspension import Fresh, SuspendArgs, Suspended
from flowfabric.model.records.executions import SigningKey, SuspendDedup, Waitpoint
from flowfabric.model.secrets import Discreet
from flowfabric.model.waitpoint_tokens import Token
from flowfabric.sdk.app import App
from flowfabric.sdk.asks.links import make_link
from flowfabric.sdk.remote.handles import unsealed
from flowfabric.sdk.remote.http_client import Address, Servers
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from flowfabric.server.routes import ROUTES
from flowfabric.stores import migration_plan
from tests.server.conftest import client_of
from tests.server.making import claimed

SECRET = "c0ffee" * 10 + "beef"
NEXT_SECRET = "facade" * 10 + "feed"
API_TOKEN = "canary-of-the-configuration"
PASSWORD = "canary-password"
DSN = f"postgresql://flow:{PASSWORD}@db.example/flow"
SENTRY = "https://canarykey@sentry.example/1"
#: The doors that show a secret to those who may ask for it, and nothing else does.
DOORS = {"read_waitpoint_token", "create_credential", "make_link", "remote_calls", "remote_claim"}


def forms(value: Any) -> Iterator[str]:
    """Every way in which something comes to be read by somebody."""
    yield from (repr(value), str(value), f"{value}", "%s" % (value,), "%r" % (value,), pprint.pformat(value))  # noqa: UP031
    console = Console(file=io.StringIO(), width=500)
    console.print(value)
    console.print({"within": [value]})
    yield console.file.getvalue()  # type: ignore[attr-defined]
    yield json.dumps([value], default=str)
    yield msgspec.json.encode([value], enc_hook=str).decode() if not isinstance(value, msgspec.Struct) else ""
    yield repr([value]) + repr({"within": (value,)})
    try:
        raise RuntimeError(value)
    except RuntimeError as error:
        yield "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


class Model(pydantic.BaseModel):
    """Somebody else's record."""

    token: str


# -- tokens ----------------------------------------------------------------------------------------------------------

TEXT = "k1:" + "5ec2e7" * 10 + "abcd"


def test_a_token_does_not_print_itself() -> None:
    token = Token(TEXT)
    shown = [*forms(token), json.dumps({"token": token}), Model(token=token).model_dump_json()]
    shown += ["".join([token]), token.upper(), token[:40], token + "", "{:>90}".format(token), token.encode().decode()]  # noqa: UP032
    shown += [str(part) for part in (token.split(":"), token.partition(":"), list(token), vars(Model(token=token)))]
    for text in shown:
        assert "5ec2e7" not in text.lower(), text
    assert str(token) == repr(token) == "k1:<REDACTED:len=64>"
    assert token.reveal() == TEXT
    assert type(token.reveal()) is str


def test_a_token_is_the_text_it_stands_for_and_no_other() -> None:
    token = Token(TEXT)
    assert token == TEXT
    assert token == TEXT
    assert token == Token(token)
    assert hash(token) == hash(TEXT)
    for other in ("", str(token), TEXT[:-1] + "e", 5, None):
        assert token != other
        assert other != token
    for copy in (deepcopy(token), pickle.loads(pickle.dumps(token))):
        assert (copy, type(copy), copy.reveal()) == (token, Token, TEXT)
    assert not Token("")
    assert Token("").reveal() == ""


# -- records ---------------------------------------------------------------------------------------------------------

#: Names of fields that hold secrets.
SECRET_NAMES = re.compile(r"(^|_)(token|secret|secret_hex|password|grant_key|link|dsn|envelope)s?$")
#: Fields with such names that hold none.
HARMLESS = {
    ("ClaimFromResumeGrant", "token"),
    ("UsageDimensions", "input_tokens"),
    ("UsageDimensions", "output_tokens"),
    ("AlreadySeeded", "same_secret"),
}


def structs() -> list[type]:
    for module in pkgutil.walk_packages(flowfabric.__path__, "flowfabric."):
        if not module.name.endswith("testing.plugin"):
            importlib.import_module(module.name)
    found: list[type] = []
    waiting = list(msgspec.Struct.__subclasses__())
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if one.__module__.startswith("flowfabric."):
            found.append(one)
    return found


def test_every_record_hides_what_is_called_a_secret() -> None:
    checked = 0
    for kind in structs():
        for name in kind.__struct_fields__:  # type: ignore[attr-defined]
            if SECRET_NAMES.search(name) and (kind.__name__, name) not in HARMLESS:
                checked += 1
                redacts_itself = get_type_hints(kind).get(name) is Token
                hidden = issubclass(kind, Discreet) and name in kind.HIDDEN
                assert redacts_itself or hidden, f"{kind.__module__}.{kind.__name__}.{name} would be printed"
    assert checked > 15


class World:
    """Something of every kind that holds a secret."""

    def __init__(self, engine: Engine, server: Server) -> None:
        self.engine, self.server = engine, server
        self.objects: list[Any] = []
        self.secrets: list[str] = [SECRET, NEXT_SECRET, API_TOKEN, PASSWORD, "canarykey"]
        self.identity = self.waitpoint = self.link = self.envelope = ""

    def add(self, *objects: Any) -> None:
        self.objects += objects

    def scan(self, texts: Iterable[str], where: str) -> None:
        for text in texts:
            for secret in self.secrets:
                assert secret not in text, f"{where} shows {secret[:12]}…: {text[:400]}"


async def world_of(engine: Engine) -> World:
    config = ServerConfig(api_token=API_TOKEN, hmac_secret=SECRET, store_url=DSN, sentry_dsn=SENTRY)
    world = World(engine, create_app(engine, config))
    world.add(config, world.server, world.server.gate, engine, SeedSecret("k1", bytes.fromhex(SECRET)))
    await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=SECRET)
    world.secrets.append(repr(bytes.fromhex(SECRET))[2:-1])
    made = await engine.create_credential(name="ann", scopes=["read", "worker"])
    minted = credential_tokens.mint()
    world.secrets += [each.reveal().rpartition("_")[2] for each in (made.token, minted.token)]
    world.add(made, minted)
    await engine.create_execution()
    handle = await claimed(engine)
    pending = await engine.create_waitpoint(handle, "pending", 60_000)
    args = SuspendArgs(
        waitpoints=[Fresh(waitpoint_key="yes")],
        resume_condition=Single("yes", ByName("go")),
        idempotency_key="once",
    )
    outcome = await engine.suspend(handle, args)
    assert isinstance(outcome, Suspended)
    given = outcome.details.waitpoint_token
    world.secrets += [each.reveal().partition(":")[2] for each in (pending.hmac_token, given)]
    world.identity, world.waitpoint = str(handle.execution_id), outcome.details.waitpoint_id
    world.link = make_link(world.identity, world.waitpoint, given)
    world.secrets.append(world.link)
    keys = await engine.derived_keys("canary")
    world.secrets += [repr(each)[2:-1] for each in keys.keys.values()]
    world.add(pending, outcome, given, keys, *await rows(engine, world, handle, made.credential.credential_id))
    await engine.create_execution()
    granted = await engine.claim_for_worker(lane_id="default", worker_id="w", worker_instance_id="w-1")
    assert isinstance(granted, Granted)
    key = granted.grant.grant_key
    world.secrets.append(key.rpartition(":")[2])
    world.add(granted, ResumeGrant(world.identity, "{fp:0}", key, 1, "default"), ClaimPolicy("w", "i", key=API_TOKEN))
    await engine.create_execution()
    await world.server.performer.envelopes.ready()
    world.envelope = world.server.performer.envelopes.seal(await taken(engine), None)
    world.secrets.append(world.envelope.rpartition(".")[2])
    world.add(unsealed(world.envelope), RotateKey("k2", bytes.fromhex(NEXT_SECRET), 1))
    remote = App("https://server.example", token=API_TOKEN)
    world.add(remote, Servers("https://server.example", API_TOKEN), App(DSN))
    return world


async def rows(engine: Engine, world: World, handle: Handle, credential: str) -> list[Any]:
    """What is stored."""
    identity = handle.execution_id
    wanted: list[tuple[Any, Any]] = [
        (SigningKey, "k1"),
        (Credential, credential),
        (Waitpoint, (identity.partition, world.waitpoint)),
        (SuspendDedup, (identity.partition, f"{identity.uuid_text}:once")),
    ]
    view = await engine._view(*(Get(kind, key) for kind, key in wanted))
    found = [view.get(kind, key) for kind, key in wanted]
    assert None not in found
    return found


async def taken(engine: Engine) -> Handle:
    handle = await engine.claim("default", policy=ClaimPolicy("x", "x-1"))
    assert handle is not None
    return handle


async def test_nothing_that_can_be_printed_shows_a_secret(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Logs are read as they are written, before our own formatter takes anything out."""
    caplog.set_level(logging.DEBUG)
    world = await world_of(engine)
    for each in world.objects:
        logging.getLogger("somebody").warning("%s %r", each, each)
        world.scan(forms(each), type(each).__name__)
    world.scan([caplog.text], "the log")


# -- errors ----------------------------------------------------------------------------------------------------------


async def test_no_error_shows_a_secret(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = await world_of(engine)
    token = await engine.read_waitpoint_token(ExecutionId(world.identity).partition, world.waitpoint)
    assert token is not None
    changed = token.reveal()[:-1] + ("0" if token.reveal()[-1] != "0" else "1")
    world.secrets.append(changed.partition(":")[2])
    signal = {"execution_id": world.identity, "waitpoint_id": world.waitpoint, "signal_name": "go"}
    attempts = [
        lambda: engine.deliver_signal(**signal, waitpoint_token=changed),
        lambda: engine.deliver_signal(**{**signal, "signal_name": "\x00"}, waitpoint_token=token),
        lambda: engine.seed_waitpoint_hmac_secret(kid="k2", secret_hex=SECRET),
        lambda: engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=NEXT_SECRET + "0"),
        lambda: engine.rotate_waitpoint_hmac_secret_all(new_kid="k1", new_secret_hex=NEXT_SECRET),
        lambda: engine.rotate_waitpoint_hmac_secret_all(new_kid="", new_secret_hex=NEXT_SECRET),
        lambda: engine.rotate_waitpoint_hmac_secret_all(new_kid="k", new_secret_hex=NEXT_SECRET + "x"),
        lambda: world.server.performer.envelopes.open(world.envelope + "x"),
    ]
    for attempt in attempts:
        with pytest.raises(EngineError) as caught:
            await attempt()
        world.scan(["".join(traceback.format_exception(caught.value)), repr(caught.value)], "an error")
    world.scan([caplog.text], "the log")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://flow:canary-pass#word@db.example/x",
        "postgresql://flow:canary-pass/word@db.example/x",
        "postgresql://flow:canary-pass@127.0.0.1:1/x",
        "postgresql://flow:canary-pass@127.0.0.1:port/x",
        "postgresql://flow:canary-pass@[::1/x",
        "postgresql://127.0.0.1:1/x?user=flow&password=canary-pass",
        "valkey://flow:canary-pass#word@db.example/0",
        "valkey://flow:canary-pass/word@db.example/0",
        "valkey://flow:canary-pass?word@db.example/0",
        "valkey://:canary-pass@127.0.0.1:1/0",
        "valkeys://flow:canary-pass@127.0.0.1:1/0",
        "valkey://flow:canary-pass@127.0.0.1:port/0",
        "valkey://flow:canary-pass@127.0.0.1:1/canary",
        "mysql://flow:canary-pass@db.example/x",
    ],
)
async def test_no_address_is_shown_with_its_password(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for opening in (Engine.open, migration_plan.plan):
        with pytest.raises(EngineError) as caught:
            await opening(url)
        told = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(caught.value)
        assert "canary" not in told


@pytest.mark.parametrize(
    "url", ["https://me:canary@", "https://me:can#ary@h", "https://me:canary@h", "http://h:canary"]
)
def test_no_address_of_a_server_is_shown_with_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|https:") as caught:
        Address.parse(url)
    told = "".join(traceback.format_exception(caught.value))
    assert "can" not in told.replace("cannot", "").rpartition("ValueError")[2], told


def test_the_configuration_shows_where_the_store_is() -> None:
    shown = repr(ServerConfig(store_url=DSN, api_token=API_TOKEN))
    assert "postgresql://flow:<REDACTED>@db.example/flow" in shown
    assert "api_token=<REDACTED>" in shown
    assert "hmac_secret=''" in shown


# -- answers ---------------------------------------------------------------------------------------------------------

BODIES: dict[str, Any] = {
    "rotate_waitpoint_secret": {"new_kid": "k1", "new_secret_hex": NEXT_SECRET},
}


async def test_no_answer_of_the_server_shows_a_secret(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = await world_of(engine)
    places = {
        "idx": "0",
        "waitpoint_id": world.waitpoint,
        "family": "completion",
        "credential_id": "0" * 16,
        "lane_id": "default",
    }
    answered = 0
    async with client_of(world.server, API_TOKEN) as client:
        for operation in ROUTES:
            if operation.name in DOORS or operation.media == "text/event-stream":
                continue
            for identity in (world.identity, "x"):
                path = operation.path.format_map(defaultdict(lambda: "x", places, id=quote(identity, safe="")))
                body = BODIES.get(operation.name, {"link": world.link})
                response = await _asked(client, operation.method, path, body)
                world.scan([response.text, str(response.headers)], operation.name)
                answered += response.status_code < 400
        for wrong in ({"authorization": f"Bearer {API_TOKEN}x"}, {"authorization": f"Basic {API_TOKEN}"}):
            refused = await client.get("/v1/lanes", headers=wrong)
            assert refused.status_code == 401
            world.scan([refused.text], "a refusal")
    assert answered > 30
    world.scan([caplog.text], "the log")


async def _asked(client: httpx.AsyncClient, method: str, path: str, body: Any) -> httpx.Response:
    if method in ("GET", "HEAD"):
        return await client.request(method, path)
    return await client.request(method, path, json=body)


def test_the_doors_are_there() -> None:
    assert {each.name for each in ROUTES} >= DOORS
