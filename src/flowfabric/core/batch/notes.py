"""What the commit of a call from outside stores in addition to its effect: the account of it, and its result for a
caller that repeats it. A call that changes nothing leaves neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from flowfabric.core.access import KeepAnswer, RecordAct, keep_answer, record_act
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.model.decisions import Decision, Get, Need
from flowfabric.model.errors import Contention, ContentionKind, Validation, ValidationKind
from flowfabric.model.operations.access import RESULT, KeptAnswer


class Receipt(Struct, gc=False):
    """The key of a call, and how its result is written."""

    owner: str
    idempotency_key: str
    #: Digest of the request.
    fingerprint: str
    kept_ms: int
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    #: Results beyond this are not kept: the same call made again does no harm.
    most_bytes: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        return (self.owner, self.idempotency_key)


class Note(Struct):
    """What is to be stored with a call, and what has become of that."""

    #: The act to account for, given the result; ``None`` if there is nothing to tell.
    account: Callable[[Any], RecordAct | None] | None = None
    receipt: Receipt | None = None
    #: Whether the call was decided, and whether it has changed anything: as the decision says that was made last.
    decided: bool = False
    changed: bool = False
    #: Whether it was made before, so that its result is that of the first time.
    remembered: bool = False

    def needs(self) -> tuple[Need, ...]:
        return () if self.receipt is None else (Get(KeptAnswer, self.receipt.key),)


class Remembered(Struct, gc=False):
    """The result of the same call, which was made before."""

    data: bytes


def remembered(note: Note, view: View, context: Context) -> Decision | None:
    """The result of an earlier call under the same key."""
    receipt = note.receipt
    if receipt is None:
        return None
    stored = view.get(KeptAnswer, receipt.key)
    if stored is None or stored.expires_at_ms <= context.now:
        return None
    if stored.fingerprint != receipt.fingerprint:
        raise Validation(ValidationKind.INVALID_INPUT, "idempotency_key: it was used for another request")
    if stored.status != RESULT:
        text = "the same request was answered by another server just now; ask again for its answer"
        raise Contention(ContentionKind.RETRY_EXHAUSTED, text)
    return Decision(Remembered(stored.body or b""))


def noted(note: Note, decision: Decision, view: View, context: Context, *, folded: bool) -> Decision:
    """The decision with its note. ``folded`` says that the rule has changed the view itself."""
    note.decided = True
    note.changed = folded or bool(decision.acts or decision.events)
    if not note.changed:
        return decision
    notes: list[Decision] = []
    act = None if note.account is None else note.account(decision.result)
    if act is not None:
        notes.append(record_act(act, view, context))
    if (receipt := note.receipt) is not None:
        data = receipt.write(decision.result)
        if receipt.most_bytes is None or len(data) <= receipt.most_bytes:
            kept = KeptAnswer(*receipt.key, receipt.fingerprint, RESULT, "", data, 0)
            notes.append(keep_answer(KeepAnswer(kept, receipt.kept_ms), view, context))
    decision.acts = (*decision.acts, *(act for each in notes for act in each.acts))
    return decision
