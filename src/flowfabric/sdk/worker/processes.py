"""Processes for handlers that keep a processor busy: ``run_in="process"``.

Arguments and results cross as the JSON bytes that are stored anyway; the function is found there by its import path. A
process whose function runs out of time, or whose attempt lost its lease, is killed and replaced. One whose function has
a ``Ctx`` is told first, and has some seconds to end by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from flowfabric.model.streams.logs import LogLine
from flowfabric.sdk.definitions.depends import WantsContext
from flowfabric.sdk.definitions.tasks import Definition
from flowfabric.sdk.errors import BadOptions

_LENGTH = struct.Struct("<I")
#: How long a function that was told to stop may take to do so.
STOPPING_S = 5.0


class Facts(msgspec.Struct):
    """What a function's ``Ctx`` says of its attempt."""

    task: str
    run_id: str
    attempt: int
    tags: dict[str, str]
    idempotency_key: str
    stored_logs: int | None = None
    step: str | None = None


class Call(msgspec.Struct, tag=True):
    """What a process is asked to do. ``script`` is the file of a ``__main__`` that has no module name; ``facts`` are
    there if the function asks for a ``Ctx``."""

    module: str
    name: str
    payload: bytes
    path: list[str]
    script: str | None = None
    facts: Facts | None = None


class Stop(msgspec.Struct, tag=True):
    """The function that runs is to end, and then the process. Nobody waits for its answer any more."""


Message = Call | Stop


class Answer(msgspec.Struct):
    """What it answers: a result, or an error as texts."""

    result: bytes | None = None
    type: str = ""
    message: str = ""
    traceback: str = ""
    category: str = ""
    permanent: bool = False
    #: What it has logged.
    lines: list[LogLine] = []


class RemoteError(Exception):
    """The function raised in its process; ``remote`` says what."""

    def __init__(self, remote: Answer) -> None:
        super().__init__(f"{remote.type}: {remote.message}" if remote.message else remote.type)
        self.remote = remote


class ProcessDied(RuntimeError):
    """The process ended while it ran the function."""


class _Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> _Process:
        paths = [path for path in sys.path if path]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "flowfabric.sdk.worker.process_main",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # a Ctrl+C is for the worker, which decides what becomes of this one
        )
        return cls(process)

    @property
    def lives(self) -> bool:
        """Whether it has not ended, as far as is known."""
        reader = self._process.stdout
        return self._process.returncode is None and reader is not None and not reader.at_eof()

    async def ask(self, call: Call) -> Answer:
        reader = self._process.stdout
        assert reader is not None
        try:
            await self._send(call)
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            return msgspec.msgpack.decode(await reader.readexactly(length), type=Answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._process.wait()
            raise ProcessDied(f"the process that ran {call.name} ended with exit code {code}") from None

    async def _send(self, message: Message) -> None:
        writer = self._process.stdin
        assert writer is not None
        data = msgspec.msgpack.encode(message)
        writer.write(_LENGTH.pack(len(data)) + data)
        await writer.drain()

    async def stop(self) -> None:
        """Let the function know, and kill the process if it has not ended some seconds later."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(STOPPING_S):
                await self._send(Stop())
                await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Processes:
    """Some processes, started when they are first needed."""

    def __init__(self, count: int | None = None, freed: Callable[[], None] = lambda: None) -> None:
        if count is not None and (type(count) is not int or count < 1):
            raise BadOptions(f"processes: {count!r} is not a whole number above 0", option="processes")
        self.count = count or os.cpu_count() or 1
        #: How many run a function, or are being ended.
        self.busy = 0
        self._freed = freed
        self._room = asyncio.Semaphore(self.count)
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def call(
        self,
        definition: Definition[..., Any],
        payload: bytes,
        facts: Facts,
        keep: Callable[[LogLine], None],
        begins: Callable[[], None] = lambda: None,
    ) -> bytes:
        """Run a definition's function in a process; its result as JSON. ``begins`` is called when there is one for it,
        ``keep`` gets what it logs, when it ends."""
        call = locate(definition, payload)
        if definition.signature.injected:
            call.facts = facts
        await self._room.acquire()
        self.busy += 1
        try:
            process = self._take_idle() or await _Process.start()
        except BaseException:
            self._release()
            raise
        self._all.add(process)
        begins()
        try:
            answer = await process.ask(call)
        except BaseException as error:
            told = isinstance(error, asyncio.CancelledError) and call.facts is not None
            ending = asyncio.get_running_loop().create_task(self._end(process, told))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            if not told:
                await asyncio.shield(ending)
            raise
        self._idle.append(process)
        self._release()
        for line in answer.lines:
            keep(line)
        if answer.result is None:
            raise RemoteError(answer)
        return answer.result

    def _take_idle(self) -> _Process | None:
        """A process that has nothing to do, unless it has ended since: somebody else may have killed it."""
        while self._idle:
            process = self._idle.pop()
            if process.lives:
                return process
            self._all.discard(process)
        return None

    async def _end(self, process: _Process, told: bool) -> None:
        try:
            await (process.stop() if told else process.kill())
        finally:
            self._all.discard(process)
            self._release()

    def _release(self) -> None:
        self.busy -= 1
        self._room.release()
        self._freed()

    async def close(self) -> None:
        """End all of them."""
        everyone, self._all = list(self._all), set()
        self._idle.clear()
        await asyncio.gather(*(process.kill() for process in everyone))
        await asyncio.gather(*self._ending)


def locate(definition: Definition[..., Any], payload: bytes) -> Call:
    """How another process finds a definition's function; an error that says what to do if it cannot."""
    function, name = definition.function, definition.name
    provided = [each for each, wanted in definition.signature.injected.items() if not isinstance(wanted, WantsContext)]
    if provided:
        raise BadOptions(
            f'{name}: with run_in="process" only a Ctx can be provided, but it asks for {", ".join(provided)}; '
            "pass values, or let it run in a thread",
            task=name,
        )
    module, qualified = function.__module__, function.__qualname__
    if "<" in qualified:
        raise BadOptions(
            f'{name}: {qualified} cannot be imported by another process; with run_in="process" define it at the top of '
            "a module",
            task=name,
        )
    script = None
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        script = getattr(main, "__file__", None)
        if spec is not None and spec.name:
            module, script = spec.name, None
        elif script is None:
            raise BadOptions(f'{name}: with run_in="process" define it in a file that can be imported', task=name)
    return Call(module, qualified, payload, list(sys.path), script)
