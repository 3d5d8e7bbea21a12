"""Importing a user's module: it may define things, and it must not run them.

A command wants the app and nothing else. A program that begins to work when it is imported would do so on every
``flowfabric check``: it is stopped at the first thing that starts an event loop, before that has done anything.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Final

from flowfabric.cli.terminal import Misused
from flowfabric.sdk.sync import Portal

#: Where event loops start: nothing else begins work of ours.
_STARTS: Final[tuple[tuple[type, str], ...]] = (
    (asyncio.Runner, "run"),
    (asyncio.BaseEventLoop, "run_until_complete"),
    (asyncio.BaseEventLoop, "run_forever"),
    (Portal, "__init__"),
)
_ADVICE: Final = 'Put the code that runs under `if __name__ == "__main__":`'


class _Started(BaseException):
    """An event loop was to be started; no ``except Exception`` of the module hides it."""


def import_target(where: str, target: str) -> Any:
    """The module that a name or a file stands for; ``Misused`` if it cannot be had, or does more than define."""
    try:
        with _nothing_starts():
            return _module(where)
    except ModuleNotFoundError as error:
        raise Misused(f"{target}: no module {error.name!r}; run this in a folder where it can be imported") from None
    except Misused:
        raise
    except _Started as error:
        raise Misused(
            f"{target}: the module starts an event loop when it is imported{_line(error)}. {_ADVICE}"
        ) from None
    except SystemExit as error:
        raise Misused(f"{target}: the module exits when it is imported{_line(error)}. {_ADVICE}") from None
    except Exception as error:
        raise Misused(f"{target}: cannot import the module: {type(error).__name__}: {error}{_place(error)}") from error


@contextmanager
def _nothing_starts() -> Iterator[None]:
    """No event loop starts in this thread. Threads that libraries begin are theirs."""
    thread = threading.get_ident()
    kept = [(home, name, getattr(home, name)) for home, name in _STARTS]
    for home, name, start in kept:
        setattr(home, name, _refusing(start, thread))
    try:
        yield
    finally:
        for home, name, start in kept:
            setattr(home, name, start)


def _refusing(start: Callable[..., Any], thread: int) -> Callable[..., Any]:
    def refuse(*arguments: Any, **named: Any) -> Any:
        if threading.get_ident() != thread:
            return start(*arguments, **named)
        for each in (*arguments, *named.values()):
            if inspect.iscoroutine(each):
                each.close()  # nobody will await it
        raise _Started

    return refuse


def _line(error: BaseException) -> str:
    """The line of a module's own code that led to it."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "<module>":
            found = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return found


def _place(error: BaseException) -> str:
    """Where in the user's code it happened."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if isinstance(error, SyntaxError) or trace is None:
        return ""
    return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


class _AsItIs(SourceFileLoader):
    """Compiles the file again: Python's cache misses an edit of the same second that leaves the size as it was."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=_AsItIs(path.stem, str(path)))
    if not path.exists() or spec is None or spec.loader is None:
        raise Misused(f"{where}: no such file")
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
