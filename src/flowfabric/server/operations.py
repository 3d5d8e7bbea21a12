"""What the server offers, as one table: routing, authorisation, the OpenAPI document and the tests are made from it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from flowfabric.model.errors import NotFound
from flowfabric.model.ids import BudgetId, ExecutionId, ExecutionIdError, FlowId, IdError
from flowfabric.model.schedules import named_uuid
from flowfabric.server.access import Principal, Scope
from flowfabric.server.answers import Answer, Streamed
from flowfabric.server.problems import Refused, refused
from flowfabric.server.requests import CONTROL, Gone, Receive

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.server.app import Server

_T = TypeVar("_T")
_NOTHING: Mapping[str, str] = {}


class Call:
    """One request on its way through its handler: already authorised, its body and query decoded."""

    __slots__ = (
        "body",
        "engine",
        "headers",
        "key",
        "operation",
        "path",
        "principal",
        "query",
        "receive",
        "server",
        "told",
    )

    def __init__(
        self,
        server: Server,
        operation: Operation,
        principal: Principal,
        path: dict[str, str],
        headers: Mapping[bytes, bytes],
        receive: Receive,
    ) -> None:
        self.server = server
        self.engine: Engine = server.engine
        self.operation = operation
        self.principal = principal
        self.path = path
        self.headers = headers
        #: The caller's ``Idempotency-Key``, with its owner.
        self.key: str | None = None
        self.query: Any = None
        self.body: Any = None
        self.receive = receive
        #: What the audit tells of it besides the path; handlers set it.
        self.told: Mapping[str, str] = _NOTHING

    # -- what the path names -------------------------------------------------------------------------------------

    @property
    def execution_id(self) -> ExecutionId:
        """The execution that the path names."""
        return self.parsed_execution(self.path["id"])

    def parsed_execution(self, text: str) -> ExecutionId:
        """An execution's id, or a refusal that names it."""
        try:
            return ExecutionId(text)
        except ExecutionIdError as error:
            raise refused(400, f"invalid execution_id: {error}") from None

    @property
    def flow_id(self) -> FlowId:
        """The flow that the path names."""
        try:
            return FlowId(self.path["id"])
        except IdError as error:
            raise refused(400, f"invalid flow_id: {error}") from None

    @property
    def budget_id(self) -> BudgetId:
        """The budget that the path names."""
        try:
            return BudgetId(self.path["id"])
        except IdError as error:
            raise refused(400, f"invalid budget_id: {error}") from None

    def index(self, name: str) -> int:
        """A number in the path."""
        text = self.path[name]
        if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) >= 2**32:
            raise refused(400, f"invalid {name}: {text[:64]!r} is not a number from 0 to {2**32 - 1}")
        return int(text)

    def same(self, name: str, given: str | None, in_path: str) -> None:
        """Refuse a body that names another thing than the path."""
        if given is not None and given != in_path and given.lower() != in_path:
            raise refused(400, f"path {name} does not match body {name}")

    def mint(self, what: str) -> str:
        """A new UUID; the same one again for whoever repeats the request with its key."""
        return str(uuid.uuid4()) if self.key is None else named_uuid(f"{what}\x1f{self.key}")

    # -- whose it is ---------------------------------------------------------------------------------------------

    def check_namespace(self, namespace: str) -> None:
        """Refuse to work in a namespace that is not the caller's."""
        if not self.principal.owns(namespace):
            raise refused(403, f"this credential is not for namespace {namespace!r}", kind="forbidden", retryable=False)

    async def check_execution(self, execution_id: ExecutionId) -> None:
        """Make an execution of somebody else's namespace look as if there were none."""
        if self.principal.namespaces is not None:
            namespace = await self.engine.get_execution_namespace(execution_id)
            if not self.principal.owns(namespace):
                raise missing("execution", execution_id)

    async def check_flow(self, flow_id: FlowId) -> None:
        """Make a flow of somebody else's namespace look as if there were none."""
        if self.principal.namespaces is not None:
            found = await self.engine.describe_flow(flow_id)
            if found is None or not self.principal.owns(found.namespace):
                raise missing("flow", flow_id)

    async def check_budget(self, budget_id: BudgetId) -> None:
        """Make a budget look as if there were none, unless it is scoped to a namespace of the caller's."""
        if self.principal.namespaces is not None:
            found = await self.engine.get_budget_status(budget_id)
            if found.scope_type != "namespace" or not self.principal.owns(found.scope_id):
                raise NotFound("budget")

    # -- the client ----------------------------------------------------------------------------------------------

    async def while_connected(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Work on something as long as the client is there to hear of it; ``Gone`` if it hangs up first."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self.disconnected())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Gone
        finally:
            for each in (task, gone):
                if not each.done():
                    each.cancel()
                    with contextlib.suppress(asyncio.CancelledError, Exception):
                        await each

    async def disconnected(self) -> None:
        """Return when the client has hung up."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


class Variants:
    """An answer that is one of these, externally tagged."""

    def __init__(self, *kinds: type) -> None:
        self.kinds = kinds


Handler = Callable[[Call], Awaitable[Answer | Streamed]]


class Operation(Struct, frozen=True, kw_only=True):
    """One thing that can be asked over HTTP.

    ``owner`` says what ``{id}`` in the path names (``execution``, ``flow`` or ``budget``): it is looked up before the
    handler runs, and looks absent to those of other namespaces. ``everywhere`` keeps out whoever is limited to
    namespaces. ``scope`` is ``None`` for what needs no credential.
    """

    name: str
    method: str
    path: str
    scope: Scope | None
    summary: str
    handler: Handler
    answers: Mapping[int, Any]
    body: Any = None
    query: Any = None
    limit: int = CONTROL
    owner: str | None = None
    everywhere: bool = False
    media: str = "application/json"
    #: Whether each of its parts asks for a scope of its own, so that any credential may knock.
    each_scope: bool = False
    #: Whether the act is written to the audit log.
    audited: bool = False
    #: Whether its answer may be remembered for an ``Idempotency-Key``; not if it holds a secret.
    kept: bool = True


def missing(entity: str, identity: str) -> Refused:
    """What is answered for an id that names nothing, or nothing of the caller's."""
    return refused(404, f"{entity} not found: {identity}")


class _Node:
    __slots__ = ("literal", "methods", "names", "parameter")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: dict[str, Operation] = {}
        self.names: tuple[str, ...] = ()


class Routes:
    """Finds the operation for a path by its segments; literal ones go before parameters."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self._root = _Node()
        #: Paths without parameters, as they come over the wire: found at once.
        self.literal: dict[bytes, Mapping[str, Operation]] = {}
        for operation in operations:
            self._add(operation)

    def _add(self, operation: Operation) -> None:
        node, names = self._root, []
        for segment in operation.path.strip("/").split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literal.setdefault(segment, _Node())
        if operation.method in node.methods:
            raise ValueError(f"{operation.method} {operation.path} is there twice")
        node.methods[operation.method] = operation
        node.names = tuple(names)
        if not names:
            self.literal[operation.path.encode()] = node.methods

    def find(self, segments: list[str]) -> tuple[Mapping[str, Operation], dict[str, str]] | None:
        """The operations of a path by method, and its parameters; ``None`` if nothing is there."""
        found = self._walk(self._root, segments, 0, [])
        if found is None:
            return None
        node, values = found
        return node.methods, dict(zip(node.names, values, strict=True))

    def _walk(self, node: _Node, segments: list[str], at: int, values: list[str]) -> tuple[_Node, list[str]] | None:
        if at == len(segments):
            return (node, values) if node.methods else None
        if (following := node.literal.get(segments[at])) is not None:
            found = self._walk(following, segments, at + 1, values)
            if found is not None:
                return found
        if node.parameter is not None:
            return self._walk(node.parameter, segments, at + 1, [*values, segments[at]])
        return None
