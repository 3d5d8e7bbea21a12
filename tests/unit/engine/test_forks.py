"""Engines in children of the process that has opened them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os
from flowfabric import Unavailable
from flowfabric.engine import Engine

async def ask(call):
    try:
        await call
    except Unavailable as error:
        return error.op

async def child(engine):
    said = [await ask(engine.create_execution()), await ask(engine.queue_depths()), await ask(engine.now_ms())]
    await engine.close()
    return said

async def begun():
    engine = await Engine.open("memory://")
    await engine.create_execution()
    return engine

engine = asyncio.run(begun())
if os.fork() == 0:
    print(asyncio.run(child(engine)), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_child_cannot_use_the_engine_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    why = "an engine that was opened before this process was forked; open another one in the child"
    assert done.stdout.strip() == repr([why, why, None])
