"""Errors of calls as a workflow remembers them, so that code that runs again meets the same ones.

An error is taken apart here and put together from what is stored, the first time already: what ``except`` sees does not
depend on whether the run has been parked in between. Nothing of the class is called to put it together but the
constructor of the built-in class it derives from.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import sys
from typing import Any

import msgspec

from flowfabric.model.operations.workflows import NewStep, StepOutcome, StepRecord
from flowfabric.sdk.errors import StepFailed
from flowfabric.sdk.workflows.plain_values import MAX_DEPTH, Unplain, packed, unpacked

#: What the record of an error may have, as JSON.
_MAX_RECORD = 64_000
#: Characters of a message that is kept without what it was made of.
_MAX_MESSAGE = 8_000
_HEAP_TYPE = 1 << 9


class StoredError(msgspec.Struct, omit_defaults=True):
    """An error as a step keeps it. ``args`` and ``state`` are packed values."""

    module: str
    type: str
    #: Nothing if it is the only one of ``args``.
    message: str = ""
    #: What the built-in class is made of, which may be more than ``error.args``.
    made_of: list[Any] = []
    args: list[Any] = []
    state: dict[str, Any] = {}
    cause: StoredError | None = None
    #: Whether it was raised ``from`` something, or from nothing.
    hides_context: bool = False
    #: The errors of a group.
    parts: list[StoredError] = []


_decode = msgspec.json.Decoder(StoredError).decode


def error_step(name: str, error: BaseException, arguments: str | None = None) -> NewStep:
    """The step that remembers an error, and what its call is recognised by."""
    return NewStep(name, _encoded(error), StepOutcome.ERROR, arguments)


def remembered_error(name: str, step: NewStep | StepRecord) -> Exception:
    """The error of a step, of the class that it was if that can be had again."""
    try:
        stored = _decode(step.value or b"")
    except msgspec.MsgspecError:
        return StepFailed(f"step {name!r} failed; its error cannot be read", step=name)
    found = _rebuilt(name, stored, 0)
    return found if isinstance(found, Exception) else _failed(name, stored)


def _failed(name: str, stored: StoredError) -> StepFailed:
    return StepFailed(f"{stored.type}: {_message(stored)}", step=name, type=f"{stored.module}.{stored.type}")


def _message(stored: StoredError) -> str:
    return stored.args[0] if not stored.message and stored.args and isinstance(stored.args[0], str) else stored.message


# -- taking it apart -------------------------------------------------------------------------------------------------


def _encoded(error: BaseException) -> bytes:
    """As much of it as fits: all of it, or its class and message."""
    for whole in (True, False):
        with contextlib.suppress(Unplain, TypeError, ValueError, OverflowError, RecursionError):
            data = msgspec.json.encode(_stored(error, 0, whole))
            if len(data) <= _MAX_RECORD:
                return data
    kind = type(error)
    return msgspec.json.encode(StoredError(kind.__module__, kind.__qualname__, ""))


def _stored(error: BaseException, depth: int, whole: bool) -> StoredError:
    kind = type(error)
    message = _said(error)
    stored = StoredError(kind.__module__, kind.__qualname__, _readable(message))
    if isinstance(error, BaseExceptionGroup):
        stored.args = [packed(error.message if whole else error.message[:_MAX_MESSAGE])]
        stored.parts = [_stored(each, depth + 1, whole) for each in error.exceptions] if depth < MAX_DEPTH else []
    elif whole:
        try:
            stored.args = [packed(each) for each in error.args]
            stored.made_of = [packed(each) for each in _builtin(kind).__reduce__(error)[1]]
        except Unplain:
            # Some value cannot be stored: the message says what it was.
            stored.args = stored.made_of = [packed(message)]
    else:
        stored.message = stored.message[:_MAX_MESSAGE]
        stored.args = stored.made_of = [stored.message]
    if stored.made_of == stored.args:
        stored.made_of = []
    if stored.args == [stored.message]:
        stored.message = ""
    if not whole:
        return stored
    for name, value in vars(error).items():
        with contextlib.suppress(Unplain):
            stored.state[name] = packed(value)
    stored.hides_context = error.__suppress_context__
    if error.__cause__ is not None and depth < MAX_DEPTH:
        stored.cause = _stored(error.__cause__, depth + 1, whole)
    return stored


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _readable(text: str) -> str:
    """The text without what no store can keep."""
    return text.encode("utf-8", "replace").decode()


def _builtin(kind: type[BaseException]) -> Any:
    """The class in C that it derives from: the one that knows what is kept outside of ``args``."""
    return next(each for each in kind.__mro__ if not each.__flags__ & _HEAP_TYPE)


# -- putting it together ---------------------------------------------------------------------------------------------


def _rebuilt(name: str, stored: StoredError, depth: int) -> BaseException:
    kind = _class(stored.module, stored.type)
    error = None if kind is None else _made(kind, name, stored, depth)
    if error is None:
        error = _failed(name, stored)
    if stored.cause is not None:
        error.__cause__ = _rebuilt(name, stored.cause, depth + 1)
    error.__suppress_context__ = stored.hides_context
    return error


def _made(kind: type[BaseException], name: str, stored: StoredError, depth: int) -> BaseException | None:
    """One of that class, or nothing if it would not say the same."""
    try:
        args = tuple(unpacked(each) for each in stored.args)
        if issubclass(kind, BaseExceptionGroup):
            parts = [_rebuilt(name, each, depth + 1) for each in stored.parts]
            error: BaseException = BaseExceptionGroup.__new__(kind, args[0], parts)
        else:
            made_of = tuple(unpacked(each) for each in stored.made_of) or args
            base = _builtin(kind)
            error = base.__new__(kind, *made_of)
            base.__init__(error, *made_of)
            error.args = args
        error.__dict__.update({each: unpacked(value) for each, value in stored.state.items()})
        same = isinstance(error, BaseExceptionGroup) or _readable(str(error)) == _message(stored)
    except Exception:
        return None
    return error if same else None


def _class(module: str, name: str) -> type[BaseException] | None:
    """The class of that name; its module is imported if nobody has done that here yet."""
    found: Any = builtins if module == "builtins" else sys.modules.get(module)
    if found is None:
        try:
            found = importlib.import_module(module)
        except Exception:
            return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
