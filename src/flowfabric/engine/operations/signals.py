"""Signals and the keys that protect them: what the outside world and operators call."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os

from flowfabric.core.suspension.signals import DeliverApproval, DeliverSignal
from flowfabric.core.suspension.signing import FIRST_KID, SECRET_BYTES, RotateKey, SeedSecret, current_key, verifies
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values, waits
from flowfabric.model.decisions import Select
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.suspension import (
    Accepted,
    AlreadySeeded,
    DeliverSignalResult,
    PartitionRotation,
    RotateSecret,
    Seeded,
    VerifyingKid,
    WaitpointKids,
)
from flowfabric.model.records.executions import SigningKey
from flowfabric.model.waitpoint_tokens import DerivedKeys, Token

_log = logging.getLogger("flowfabric.signals")

DEDUP_TTL_MS = 24 * 3600 * 1000
GRACE_MS = 24 * 3600 * 1000
_MAX_I64 = 2**63 - 1
_MAX_SIGNALS = 2**31 - 1


class Signals(EngineBase):
    """The part of the engine that the outside world talks to."""

    async def deliver_signal(
        self,
        *,
        execution_id: ExecutionId | str,
        waitpoint_id: str,
        waitpoint_token: str,
        signal_name: str,
        signal_category: str = "",
        source_type: str = "",
        source_identity: str = "",
        signal_id: str | None = None,
        payload: bytes | None = None,
        payload_encoding: str = "json",
        correlation_id: str | None = None,
        idempotency_key: str | None = None,
        target_scope: str = "waitpoint",
        created_at: int | None = None,
        dedup_ttl_ms: int = DEDUP_TTL_MS,
        resume_delay_ms: int = 0,
        max_signals_per_execution: int | None = None,
        signal_maxlen: int = 1_000,
        now: int | None = None,
    ) -> Accepted | DeliverSignalResult.Duplicate:
        """Deliver a signal to a waitpoint, authorised by its token. ``effect`` says what it did.

        A repeated delivery, by its idempotency key on this waitpoint or by its signal id, is a ``Duplicate`` and
        changes nothing. Without ``max_signals_per_execution`` the execution's policy sets the limit; it bounds the log
        as well, so that ``signal_maxlen`` has nothing left to cut.
        """
        command = self._signal(
            execution_id,
            waitpoint_id,
            waits.token(waitpoint_token),
            signal_name=signal_name,
            signal_category=signal_category,
            source_type=source_type,
            source_identity=source_identity,
            signal_id=signal_id,
            payload=payload,
            payload_encoding=payload_encoding,
            correlation_id=correlation_id,
            idempotency_key=values.optional_text(idempotency_key, "idempotency_key"),
            target_scope=target_scope,
            created_at=created_at,
            dedup_ttl_ms=dedup_ttl_ms,
            resume_delay_ms=resume_delay_ms,
            max_signals_per_execution=max_signals_per_execution,
        )
        values.integer(signal_maxlen, "signal_maxlen", 0, _MAX_I64)
        values.optional_time_ms(now, "now")
        try:
            answer: Accepted | DeliverSignalResult.Duplicate = await self._submit(command)
        except Validation as error:
            if error.kind is ValidationKind.INVALID_TOKEN:
                _log.warning(
                    "signal refused: %s (execution %s, waitpoint %s, token %s)",
                    error.detail,
                    command.execution_id,
                    command.waitpoint_id,
                    command.waitpoint_token,
                )
            raise
        return answer

    async def deliver_approval_signal(
        self,
        *,
        execution_id: ExecutionId | str,
        lane_id: str,
        waitpoint_id: str,
        signal_name: str,
        idempotency_suffix: str,
        signal_dedup_ttl_ms: int = DEDUP_TTL_MS,
        maxlen: int | None = None,
        max_signals_per_execution: int | None = None,
    ) -> Accepted | DeliverSignalResult.Duplicate:
        """An operator's signal. No token is needed, so everyone who may call this may approve."""
        name = values.text(signal_name, "signal_name", empty=False)
        suffix = values.text(idempotency_suffix, "idempotency_suffix", empty=False)
        if maxlen is not None:
            values.integer(maxlen, "maxlen", 0, _MAX_I64)
        command = self._signal(
            execution_id,
            waitpoint_id,
            Token(""),
            signal_name=name,
            signal_category="approval",
            source_type="operator",
            source_identity="",
            signal_id=None,
            payload=None,
            payload_encoding="json",
            correlation_id=None,
            idempotency_key=f"approval:{name}:{suffix}",
            target_scope="execution",
            created_at=None,
            dedup_ttl_ms=signal_dedup_ttl_ms,
            resume_delay_ms=0,
            max_signals_per_execution=max_signals_per_execution,
        )
        answer: Accepted | DeliverSignalResult.Duplicate = await self._submit(
            DeliverApproval(command, values.lane(lane_id))
        )
        return answer

    def _signal(
        self,
        execution_id: ExecutionId | str,
        waitpoint_id: str,
        token: Token,
        *,
        signal_name: str,
        signal_category: str,
        source_type: str,
        source_identity: str,
        signal_id: str | None,
        payload: bytes | None,
        payload_encoding: str,
        correlation_id: str | None,
        idempotency_key: str | None,
        target_scope: str,
        created_at: int | None,
        dedup_ttl_ms: int,
        resume_delay_ms: int,
        max_signals_per_execution: int | None,
    ) -> DeliverSignal:
        body = waits.signal_payload(payload, payload_encoding)
        identity = values.execution_id(execution_id)
        most = max_signals_per_execution
        return DeliverSignal(
            str.__str__(identity),
            identity.partition,
            identity.uuid_text,
            values.uuid(waitpoint_id, "waitpoint_id"),
            token,
            waits.new_uuid() if signal_id is None else values.uuid(signal_id, "signal_id"),
            values.text(signal_name, "signal_name"),
            values.text(signal_category, "signal_category"),
            values.text(source_type, "source_type"),
            values.text(source_identity, "source_identity"),
            body,
            values.text(payload_encoding, "payload_encoding"),
            values.optional_text(correlation_id, "correlation_id"),
            idempotency_key or "",
            values.text(target_scope, "target_scope"),
            values.optional_time_ms(created_at, "created_at"),
            values.time_ms(dedup_ttl_ms, "dedup_ttl_ms"),
            values.time_ms(resume_delay_ms, "resume_delay_ms"),
            None if most is None else values.integer(most, "max_signals_per_execution", 0, _MAX_SIGNALS),
            new_id=signal_id is None,
        )

    # -- keys ----------------------------------------------------------------------------------------------------

    async def seed_waitpoint_hmac_secret(self, *, kid: str, secret_hex: str) -> Seeded | AlreadySeeded:
        """Give an empty store its first signing key: 32 bytes in hexadecimal. A key that is there is never changed."""
        answer: Seeded | AlreadySeeded = await self._submit(
            SeedSecret(waits.kid(kid), waits.seed_secret(secret_hex, "secret_hex"))
        )
        return answer

    async def rotate_waitpoint_hmac_secret_all(
        self, *, new_kid: str, new_secret_hex: str, grace_ms: int | None = None
    ) -> tuple[PartitionRotation, ...]:
        """Sign with a new key from now on; tokens of the previous one are accepted until the grace is over.

        Without a grace it is ``FF_WAITPOINT_HMAC_GRACE_MS``, a day by default. Repeating the call changes nothing.
        """
        result: RotateSecret.Rotated | RotateSecret.Noop = await self._submit(
            RotateKey(
                waits.kid(new_kid, "new_kid"),
                waits.secret(new_secret_hex, "new_secret_hex"),
                waits.grace_ms(_grace_ms() if grace_ms is None else grace_ms),
            )
        )
        return (PartitionRotation(0, result),)

    async def derived_keys(self, purpose: str) -> DerivedKeys:
        """Keys for signing something else, made from those of the store: the same in every process, and of no use for
        any other purpose. Keys whose grace is over are left out. A store without a key gets its first one."""
        label = values.text(purpose, "purpose", empty=False).encode()
        while True:
            active, former = (Select(SigningKey, ("active",), (is_active,)) for is_active in (True, False))
            view = await self._view(active, former)
            current = current_key(view)
            if current is not None:
                break
            with contextlib.suppress(Validation):  # somebody else was first
                await self._submit(SeedSecret(FIRST_KID, os.urandom(SECRET_BYTES)))
        now = await self.now_ms()
        keys = [key for active in (True, False) for key in view.select(SigningKey, active=active) if verifies(key, now)]
        return DerivedKeys(
            current.kid, {key.kid: hmac.new(key.secret, b"derived:" + label, hashlib.sha256).digest() for key in keys}
        )

    async def list_waitpoint_hmac_kids(self) -> WaitpointKids:
        """Which keys sign and verify now, without their secrets."""
        active, former = (Select(SigningKey, ("active",), (is_active,)) for is_active in (True, False))
        view = await self._view(active, former)
        now = await self.now_ms()
        current = current_key(view)
        keys = [*view.select(SigningKey, active=True), *view.select(SigningKey, active=False)]
        verifying = [
            VerifyingKid(key.kid, None if key.active else key.expires_at_ms)
            for key in sorted(keys, key=lambda each: each.kid)
            if key is not current and verifies(key, now)
        ]
        return WaitpointKids(None if current is None else current.kid, tuple(verifying))


def _grace_ms() -> int:
    text = os.environ.get("FF_WAITPOINT_HMAC_GRACE_MS", str(GRACE_MS))
    if not text.isdigit():
        raise values.invalid(f"FF_WAITPOINT_HMAC_GRACE_MS: {text!r} is not a number of milliseconds")
    return int(text)
