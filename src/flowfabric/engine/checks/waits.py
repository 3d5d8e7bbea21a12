"""Checks of arguments for suspending and signalling."""

from __future__ import annotations

import re
from typing import Any

from flowfabric.ascending import ascending_uuid
from flowfabric.core.suspension.bound_waitpoints import Binding, Wait, check_wait, too_deep
from flowfabric.engine.checks import values
from flowfabric.model.conditions import (
    AllOf,
    AnyOf,
    ByName,
    Count,
    CountKind,
    Matcher,
    OperatorOnly,
    ResumeCondition,
    Single,
    TimeoutOnly,
    Wildcard,
)
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.limits import MAX_COMPOSITE_DEPTH, MAX_CONDITION_NODES, MAX_SIGNAL_BYTES, MAX_WAITPOINTS
from flowfabric.model.operations.suspension import (
    Fresh,
    ResumePolicy,
    SuspendArgs,
    SuspensionRequester,
    TimeoutBehavior,
    UsePending,
)
from flowfabric.model.quoting import quoted
from flowfabric.model.waitpoint_tokens import Token, revealed

_MAX_I64 = 2**63 - 1
_MAX_COUNT = 2**31 - 1
MAX_GRACE_MS = 2**53 - 1
_HEX = re.compile(r"[0-9a-fA-F]+")
_SEED_DIGITS = 64
#: How far a condition is read before it is refused for its depth alone.
_DEEPEST = 64


def wait(value: Any, now: int) -> tuple[Wait, str]:
    """What to wait for, and the idempotency key."""
    if not isinstance(value, SuspendArgs):
        raise values.invalid(f"args: expected SuspendArgs, got {type(value).__name__}")
    bindings = tuple(_binding(each, n) for n, each in enumerate(values.sequence(value.waitpoints, "waitpoints")))
    if len(bindings) > MAX_WAITPOINTS:
        raise values.invalid(f"waitpoints: {len(bindings)}, at most {MAX_WAITPOINTS} are allowed")
    condition = _Reader().condition(value.resume_condition, 1, "")
    asked = Wait(
        new_uuid() if value.suspension_id is None else values.uuid(value.suspension_id, "suspension_id"),
        bindings,
        condition,
        values.text(value.reason_code, "reason_code", empty=False),
        _one_of(value.requested_by, "requested_by", SuspensionRequester),
        _resume_policy(value.resume_policy),
        values.optional_time_ms(value.timeout_at, "timeout_at"),
        _one_of(value.timeout_behavior, "timeout_behavior", TimeoutBehavior),
        values.optional_text(value.continuation_metadata_pointer, "continuation_metadata_pointer"),
    )
    key = values.optional_text(value.idempotency_key, "idempotency_key") or ""
    values.optional_time_ms(value.now, "now")
    check_wait(bindings, condition, asked.timeout_at_ms, now)
    return asked, key


def new_uuid() -> str:
    """A fresh id."""
    return ascending_uuid()


def _binding(value: Any, position: int) -> Binding:
    where = f"waitpoints[{position}]"
    if isinstance(value, UsePending):
        return Binding(values.uuid(value.waitpoint_id, f"{where}.waitpoint_id"), None)
    if not isinstance(value, Fresh):
        raise values.invalid(f"{where}: expected Fresh or UsePending, got {type(value).__name__}")
    found = value.waitpoint_id
    waitpoint_id = new_uuid() if found is None else values.uuid(found, f"{where}.waitpoint_id")
    key = value.waitpoint_key
    return Binding(waitpoint_id, f"wpk:{waitpoint_id}" if key is None else values.text(key, f"{where}.waitpoint_key"))


def _one_of(value: Any, name: str, choices: Any) -> str:
    found = values.text(value, name)
    if found not in tuple(choices):
        raise values.invalid(f"{name}: {quoted(found)} is not one of {', '.join(choices)}")
    return found


def _resume_policy(value: Any) -> ResumePolicy:
    if not isinstance(value, ResumePolicy):
        raise values.invalid(f"resume_policy: expected a ResumePolicy, got {type(value).__name__}")
    if value.resume_target != "runnable":
        raise values.invalid("resume_policy.resume_target: expected 'runnable'")
    for name in ("consume_matched_signals", "retain_signal_buffer_until_closed", "close_waitpoint_on_resume"):
        if not isinstance(getattr(value, name), bool):
            raise values.invalid(f"resume_policy.{name}: expected True or False")
    delay = value.resume_delay_ms
    if delay is not None:
        values.integer(delay, "resume_policy.resume_delay_ms", 0, _MAX_I64)
    return value


class _Reader:
    """Reads a condition node by node, within bounds."""

    def __init__(self) -> None:
        self._nodes = 0

    def condition(self, value: Any, depth: int, path: str) -> ResumeCondition:
        self._nodes += 1
        if self._nodes > MAX_CONDITION_NODES:
            raise values.invalid(f"resume_condition: more than {MAX_CONDITION_NODES} nodes")
        if depth > _DEEPEST:
            raise too_deep(MAX_COMPOSITE_DEPTH + 1, ".".join(path.split(".")[:MAX_COMPOSITE_DEPTH]))
        if isinstance(value, Single):
            return Single(_key(value.waitpoint_key), _matcher(value.matcher))
        if isinstance(value, Count):
            return self._count(value)
        if isinstance(value, AllOf | AnyOf):
            members = values.sequence(value.members, "resume_condition.members")
            prefix = f"{path}." if path else ""
            return type(value)(
                tuple(self.condition(each, depth + 1, f"{prefix}members[{n}]") for n, each in enumerate(members))
            )
        if isinstance(value, OperatorOnly | TimeoutOnly):
            return value
        raise values.invalid(f"resume_condition: {type(value).__name__} is not a condition; see flowfabric.conditions")

    def _count(self, value: Count) -> Count:
        kinds = tuple(CountKind)
        if value.count_kind not in kinds:
            raise values.invalid(f"count_kind: {quoted(value.count_kind)} is not one of {', '.join(kinds)}")
        keys = tuple(_key(each) for each in values.sequence(value.waitpoints, "resume_condition.waitpoints"))
        self._nodes += len(keys)
        return Count(
            values.integer(value.n, "resume_condition.n", 0, _MAX_COUNT),
            CountKind(value.count_kind),
            tuple(dict.fromkeys(keys)),
            None if value.matcher is None else _matcher(value.matcher),
        )


def _key(value: Any) -> str:
    return values.text(value, "resume_condition.waitpoint_key")


def _matcher(value: Any) -> Matcher:
    if isinstance(value, Wildcard):
        return value
    if not isinstance(value, ByName):
        raise values.invalid(f"matcher: expected ByName or Wildcard, got {type(value).__name__}")
    name = values.text(value.name, "matcher.name")
    if "\x1f" in name:
        raise values.invalid("matcher.name: must not contain the unit separator")
    return ByName(name)


def signal_payload(value: Any, encoding: Any) -> bytes | None:
    """Bytes within the limit of a signal, or nothing."""
    found = values.encoded_payload(value, "payload", encoding)
    if found is not None and len(found) > MAX_SIGNAL_BYTES:
        raise Validation(
            ValidationKind.PAYLOAD_TOO_LARGE,
            f"payload: {len(found)} bytes, at most {MAX_SIGNAL_BYTES} are allowed; pass a reference",
        )
    return found


def token(value: Any) -> Token:
    """A token as it came. One that cannot be one is refused with the others, after its execution was looked for."""
    if value is None:
        return Token("")
    if not isinstance(value, str):
        raise values.invalid(f"waitpoint_token: expected text, got {type(value).__name__}")
    try:
        return Token(values.text(revealed(value), "waitpoint_token"))
    except Validation:
        return Token("?")


def kid(value: Any, name: str = "kid") -> str:
    """A key id: not empty, without a colon."""
    try:
        found = values.text(value, name, empty=False)
    except Validation as error:
        raise Validation(ValidationKind.INVALID_KID, error.detail) from None
    if ":" in found:
        raise Validation(ValidationKind.INVALID_KID, f"{name}: must not contain a colon")
    return found


def secret(value: Any, name: str, *, at_least: int = 2) -> bytes:
    """A secret in hexadecimal. What is wrong with it is said without showing it."""
    if not isinstance(value, str) or len(value) % 2 or len(value) < at_least or not _HEX.fullmatch(value):
        wanted = "an even number of hex digits" + (f", at least {at_least}" if at_least > 2 else "")
        raise Validation(ValidationKind.INVALID_SECRET_HEX, f"{name}: expected {wanted}")
    return bytes.fromhex(value)


def seed_secret(value: Any, name: str) -> bytes:
    """A secret of 32 bytes or more."""
    return secret(value, name, at_least=_SEED_DIGITS)


def grace_ms(value: Any) -> int:
    """How long a former key still verifies."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_GRACE_MS:
        raise Validation(ValidationKind.INVALID_GRACE_MS, f"grace_ms: not a whole number between 0 and {MAX_GRACE_MS}")
    return int(value)
