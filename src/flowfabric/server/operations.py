"""Routes to operations, and what their handlers need."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from flowfabric.ascending import ascending_uuid
from flowfabric.engine.operation_table import OPERATIONS, Operation, Subject
from flowfabric.model.ids import BudgetId, ExecutionId, ExecutionIdError, FlowId, IdError, WaitpointId
from flowfabric.model.operations.schedules import named_uuid
from flowfabric.model.quoting import quoted
from flowfabric.server.access.principals import Principal, Standing
from flowfabric.server.http.problems import Refused, refused, unauthorized
from flowfabric.server.http.request import CONTROL, Gone, Receive
from flowfabric.server.http.response import Answer, Streamed

if TYPE_CHECKING:
    from flowfabric.core.batch.notes import Receipt
    from flowfabric.engine import Engine
    from flowfabric.server.app import Server

_T = TypeVar("_T")
_NOTHING: Mapping[str, Any] = {}


class Call:
    """One request on its way through its handler: already authorised, its body and query decoded."""

    __slots__ = (
        "body",
        "engine",
        "headers",
        "idle",
        "key",
        "operation",
        "path",
        "principal",
        "query",
        "receipt",
        "receive",
        "route",
        "server",
        "told",
        "unfinished",
    )

    def __init__(
        self,
        server: Server,
        route: Route,
        principal: Principal,
        path: dict[str, str],
        headers: Mapping[bytes, bytes],
        receive: Receive,
    ) -> None:
        self.server = server
        own = principal.namespaces
        #: What it acts through: whatever a limited caller names is checked in the commit.
        self.engine: Engine = server.engine if own is None else server.engine.limited_to(own)
        self.route = route
        self.operation: Operation = route.operation
        self.principal = principal
        self.path = path
        self.headers = headers
        #: The caller's ``Idempotency-Key``, with its owner.
        self.key: str | None = None
        #: Makes the receipt for an operation of the engine under that key.
        self.receipt: Callable[..., Receipt] | None = None
        self.query: Any = None
        self.body: Any = None
        self.receive = receive
        #: Whether some of it has yet to be done, so that its answer is not the last word; handlers set it.
        self.unfinished = False
        #: Whether it has found everything done already, so that it is no act; handlers set it.
        self.idle = False
        #: What the audit tells of it beyond what was asked for; handlers set it.
        self.told: Mapping[str, Any] = _NOTHING

    # -- what the path names -------------------------------------------------------------------------------------

    @property
    def execution_id(self) -> ExecutionId:
        """The execution that the path names."""
        return self.parsed_execution(self.path["id"])

    def parsed_execution(self, text: str, name: str = "execution_id") -> ExecutionId:
        """An execution's id, or a refusal that names the field."""
        try:
            return ExecutionId(text)
        except ExecutionIdError as error:
            raise refused(400, f"invalid {name}: {error}") from None

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

    @property
    def waitpoint_id(self) -> WaitpointId:
        """The waitpoint that the path names."""
        try:
            return WaitpointId(self.path["waitpoint_id"])
        except IdError as error:
            raise refused(400, f"invalid waitpoint_id: {error}") from None

    def index(self, name: str) -> int:
        """A number in the path."""
        text = self.path[name]
        if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) >= 2**32:
            raise refused(400, f"invalid {name}: {quoted(text)} is not a number from 0 to {2**32 - 1}")
        return int(text)

    def same(self, name: str, given: str | None, in_path: str) -> None:
        """Refuse a body that names another thing than the path."""
        if given is not None and given != in_path and given.lower() != in_path:
            raise refused(400, f"path {name} does not match body {name}")

    def mint(self, what: str, position: int | None = None) -> str:
        """A new UUID; the same one again if the request is repeated with its key. Those of one request ascend with
        their positions."""
        if self.key is None:
            return ascending_uuid()
        if position is None:
            return named_uuid(f"{what}\x1f{self.key}")
        following = named_uuid(f"{what}\x1f{position}\x1f{self.key}")
        return f"{position:08x}{following[8:]}"

    # -- whose it is ---------------------------------------------------------------------------------------------

    def check_namespace(self, namespace: str) -> None:
        """Refuse to work in a namespace that is not the caller's."""
        if not self.principal.owns(namespace):
            raise refused(
                403,
                f"this credential has no access to namespace {quoted(namespace)}",
                kind="forbidden",
                retryable=False,
            )

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

    # -- the client ----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def holding(self) -> AsyncGenerator[Standing, None]:
        """Wait or listen for as long as the caller's credential is good."""
        if not self.operation.scopes:
            yield Standing(None, self.principal)
            return
        async with self.server.gate.holding(self.headers.get(b"authorization"), self.principal) as standing:
            yield standing

    async def stands(self) -> bool:
        """Whether the caller's credential is still good."""
        shown = self.headers.get(b"authorization")
        return not self.operation.scopes or await self.server.gate.principal(shown) == self.principal

    async def check_standing(self) -> None:
        """Refuse a caller whose credential has gone since it was shown."""
        if not await self.stands():
            raise unauthorized()

    async def while_connected(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Work on something as long as the client is there to hear of it and may; ``Gone`` if it hangs up first. What
        was done in time is for the caller to give: it has to look once more whether the credential stands."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self.disconnected())
        try:
            async with self.holding() as standing:
                await asyncio.wait((task, gone, standing.gone), return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if standing.fell:
                    raise unauthorized()
                raise Gone
        finally:
            for each in (task, gone):
                await given_up(each)

    @property
    def is_gone(self) -> bool:
        """Whether the client is known to have hung up."""
        return getattr(getattr(self.receive, "__self__", None), "gone", False)

    async def disconnected(self) -> None:
        """Return when the client has hung up, or sends more of a body that nobody reads than there may be."""
        size = 0
        while (message := await self.receive())["type"] != "http.disconnect":
            size += len(message.get("body", b""))
            if size > self.route.limit:
                return


async def given_up(task: asyncio.Future[Any]) -> None:
    """Cancel something and return when it has ended, whatever comes of it. The caller may be cancelled, too."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()


class Variants:
    """An answer that is one of these, externally tagged."""

    def __init__(self, *kinds: type) -> None:
        self.kinds = kinds


Handler = Callable[[Call], Awaitable[Answer | Streamed]]


class Route(Struct, frozen=True, kw_only=True):
    """How an operation is asked for over HTTP. Who may, and what it is about, stands in the table of operations."""

    name: str
    method: str
    path: str
    summary: str
    handler: Handler
    answers: Mapping[int, Any]
    body: Any = None
    query: Any = None
    limit: int = CONTROL
    media: str = "application/json"
    #: Whether it takes a place or long work although it only reads, so that pages of other origins may not ask for it.
    costly: bool = False
    #: What is waited for once it is done and the audit knows.
    settled: Callable[[Call], Awaitable[None]] | None = None
    #: Whether its answer may be remembered for an ``Idempotency-Key``; not if it holds a secret.
    kept: bool = True

    @property
    def operation(self) -> Operation:
        """What it does."""
        return OPERATIONS[self.name]

    @property
    def owner(self) -> Subject | None:
        """What ``{id}`` in the path names. It is looked up before the handler runs, and looks absent to those of other
        namespaces."""
        return self.operation.subject if "{id}" in self.path else None


def check_caller(principal: Principal, operation: Operation) -> None:
    """Refuse a caller who has none of the scopes, or who is limited to namespaces where it is about all of them."""
    if operation.is_open_to(principal.scopes, limited=principal.namespaces is not None):
        return
    if principal.scopes & operation.scopes:
        text = "this credential is limited to some namespaces, and this call covers all of them"
    else:
        wanted = " or ".join(sorted(f"'{each}'" for each in operation.scopes))
        text = f"this credential lacks the scope {wanted}"
    raise refused(403, text, kind="forbidden", retryable=False)


def missing(entity: str, identity: str) -> Refused:
    """What is answered for an id that names nothing, or nothing of the caller's."""
    return refused(404, f"{entity} not found: {identity}")


class _Node:
    __slots__ = ("literal", "methods", "names", "parameter")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: dict[str, Route] = {}
        self.names: tuple[str, ...] = ()


class Routes:
    """Finds the route for a path by its segments; literal ones go before parameters."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._root = _Node()
        #: Paths without parameters, as they come over the wire: found at once.
        self.literal: dict[bytes, Mapping[str, Route]] = {}
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node, names = self._root, []
        for segment in route.path.strip("/").split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literal.setdefault(segment, _Node())
        if route.method in node.methods:
            raise ValueError(f"{route.method} {route.path} is defined twice")
        node.methods[route.method] = route
        node.names = tuple(names)
        if not names:
            self.literal[route.path.encode()] = node.methods

    def find(self, segments: list[str]) -> tuple[Mapping[str, Route], dict[str, str]] | None:
        """The routes of a path by method, and its parameters; ``None`` if nothing is there."""
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
