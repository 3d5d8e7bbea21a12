"""How bugs are planted: by changing what one rule of the core decides, at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from flowfabric.core.rules import RULES
from flowfabric.model.decisions import Change, Decision, Drop

Patch = Callable[[Any], None]
MUTANTS: dict[str, Patch] = {}


def mutant(patch: Patch) -> Patch:
    """Add a planted bug under the name of its function."""
    MUTANTS[patch.__name__] = patch
    return patch


def around(monkeypatch: Any, kind: type, rule: Callable[..., Any]) -> None:
    """Replace the rule of a command; the new one gets the old one first."""
    old = RULES[kind]
    monkeypatch.setitem(RULES, kind, lambda command, view, context: rule(old, command, view, context))


def edited(monkeypatch: Any, kind: type, edit: Callable[[Decision], Decision]) -> None:
    """Change what a rule decides."""
    around(monkeypatch, kind, lambda old, command, view, context: edit(old(command, view, context)))


def without_fields(record: type, *names: str) -> Callable[[Decision], Decision]:
    """A decision that forgets to change some fields."""

    def edit(decision: Decision) -> Decision:
        acts = tuple(
            replace(act, fields=tuple(name for name in act.fields if name not in names))
            if isinstance(act, Change) and type(act.record) is record and act.fields is not None
            else act
            for act in decision.acts
        )
        return replace(decision, acts=acts)

    return edit


def forgets_fields(plant: Any) -> bool:
    """Whether a bug is that a decision names too few of the fields it changes. Stores that write records whole, as
    Valkey does, cannot have it."""
    return "without_fields" in plant.__code__.co_names


def without_events(*kinds: type) -> Callable[[Decision], Decision]:
    """A decision that forgets to announce something."""
    return lambda decision: replace(decision, events=tuple(each for each in decision.events if type(each) not in kinds))


def without_drops(kind: type) -> Callable[[Decision], Decision]:
    """A decision that forgets to delete something."""

    def edit(decision: Decision) -> Decision:
        acts = [act for act in decision.acts if not (isinstance(act, Drop) and type(act.record) is kind)]
        return replace(decision, acts=tuple(acts))

    return edit
