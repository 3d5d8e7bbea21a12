"""Other processes that take part in a benchmark: programs of ``bench.workers``, spoken to line by line."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Self

import msgspec

from bench import ROOT

_LINE_LIMIT = 2**20


class Worker:
    """One process. It ends when its standard input does, so it never outlives us."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        #: What it said when it was ready.
        self.greeting: Any = None

    @classmethod
    async def start(cls, program: str, *arguments: str) -> Self:
        """Start a program and wait until it says that it is ready."""
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"bench.workers.{program}",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            limit=_LINE_LIMIT,
        )
        worker = cls(process)
        worker.greeting = await worker.hear()
        return worker

    def tell(self, message: Any) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")

    async def hear(self) -> Any:
        """The next line it writes."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker process ended early, with exit code {await self._process.wait()}")
        return msgspec.json.decode(line)

    async def ask(self, message: Any) -> Any:
        """Send one line and wait for one."""
        self.tell(message)
        return await self.hear()

    async def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 20)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
