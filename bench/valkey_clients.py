"""``python -m bench.valkey_clients``: what a call to Valkey costs with each client library, in our traffic's shapes.

Not one of ``./dev bench``'s cases: it compares libraries, not releases of ours, and it needs `valkey` and
`valkey-glide`, which nothing else does. A library that is not installed is left out.

Sides take turns in alternating order. Processor time is this process's with all its threads, so that the work of a
library's own threads counts.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from bench import machine
from tests.servers import LOOPBACK, Valkey

#: Calls in one window of a shape, and the calls before it that do not count.
CALLS, WARM_UP = 400, 40
LIBRARY = """#!lua name=bench_clients
redis.register_function('bench_take', function(keys, args)
  redis.call('SET', keys[1], #args[1])
  return {1, #args}
end)
redis.register_function{function_name='bench_give', flags={'no-writes'}, callback=function(keys, args)
  local found, row = {}, string.rep('x', 200)
  for number = 1, tonumber(args[1]) do found[number] = row end
  return found
end}
"""
KEY = b"{bench}:clients"

#: Name of a function, its arguments, whether it only reads.
Call = Callable[[bytes, list[bytes], bool], Awaitable[Any]]


class Shape(Struct):
    """One kind of call, made by some callers at the same time."""

    name: str
    function: bytes
    arguments: list[bytes]
    read_only: bool
    callers: int = 1


SHAPES = [
    Shape("commit, 1 × 20 kB", b"bench_take", [os.urandom(20_000)], False),
    Shape("commit, 2 × 100 kB", b"bench_take", [os.urandom(100_000), os.urandom(100_000)], False),
    Shape("load, 400 × 200 B", b"bench_give", [b"400"], True),
    Shape("small, alone", b"bench_give", [b"1"], True),
    Shape("small, 32 callers", b"bench_give", [b"1"], True, callers=32),
]


class Window(Struct):
    """What one window found, in microseconds."""

    client_us: float
    median_us: float
    slow_us: float


# ------------------------------------------------------------------------------------------------------------ libraries


@asynccontextmanager
async def valkey_py(port: int) -> AsyncIterator[Call]:
    """`valkey`, which reads with `libvalkey` where that is installed."""
    from valkey.asyncio import Valkey as Client

    client: Any = Client(host=LOOPBACK, port=port, max_connections=64)

    async def call(function: bytes, arguments: list[bytes], read_only: bool) -> Any:
        return await client.execute_command("FCALL_RO" if read_only else "FCALL", function, 1, KEY, *arguments)

    try:
        yield call
    finally:
        await client.aclose()


@asynccontextmanager
async def glide(port: int) -> AsyncIterator[Call]:
    """`valkey-glide`: Rust threads of its own behind a channel."""
    from glide import GlideClient, GlideClientConfiguration, NodeAddress

    settings = GlideClientConfiguration([NodeAddress(LOOPBACK, port)], request_timeout=10_000)
    client = await GlideClient.create(settings)

    async def call(function: bytes, arguments: list[bytes], read_only: bool) -> Any:
        if read_only:
            return await client.fcall_ro(function, [KEY], list(arguments))
        return await client.fcall(function, [KEY], list(arguments))

    try:
        yield call
    finally:
        await client.close()


@asynccontextmanager
async def bare_reader(port: int) -> AsyncIterator[Call]:
    """`libvalkey.Reader` behind a protocol of asyncio, one connection for all."""
    import libvalkey

    class Wire(asyncio.Protocol):
        def __init__(self) -> None:
            self.reader = libvalkey.Reader(notEnoughData=self)
            self.waiting: list[asyncio.Future[Any]] = []

        def data_received(self, data: bytes) -> None:
            self.reader.feed(data)
            while (answer := self.reader.gets()) is not self:
                self.waiting.pop(0).set_result(answer)

    loop = asyncio.get_running_loop()
    transport, wire = await loop.create_connection(Wire, LOOPBACK, port)

    async def call(function: bytes, arguments: list[bytes], read_only: bool) -> Any:
        answer = loop.create_future()
        wire.waiting.append(answer)
        command = "FCALL_RO" if read_only else "FCALL"
        transport.write(libvalkey.pack_command((command, function, 1, KEY, *arguments)))
        return await answer

    try:
        yield call
    finally:
        transport.close()


@asynccontextmanager
async def ours(port: int) -> AsyncIterator[Call]:
    """What the store uses: `libvalkey.Reader` with timeouts, reconnecting and a few connections."""
    from flowfabric.stores.valkey.address import Address
    from flowfabric.stores.valkey.connection import Connection

    connection = await Connection.open(Address(LOOPBACK, port), LIBRARY)

    async def call(function: bytes, arguments: list[bytes], read_only: bool) -> Any:
        return await connection.call(function.decode(), [KEY], arguments, read_only=read_only)

    try:
        yield call
    finally:
        await connection.close()


LIBRARIES = {
    "valkey + libvalkey": valkey_py,
    "valkey-glide": glide,
    "libvalkey.Reader, bare": bare_reader,
    "ours": ours,
}


# ------------------------------------------------------------------------------------------------------------ measuring


async def window(call: Call, shape: Shape) -> Window:
    """One window of one shape."""
    times: list[float] = []

    async def work(count: int) -> None:
        for _ in range(count):
            began = time.perf_counter()
            await call(shape.function, shape.arguments, shape.read_only)
            times.append(time.perf_counter() - began)

    async def all_callers(count: int) -> None:
        await asyncio.gather(*(work(count // shape.callers) for _ in range(shape.callers)))

    calls = CALLS * (4 if shape.callers > 1 else 1)
    await all_callers(max(WARM_UP, shape.callers))
    times.clear()
    gc.collect()
    began = time.process_time()
    await all_callers(calls)
    spent = time.process_time() - began
    times.sort()
    return Window(spent / len(times) * 1e6, statistics.median(times) * 1e6, times[int(len(times) * 0.99)] * 1e6)


async def measure(port: int, repeat: int) -> dict[tuple[str, str], list[Window]]:
    """Every library in every shape, in turns."""
    found: dict[tuple[str, str], list[Window]] = {}
    async with AsyncExitStack() as stack:
        calls: dict[str, Call] = {}
        for name, library in LIBRARIES.items():
            try:
                calls[name] = await stack.enter_async_context(library(port))
            except ImportError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
        for shape in SHAPES:
            for turn in range(repeat):
                for name in list(calls) if turn % 2 else reversed(list(calls)):
                    found.setdefault((shape.name, name), []).append(await window(calls[name], shape))
    return found


def show(found: dict[tuple[str, str], list[Window]]) -> None:
    """The medians of the repetitions."""
    table = Table("shape", "library", "client µs", "median µs", "99 % µs", title="per call, medians of the repetitions")
    for column in table.columns[2:]:
        column.justify = "right"
    for (shape, library), windows in found.items():
        middle: Callable[[str], float] = functools.partial(_middle, windows)
        table.add_row(shape, library, *(f"{middle(name):.0f}" for name in ("client_us", "median_us", "slow_us")))
    Console(width=120).print(table)


def _middle(windows: list[Window], name: str) -> float:
    return float(statistics.median(getattr(each, name) for each in windows))


def main(arguments: list[str]) -> int:
    """Start a server, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.valkey_clients", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="repetitions (%(default)s)")
    options = parser.parse_args(arguments)
    print(f"load before: {machine.load()}")
    # What the server does for durability is the same for all and would only add noise.
    with Valkey("--appendonly", "no") as server:

        async def run() -> dict[tuple[str, str], list[Window]]:
            async with bare_load(server.port):
                return await measure(server.port, options.repeat)

        show(asyncio.run(run()))
    print(f"load after: {machine.load()}")
    return 0


@asynccontextmanager
async def bare_load(port: int) -> AsyncIterator[None]:
    """Give the server the functions that are called."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(b"*3\r\n$8\r\nFUNCTION\r\n$4\r\nLOAD\r\n$%d\r\n%s\r\n" % (len(LIBRARY), LIBRARY.encode()))
    if not (await reader.readline()).startswith(b"$"):
        raise RuntimeError("the functions were refused")
    writer.close()
    await writer.wait_closed()
    yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
