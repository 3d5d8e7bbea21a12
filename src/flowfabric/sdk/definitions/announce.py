"""Announcing an app's tasks and workflows to the store, so that people can start them with a form."""

from __future__ import annotations

import inspect
import logging
import string
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flowfabric.model.limits import MAX_KIND_BYTES
from flowfabric.model.operations.kinds import KindDescription, KindSnapshot
from flowfabric.model.policy import parse_policy
from flowfabric.model.quoting import quoted
from flowfabric.sdk.asks.answer_checks import check_against
from flowfabric.sdk.definitions.tasks import Startable
from flowfabric.sdk.runs.start import policy
from flowfabric.sdk.schemas.inputs import input_schema, leads_to_text, open_schema, text_at

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.sdk.app import App

_log = logging.getLogger("flowfabric.worker")
_formatter = string.Formatter()

#: Characters of a description, and bytes of the definitions that are announced in one call.
MAX_DESCRIPTION: Final = 2_000
CALL_BYTES: Final = 524_288

Definitions = Mapping[str, dict[str, Any]]


async def announced(app: App) -> Definitions:
    """Announce what the app defines, and give it back, to be announced again. Whatever goes wrong is a line in the log:
    a worker works without it."""
    found: dict[str, dict[str, Any]] = {}
    for name, each in app.definitions.items():
        if not isinstance(each, Startable) or name.startswith("$"):
            continue
        try:
            found[each.kind] = await described(each)
        except Exception as error:
            _log.warning("%s is not announced, so the console has no form for it: %s", each.name, error)
    await announce(app.engine, app.namespace, found)
    return found


async def announce(engine: Engine, namespace: str, definitions: Definitions) -> None:
    """Announce definitions; a failure is a line in the log."""
    try:
        for some in _parts(definitions):
            await engine.announce_kinds(namespace, some)
    except Exception as error:
        _log.warning("tasks and workflows are not announced, so the console has no forms for them: %s", error)


def _parts(definitions: Definitions) -> Iterator[Definitions]:
    """The definitions in parts that are not too large for one call."""
    part: dict[str, dict[str, Any]] = {}
    size = 0
    for kind, each in definitions.items():
        bytes_ = len(msgspec.json.encode(each))
        if part and size + bytes_ > CALL_BYTES:
            yield part
            part, size = {}, 0
        part[kind] = each
        size += bytes_
    if part:
        yield part


async def described(definition: Startable[Any, Any]) -> dict[str, Any]:
    """A definition as it is announced. Limits and budgets that it names exist afterwards, unless only its code can
    start it."""
    app, task, plan = definition.app, definition.options, definition.signature.plan
    schema = input_schema(plan)
    reason = _by_code(definition, schema)
    told: dict[str, Any] = {
        "noun": definition.noun,
        "description": _description(definition),
        "lane_id": task.lane or app.lane,
        "priority": task.priority,
        "tags": dict(task.tags),
        "input": schema,
    }
    if reason is not None:
        told["by_code"] = reason
    else:
        limits = await app.gates.quota(definition, {}, kept=True) if task.limits else None
        budgets = tuple([await app.gates.budget(each) for each in task.budget])
        made = parse_policy(policy(definition, None, limits, budgets, bound=task.id is not None))
        told |= {"policy": msgspec.json.decode(made or "null"), "id": task.id, "reuse": task.reuse}
    # Some room for what the engine adds.
    if len(msgspec.json.encode(told)) > MAX_KIND_BYTES - 1_024:
        told["input"] = open_schema(plan)
        if task.id is not None and reason is None:
            told["by_code"] = _BY_ID.format(task.id)
    return told


def _description(definition: Startable[Any, Any]) -> str:
    """The first paragraph of the docstring, on one line."""
    paragraph = (inspect.getdoc(definition.function) or "").partition("\n\n")[0]
    return " ".join(paragraph.split())[:MAX_DESCRIPTION]


_BY_ID: Final = "its id {!r} is made of more than plain texts and whole numbers of its input"


def _by_code(definition: Startable[Any, Any], schema: Mapping[str, Any]) -> str | None:
    """Why only code can work out how to start it, if that is so."""
    key = next((each.key for each in definition.options.limits if each.key is not None), None)
    if key is not None:
        return f"its limits apply to each value of {key!r} by itself"
    template = definition.options.id
    if template is not None and not all(leads_to_text(schema, path) for _, path in _pieces(template) if path):
        return _BY_ID.format(template)
    return None


def _pieces(template: str) -> list[tuple[str, str | None]]:
    """The texts of a template, each with the path that follows it."""
    return [(text, path) for text, path, _, _ in _formatter.parse(template)]


class OnlyByCode(ValueError):
    """Only its code can start it; the text says why."""


class Unfit(ValueError):
    """The input does not fit what was announced; the text says where."""


def creation(
    known: KindSnapshot,
    payload: bytes,
    *,
    lane_id: str | None = None,
    priority: int | None = None,
    tags: Mapping[str, str] | None = None,
    key: str | None = None,
    delay_until: int | None = None,
) -> dict[str, Any]:
    """What ``create_execution`` takes to create an execution as the code of its kind would: with the lane, priority,
    policy and id that were announced, unless they are given. Tags are added."""
    definition = known.definition
    if definition.by_code is not None:
        raise OnlyByCode(definition.by_code)
    value = msgspec.json.decode(payload)
    flaw = check_against(definition.input, value, whose="kind", what="input")
    if flaw is not None:
        raise Unfit(flaw)
    found: dict[str, Any] = {
        "namespace": known.namespace,
        "lane_id": definition.lane_id if lane_id is None else lane_id,
        "execution_kind": known.kind,
        "input_payload": payload,
        "payload_encoding": "json",
        "priority": definition.priority if priority is None else priority,
        "tags": {**definition.tags, **(tags or {})} or None,
        "policy": definition.policy,
        "idempotency_key": key,
        "delay_until": delay_until,
    }
    if key is None:
        try:
            found["idempotency_key"] = id_for(definition, value)
        except ValueError as error:
            raise OnlyByCode(f"its id {quoted(definition.id)} cannot be worked out: {error}") from None
        if found["idempotency_key"] is not None and definition.reuse == "after_completion":
            found["key_reuse"] = "ended"
    return found


def taken(known: KindSnapshot, key: str, holder: str, kind: str, *, given: bool) -> str | None:
    """Why an id that ``holder`` has may not stand for what was to be started; nothing if it may. ``given`` says that
    the caller chose the id, and not the code."""
    if kind != known.kind:
        return f"the id {quoted(key)} belongs to an execution of {quoted(kind)}: {holder}"
    if not given and known.definition.reuse == "reject":
        return f"an execution with the id {quoted(key)} exists: {holder}"
    return None


def id_for(definition: KindDescription, value: Any) -> str | None:
    """The id that an execution with this input has, by the template that was announced. ``ValueError`` says that the
    template gives none."""
    if definition.id is None:
        return None
    written = []
    for text, path in _pieces(definition.id):
        written.append(text)
        if path is not None:
            found = text_at(definition.input, value, path)
            if found is None:
                raise ValueError(f"{path!r} leads to no text or whole number")
            written.append(found)
    return "".join(written)
