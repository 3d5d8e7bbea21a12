"""The program of a process that runs functions for a worker; it ends when its standard input does."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import runpy
import struct
import sys
import threading
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, BinaryIO

import msgspec

from flowfabric.sdk.definitions.tasks import Definition
from flowfabric.sdk.errors import BadPayload, BadResult, SdkError
from flowfabric.sdk.worker.process_context import ProcessCtx
from flowfabric.sdk.worker.processes import Answer, Call, Message
from flowfabric.sdk.worker.tracebacks import told_of

_LENGTH = struct.Struct("<I")


@functools.cache
def _module(name: str, script: str | None) -> Any:
    if script is not None:
        # As when it is imported: what stands under `if __name__ == "__main__"` is not for us.
        return SimpleNamespace(**runpy.run_path(script, run_name="__flowfabric_main__"))
    return importlib.import_module(name)


def _definition(call: Call) -> Definition[..., Any]:
    found = _module(call.module, call.script)
    for part in call.name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Definition):
        raise TypeError(
            f"{call.module}.{call.name} is {type(found).__name__}, not a task; decorate it where it is defined"
        )
    return found


def answer(call: Call, stopped: threading.Event) -> Answer:
    """Run one function; ``stopped`` is what its ``Ctx`` looks at."""
    context = None if call.facts is None else ProcessCtx(call.facts, stopped)
    found = _outcome(call, context)
    if context is not None:
        found.lines = context.lines
    return found


def _outcome(call: Call, context: ProcessCtx | None) -> Answer:
    definition: Definition[..., Any] | None = None
    try:
        sys.path[:] = call.path
        definition = _definition(call)
        arguments = definition.signature.unpack(call.payload)
        provided = {}
        if context is not None:
            provided = dict.fromkeys(definition.signature.injected, context)
        args, kwargs = definition.signature.call(arguments, provided)
        result = definition.function(*args, **kwargs)
        if definition.is_async:
            result = asyncio.run(_awaited(result))
        return Answer(definition.signature.dump_result(result))
    except BaseException as error:
        permanent = isinstance(error, BadPayload | BadResult) or (
            definition is None or definition.options.retry.gives_up(error)
        )
        return Answer(
            None,
            type(error).__name__,
            str(error)[:2_000],
            told_of(error),
            (error.code if isinstance(error, SdkError) else "permanent") if permanent else "error",
            permanent,
        )


async def _awaited(result: Any) -> Any:
    return await result


def main() -> None:
    """Answer calls until there are no more."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What functions print must not get between the answers.
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    calls: SimpleQueue[Call | None] = SimpleQueue()
    stopped = threading.Event()
    threading.Thread(target=_listen, args=(source, calls, stopped), daemon=True).start()
    while (call := calls.get()) is not None:
        data = msgspec.msgpack.encode(answer(call, stopped))
        if stopped.is_set():
            return
        sink.write(_LENGTH.pack(len(data)) + data)
        sink.flush()


def _listen(source: BinaryIO, calls: SimpleQueue[Call | None], stopped: threading.Event) -> None:
    """Take what the worker says while a function runs. A worker that has gone wants nothing any more."""
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        message = msgspec.msgpack.decode(source.read(_LENGTH.unpack(head)[0]), type=Message)
        if isinstance(message, Call):
            calls.put(message)
        else:
            stopped.set()
    stopped.set()
    calls.put(None)


if __name__ == "__main__":
    main()
