"""Definitions of kinds: what workers announce of the tasks and workflows that they run."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

Noun: TypeAlias = Literal["task", "workflow"]
Reuse: TypeAlias = Literal["existing", "reject", "after_completion"]


class KindDefinition(Struct, gc=False):
    """What was last announced of a kind (``ff_kind_definition``): a ``KindDescription`` as a JSON document."""

    namespace: str
    kind: str
    definition: str
    announced_at_ms: int

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.kind)


class KindDescription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind as its code defines it: what it takes, and how its executions are created."""

    noun: Noun
    #: What it does, in the words of its code.
    description: str = ""
    lane_id: str = "default"
    priority: int = 0
    tags: dict[str, str] = {}
    policy: dict[str, Any] | None = None
    #: JSON Schema of its input: an object with one property for each parameter.
    input: dict[str, Any] = {}
    #: A template of the id of each execution, with dotted paths into the input: ``order:{order.number}``.
    id: str | None = None
    reuse: Reuse = "existing"
    #: Why only its code can start it, if that is so.
    by_code: str | None = None


class KindSnapshot(Struct, frozen=True):
    """A kind as it was last announced."""

    namespace: str
    kind: str
    announced_at: int
    definition: KindDescription


class KnownKind(Struct, frozen=True):
    """A kind that was announced, and when last."""

    namespace: str
    kind: str
    announced_at: int


class KnownKindPage(Struct, frozen=True):
    """Kinds by namespace and name."""

    kinds: tuple[KnownKind, ...]
    next_cursor: str | None


class KindsAnnounced(Struct, frozen=True):
    """The definitions are stored; so many of them were new, changed or announced long ago."""

    written: int
