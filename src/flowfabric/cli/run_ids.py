"""Ids of runs as people type and read them: ``7:1f0c…``. No shell takes that for anything else, unlike the braces of
``{fp:7}:1f0c…``, which is what programs and JSON have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cyclopts import Token

from flowfabric.cli.terminal import Misused

_WHOLE = re.compile(r"\{fp:(\d+)\}:(.+)", re.DOTALL)
_SHORT = re.compile(r"(\d{1,5}):([0-9A-Fa-f]{8}(?:-?[0-9A-Fa-f]{4}){3}-?[0-9A-Fa-f]{12})")


def short(run: str) -> str:
    """An id as it is printed."""
    found = _WHOLE.fullmatch(str(run))
    return str(run) if found is None else f"{found[1]}:{found[2]}"


def shortened(text: str) -> str:
    """A text with all ids in it as they are printed."""
    return re.sub(r"\{fp:(\d+)\}:", r"\1:", text)


def whole(typed: str) -> str:
    """The id that was typed in either form; anything else stays as it is."""
    found = _SHORT.fullmatch(typed)
    return typed if found is None else f"{{fp:{found[1]}}}:{found[2]}"


def read(_: Any, tokens: Sequence[Token]) -> str:
    """For parameters that take the id of a run."""
    typed = tokens[0].value
    if _SHORT.fullmatch(short(typed)) is None:
        raise Misused(f"{typed}: not the id of a run; `flowfabric list` shows ids, such as 7:1f0c…")
    return whole(typed)


def read_any(_: Any, tokens: Sequence[Token]) -> str:
    """For parameters that take the id of a run, or something else."""
    return whole(tokens[0].value)
