"""Questions to people: what waits for an answer, answering for an approver, and answering with a link.

A link carries its token, so it travels in bodies only: never in a path or a query, which end up in logs.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from flowfabric.engine import Engine
from flowfabric.model.errors import NotFound, Validation
from flowfabric.model.ids import ExecutionId
from flowfabric.model.reads.overview import History, SuspendedSearchPage
from flowfabric.model.secrets import Discreet
from flowfabric.model.states import ANYONE
from flowfabric.sdk.asks.answer import SAID, Answered, first_answer, repeated, send
from flowfabric.sdk.asks.ask import (
    ASK_KIND,
    answer_link,
    checked,
    waitpoint_of,
)
from flowfabric.sdk.asks.budget_asks import YES_OR_NO, budget_signal, budgets_of
from flowfabric.sdk.asks.links import make_link, read_link
from flowfabric.sdk.asks.questions import UNREADABLE, Question, read_answer, read_question
from flowfabric.sdk.asks.raw_answers import holds_token, open_token
from flowfabric.sdk.errors import SdkError
from flowfabric.server.answer_checks import unfit
from flowfabric.server.http.pieces import Pieces, in_pieces
from flowfabric.server.http.problems import Refused, refused
from flowfabric.server.http.request import MEDIUM
from flowfabric.server.http.response import Answer, Streamed, encode, plain
from flowfabric.server.operations import Call, Route
from flowfabric.server.routes.overview import PEOPLE
from flowfabric.server.routes.search import namespaces_of


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
    """A question as it stands. ``of`` is empty if anyone with the link may answer."""

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


class Link(Discreet, Struct, frozen=True):
    """Anyone who has it can answer in the approver's place. The page for it is ``/answer#<link>``."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"link"})

    link: str


class LookBody(Discreet, Struct, kw_only=True, forbid_unknown_fields=True):
    """A link as it was given."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"link"})

    link: Annotated[str, Meta(max_length=4_096)]


class AnswerBody(Discreet, Struct, kw_only=True, forbid_unknown_fields=True):
    """A link as it was given, the answer, and who says so by their own account."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"link"})

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


class AnswerTaken(Struct, frozen=True, omit_defaults=True):
    """The answer was taken; or it was ``repeated``, and ``at`` is when the first one was."""

    said: str
    repeated: bool = False
    at: int | None = None


def _taken(call: Call, answered: Answered) -> Answer:
    call.idle = answered.repeated
    return plain(AnswerTaken(answered.said, answered.repeated, answered.at_ms))


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
    asked = () if history.suspension is None else history.suspension.waitpoints
    for each in history.signals:
        said = SAID.get(each.signal_name)
        if said is None or each.waitpoint_key in first or (asked and each.waitpoint_id not in asked):
            continue
        value = read_answer(each.payload)
        first[each.waitpoint_key] = GivenAnswer(each.waitpoint_key, said, each.source_identity, each.accepted_at, value)
    return tuple(first.values())


async def _shown(engine: Engine, identity: ExecutionId, namespace: str) -> AskAnswer | None:
    try:
        kind, question, _, tags = await _question(engine, identity)
        history = await engine.read_history(identity)
    except NotFound:
        return None  # gone since it was found
    except Validation:
        # Its row cannot be read: say so, the others of its page are still to be shown.
        return _as_shown(identity, namespace, "ask", UNREADABLE, {}, None)
    return _as_shown(identity, namespace, kind, question, tags, history)


def _as_shown(
    identity: ExecutionId, namespace: str, kind: str, question: Question, tags: dict[str, str], history: History | None
) -> AskAnswer:
    suspension = None if history is None else history.suspension
    created_at = 0 if history is None else history.created_at
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
        asked_at=created_at if suspension is None else suspension.suspended_at,
        until=None if suspension is None else suspension.timeout_at,
        open=is_open,
        given=() if history is None else _given(history),
    )


async def list_asks(call: Call) -> Answer | Streamed:
    """Open questions."""
    query: AsksQuery = call.query
    page = await call.engine.search_suspended(
        reasons=PEOPLE, namespaces=namespaces_of(call, query.namespace), cursor=query.cursor, limit=query.limit
    )
    return await in_pieces(_page_of(call, page))


async def _page_of(call: Call, page: SuspendedSearchPage) -> Pieces:
    """An ``AsksPage``, question by question: what each of them shows may be large."""
    begun = b'{"asks":['
    for each in page.executions:
        async with call.server.turns.one():
            shown = await _shown(call.engine, each.execution_id, each.namespace)
        if shown is not None:
            piece = [begun + encode(shown)]
            del shown
            yield piece.pop()
            begun = b","
    end = b'],"next_cursor":' + encode(page.next_cursor) + b"}"
    yield end if begun == b"," else begun + end


async def describe(call: Call) -> Answer:
    """One question, open or not."""
    identity = call.execution_id
    namespace = await call.engine.get_execution_namespace(identity)
    found = None if namespace is None else await _shown(call.engine, identity, namespace)
    if found is None:
        raise refused(404, f"question not found: {identity}")
    return plain(found)


async def _waitpoint(call: Call, by: str | None) -> tuple[str, Question, str, str | None]:
    """A question and its kind, with the waitpoint of an approver, and its token if it still takes an answer."""
    identity = call.execution_id
    try:
        kind, question, payload, _ = await _question(call.engine, identity)
    except (Validation, NotFound):
        raise refused(404, f"question not found: {identity}") from None
    if kind == "budget":
        approver, waitpoint = ANYONE, await _asked_last(call, identity)
    else:
        approver = _approver(question, by)
        waitpoint = waitpoint_of(str(identity), payload, approver)
    call.told = {"by": approver}
    token = await open_token(call.engine, identity, waitpoint) if waitpoint else None
    return kind, question, waitpoint, token


async def _asked_last(call: Call, identity: ExecutionId) -> str:
    """The waitpoint at which a run asks to spend more, or did last. Others are the run's own."""
    history = await call.engine.read_history(identity)
    if history.suspension is not None and history.suspension.waitpoints:
        return history.suspension.waitpoints[0]
    return history.waitpoints[-1].waitpoint_id if history.waitpoints else ""


def _not_open() -> Refused:
    return refused(409, "this question is not open: it is decided, closed, or not open yet", kind="conflict")


def _approver(question: Question, by: str | None) -> str:
    if not question.of:
        return ANYONE
    if by is None and len(question.of) == 1:
        return question.of[0]
    if by not in question.of:
        raise refused(422, f"by: name one of the approvers: {', '.join(question.of)}", kind="validation")
    return by


async def give(call: Call) -> Answer:
    """Answer for an approver; the record says who really did."""
    body: GiveBody = call.body
    kind, question, waitpoint, token = await _waitpoint(call, body.by)
    try:
        payload, said = checked(question, body.value)
        if token is None:
            first = await first_answer(call.engine, str(call.execution_id), waitpoint)
            if first is None:
                raise _not_open()
            return _taken(call, repeated(first, payload))
        answered = await send(
            call.engine,
            call.execution_id,
            waitpoint,
            look=True,
            said=said,
            waitpoint_token=token,
            signal_name=said if kind == "ask" else budget_signal(said),
            source_type="operator",
            source_identity=call.principal.name,
            payload=payload,
        )
    except SdkError as error:
        raise unfit(error) from None
    return _taken(call, answered)


async def link(call: Call) -> Answer:
    """The link of an approver."""
    _, _, waitpoint, token = await _waitpoint(call, call.body.by)
    if token is None:
        raise _not_open()
    return plain(Link(make_link(str(call.execution_id), waitpoint, token)))


def _no_link() -> Refused:
    return refused(404, "this link has no open question: it was answered, it expired, or the link is incomplete")


async def _linked(call: Call, *, closed: bool = False) -> tuple[ExecutionId, str]:
    """The question and the waitpoint of a link that is good (with ``closed``, also of a question that is closed);
    others learn nothing, not even whether they exist."""
    try:
        identity, waitpoint, token = read_link(call.body.link)
    except SdkError:
        raise _no_link() from None
    if not await holds_token(call.engine, identity, waitpoint, token, closed=closed):
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
    return plain(asked)


async def answer(call: Call) -> Answer:
    """Answer with a link."""
    identity, waitpoint = await _linked(call, closed=True)
    is_open = await open_token(call.engine, identity, waitpoint) is not None
    if not is_open and await first_answer(call.engine, str(identity), waitpoint) is None:
        raise _no_link()
    body: AnswerBody = call.body
    try:
        return _taken(call, await answer_link(call.engine, body.link, body.value, identity=body.identity))
    except SdkError as error:
        raise unfit(error) from None


_ID = "/v1/asks/{id}"

ROUTES = (
    Route(
        name="list_asks",
        method="GET",
        path="/v1/asks",
        summary="Questions waiting for an answer, newest first",
        handler=list_asks,
        query=AsksQuery,
        answers={200: AsksPage},
    ),
    Route(
        name="describe_ask",
        method="GET",
        path=_ID,
        summary="A question, what it shows, and who answered",
        handler=describe,
        answers={200: AskAnswer},
    ),
    Route(
        name="give_answer",
        method="POST",
        path=f"{_ID}/answer",
        summary="Answer a question for one of its approvers",
        handler=give,
        body=GiveBody,
        limit=MEDIUM,
        answers={200: AnswerTaken},
    ),
    Route(
        name="make_link",
        method="POST",
        path=f"{_ID}/link",
        summary="The link with which an approver answers without an account",
        handler=link,
        body=LinkBody,
        answers={200: Link},
        kept=False,
    ),
    Route(
        name="look_at_link",
        method="POST",
        path="/v1/answers/look",
        summary="What a link asks; the link is the credential",
        handler=look,
        body=LookBody,
        answers={200: Asked},
        kept=False,
    ),
    Route(
        name="answer_link",
        method="POST",
        path="/v1/answers",
        summary="Answer with a link; the link is the credential",
        handler=answer,
        body=AnswerBody,
        limit=MEDIUM,
        answers={200: AnswerTaken},
        kept=False,
    ),
)
