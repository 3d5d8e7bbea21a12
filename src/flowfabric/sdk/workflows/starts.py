"""Runs that a workflow starts and does not wait for: each is started once, and its id is remembered."""

from __future__ import annotations

import dataclasses
from collections.abc import Coroutine, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from flowfabric.model.operations.executions import CreateResult, Duplicate
from flowfabric.model.operations.workflows import NewStep
from flowfabric.sdk.errors import BadOptions, IdConflict
from flowfabric.sdk.options import StartOptions
from flowfabric.sdk.workflows.children import Children
from flowfabric.sdk.workflows.recorded_errors import error_step, remembered_error
from flowfabric.sdk.workflows.recorded_steps import Call

if TYPE_CHECKING:
    from flowfabric.sdk.definitions.tasks import Startable
    from flowfabric.sdk.runs.run import Run
    from flowfabric.sdk.runs.start import Start

#: The tag of a run that says which call has started it, if nobody else may have.
STARTED_BY = "ff.started_by"
#: Runs that one call may start: their ids are one result.
MOST_STARTED = 20_000

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Starts(Children):
    """The runs that one pass starts."""

    def start_run(
        self, task: Startable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: StartOptions
    ) -> Coroutine[Any, Any, Run[Any]]:
        """One run: its name is taken now, it is started when it is awaited."""
        self._refuse(options)
        payload = task.signature.pack(args, kwargs)
        call = self._call(f"{task.name}.start", options.key, payload)
        return self._start_one(call, task, payload, options)

    def start_runs(
        self, task: Startable[..., Any], calls: Sequence[Arguments], options: StartOptions
    ) -> Coroutine[Any, Any, list[Run[Any]]]:
        """Many of them, all or none."""
        self._refuse(options)
        if len(calls) > MOST_STARTED:
            raise BadOptions(
                f"start_many: a workflow starts up to {MOST_STARTED} runs in one call, not {len(calls)}",
                option="start_many",
            )
        if (options.reuse or task.options.reuse) == "reject":
            raise BadOptions(
                'start_many: reuse="reject" would leave the others started; start such runs one by one', option="reuse"
            )
        payloads = [task.signature.pack(args, kwargs) for args, kwargs in calls]
        call = self._call(f"{task.name}.start_many", options.key, b"[%s]" % b",".join(payloads))
        return self._start_many(call, task, payloads, options)

    def _refuse(self, options: StartOptions) -> None:
        if options.tx is not None or options.debounce is not None:
            option = "debounce" if options.tx is None else "tx"
            raise BadOptions(f"{option}: start such a run in a step of the workflow {self.job.kind!r}", option=option)

    async def _start_one(
        self, call: Call, task: Startable[..., Any], payload: bytes, options: StartOptions
    ) -> Run[Any]:
        from flowfabric.sdk.runs.start import run_of

        known = await self.remembered(call, lambda value: msgspec.json.decode(value or b"", type=str))
        if known is not None:
            return run_of(task, known[0])
        with self.work():
            own = self._own(call)
            start = await self._prepared(task, payload, options, own)
            if start.reuse == "reject":
                start.arguments["tags"] = {**(start.arguments.get("tags") or {}), STARTED_BY: _short(own)}
            answer = await self.job.repeated(lambda: self._engine.create_execution(**start.arguments))
            if not (start.reuse == "reject" and type(answer) is Duplicate and await self._is_own(answer, own)):
                await self._refuse_taken(call, task, [start], [answer])
            self._started(call, str(answer.execution_id))
        return run_of(task, answer.execution_id)

    async def _start_many(
        self, call: Call, task: Startable[..., Any], payloads: Sequence[bytes], options: StartOptions
    ) -> list[Run[Any]]:
        from flowfabric.sdk.runs.start import run_of

        known = await self.remembered(call, lambda value: msgspec.json.decode(value or b"", type=list[str]))
        if known is not None:
            return [run_of(task, each) for each in known[0]]
        with self.work():
            own = self._own(call)
            starts = [
                await self._prepared(task, payload, options, f"{own}:{place}") for place, payload in enumerate(payloads)
            ]
            made = [each.arguments for each in starts]
            answers = await self.job.repeated(lambda: self._engine.create_executions(made))
            await self._refuse_taken(call, task, starts, answers)
            self._started(call, [str(answer.execution_id) for answer in answers])
        return [run_of(task, answer.execution_id) for answer in answers]

    def _own(self, call: Call) -> str:
        """What tells the runs that a call starts from all others, also when it is made again after a crash."""
        return f"{self._identity.uuid_text}:{call.identity}"

    async def _prepared(self, task: Startable[..., Any], payload: bytes, options: StartOptions, own: str) -> Start:
        from flowfabric.sdk.runs.start import prepare

        if options.id is None and task.options.id is None:
            options = dataclasses.replace(options, id=own.replace("{", "{{").replace("}", "}}"))
        arguments = task.signature.unpack(payload)
        return await self.job.repeated(lambda: prepare(task, arguments, options, payload))

    async def _is_own(self, answer: Duplicate, own: str) -> bool:
        """Whether this call has started it before a crash, or before an answer that was lost."""
        identity = answer.execution_id
        found = await self.job.repeated(lambda: self._engine.read_execution_contexts([identity]))
        return identity in found and found[identity].tags.get(STARTED_BY) == _short(own)

    async def _refuse_taken(
        self, call: Call, task: Startable[..., Any], starts: Sequence[Start], answers: Sequence[CreateResult]
    ) -> None:
        from flowfabric.sdk.runs.start import refuse_taken

        try:
            await self.job.repeated(lambda: refuse_taken(task, starts, answers))
        except IdConflict as error:
            self.check()
            met = self._meet(error_step(self.memory.error_name(call.name), error, call.arguments))
            raise remembered_error(call.name, met) from None

    def _started(self, call: Call, ids: str | list[str]) -> None:
        self.check()
        self._new_steps[call.name] = NewStep(call.name, msgspec.json.encode(ids), arguments=call.arguments)


def _short(own: str) -> str:
    return blake2b(own.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
