"""The program of a process that runs functions for a worker; it ends when its standard input does."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import runpy
import struct
import sys
import traceback
from types import SimpleNamespace
from typing import Any

import msgspec

from flowfabric.sdk.definitions import Definition
from flowfabric.sdk.errors import BadPayload, BadResult, SdkError
from flowfabric.sdk.worker.processes import Answer, Call

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


def answer(call: Call) -> Answer:
    """Run one function."""
    definition: Definition[..., Any] | None = None
    try:
        sys.path[:] = call.path
        definition = _definition(call)
        arguments = definition.signature.unpack(call.payload)
        args, kwargs = definition.signature.call(arguments, {})
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
            "".join(traceback.format_exception(error))[-24_000:],
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
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        call = msgspec.msgpack.decode(source.read(_LENGTH.unpack(head)[0]), type=Call)
        data = msgspec.msgpack.encode(answer(call))
        sink.write(_LENGTH.pack(len(data)) + data)
        sink.flush()


if __name__ == "__main__":
    main()
