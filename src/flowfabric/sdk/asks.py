"""Questions to people: ``await Ask("publish?", Verdict, show=draft, of={"legal", "ops"}, need=2, within=days(3))``.

A question is an execution of its own that waits for signals, so it holds no worker and nothing before it runs again.
Each approver has a waitpoint of his own, whose signed token is good for him alone and for exactly what was shown: the
waitpoint's id is made from both, and the token's signature covers the id.

An answer counts as a yes or a no by its one ``bool`` field (or by itself, if the answer is a ``bool``); an answer
without one counts as a yes. ``need`` yeses decide, and so does the first no. What is given then is the deciding answer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import typing
import uuid
from collections.abc import Generator, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from flowfabric.conditions import AnyOf, ByName, Count, CountKind
from flowfabric.model.errors import Conflict, ConflictKind, EngineError, NotFound
from flowfabric.model.handles import HandleKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.suspension import Fresh, SuspendArgs, SuspensionReason, TimeoutBehavior
from flowfabric.sdk.codec import Codec, CodecError, codec_for, encode_plain
from flowfabric.sdk.durable import CURRENT
from flowfabric.sdk.durations import duration, milliseconds
from flowfabric.sdk.errors import AskClosed, AskTimedOut, BadAnswer, BadOptions
from flowfabric.sdk.schemas import check_against, schema_of

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.sdk.app import App
    from flowfabric.sdk.worker.handling import Job

T = TypeVar("T")

ASK_KIND: Final = "$ask"
APPROVE, DECLINE = "approve", "decline"
#: Whoever has the link, if no approvers are named.
ANYONE: Final = "anyone"
_NOTHING: Final = object()


class Question(msgspec.Struct, frozen=True):
    """What is asked, as it is stored."""

    question: str
    show: Any
    of: tuple[str, ...]
    need: int
    within_ms: int | None
    #: The answer's JSON Schema, for forms and for checking.
    schema: dict[str, Any]
    #: Which field says yes or no; "" means the answer itself, ``None`` that every answer is a yes.
    approves: str | None


class Given(msgspec.Struct, frozen=True):
    """One answer."""

    by: str
    value: Any
    said: str
    at_ms: int
    #: Who said so by his own account; ``by`` is proved by the token.
    identity: str = ""


class Answers(msgspec.Struct, frozen=True):
    """What became of a question: ``approved``, ``declined``, ``timed_out`` or ``closed``."""

    outcome: str
    answers: tuple[Given, ...] = ()


read_question = msgspec.json.Decoder(Question).decode
_read_answers = msgspec.json.Decoder(Answers).decode


class Ask(Generic[T]):
    """A question; awaiting it in a workflow asks it and gives the answer."""

    def __init__(
        self,
        question: str,
        answer: type[T] = bool,  # type: ignore[assignment]
        *,
        show: Any = None,
        of: Iterable[str] | str = (),
        need: int = 1,
        within: timedelta | None = None,
        otherwise: T | Any = _NOTHING,
        key: str | None = None,
    ) -> None:
        approvers = tuple(sorted({of} if isinstance(of, str) else set(of)))
        if not question:
            raise BadOptions("Ask: the question is a text", option="question")
        if any(not each or each == ANYONE for each in approvers):
            raise BadOptions(f"of: approvers are names, and {ANYONE!r} is taken: {approvers!r}", option="of")
        if type(need) is not int or not 1 <= need <= max(len(approvers), 1):
            raise BadOptions(
                f"need: {need!r} of {len(approvers) or 'no named'} approvers; name enough of them with of=",
                option="need",
            )
        if within is not None:
            duration(within, "within")
        elif otherwise is not _NOTHING:
            raise BadOptions("otherwise= is the answer when time runs out: say within= too", option="otherwise")
        self.question = question
        self.answer = answer
        self.key = key
        self._otherwise = otherwise
        self._codec: Codec = codec_for(answer)
        self._stored = Question(
            question,
            msgspec.json.decode(encode_plain(show)),
            approvers,
            need,
            None if within is None else milliseconds(within),
            schema_of(answer),
            _approves(answer),
        )

    def __repr__(self) -> str:
        return f"<ask {self.question!r}>"

    def __await__(self) -> Generator[Any, Any, T]:
        workflow = CURRENT.get()
        if workflow is None:
            raise BadOptions(f"{self!r}: questions are asked in workflows; outside, answer them with app.asks()")
        asked: Generator[Any, Any, T] = workflow.ask(self).__await__()
        return asked

    @property
    def step_name(self) -> str:
        """By which the workflow remembers it."""
        return f"ask:{self.question[:200]}"

    def creation(self, app: App, run: str) -> dict[str, Any]:
        """The execution that asks."""
        return {
            "namespace": app.namespace,
            "lane_id": app.lane,
            "execution_kind": ASK_KIND,
            "input_payload": msgspec.json.encode(self._stored),
            "payload_encoding": "json",
            "tags": {"ff.ask": self.question[:200]},
        }

    def read_result(self, data: bytes | None) -> T:
        """The answer that decided."""
        found = _read_answers(data or b"{}")
        if found.outcome in ("approved", "declined"):
            said = APPROVE if found.outcome == "approved" else DECLINE
            deciding = next(each for each in reversed(found.answers) if each.said == said)
            try:
                answer: T = self._codec.decode(msgspec.json.encode(deciding.value))
            except CodecError as error:
                raise BadAnswer(
                    f"{self!r}: the answer of {deciding.by} does not fit: {error}", ask=self.question
                ) from None
            return answer
        if self._otherwise is not _NOTHING:
            return typing.cast(T, self._otherwise)
        if found.outcome == "timed_out":
            raise AskTimedOut(f"{self!r}: nobody decided in time; give otherwise= for that case", ask=self.question)
        raise AskClosed(f"{self!r} was closed by an operator before it was decided", ask=self.question)


def _approves(answer: Any) -> str | None:
    """Where an answer says yes or no."""
    if answer is bool:
        return ""
    try:
        hints = typing.get_type_hints(answer)
    except Exception:
        return None
    flags = [name for name, kind in hints.items() if kind is bool]
    return flags[0] if len(flags) == 1 else None


def _says(question: Question, value: Any) -> str:
    if question.approves is None:
        return APPROVE
    yes = value if question.approves == "" else value.get(question.approves) if isinstance(value, dict) else False
    return APPROVE if yes is True else DECLINE


# -- the execution that asks -----------------------------------------------------------------------------------------


def waitpoint_of(execution_id: str, payload: bytes, approver: str) -> str:
    """The waitpoint of one approver: another question, another thing shown or another approver give another one."""
    shown = hashlib.sha256(payload).hexdigest()
    return str(uuid.uuid5(uuid.UUID(ExecutionId.parse(execution_id).uuid_text), f"{shown}:{approver}"))


async def run_ask(job: Job) -> None:
    """Suspend until the question is decided, then complete with the answers."""
    from flowfabric.sdk.worker.handling import Parked

    payload = job.context.input_payload
    question = read_question(payload)
    approvers = question.of or (ANYONE,)
    found = Answers("closed")
    if job.handle.kind is HandleKind.RESUMED:
        found = await _collected(job, question)
    if found.outcome != "closed" or found.answers:
        await job.complete(msgspec.json.encode(found))
        return
    until = None if question.within_ms is None else await job.engine.now_ms() + question.within_ms
    yes = Count(question.need, CountKind.DISTINCT_WAITPOINTS, approvers, ByName(APPROVE))
    no = Count(1, CountKind.DISTINCT_WAITPOINTS, approvers, ByName(DECLINE))
    asked = SuspendArgs(
        waitpoints=[Fresh(waitpoint_of(job.execution_id, payload, each), each) for each in approvers],
        resume_condition=AnyOf((yes, no)),
        reason_code=SuspensionReason.WAITING_FOR_APPROVAL,
        timeout_at=until,
        timeout_behavior=TimeoutBehavior.AUTO_RESUME,
    )

    async def is_new() -> bool:
        try:
            await job.engine.suspend(job.handle, asked)
        except Conflict as error:
            if error.kind is not ConflictKind.WAITPOINT_ALREADY_EXISTS:
                raise
            return False
        return True

    # Whoever goes on without an answer was let go by an operator, or its worker was lost before it could ask.
    if await job.conclude(is_new) is False:
        job.ended = False
        await job.complete(msgspec.json.encode(found))
        return
    raise Parked


async def _collected(job: Job, question: Question) -> Answers:
    """The answers so far, the first of each approver, and what they amount to."""
    given: dict[str, Given] = {}
    timed_out = False
    for signal in await job.engine.observe_signals(job.handle):
        if signal.signal_name not in (APPROVE, DECLINE):
            timed_out = timed_out or signal.signal_category == "timeout"
            continue
        if signal.waitpoint_key in given:
            continue
        value = _decoded(signal.payload)
        # The answer itself decides, whatever the signal is called.
        said = _says(question, value)
        given[signal.waitpoint_key] = Given(
            signal.waitpoint_key, value, said, signal.accepted_at, signal.source_identity
        )
    answers = tuple(given.values())
    if any(each.said == DECLINE for each in answers):
        return Answers("declined", answers)
    if len(answers) >= question.need:
        return Answers("approved", answers)
    return Answers("timed_out" if timed_out else "closed", answers)


def _decoded(payload: bytes | None) -> Any:
    try:
        return msgspec.json.decode(payload or b"null")
    except msgspec.MsgspecError:
        return None


# -- answering -------------------------------------------------------------------------------------------------------


class OpenAsk:
    """A question that waits for its answer."""

    def __init__(self, app: App, execution_id: str, payload: bytes, tags: dict[str, str]) -> None:
        self._begin(app, execution_id, read_question(payload), tags.get("ff.run", ""))
        self._payload = payload

    def _begin(self, app: App, execution_id: str, question: Question, run_id: str) -> None:
        self._app = app
        self._question = question
        self.id = execution_id
        #: The run that asks.
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"<open ask {self.question!r} of {self.run_id}>"

    @property
    def question(self) -> str:
        """What is asked."""
        return self._question.question

    @property
    def show(self) -> Any:
        """What the answer is about; tokens are good for exactly this."""
        return self._question.show

    @property
    def of(self) -> tuple[str, ...]:
        """Who may answer; nobody named means whoever has the link."""
        return self._question.of

    @property
    def need(self) -> int:
        """How many yeses decide."""
        return self._question.need

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of an answer."""
        return self._question.schema

    def waitpoint(self, by: str | None) -> str:
        """Where one approver's answer arrives."""
        return waitpoint_of(self.id, self._payload, self._approver(by))

    def signal_name(self, said: str) -> str:
        """What an answer is called when it arrives."""
        return said

    async def token(self, by: str | None = None) -> str:
        """The signed token of one approver. Whoever has it can answer in his place: hand it to nobody else."""
        waitpoint = self.waitpoint(by)
        try:
            found = await self._app.engine.read_waitpoint_token(ExecutionId.parse(self.id).partition, waitpoint)
        except NotFound:
            found = None
        if not found:
            raise AskClosed(f"{self!r} is not open (yet, or any more)", ask=self.question)
        return str.__str__(found)

    async def link(self, by: str | None = None) -> str:
        """One text that holds everything ``app.answer`` needs: put it into a mail, a chat, a URL."""
        return make_link(self.id, self.waitpoint(by), await self.token(by))

    async def answer(self, value: Any, by: str | None = None) -> None:
        """Answer for an approver, as this process is trusted to."""
        payload, said = checked(self._question, value)
        await self._app.engine.deliver_signal(
            execution_id=self.id,
            waitpoint_id=self.waitpoint(by),
            waitpoint_token=await self.token(by),
            signal_name=self.signal_name(said),
            source_type="approver",
            source_identity=self._approver(by),
            payload=payload,
        )

    def _approver(self, by: str | None) -> str:
        if not self.of:
            return ANYONE
        if by is None and len(self.of) == 1:
            return self.of[0]
        if by not in self.of:
            raise BadOptions(f"{self!r}: by= is one of {', '.join(self.of)}, not {by!r}", option="by")
        return by


def make_link(execution_id: str, waitpoint: str, token: str) -> str:
    """A link: whoever has it can answer at this waitpoint."""
    return base64.urlsafe_b64encode(f"{execution_id} {waitpoint} {token}".encode()).decode().rstrip("=")


def read_link(link: str) -> tuple[ExecutionId, str, str]:
    """The question, the waitpoint and the token of a link; whether the token is good shows when it is used."""
    try:
        padded = link + "=" * (-len(link) % 4)
        execution_id, waitpoint, token = base64.urlsafe_b64decode(padded.encode()).decode().split(" ")
        return ExecutionId.parse(execution_id), waitpoint, token
    except (ValueError, UnicodeError, binascii.Error, EngineError):
        raise BadAnswer("the link is not one of ours; copy it whole", ask="") from None


async def answer(app: App, link: str, value: Any, *, identity: str = "") -> None:
    """Answer with a link. A link that was tampered with, has expired or is used up is refused by the engine."""
    await answer_link(app.engine, link, value, identity=identity)


async def answer_link(engine: Engine, link: str, value: Any, *, identity: str = "") -> None:
    """The same, for whoever has an engine."""
    parsed, waitpoint, token = read_link(link)
    context = await engine.read_execution_context(parsed)
    if context.execution_kind == ASK_KIND:
        payload, said = checked(read_question(context.input_payload), value)
    else:
        from flowfabric.sdk.budget_asks import YES_OR_NO, budget_signal

        payload, said = checked(YES_OR_NO, value)
        said = budget_signal(said)
    await engine.deliver_signal(
        execution_id=parsed,
        waitpoint_id=waitpoint,
        waitpoint_token=token,
        signal_name=said,
        source_type="approver",
        source_identity=identity,
        payload=payload,
    )


def checked(question: Question, value: Any) -> tuple[bytes, str]:
    """An answer as it travels, and whether it is a yes or a no."""
    try:
        payload = codec_for(type(value)).encode(value)
    except CodecError as error:
        raise BadAnswer(f"ask {question.question!r}: {error}", ask=question.question) from None
    plain = msgspec.json.decode(payload)
    problem = check_against(question.schema, plain)
    if problem is not None:
        raise BadAnswer(f"ask {question.question!r}: the answer does not fit: {problem}", ask=question.question)
    return payload, _says(question, plain)
