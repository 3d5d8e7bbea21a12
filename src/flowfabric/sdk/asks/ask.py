"""Questions to people: ``await Ask("publish?", Verdict, show=draft, of={"legal", "ops"}, need=2, within=days(3))``.

A question is an execution of its own that waits for signals, so it holds no worker and nothing before it runs again.
Each approver has a waitpoint of their own, whose signed token is valid for them alone and for exactly what was shown:
the waitpoint's id is derived from both, and the token's signature covers the id.

An answer counts as a yes or a no by its one ``bool`` field (or by itself, if the answer is a ``bool``); an answer
without one counts as a yes. ``need`` yeses decide, and so does the first no. The result is the deciding answer.
"""

from __future__ import annotations

import copy
import hashlib
import re
import typing
import uuid
from collections.abc import Generator, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

import msgspec

from flowfabric.conditions import AnyOf, ByName, Count, CountKind
from flowfabric.model.counting import counted
from flowfabric.model.errors import Conflict, ConflictKind, NotFound
from flowfabric.model.handles import HandleKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.suspension import Fresh, SuspendArgs, SuspensionReason, TimeoutBehavior
from flowfabric.model.states import ANYONE, QUESTION_TAG
from flowfabric.model.waitpoint_tokens import Token
from flowfabric.sdk.asks.answer import APPROVE, DECLINE, Answered, first_answer, repeated, send
from flowfabric.sdk.asks.answer_checks import check_against
from flowfabric.sdk.asks.links import make_link, read_link
from flowfabric.sdk.asks.questions import UNREADABLE, Answers, Given, Question, read_answer, read_answers, read_question
from flowfabric.sdk.definitions.codec import Codec, CodecError, codec_for, encode_plain
from flowfabric.sdk.durations import duration, milliseconds
from flowfabric.sdk.errors import AskClosed, AskTimedOut, BadAnswer, BadOptions, BadPayload, SdkError
from flowfabric.sdk.schemas.checks import check_asked
from flowfabric.sdk.schemas.from_types import schema_of
from flowfabric.sdk.workflows.durable import CURRENT
from flowfabric.sdk.workflows.plain_values import Unplain, packed, unpacked

if TYPE_CHECKING:
    # Type checkers bring this module along; nothing needs it when the program runs.
    from typing_extensions import TypeForm

    from flowfabric.engine import Engine
    from flowfabric.model.operations.suspension import ResumeSignal
    from flowfabric.model.reads.overview import SignalLine
    from flowfabric.sdk.app import App
    from flowfabric.sdk.worker.attempt import Job

T_co = TypeVar("T_co", covariant=True)
#: The answer's type, and that of what is given when nobody answers in time.
A = TypeVar("A")
D = TypeVar("D")

ASK_KIND: Final = "$ask"
#: How often a question is asked whose answers were taken and cannot be read, and characters of why it is asked again.
MOST_ASKED: Final = 10
_MAX_WHY: Final = 500
_NOTHING: Final = object()
_LIKE_A_NUMBER: Final = re.compile(r"[#!~]\d+\Z")


class UnreadAnswer(BadAnswer):
    """An answer that was accepted because it matches the schema, but that the type rejects."""

    def __init__(self, ask: str, answers: Answers, deciding: Given, why: str) -> None:
        self.answers = answers
        self.deciding = deciding
        self.why = f"the answer of {deciding.by} is not valid: {why}"
        super().__init__(f"<ask {ask!r}>: {self.why}", ask=ask)


class Ask(Generic[T_co]):
    """A question; awaiting it in a workflow asks it and returns the answer."""

    # A `TypeForm` is all that can be written as a type: `type[A]` has no unions, literals or annotated types in it.

    @overload
    def __init__(
        self: Ask[bool],
        question: str,
        *,
        show: Any = ...,
        of: Iterable[str] | str = ...,
        need: int = ...,
        within: timedelta | None = ...,
        key: str | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: Ask[bool | D],
        question: str,
        *,
        show: Any = ...,
        of: Iterable[str] | str = ...,
        need: int = ...,
        within: timedelta,
        otherwise: D,
        key: str | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: Ask[A],
        question: str,
        answer: TypeForm[A],
        *,
        show: Any = ...,
        of: Iterable[str] | str = ...,
        need: int = ...,
        within: timedelta | None = ...,
        key: str | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: Ask[A | D],
        question: str,
        answer: TypeForm[A],
        *,
        show: Any = ...,
        of: Iterable[str] | str = ...,
        need: int = ...,
        within: timedelta,
        otherwise: D,
        key: str | None = ...,
    ) -> None: ...

    def __init__(
        self,
        question: str,
        answer: Any = bool,
        *,
        show: Any = None,
        of: Iterable[str] | str = (),
        need: int = 1,
        within: timedelta | None = None,
        otherwise: Any = _NOTHING,
        key: str | None = None,
    ) -> None:
        approvers = tuple(sorted({of} if isinstance(of, str) else set(of)))
        if not question:
            raise BadOptions("Ask: the question must be a string", option="question")
        if any(not each or each == ANYONE for each in approvers):
            raise BadOptions(f"of: approvers must be names other than {ANYONE!r}: {approvers!r}", option="of")
        if type(need) is not int or not 1 <= need <= max(len(approvers), 1):
            raise BadOptions(
                f"need: {need!r} of {counted(len(approvers), 'named approver')}; name enough of them with of=",
                option="need",
            )
        if within is not None:
            duration(within, "within")
        elif otherwise is not _NOTHING:
            raise BadOptions("otherwise= is the answer after a timeout: pass within= too", option="otherwise")
        self.question = question
        self.answer = answer
        self.key = key
        self._otherwise = otherwise
        self._codec: Codec = codec_for(answer)
        schema = schema_of(answer)
        problem = check_asked(schema)
        if problem is not None:
            raise BadOptions(f"Ask: answers of this type cannot be checked: its schema: {problem}", option="answer")
        self._stored = Question(
            question,
            _shown(show),
            approvers,
            need,
            None if within is None else milliseconds(within),
            schema,
            _approves(answer),
        )

    def __repr__(self) -> str:
        return f"<ask {self.question!r}>"

    def __await__(self) -> Generator[Any, Any, T_co]:
        workflow = CURRENT.get()
        if workflow is None:
            raise BadOptions(f"{self!r}: ask questions in workflows; elsewhere, answer them with app.asks()")
        asked: Generator[Any, Any, T_co] = workflow.ask(self).__await__()
        return asked

    @property
    def step_name(self) -> str:
        """The name under which the workflow records it."""
        name = f"ask:{self.question[:200]}"
        # What looks like the number of a call, or of a trial, is part of the text here.
        return f"{name}." if _LIKE_A_NUMBER.search(name) else name

    @property
    def recognised_by(self) -> bytes:
        """What tells it from other questions without a key: what is asked, of whom."""
        stored = self._stored
        return msgspec.json.encode(
            {"question": stored.question, "show": stored.show, "of": stored.of, "need": stored.need}
        )

    def creation(self, app: App, run: str) -> dict[str, Any]:
        """The execution that asks."""
        return {
            "namespace": app.namespace,
            "lane_id": app.lane,
            "execution_kind": ASK_KIND,
            "input_payload": msgspec.json.encode(self._stored),
            "payload_encoding": "json",
            "tags": {QUESTION_TAG: self.question[:200]},
        }

    def read_result(self, data: bytes | None) -> T_co:
        """The answer that decided; ``UnreadAnswer`` if the type rejects it."""
        found = read_answers(data or b"{}")
        if found.outcome in ("approved", "declined"):
            return self._read(found)
        if found.otherwise is not msgspec.UNSET:
            return typing.cast(T_co, unpacked(found.otherwise))
        if self._otherwise is not _NOTHING:
            return typing.cast(T_co, self._otherwise)
        raise self._undecided(found)

    def decided_at_ms(self, data: bytes | None) -> int | None:
        """When the answer was given that decided, if one has."""
        found = read_answers(data or b"{}")
        if found.outcome not in ("approved", "declined"):
            return None
        return max((each.at_ms for each in found.answers), default=None)

    def _undecided(self, found: Answers) -> SdkError:
        if found.outcome == "timed_out":
            return AskTimedOut(f"{self!r}: no answer in time; pass otherwise= for that case", ask=self.question)
        return AskClosed(f"{self!r} was closed by an operator before it was decided", ask=self.question)

    def decided(self, data: bytes | None) -> bytes | None:
        """The result as it is to be remembered: with what ``otherwise`` is on the day on which that is taken. What
        cannot be stored is that of the code that reads it. If there is neither an answer nor that, it raises."""
        found = read_answers(data or b"{}")
        if found.outcome in ("approved", "declined"):
            return data
        if self._otherwise is _NOTHING:
            raise self._undecided(found)
        try:
            return msgspec.json.encode(msgspec.structs.replace(found, otherwise=packed(self._otherwise)))
        except Unplain:
            return data

    def _read(self, found: Answers) -> T_co:
        said = APPROVE if found.outcome == "approved" else DECLINE
        deciding = next(each for each in reversed(found.answers) if each.said == said)
        try:
            answer: T_co = self._codec.decode(msgspec.json.encode(deciding.value))
        except Exception as error:
            # Validators of a type are code: they may raise anything.
            why = str(error) if isinstance(error, CodecError) else f"{type(error).__name__}: {error}"
            raise UnreadAnswer(self.question, found, deciding, why) from error
        return answer

    def again(self, unread: UnreadAnswer) -> Ask[T_co]:
        """The same question once more, for those who have not said yes yet. The reason follows its text, so that they
        can see it."""
        given = unread.answers.answers
        yeses = {each.by for each in given if each.said == APPROVE and each is not unread.deciding}
        stored = self._stored
        other = copy.copy(self)
        other._stored = msgspec.structs.replace(
            stored,
            question=f"{self.question} (asked again: {unread.why[:_MAX_WHY]})",
            of=tuple(each for each in stored.of if each not in yeses),
            need=max(stored.need - len(yeses), 1),
        )
        return other


def _shown(show: Any) -> Any:
    try:
        return msgspec.json.decode(encode_plain(show))
    except CodecError as error:
        raise BadOptions(f"show: {error}", option="show") from None


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
    """The waitpoint of one approver: it differs by question, by what is shown and by approver."""
    shown = hashlib.sha256(payload).hexdigest()
    return str(uuid.uuid5(uuid.UUID(ExecutionId.parse(execution_id).uuid_text), f"{shown}:{approver}"))


async def run_ask(job: Job) -> None:
    """Suspend until the question is decided, then complete with the answers."""
    from flowfabric.sdk.worker.attempt import Parked

    payload = job.context.input_payload
    question = read_question(payload)
    if question is UNREADABLE:
        raise _not_asked("it cannot be read", job)
    approvers = question.of or (ANYONE,)
    found = Answers("closed")
    if job.handle.kind is HandleKind.RESUMED:
        found = await _collected(job, question)
    if found.outcome != "closed" or found.answers:
        await job.complete(msgspec.json.encode(found))
        return
    problem = check_asked(question.schema)
    if problem is not None:
        raise _not_asked(f"its schema: {problem}", job)
    until = None if question.within_ms is None else await job.repeated(job.engine.now_ms) + question.within_ms
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

    # It was asked before: an operator has let it go on, or an earlier attempt has failed with the answers in its hands.
    if await job.conclude(is_new) is False:
        job.ended = False
        found = await _on_record(job, question, approvers)
        await job.complete(msgspec.json.encode(found))
        return
    raise Parked


def _not_asked(problem: str, job: Job) -> BadPayload:
    """Nothing could be an answer to it, or anything: better to say so than to wait for one."""
    return BadPayload(f"the stored question cannot be asked: {problem}; ask with Ask(…)", run=job.execution_id)


async def _collected(job: Job, question: Question) -> Answers:
    """What was answered while this attempt was suspended."""
    signals = await job.repeated(lambda: job.engine.observe_signals(job.handle))
    timed_out = any(each.signal_category == "timeout" for each in signals)
    return _summed_up(question, signals, timed_out)


async def _on_record(job: Job, question: Question, approvers: Sequence[str]) -> Answers:
    """What was answered to an earlier attempt."""
    history = await job.repeated(lambda: job.engine.read_history(job.execution_id))
    given = [each for each in history.signals if each.waitpoint_key in approvers]
    timed_out = any(each.signal_name == "timeout" for each in history.signals if each not in given)
    return _summed_up(question, given, timed_out)


def _summed_up(question: Question, signals: Iterable[ResumeSignal | SignalLine], timed_out: bool) -> Answers:
    """The first answer of each approver, and what they amount to."""
    given: dict[str, Given] = {}
    for signal in signals:
        if signal.signal_name not in (APPROVE, DECLINE) or signal.waitpoint_key in given:
            continue
        value = read_answer(signal.payload)
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


# -- answering -------------------------------------------------------------------------------------------------------


class OpenAsk:
    """A question that is waiting for its answer."""

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
        """The question's text."""
        return self._question.question

    @property
    def show(self) -> Any:
        """What the answer is about; tokens are valid for exactly this."""
        return self._question.show

    @property
    def of(self) -> tuple[str, ...]:
        """Who may answer; if empty, anyone with the link."""
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

    async def token(self, by: str | None = None) -> Token:
        """The signed token of one approver; ``reveal()`` returns its text. Anyone who has it can answer in their place:
        give it to nobody else."""
        waitpoint = self.waitpoint(by)
        try:
            identity = ExecutionId.parse(self.id)
            found = await self._app.engine.read_waitpoint_token(identity.partition, waitpoint, identity)
        except NotFound:
            found = None
        if not found:
            raise AskClosed(f"{self!r} is not open", ask=self.question)
        return found

    async def link(self, by: str | None = None) -> str:
        """One text with everything ``app.answer`` needs: put it into a mail, a chat, a URL."""
        return make_link(self.id, self.waitpoint(by), await self.token(by))

    async def answer(self, value: Any, by: str | None = None) -> Answered:
        """Answer for an approver; the calling process is trusted. Repeating the same answer changes nothing and says
        so; a different one raises ``AlreadyAnswered``."""
        engine, waitpoint = self._app.engine, self.waitpoint(by)
        payload, said = checked(self._question, value)
        try:
            token = await self.token(by)
        except AskClosed:
            first = await first_answer(engine, self.id, waitpoint)
            if first is None:
                raise
            return repeated(first, payload)
        return await send(
            engine,
            self.id,
            waitpoint,
            look=True,
            said=said,
            waitpoint_token=token,
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
            raise BadOptions(f"{self!r}: by= must be one of {', '.join(self.of)}, not {by!r}", option="by")
        return by


async def answer(app: App, link: str, value: Any, *, identity: str = "") -> Answered:
    """Answer with a link. The engine refuses a link that was tampered with, has expired or is used up."""
    return await answer_link(app.engine, link, value, identity=identity, is_remote=app.is_remote)


async def answer_link(
    engine: Engine, link: str, value: Any, *, identity: str = "", is_remote: bool = False
) -> Answered:
    """The same, for callers with an engine. A server checks itself whether its caller has answered before."""
    from flowfabric.sdk.asks.raw_answers import holds_token

    parsed, waitpoint, token = read_link(link)
    context = (await engine.read_execution_contexts([parsed])).get(parsed)
    if context is None:
        raise NotFound("execution", parsed)
    if context.execution_kind == ASK_KIND:
        payload, said = checked(read_question(context.input_payload), value)
        name = said
    else:
        from flowfabric.sdk.asks.budget_asks import YES_OR_NO, budget_signal

        payload, said = checked(YES_OR_NO, value)
        name = budget_signal(said)
    return await send(
        engine,
        parsed,
        waitpoint,
        look=not is_remote and await holds_token(engine, parsed, waitpoint, token),
        said=said,
        waitpoint_token=token,
        signal_name=name,
        source_type="approver",
        source_identity=identity,
        payload=payload,
    )


def checked(question: Question, value: Any) -> tuple[bytes, str]:
    """An answer as it is sent, and whether it is a yes or a no. All answers are accepted or refused here."""
    try:
        payload = codec_for(type(value)).encode(value)
    except CodecError as error:
        raise BadAnswer(f"ask {question.question!r}: {error}", ask=question.question) from None
    plain = msgspec.json.decode(payload)
    problem = check_against(question.schema, plain)
    if problem is not None:
        raise BadAnswer(f"ask {question.question!r}: the answer is not valid: {problem}", ask=question.question)
    return payload, _says(question, plain)
