"""Definitions of kinds: workers announce them, people start executions with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from flowfabric.core.kind_definitions import AnnounceKinds, is_due, read_definition
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.engine.checks.values import cursor_of_pair, pair_of_cursor, sorted_namespaces
from flowfabric.model.decisions import Get
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.jsontext import nests_deeper
from flowfabric.model.limits import MAX_JSON_DEPTH, MAX_KIND_BYTES, MAX_KINDS, MAX_PAGE
from flowfabric.model.operations.kinds import (
    KindDefinition,
    KindDescription,
    KindsAnnounced,
    KindSnapshot,
    KnownKind,
    KnownKindPage,
)
from flowfabric.model.ownership import shown_policy
from flowfabric.model.policy import parse_policy
from flowfabric.model.quoting import quoted
from flowfabric.stores.questions import CountKinds, ListKinds


class KindDefinitions(EngineBase):
    """The part of the engine that knows what can be started."""

    async def announce_kinds(self, namespace: str, definitions: Mapping[str, Mapping[str, Any]]) -> KindsAnnounced:
        """Say what kinds workers of a namespace run: a ``KindDescription`` as a mapping, by kind. Announcing the same
        again changes nothing, except once a day, so that kinds which nobody announces any more can be deleted."""
        space = values.text(namespace, "namespace")
        if not isinstance(definitions, Mapping):
            raise values.invalid(f"definitions: expected a mapping of kinds, got {type(definitions).__name__}")
        if len(definitions) > MAX_KINDS:
            raise values.invalid(f"definitions: {len(definitions)} at once, at most {MAX_KINDS} are allowed")
        given = tuple(sorted((_kind(kind), _document(kind, each)) for kind, each in definitions.items()))
        view = await self._view(*(Get(KindDefinition, (space, kind)) for kind, _ in given))
        now = await self.now_ms()
        due = tuple(each for each in given if is_due(view.get(KindDefinition, (space, each[0])), each[1], now))
        new = any(view.get(KindDefinition, (space, kind)) is None for kind, _ in due)
        # Also if nothing is due: whether a limited caller may name the namespace is decided in the commit.
        known: int = await self._ask(CountKinds(space)) if new else 0
        answer: KindsAnnounced = await self._submit(AnnounceKinds(space, due, known))
        return answer

    async def list_kind_definitions(
        self, *, namespaces: Iterable[str] | None = None, cursor: str | None = None, limit: int = 100
    ) -> KnownKindPage:
        """Kinds that workers of these namespaces, or of all, have announced, by namespace and name."""
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        found: list[tuple[str, str, int]] = await self._ask(
            ListKinds(size + 1, sorted_namespaces(namespaces), pair_of_cursor(cursor))
        )
        page = tuple(KnownKind(*each) for each in found[:size])
        return KnownKindPage(page, cursor_of_pair((page[-1].namespace, page[-1].kind)) if len(found) > size else None)

    async def read_kind_definition(self, namespace: str, kind: str) -> KindSnapshot | None:
        """What was last announced of a kind; ``None`` if nothing was."""
        key = (values.text(namespace, "namespace"), values.text(kind, "kind", empty=False))
        found = (await self._view(Get(KindDefinition, key))).get(KindDefinition, key)
        return None if found is None else read_definition(found)


def _kind(value: Any) -> str:
    kind = values.text(value, "definitions", empty=False)
    if kind.startswith("$"):
        raise values.invalid(f"definitions: {quoted(kind)}: kinds that begin with $ cannot be started by themselves")
    return kind


def _document(kind: str, value: Any) -> str:
    """A definition as it is stored: everything in it checked, parameters in the order of its code."""
    where = f"definitions: {quoted(kind)}"
    if not isinstance(value, Mapping):
        raise values.invalid(f"{where}: expected a mapping, got {type(value).__name__}")
    try:
        given = msgspec.convert(dict(value), KindDescription)
    except (msgspec.ValidationError, RecursionError) as error:
        raise values.invalid(f"{where}: {error}") from None
    # Names mean what the namespace of the starter owns, whether they say so or not.
    policy = shown_policy(parse_policy(given.policy))
    sound = replace(
        given,
        description=values.reason(given.description, f"{where}: description"),
        lane_id=values.lane(given.lane_id, f"{where}: lane_id"),
        priority=values.priority(given.priority),
        tags=values.tags(given.tags) or {},
        policy=None if policy is None else msgspec.json.decode(policy),
        id=None if given.id is None else values.text(given.id, f"{where}: id", empty=False),
        by_code=None if given.by_code is None else values.reason(given.by_code, f"{where}: by_code"),
    )
    try:
        data = msgspec.json.encode(sound)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise values.invalid(f"{where}: not JSON: {error}") from None
    if len(data) > MAX_KIND_BYTES:
        raise Validation(
            ValidationKind.PAYLOAD_TOO_LARGE,
            f"{where}: {len(data)} bytes, at most {MAX_KIND_BYTES} are allowed; shorten its description or simplify "
            "its input",
        )
    if nests_deeper(data, MAX_JSON_DEPTH):
        raise values.invalid(f"{where}: JSON may nest at most {MAX_JSON_DEPTH} levels")
    return data.decode()
