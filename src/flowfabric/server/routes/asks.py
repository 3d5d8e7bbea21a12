"""Questions to people: what waits for an answer, answering for an approver, and answering with a link.

A link carries its token, so it travels in bodies only: never in a path or a query, which end up in logs.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from flowfabric.engine import Engine
from flowfabric.model.errors import EngineError, NotFound, Validation
from flowfabric.model.ids import ExecutionId
from flowfabric.model.overview import History
from flowfabric.sdk.asks import (
    ANYONE,
    ASK_KIND,
    Question,
    answer_link,
    checked,
    make_link,
    read_link,
    read_question,
    waitpoint_of,
)
from flowfabric.sdk.budget_asks import YES_OR_NO, budget_signal, budgets_of
from flowfabric.sdk.errors import SdkError
from flowfabric.server.access import Scope
from flowfabric.server.answers import NO_STORE, Answer, plain
from flowfabric.server.operations import Call, Operation
from flowfabric.server.problems import Refused, refused
from flowfabric.server.requests import MEDIUM
from flowfabric.server.routes.overview import PEOPLE
from flowfabric.server.routes.search import namespaces_of

#: Names of the signals that are answers.
_SAID = {"approve": "approve", "decline": "decline", "approved": "approve", "declined": "decline"}


class AsksQuery(Struct, kw_only=True):
    """Which page of which namespace."""

    namespace: str | None = None
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 50


class GivenAnswer(Struct, frozen=True):
    """An answer that was given: ``by`` is proved by the token, ``identity`` is what the one who gave it said."""

    by: str
    said: str
    identity: str
    at: int
    value: Any


class AskAnswer(Struct, frozen=True, kw_only=True):
    """A question as it stands. ``of`` is empty if whoever has the link may answer."""

    execution_id: ExecutionId
    run_id: str
    namespace: str
    kind: str
    question: str
    show: Any
    of: tuple[str, ...]
    need: int
    schema: dict[str, Any]
    approves: str | None
    asked_at: int
    until: int | None
    open: bool
    given: tuple[GivenAnswer, ...]


class AsksPage(Struct, frozen=True):
    """Open questions, newest first; ``next_cursor`` leads on."""

    asks: tuple[AskAnswer, ...]
    next_cursor: str | None


class GiveBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """An answer for one of the approvers; ``by`` may be left out if there is but one."""

    value: Any
    by: str | None = None


class LinkBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """For which approver."""

    by: str | None = None


class Link(Struct, frozen=True):
    """Whoever has it can answer in the approver's place. The page for it is ``/answer#<link>``."""

    link: str


class LookBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A link as it was given."""

    link: Annotated[str, Meta(max_length=4_096)]


class AnswerBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A link as it was given, the answer, and who says so by their own account."""

    link: Annotated[str, Meta(max_length=4_096)]
    value: Any
    identity: Annotated[str, Meta(max_length=256)] = ""


class Asked(Struct, frozen=True, kw_only=True):
    """What somebody with a link is asked."""

    question: str
    show: Any
    schema: dict[str, Any]
    approves: str | None
    approver: str
    need: int
    yeses: int
    answered: bool
    asked_at: int
    until: int | None


class Answered(Struct, frozen=True):
    """The answer was taken."""

    said: str


async def _question(engine: Engine, identity: ExecutionId) -> tuple[str, Question, bytes, dict[str, str]]:
    """What an execution asks: of which kind, what, and the payload that tokens are good for."""
    context = await engine.read_execution_context(identity)
    if context.execution_kind == ASK_KIND:
        return "ask", read_question(context.input_payload), context.input_payload, context.tags
    budgets = await budgets_of(engine, str(identity))
    text = f"may {context.execution_kind or 'the run'} spend beyond {', '.join(budgets) or 'its budget'}?"
    asked = Question(text, budgets, (), 1, None, YES_OR_NO.schema, YES_OR_NO.approves)
    return "budget", asked, context.input_payload, context.tags


def _given(history: History) -> tuple[GivenAnswer, ...]:
    first: dict[str, GivenAnswer] = {}
    since = 0 if history.suspension is None else history.suspension.suspended_at
    for each in history.signals:
        said = _SAID.get(each.signal_name)
        if said is None or each.waitpoint_key in first or each.accepted_at < since:
            continue
        try:
            value = msgspec.json.decode(each.payload or b"null")
        except msgspec.MsgspecError:
            value = None
        first[each.waitpoint_key] = GivenAnswer(each.waitpoint_key, said, each.source_identity, each.accepted_at, value)
    return tuple(first.values())


async def _shown(engine: Engine, identity: ExecutionId, namespace: str) -> AskAnswer | None:
    try:
        kind, question, _, tags = await _question(engine, identity)
        history = await engine.read_history(identity)
    except (EngineError, msgspec.MsgspecError):
        # Gone since it was found, or suspended by somebody who asks in another way.
        return None
    suspension = history.suspension
    is_open = suspension is not None and suspension.closed_at is None
    return AskAnswer(
        execution_id=identity,
        run_id=tags.get("ff.run", str(identity)),
        namespace=namespace,
        kind=kind,
        question=question.question,
        show=question.show,
        of=question.of,
        need=question.need,
        schema=question.schema,
        approves=question.approves,
        asked_at=history.created_at if suspension is None else suspension.suspended_at,
        until=None if suspension is None else suspension.timeout_at,
        open=is_open,
        given=_given(history),
    )


async def list_asks(call: Call) -> Answer:
    """Open questions."""
    query: AsksQuery = call.query
    page = await call.engine.search_suspended(
        reasons=PEOPLE, namespaces=namespaces_of(call, query.namespace), cursor=query.cursor, limit=query.limit
    )
    found = await asyncio.gather(*(_shown(call.engine, each.execution_id, each.namespace) for each in page.executions))
    return plain(AsksPage(tuple(each for each in found if each is not None), page.next_cursor))


async def describe(call: Call) -> Answer:
    """One question, open or not."""
    identity = call.execution_id
    namespace = await call.engine.get_execution_namespace(identity)
    found = None if namespace is None else await _shown(call.engine, identity, namespace)
    if found is None:
        raise refused(404, f"question not found: {identity}")
    return plain(found)


async def _waitpoint(call: Call, by: str | None) -> tuple[str, str, str, str]:
    """Kind, approver, waitpoint and token of an open question."""
    identity = call.execution_id
    try:
        kind, question, payload, _ = await _question(call.engine, identity)
    except (Validation, NotFound, msgspec.MsgspecError):
        raise refused(404, f"question not found: {identity}") from None
    if kind == "budget":
        page = await call.engine.list_pending_waitpoints(execution_id=identity, limit=1)
        approver, waitpoint = ANYONE, page.entries[0].waitpoint_id if page.entries else ""
    else:
        approver = _approver(question, by)
        waitpoint = waitpoint_of(str(identity), payload, approver)
    token = await _token(call.engine, identity, waitpoint) if waitpoint else None
    if token is None:
        raise refused(409, "this question takes no answer: it is decided, closed, or not open yet", kind="conflict")
    return kind, approver, waitpoint, token


def _approver(question: Question, by: str | None) -> str:
    if not question.of:
        return ANYONE
    if by is None and len(question.of) == 1:
        return question.of[0]
    if by not in question.of:
        raise refused(422, f"by: name one of the approvers: {', '.join(question.of)}", kind="validation")
    return by


async def _token(engine: Engine, identity: ExecutionId, waitpoint: str) -> str | None:
    try:
        found = await engine.read_waitpoint_token(identity.partition, waitpoint)
    except (NotFound, Validation):
        return None
    return str.__str__(found) if found else None


async def give(call: Call) -> Answer:
    """Answer for an approver; the record says who really did."""
    body: GiveBody = call.body
    kind, _, waitpoint, token = await _waitpoint(call, body.by)
    _, question, _, _ = await _question(call.engine, call.execution_id)
    try:
        payload, said = checked(question, body.value)
    except SdkError as error:
        raise refused(422, str(error), kind="validation", retryable=False) from None
    await call.engine.deliver_signal(
        execution_id=call.execution_id,
        waitpoint_id=waitpoint,
        waitpoint_token=token,
        signal_name=said if kind == "ask" else budget_signal(said),
        source_type="operator",
        source_identity=call.principal.name,
        payload=payload,
    )
    return plain(Answered(said))


async def link(call: Call) -> Answer:
    """The link of an approver."""
    _, _, waitpoint, token = await _waitpoint(call, call.body.by)
    return plain(Link(make_link(str(call.execution_id), waitpoint, token)), headers=NO_STORE)


def _no_link() -> Refused:
    return refused(404, "this link leads to no open question: it was answered, it has run out, or it is not whole")


async def _linked(call: Call) -> tuple[ExecutionId, str]:
    """The question and the waitpoint of a link that is good; others learn nothing, not even whether they exist."""
    try:
        identity, waitpoint, token = read_link(call.body.link)
    except SdkError:
        raise _no_link() from None
    stored = await _token(call.engine, identity, waitpoint)
    if stored is None or not hmac.compare_digest(stored.encode(), token.encode()):
        raise _no_link()
    return identity, waitpoint


async def look(call: Call) -> Answer:
    """What a link asks."""
    identity, waitpoint = await _linked(call)
    found = await _shown(call.engine, identity, "")
    if found is None or not found.open:
        raise _no_link()
    history = await call.engine.read_history(identity)
    approver = next((each.waitpoint_key for each in history.waitpoints if each.waitpoint_id == waitpoint), ANYONE)
    asked = Asked(
        question=found.question,
        show=found.show,
        schema=found.schema,
        approves=found.approves,
        approver=approver if found.of else ANYONE,
        need=found.need,
        yeses=sum(each.said == "approve" for each in found.given),
        answered=any(each.by == approver for each in found.given),
        asked_at=found.asked_at,
        until=found.until,
    )
    return plain(asked, headers=NO_STORE)


async def answer(call: Call) -> Answer:
    """Answer with a link."""
    identity, _ = await _linked(call)
    body: AnswerBody = call.body
    try:
        _, question, _, _ = await _question(call.engine, identity)
        _, said = checked(question, body.value)
        await answer_link(call.engine, body.link, body.value, identity=body.identity)
    except SdkError as error:
        raise refused(422, str(error), kind="validation", retryable=False) from None
    return plain(Answered(said), headers=NO_STORE)


_ID = "/v1/asks/{id}"

OPERATIONS = (
    Operation(
        name="list_asks",
        method="GET",
        path="/v1/asks",
        scope=Scope.READ,
        summary="Questions that wait for an answer, newest first",
        handler=list_asks,
        query=AsksQuery,
        answers={200: AsksPage},
    ),
    Operation(
        name="describe_ask",
        method="GET",
        path=_ID,
        scope=Scope.READ,
        summary="A question, what was shown, and who has answered",
        handler=describe,
        owner="execution",
        answers={200: AskAnswer},
    ),
    Operation(
        name="give_answer",
        method="POST",
        path=f"{_ID}/answer",
        scope=Scope.OPERATOR,
        summary="Answer a question for one of its approvers",
        handler=give,
        body=GiveBody,
        limit=MEDIUM,
        owner="execution",
        answers={200: Answered},
        audited=True,
    ),
    Operation(
        name="make_link",
        method="POST",
        path=f"{_ID}/link",
        scope=Scope.OPERATOR,
        summary="The link with which an approver answers without an account",
        handler=link,
        body=LinkBody,
        owner="execution",
        answers={200: Link},
        kept=False,
        audited=True,
    ),
    Operation(
        name="look_at_link",
        method="POST",
        path="/v1/answers/look",
        scope=None,
        summary="What a link asks; the link is the credential",
        handler=look,
        body=LookBody,
        answers={200: Asked},
        kept=False,
    ),
    Operation(
        name="answer_link",
        method="POST",
        path="/v1/answers",
        scope=None,
        summary="Answer with a link; the link is the credential",
        handler=answer,
        body=AnswerBody,
        limit=MEDIUM,
        answers={200: Answered},
        kept=False,
    ),
)
