"""How long ``import flowfabric`` takes in a fresh process, by itself and with what most programs name."""

from __future__ import annotations

import asyncio
import functools
import os
import sys

from bench import ROOT, goals
from bench.context import Bench, Case
from bench.rows import Row, Series

PROGRAM = "import time; began = time.perf_counter(); {}; print((time.perf_counter() - began) * 1000)"
BARE, NAMED = "import flowfabric", "from flowfabric import App, Ctx, Retry"


def cases() -> list[Case]:
    """One."""
    return [Case("import", "milliseconds that an import takes in a fresh process", run, windows=2)]


async def run(bench: Bench) -> list[Row]:
    """Once unmeasured, so that compiled files are there."""
    await _timed(NAMED)
    found = await bench.interleaved({each: functools.partial(_timed, each) for each in (BARE, NAMED)})
    return [
        Row(
            case="import",
            label=BARE,
            unit="ms",
            better="lower",
            ours=Series("a fresh process", found[BARE]),
            target=goals.IMPORT_MS,
            extra={NAMED: found[NAMED]},
        )
    ]


async def _timed(statement: str) -> float:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM.format(statement),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    said, _ = await process.communicate()
    return float(said)
