"""Taking up requests that callers leave in transactions of their own."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from flowfabric.ascending import ascending_uuid
from flowfabric.core.executions.enqueue import AcceptRequest, AcceptRequests, DropRequest, RetryRequest
from flowfabric.engine.checks import values
from flowfabric.engine.operations.create import Intake
from flowfabric.engine.timers.executions import Timers
from flowfabric.engine.timers.loop import Poison
from flowfabric.model.decisions import Get, Select
from flowfabric.model.errors import EngineError, Validation
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.enqueue import (
    EnqueueDraft,
    RequestDropped,
    RequestPage,
    RequestRefused,
    RequestRetried,
    RequestSnapshot,
)
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.model.records.executions import Binding
from flowfabric.model.records.starts import EnqueueRequest
from flowfabric.stores.questions import ListRequests, PendingRequests

_log = logging.getLogger("flowfabric.timers")
#: What a request may say in addition to the arguments of ``create_execution``: any JSON value, or bytes.
INPUT, INPUT_BASE64 = "input", "input_base64"


class Requests(Intake, Timers):
    """The part of the engine that turns requests into executions."""

    def draft_request(self, arguments: Mapping[str, Any]) -> EnqueueDraft:
        """A request for the execution that ``create_execution`` with these arguments would create.

        Everything is checked here; nothing is written. Inserting it into ``ff_enqueue_request`` has the
        execution if and only if that transaction commits.
        """
        self._check_open()
        creation = self._creation_of(arguments)
        command = {name: value for name, value in arguments.items() if name not in ("execution_id", "input_payload")}
        if creation.policy is not None:
            command["policy"] = msgspec.Raw(creation.policy.encode())
        if creation.input_payload is not None:
            command[INPUT_BASE64] = base64.b64encode(creation.input_payload).decode()
        else:
            command["input_payload"] = None
        text = msgspec.json.encode(command).decode()
        return EnqueueDraft(ascending_uuid(), ExecutionId.unchecked(creation.execution_id), text)

    async def find_request(self, execution_id: ExecutionId | str) -> RequestSnapshot | None:
        """The request for an execution that does not exist yet; ``None`` if no request was committed."""
        identity = str.__str__(values.execution_id(execution_id))
        need = Select(EnqueueRequest, ("execution_id",), (identity,))
        found = (await self._view(need)).select(EnqueueRequest, execution_id=identity)
        if found:
            return _snapshot(found[0])
        own = Get(EnqueueRequest, ExecutionId.unchecked(identity).uuid_text)
        unnamed = (await self._view(own)).get(EnqueueRequest, own.key)
        return None if unnamed is None or unnamed.execution_id is not None else _snapshot(unnamed)

    async def find_execution(self, idempotency_key: str, namespace: str = "default") -> ExecutionId | None:
        """The execution that an idempotency key stands for."""
        key = (values.text(namespace, "namespace"), values.text(idempotency_key, "idempotency_key", empty=False))
        found = (await self._view(Get(Binding, key))).get(Binding, key)
        if found is None or found.expires_at_ms <= await self.now_ms():
            return None
        return ExecutionId.of(found.partition, found.uuid)

    async def list_requests(self, refused: bool = False, cursor: str | None = None, limit: int = 100) -> RequestPage:
        """Requests that have not become executions, by id; only those that were refused, if asked for."""
        only = values.flag(refused, "refused")
        size = min(values.integer(limit, "limit", 0, 2**31), MAX_PAGE)
        after = None if cursor is None else values.uuid(cursor, "cursor")
        if size == 0:
            return RequestPage((), None)
        found: list[EnqueueRequest] = await self._ask(ListRequests(only, after, size + 1))
        page = tuple(map(_snapshot, found[:size]))
        return RequestPage(page, page[-1].request_id if len(found) > size else None)

    async def retry_request(self, request_id: str) -> RequestRetried | AlreadySatisfied:
        """Take a refused request up again, once what was wrong has been put right."""
        answer: RequestRetried | AlreadySatisfied = await self._submit(
            RetryRequest(values.uuid(request_id, "request_id"))
        )
        self._hasten_requests()
        return answer

    async def drop_request(self, request_id: str) -> RequestDropped | AlreadySatisfied:
        """Forget a request, refused or not."""
        answer: RequestDropped | AlreadySatisfied = await self._submit(
            DropRequest(values.uuid(request_id, "request_id"))
        )
        return answer

    async def _tick_enqueue_requests(self, limit: int) -> int:
        """Make executions of what was committed, oldest first, and in one commit: the order stays theirs."""
        poison = self._poison.setdefault("enqueue_requests", Poison())
        resting = poison.tick()
        found: list[EnqueueRequest] = await self._ask(PendingRequests(limit + len(resting)))
        due = [each for each in found if each.request_id not in resting][:limit]
        if not due:
            return 0
        try:
            answers = await self._submit(AcceptRequests(tuple(map(self._acceptance, due))))
        except EngineError:
            # One of them may be at fault: the others go on without it.
            return sum([await self._accept(each, poison) for each in due])
        return sum(_accepted(each, answer, poison) for each, answer in zip(due, answers, strict=True))

    async def _accept(self, request: EnqueueRequest, poison: Poison) -> int:
        try:
            answer = await self._submit(self._acceptance(request))
        except EngineError as error:
            poison.failed(request.request_id)
            _log.warning("request %s: %s", request.request_id, error)
            return 0
        return _accepted(request, answer, poison)

    def _acceptance(self, request: EnqueueRequest) -> AcceptRequest:
        try:
            creation = self._creation_of(self._arguments(request))
        except Validation as error:
            return AcceptRequest(request.request_id, None, f"{error.code}: {error.detail}")
        return AcceptRequest(request.request_id, creation)

    def _arguments(self, request: EnqueueRequest) -> dict[str, Any]:
        try:
            command = msgspec.json.decode(request.command)
        except (msgspec.MsgspecError, RecursionError, TypeError) as error:
            raise values.invalid(f"command: not valid JSON: {error}") from None
        if not isinstance(command, dict):
            raise values.invalid("command: not a JSON object")
        if sum(name in command for name in (INPUT, INPUT_BASE64, "input_payload")) > 1:
            raise values.invalid(f"command: give {INPUT} or {INPUT_BASE64}, not both")
        if INPUT in command:
            command["input_payload"] = msgspec.json.encode(command.pop(INPUT))
            command.setdefault("payload_encoding", "json")
        elif INPUT_BASE64 in command:
            try:
                command["input_payload"] = base64.b64decode(command.pop(INPUT_BASE64), validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise values.invalid(f"command.{INPUT_BASE64}: not base64") from None
        if request.execution_id is not None:
            command["execution_id"] = request.execution_id
        else:
            lane = values.lane(command.get("lane_id", "default"))
            command["execution_id"] = ExecutionId.of(self._lane_partition(lane), request.request_id)
        return command


def _accepted(request: EnqueueRequest, answer: Any, poison: Poison) -> int:
    poison.succeeded(request.request_id)
    if isinstance(answer, RequestRefused):
        _log.error("request %s was refused and needs an operator: %s", answer.request_id, answer.error)
    return answer is not None


def _snapshot(request: EnqueueRequest) -> RequestSnapshot:
    named = request.execution_id
    return RequestSnapshot(
        request.request_id,
        None if named is None else ExecutionId.unchecked(named),
        request.requested_at_ms,
        request.command,
        request.error,
        request.refused_at_ms,
    )
