"""Kinds announced by workers: stored when they are new or have changed, and otherwise once a day."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.model.decisions import Decision, Get, Need, change, insert
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.limits import KIND_KEPT_MS, MAX_KINDS
from flowfabric.model.operations.kinds import KindDefinition, KindDescription, KindsAnnounced, KindSnapshot
from flowfabric.model.quoting import quoted

#: How long an announcement stands before the same one is written again.
ANNOUNCED_FOR_MS = 86_400_000
_DAY_MS = 86_400_000
_decoder = msgspec.json.Decoder(KindDescription)


class AnnounceKinds(Struct, gc=False):
    """A worker runs these kinds. ``known`` is how many the namespace had a moment ago."""

    namespace: str
    definitions: tuple[tuple[str, str], ...]
    #: Those who announce at the same moment may go a few beyond the limit: it keeps lists short and guards nothing.
    known: int

    def needs(self) -> tuple[Need, ...]:
        return tuple(Get(KindDefinition, (self.namespace, kind)) for kind, _ in self.definitions)


def is_due(stored: KindDefinition | None, definition: str, now: int) -> bool:
    """Whether a definition has to be written."""
    return stored is None or stored.definition != definition or stored.announced_at_ms <= now - ANNOUNCED_FOR_MS


def announce_kinds(command: AnnounceKinds, view: View, context: Context) -> Decision:
    """Those that are due, in one commit; nothing if none is."""
    acts = []
    new = 0
    for kind, definition in command.definitions:
        stored = view.get(KindDefinition, (command.namespace, kind))
        if not is_due(stored, definition, context.now):
            continue
        if stored is None:
            new += 1
            acts.append(insert(KindDefinition(command.namespace, kind, definition, context.now)))
        else:
            acts.append(change(stored, definition=definition, announced_at_ms=context.now))
    if new and command.known + new > MAX_KINDS:
        raise Validation(
            ValidationKind.INVALID_INPUT,
            f"definitions: namespace {quoted(command.namespace)} would have {command.known + new} kinds, at most "
            f"{MAX_KINDS} are allowed; use another namespace for some of them. Kinds that no worker has announced for "
            f"{KIND_KEPT_MS // _DAY_MS} days are deleted",
        )
    return Decision(KindsAnnounced(len(acts)), tuple(acts))


def read_definition(stored: KindDefinition) -> KindSnapshot:
    """What a row tells."""
    try:
        description = _decoder.decode(stored.definition)
    except (msgspec.DecodeError, RecursionError):
        where = f"ff_kind_definition: {stored.namespace}: {stored.kind}"
        raise Validation(ValidationKind.CORRUPTION, where) from None
    return KindSnapshot(stored.namespace, stored.kind, stored.announced_at_ms, description)
