"""Performing operations of the engine for callers elsewhere: who may, on what, and what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from flowfabric.engine.remote_calls import REMOTE_CALLS, Gate, RemoteCall
from flowfabric.engine.wire import Shapes, body_of, given, result_of
from flowfabric.engine.wire_errors import error_to_wire
from flowfabric.model.errors import EngineError, NotFound
from flowfabric.model.handles import Handle
from flowfabric.model.ids import BudgetId, ExecutionId, ExecutionIdError, FlowId, decode_hook
from flowfabric.server import audit
from flowfabric.server.envelopes import Envelopes
from flowfabric.server.operations import Call
from flowfabric.server.problems import Refused, refused

#: What operators do is on record, whichever way they do it.
AUDITED = frozenset({
    "cancel_execution", "change_priority", "replay_execution", "revoke_lease", "read_waitpoint_token",
    "create_budget", "set_budget_limits", "create_quota_policy", "set_lane_state", "set_lane_fairness",
    "resume_execution", "set_execution_tags", "set_flow_tags", "cancel_flow", "reset_budget",
    "delete_schedule", "pause_schedule", "resume_schedule", "trigger_schedule",
    "create_credential", "revoke_credential",
})  # fmt: skip
#: Arguments that say what an act was about.
_SUBJECTS = (
    "execution_id",
    "flow_id",
    "budget_id",
    "quota_policy_id",
    "lane_id",
    "schedule_id",
    "namespace",
    "waitpoint_id",
    "credential_id",
)


def _unopened(text: str) -> Handle:
    raise AssertionError("handles are opened before anything else is read")


class Performer:
    """Performs calls on the engine of one server."""

    def __init__(self, envelopes: Envelopes) -> None:
        self.envelopes = envelopes
        self._within: frozenset[str] | None = None
        self.shapes = Shapes(self._seal, _unopened)

    def _seal(self, handle: Handle) -> str:
        return self.envelopes.seal(handle, self._within)

    async def answer(self, call: Call, name: str, arguments: Raw | bytes) -> dict[str, Any]:
        """``{"ok": …}`` with what the operation says, or ``{"error": …}`` with why it did not."""
        try:
            return {"ok": await self.perform(call, name, arguments)}
        except EngineError as error:
            return {"error": error_to_wire(error)}
        except Refused as refusal:
            return {"error": {"family": "refused", "status": refusal.answer.status, **refusal.body}}

    async def perform(self, call: Call, name: str, arguments: Raw | bytes) -> Raw:
        """What the operation says, written out."""
        remote = REMOTE_CALLS.get(name)
        if remote is None:
            raise refused(422, f"there is no operation {name[:64]!r} that can be called from elsewhere")
        check_scopes(call, remote)
        options, within = await self._read(call, name, arguments)
        await _check(call, remote, name, options)
        found = await self._waiting(call, name, options)
        if name in AUDITED:
            subject = {each: str(options[each]) for each in _SUBJECTS if isinstance(options.get(each), str)}
            await audit.account_for(call, name, subject, 200)
        await self.envelopes.ready()
        # No other call comes in between: a result that holds a handle is sealed for whoever held it.
        self._within = within
        return Raw(self.shapes.dump(self.shapes.codec(result_of(name)).write(found)))

    async def _waiting(self, call: Call, name: str, options: Mapping[str, Any]) -> Any:
        acting = getattr(call.engine, name)(**options)
        if name == "tail_stream" and options.get("block_ms"):
            with call.server.followers.one():
                return await call.while_connected(acting)
        return await acting

    async def _read(
        self, call: Call, name: str, arguments: Raw | bytes
    ) -> tuple[dict[str, Any], frozenset[str] | None]:
        body = body_of(name)
        try:
            decoded = _decoder(body.kind).decode(arguments)
            options = {
                each: value for each in decoded.__struct_fields__ if (value := getattr(decoded, each)) is not UNSET
            }
            for each, hint in body.by_hand.items():
                if each in options:
                    options[each] = self.shapes.codec(hint).read(options[each])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise refused(422, f"{name}: {error}") from None
        for each in body.creations & options.keys():
            value = options[each]
            options[each] = [given(one) for one in value] if isinstance(value, list) else given(value)
        within: frozenset[str] | None = None
        for each in body.handles & options.keys():
            value = options[each]
            if isinstance(value, list):
                options[each] = [(await self.opened(call, text))[0] for text in value]
            elif value is not None:
                options[each], within = await self.opened(call, value)
        return options, within

    async def opened(self, call: Call, envelope: str) -> tuple[Handle, frozenset[str] | None]:
        """A handle that the caller may use; others look as if there were no such execution."""
        handle, within = await self.envelopes.open(envelope)
        own = call.principal.namespaces
        if own is not None and (within is None or not within <= own):
            namespace = await call.engine.get_execution_namespace(handle.execution_id)
            if not call.principal.owns(namespace):
                raise NotFound("execution")
        return handle, within


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[Struct]) -> msgspec.json.Decoder[Any]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind, dec_hook=decode_hook)
    return found


def check_scopes(call: Call, remote: RemoteCall) -> None:
    """Refuse a caller who has none of the scopes."""
    if not call.principal.scopes & remote.scopes:
        wanted = " or ".join(sorted(f"'{each}'" for each in remote.scopes))
        raise refused(403, f"this credential lacks the scope {wanted}", kind="forbidden", retryable=False)
    if remote.gate is Gate.EVERYWHERE and call.principal.namespaces is not None:
        text = "this credential is limited to namespaces, and this is about all of them"
        raise refused(403, text, kind="forbidden", retryable=False)


async def _check(call: Call, remote: RemoteCall, name: str, options: dict[str, Any]) -> None:
    """Keep a caller to its namespaces."""
    if call.principal.namespaces is None:
        return
    match remote.gate:
        case Gate.HANDLE:
            if options.get("handle") is None:
                text = "this credential is limited to namespaces: give the handle of the execution that it is about"
                raise refused(403, text, kind="forbidden", retryable=False)
            for child in options.get("children", ()):
                call.check_namespace(child.get("namespace", "default"))
        case Gate.EXECUTION:
            if "execution_id" in options and not await _owns(call, options["execution_id"]):
                raise NotFound("execution")
            if "execution_ids" in options:
                # Those of others look as if there were none of them.
                ids = options["execution_ids"]
                owned = await asyncio.gather(*(_owns(call, each) for each in ids))
                options["execution_ids"] = [each for each, own in zip(ids, owned, strict=True) if own]
        case Gate.NAMESPACE:
            for namespace in _namespaces_of(name, options):
                call.check_namespace(namespace)
        case Gate.FLOW:
            await call.check_flow(FlowId(options["flow_id"]))
        case Gate.BUDGET:
            await _check_budget(call, name, options)


async def _owns(call: Call, text: str) -> bool:
    try:
        identity = ExecutionId(text)
    except ExecutionIdError:
        return True  # the engine says what is wrong with it
    return call.principal.owns(await call.engine.get_execution_namespace(identity))


def _namespaces_of(name: str, options: Mapping[str, Any]) -> list[str]:
    """The namespaces that a call is about."""
    if "executions" in options:
        return [each.get("namespace", "default") for each in options["executions"]]
    if "execution" in options:
        return [options["execution"].get("namespace", "default")]
    if name.startswith("search_"):
        if options.get("namespaces") is None:
            raise refused(403, "name the namespaces of this credential", kind="forbidden", retryable=False)
        return list(options["namespaces"])
    if name == "list_expired_leases" and options.get("namespace") is None:
        raise refused(403, "name a namespace of this credential", kind="forbidden", retryable=False)
    return [options.get("namespace", "default")]


async def _check_budget(call: Call, name: str, options: Mapping[str, Any]) -> None:
    if name == "create_budget":
        if options.get("scope_type") != "namespace":
            text = "this credential is limited to namespaces: a budget of its own has the scope_type 'namespace'"
            raise refused(403, text, kind="forbidden", retryable=False)
        call.check_namespace(options.get("scope_id", ""))
        return
    budget_id = str(options.get("budget_id", ""))
    handle = options.get("handle")
    if handle is not None:
        identity = handle.execution_id
        fields = await call.engine.read_exec_core_fields(identity.partition, identity, ["budget_ids"])
        if budget_id in (fields.get("budget_ids") or "").split(","):
            return
    await call.check_budget(BudgetId(budget_id))
