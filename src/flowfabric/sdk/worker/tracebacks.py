"""Tracebacks as they are stored: the frames of the user's own code first, all frames behind them, bounded."""

from __future__ import annotations

import os
import sysconfig
import traceback
from functools import lru_cache

from flowfabric.model.reads.overview import FRAMES_OF_OTHERS

#: Characters of each of the two parts.
MAX_PART = 12_000
#: Frames that stay of an error with none of the user's own: those where it was raised.
_LAST_FRAMES = 3
_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")


@lru_cache(maxsize=1)
def _libraries() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {os.path.join(path, "") for name in names if (path := sysconfig.get_path(name))}
    return ("<frozen ", _OURS, *found)


def _is_own(frame: traceback.FrameSummary) -> bool:
    name = frame.filename
    installed = f"{os.sep}site-packages{os.sep}" in name or f"{os.sep}dist-packages{os.sep}" in name
    return not (installed or name.startswith(_libraries()))


def _without_libraries(told: traceback.TracebackException, seen: set[int]) -> bool:
    """Leave the user's own frames only, in the whole chain; whether any other was left out."""
    if id(told) in seen:
        return False
    seen.add(id(told))
    own = [frame for frame in told.stack if _is_own(frame)] or list(told.stack)[-_LAST_FRAMES:]
    fewer = len(own) < len(told.stack)
    told.stack = traceback.StackSummary.from_list(own)
    linked = [told.__cause__, told.__context__, *(getattr(told, "exceptions", None) or ())]
    for each in linked:
        if each is not None:
            fewer = _without_libraries(each, seen) or fewer
    return fewer


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_PART else f"…\n{text[-MAX_PART:]}"


def told_of(error: BaseException) -> str:
    """The traceback of an error; empty if it cannot be told."""
    try:
        told = traceback.TracebackException.from_exception(error)
        whole = "".join(told.format())
        if not _without_libraries(told, set()):
            return _bounded(whole)
        return f"{_bounded(''.join(told.format()))}\n{FRAMES_OF_OTHERS}\n{_bounded(whole)}"
    except Exception:
        return ""
