"""Noticing that source files have changed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

_LOOK_S = 0.4
_MOST = 5_000
_FOREIGN = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})


def snapshot(folder: Path) -> dict[str, int]:
    """The Python files below a folder, with the time each was changed. Hidden folders are left out."""
    found: dict[str, int] = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".") and each not in _FOREIGN]
        for name in files:
            if not name.endswith(".py"):
                continue
            path = os.path.join(parent, name)
            try:
                found[path] = os.stat(path).st_mtime_ns
            except OSError:
                continue
            if len(found) >= _MOST:
                return found
    return found


async def changed(folder: Path, seen: dict[str, int]) -> str:
    """Wait until a file is another than it was, is new or is gone; its name below the folder."""
    while True:
        now = await asyncio.to_thread(snapshot, folder)
        different = [path for path in seen.keys() | now.keys() if seen.get(path) != now.get(path)]
        if different:
            return min(different).removeprefix(f"{folder}{os.sep}")
        await asyncio.sleep(_LOOK_S)
