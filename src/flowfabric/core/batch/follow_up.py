"""Commands that follow from a commit and are submitted right after it."""

from __future__ import annotations

from typing import Any

from flowfabric.core.admission.admit import LetGo
from flowfabric.core.admission.budgets import CancelPending
from flowfabric.core.admission.charge import CANCEL_PENDING, SLOT_LEFT
from flowfabric.core.batch.view import View


def followers(view: View) -> list[Any]:
    """One command for each thing that rules of this batch wanted carried on."""
    return [
        CancelPending(name) if kind == CANCEL_PENDING else LetGo(kind, name, amount)
        for (kind, name), amount in view.following.items()
        if kind != SLOT_LEFT
    ]


def slots_left(view: View) -> dict[str, int]:
    """How many slots of which quotas were left: if somebody waits there, they are let go."""
    return {name: amount or 1 for (kind, name), amount in view.following.items() if kind == SLOT_LEFT}
