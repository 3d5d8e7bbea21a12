"""What a forked child must not use: connections belong to the process that has opened them."""

from __future__ import annotations

import os
from typing import Final, Protocol
from weakref import WeakSet

FORKED: Final = "an engine that was opened before this process was forked; open another one in the child"


class Forkable(Protocol):
    """Something with connections."""

    def leave_to_parent(self) -> None:
        """This is a child: refuse whatever is asked from now on, and leave the connections alone."""


_opened: WeakSet[Forkable] = WeakSet()


def remember(opened: Forkable) -> None:
    """Have it told in every child."""
    _opened.add(opened)


def _in_child() -> None:
    for each in list(_opened):
        each.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
