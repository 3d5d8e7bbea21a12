"""Results that are remembered by the texts they follow from, as long as the texts are short.

Callers outside choose such texts: a memory of so many entries could hold so many times the largest body.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Final, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
#: Characters of a text that results are remembered by; of longer ones they are worked out each time.
MAX_REMEMBERED: Final = 4_096


def remembered_by_text(entries: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Remember the results of a function for so many recent calls."""

    def remembering(work: Callable[_P, _T]) -> Callable[_P, _T]:
        known = lru_cache(maxsize=entries)(work)

        @wraps(work)
        def found(*given: _P.args, **named: _P.kwargs) -> _T:
            for each in given:
                if isinstance(each, str) and len(each) > MAX_REMEMBERED:
                    return work(*given, **named)
            return known(*given, **named)  # type: ignore[arg-type]

        found.memory = known  # type: ignore[attr-defined]
        return found

    return remembering
