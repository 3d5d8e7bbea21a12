"""What the doors of the engine need: answers that are given again, and an account of acts."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import msgspec

from flowfabric.core.doors import KeepAnswer, RecordAct
from flowfabric.engine import checks
from flowfabric.engine.base import EngineBase
from flowfabric.model.changes import Get
from flowfabric.model.doors import AuditEntry, AuditPage, KeptAnswer
from flowfabric.model.limits import MAX_PAGE
from flowfabric.stores.questions import ListAudit

#: How long an answer is given again.
KEPT_MS = 24 * 3600 * 1000


class Doors(EngineBase):
    """The part of the engine that doors lean on."""

    async def keep_answer(
        self,
        *,
        owner: str,
        idempotency_key: str,
        fingerprint: str,
        status: int,
        media: str,
        body: bytes | None,
        kept_ms: int = KEPT_MS,
    ) -> KeptAnswer:
        """Remember the answer to a request; the one that was remembered first holds and is returned."""
        answer: KeptAnswer = await self._submit(
            KeepAnswer(
                KeptAnswer(
                    checks.text(owner, "owner"),
                    checks.text(idempotency_key, "idempotency_key", empty=False),
                    checks.text(fingerprint, "fingerprint"),
                    checks.integer(status, "status", 100, 599),
                    checks.text(media, "media"),
                    checks.payload(body, "body"),
                    0,
                ),
                checks.time_ms(kept_ms, "kept_ms"),
            )
        )
        return answer

    async def find_answer(self, owner: str, idempotency_key: str) -> KeptAnswer | None:
        """The answer that was remembered, while its time lasts."""
        key = (checks.text(owner, "owner"), checks.text(idempotency_key, "idempotency_key", empty=False))
        found = (await self._view(Get(KeptAnswer, key))).get(KeptAnswer, key)
        return None if found is None or found.expires_at_ms <= await self.now_ms() else found

    async def record_act(self, *, who: str, act: str, subject: Mapping[str, str], status: int) -> AuditEntry:
        """Write down who has done what to whom."""
        if not isinstance(subject, Mapping):
            raise checks.invalid(f"subject: expected a mapping, got {type(subject).__name__}")
        facts = {checks.text(name, "subject"): checks.text(value, "subject") for name, value in subject.items()}
        answer: AuditEntry = await self._submit(
            RecordAct(
                checks.text(who, "who"),
                checks.text(act, "act", empty=False),
                msgspec.json.encode(facts).decode(),
                checks.integer(status, "status", 100, 599),
                # Acts of one millisecond stay in the order in which they were told.
                time.monotonic_ns().to_bytes(8, "big") + os.urandom(4),
            )
        )
        return answer

    async def list_audit(self, after: str | None = None, limit: int = 100) -> AuditPage:
        """Acts, newest first."""
        size = checks.integer(limit, "limit", 1, MAX_PAGE)
        found = await self._ask(ListAudit(checks.optional_text(after, "after"), size + 1))
        page = tuple(found[:size])
        return AuditPage(page, page[-1].audit_id if len(found) > size else None)
