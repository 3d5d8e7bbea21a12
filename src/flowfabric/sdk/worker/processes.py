"""Processes for handlers that keep a processor busy: ``run_in="process"``.

Arguments and results cross as the JSON bytes that are stored anyway; the function is found there by its import path. A
process whose function runs out of time, or whose attempt lost its lease, is killed and replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
from typing import Any

import msgspec

from flowfabric.sdk.definitions import Definition
from flowfabric.sdk.errors import BadOptions

_LENGTH = struct.Struct("<I")


class Call(msgspec.Struct):
    """What a process is asked to do. ``script`` is the file of a ``__main__`` that has no module name."""

    module: str
    name: str
    payload: bytes
    path: list[str]
    script: str | None = None


class Answer(msgspec.Struct):
    """What it answers: a result, or an error as texts."""

    result: bytes | None = None
    type: str = ""
    message: str = ""
    traceback: str = ""
    category: str = ""
    permanent: bool = False


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

    async def ask(self, call: Call) -> Answer:
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None and writer is not None
        data = msgspec.msgpack.encode(call)
        try:
            writer.write(_LENGTH.pack(len(data)) + data)
            await writer.drain()
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            return msgspec.msgpack.decode(await reader.readexactly(length), type=Answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._process.wait()
            raise ProcessDied(f"the process that ran {call.name} ended with exit code {code}") from None

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Processes:
    """Some processes, started when they are first needed."""

    def __init__(self, count: int | None = None) -> None:
        if count is not None and (type(count) is not int or count < 1):
            raise BadOptions(f"processes: {count!r} is not a whole number above 0", option="processes")
        self._room = asyncio.Semaphore(count or os.cpu_count() or 1)
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()

    async def call(self, definition: Definition[..., Any], payload: bytes) -> bytes:
        """Run a definition's function in a process; its result as JSON."""
        call = locate(definition, payload)
        async with self._room:
            if self._idle:
                process = self._idle.pop()
            else:
                process = await _Process.start()
                self._all.add(process)
            try:
                answer = await process.ask(call)
            except BaseException:
                self._all.discard(process)
                await asyncio.shield(process.kill())
                raise
            self._idle.append(process)
        if answer.result is None:
            raise RemoteError(answer)
        return answer.result

    async def close(self) -> None:
        """End all of them."""
        everyone, self._all = list(self._all), set()
        self._idle.clear()
        await asyncio.gather(*(process.kill() for process in everyone))


def locate(definition: Definition[..., Any], payload: bytes) -> Call:
    """How another process finds a definition's function; an error that says what to do if it cannot."""
    function, name = definition.function, definition.name
    if definition.signature.injected:
        provided = ", ".join(definition.signature.injected)
        raise BadOptions(
            f'{name}: with run_in="process" nothing can be provided, but it asks for {provided}; pass values, '
            "or let it run in a thread",
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
