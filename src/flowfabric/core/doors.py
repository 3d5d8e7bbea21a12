"""Keeping answers for those who repeat their request, and an account of acts."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.context import Context, saturate
from flowfabric.core.view import View
from flowfabric.model.changes import Decision, Get, Need, change, insert
from flowfabric.model.doors import AuditEntry, KeptAnswer


class KeepAnswer(Struct, gc=False):
    """An answer that is to be given again for ``kept_ms``."""

    wanted: KeptAnswer
    kept_ms: int

    def needs(self) -> tuple[Need, ...]:
        return (Get(KeptAnswer, self.wanted.key),)


def keep_answer(command: KeepAnswer, view: View, context: Context) -> Decision:
    """The first answer stays until its time is over."""
    wanted = command.wanted
    wanted.expires_at_ms = saturate(context.now + command.kept_ms)
    stored = view.get(KeptAnswer, wanted.key)
    if stored is None:
        return Decision(wanted, (insert(wanted),))
    if stored.expires_at_ms > context.now:
        return Decision(stored)
    fields = {name: getattr(wanted, name) for name in ("fingerprint", "status", "media", "body", "expires_at_ms")}
    return Decision(wanted, (change(stored, **fields),))


class RecordAct(Struct, gc=False):
    """Somebody has done something."""

    who: str
    act: str
    subject: str
    status: int
    entropy: bytes

    def needs(self) -> tuple[Need, ...]:
        return ()


def record_act(command: RecordAct, view: View, context: Context) -> Decision:
    """One row."""
    entry = AuditEntry(
        f"{context.now:015d}-{command.entropy.hex()}",
        context.now,
        command.who,
        command.act,
        command.subject,
        command.status,
    )
    return Decision(entry, (insert(entry),))
