"""The execution policy: frozen at creation, stored as one JSON object, read by many rules.

Two doors. `parse_policy` is strict and stands at the entrance: what it refuses is never stored, and what it passes
comes out in one canonical spelling, with members it does not know kept. `read_policy` is for rules: it takes whatever
is stored, falls back to defaults, and is cached by text, because thousands of executions share one policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.ids import BudgetId, IdError, QuotaPolicyId, check_capabilities
from flowfabric.model.jsontext import holds_nul, nests_deeper
from flowfabric.model.limits import MAX_JSON_DEPTH, MAX_NAMED_BUDGETS, MAX_POLICY_BYTES
from flowfabric.model.ownership import is_name
from flowfabric.model.remembering import MAX_REMEMBERED, remembered_by_text

DEFAULT_MAX_RETRIES: Final = 3
DEFAULT_MAX_RECLAIM_COUNT: Final = 100
DEFAULT_MAX_REPLAY_COUNT: Final = 10
DEFAULT_MAX_SIGNALS: Final = 10_000
DEFAULT_DEDUP_WINDOW_MS: Final = 86_400_000
#: A window of this length or more binds an idempotency key for as long as its execution is kept.
WHILE_KEPT_MS: Final = 2**62
DEFAULT_RETENTION_MAXLEN: Final = 10_000
DEFAULT_INITIAL_DELAY_MS: Final = 1_000
DEFAULT_MAX_DELAY_MS: Final = 60_000
DEFAULT_MULTIPLIER: Final = 2.0
DEFAULT_TIMEOUT_BEHAVIOR: Final = "fail"
DEFAULT_DURABILITY_MODE: Final = "buffered"

_MAX_I32: Final = 2**31 - 1
_MAX_U32: Final = 2**32 - 1
_MAX_I64: Final = 2**63 - 1
_MAX_U64: Final = 2**64 - 1
_CACHED_POLICIES: Final = 4_096

# A list of requirements that is not a list asks for a token no worker can offer: it must not read as "no requirements".
_UNMATCHABLE: Final = (",",)


class FixedBackoff(Struct, frozen=True, gc=False, tag_field="type", tag="fixed"):
    """The same pause before every retry."""

    delay_ms: int = DEFAULT_INITIAL_DELAY_MS


class ExponentialBackoff(Struct, frozen=True, gc=False, tag_field="type", tag="exponential"):
    """A pause that grows with every retry up to a maximum."""

    initial_delay_ms: int = DEFAULT_INITIAL_DELAY_MS
    max_delay_ms: int = DEFAULT_MAX_DELAY_MS
    multiplier: float = DEFAULT_MULTIPLIER
    jitter: bool = False


Backoff: TypeAlias = FixedBackoff | ExponentialBackoff


class RetryPolicy(Struct, frozen=True):
    """How often and how fast a failed execution is tried again; `max_retries` excludes the first attempt."""

    max_retries: int = DEFAULT_MAX_RETRIES
    backoff: Backoff = ExponentialBackoff()
    retryable_categories: tuple[str, ...] = ()


class TimeoutPolicy(Struct, frozen=True, gc=False):
    """How long one attempt, and the whole execution, may take."""

    attempt_timeout_ms: int | None = None
    execution_deadline_ms: int | None = None
    max_reclaim_count: int = DEFAULT_MAX_RECLAIM_COUNT


class SuspensionPolicy(Struct, frozen=True, gc=False):
    """What a suspension does that names no timeout of its own."""

    default_timeout_ms: int | None = None
    timeout_behavior: str = DEFAULT_TIMEOUT_BEHAVIOR


class FallbackTier(Struct, frozen=True, gc=False):
    """One provider to fall back to."""

    provider: str
    model: str
    timeout_ms: int | None = None


class FallbackPolicy(Struct, frozen=True):
    """Carried for workers; the engine does not act on it."""

    tiers: tuple[FallbackTier, ...] = ()


class RoutingRequirements(Struct, frozen=True):
    """What a worker must offer. Locality and isolation are recorded and not enforced."""

    required_capabilities: tuple[str, ...] | frozenset[str] | list[str] = ()
    preferred_locality: str | None = None
    isolation_level: str | None = None


class StreamPolicy(Struct, frozen=True, gc=False):
    """How much of the stream, and of the ended execution, is kept."""

    durability_mode: str = DEFAULT_DURABILITY_MODE
    retention_maxlen: int = DEFAULT_RETENTION_MAXLEN
    retention_ttl_ms: int | None = None


class ExecutionPolicy(Struct, frozen=True):
    """The typed way to write a policy. Priority and delay are informational: the create arguments decide."""

    priority: int = 0
    delay_until: int | None = None
    retry_policy: RetryPolicy | None = None
    timeout_policy: TimeoutPolicy | None = None
    max_reclaim_count: int = DEFAULT_MAX_RECLAIM_COUNT
    suspension_policy: SuspensionPolicy | None = None
    fallback_policy: FallbackPolicy | None = None
    max_replay_count: int = DEFAULT_MAX_REPLAY_COUNT
    budget_ids: tuple[str, ...] = ()
    quota_policy_id: str | None = None
    routing_requirements: RoutingRequirements | None = None
    dedup_window_ms: int | None = None
    stream_policy: StreamPolicy | None = None
    max_signals_per_execution: int = DEFAULT_MAX_SIGNALS
    #: How long the execution may go on once it was asked to cancel; without it, it ends at once.
    cancel_grace_ms: int | None = None


PolicyInput: TypeAlias = ExecutionPolicy | Mapping[str, Any] | str | bytes | None


# --- the strict door ------------------------------------------------------------------------------------------------


class _Malformed(Exception):
    """A member has the wrong shape; the text says which."""


def parse_policy(value: PolicyInput) -> str | None:
    """The canonical JSON text of a policy, or `Validation(InvalidPolicyJson)` / `Validation(InvalidCapabilities)`."""
    if value is None:
        return None
    if isinstance(value, ExecutionPolicy) or (isinstance(value, str | bytes) and len(value) <= MAX_REMEMBERED):
        try:
            return _parse_cached(value)
        except TypeError:
            pass  # a typed policy may hold a list, which cannot be a key of the cache
    return _parse(value)


def _parse(value: ExecutionPolicy | Mapping[str, Any] | str | bytes) -> str:
    document = _document(value)
    if "routing_requirements" in document and not isinstance(document["routing_requirements"], dict):
        raise Validation(ValidationKind.INVALID_POLICY_JSON, "routing_requirements:not_object")
    try:
        policy = _policy(document)
    except _Malformed as problem:
        raise _malformed(problem) from None
    routing = policy.get("routing_requirements")
    if routing is not None:
        # Judged last, and from the members as they were sent: a list that is null is malformed, not empty.
        tokens = document["routing_requirements"].get("required_capabilities", [])
        routing["required_capabilities"] = check_capabilities(tokens, "required")
    data = msgspec.json.encode(policy)
    if len(data) > MAX_POLICY_BYTES:
        raise _malformed(ValueError(f"a policy has at most {MAX_POLICY_BYTES:,} bytes, this one {len(data):,}"))
    if holds_nul(data):
        raise _malformed(ValueError("a policy must not contain NUL"))
    if nests_deeper(data, MAX_JSON_DEPTH):
        raise _malformed(ValueError(f"a policy nests at most {MAX_JSON_DEPTH} deep"))
    return data.decode()


# One caller usually creates many executions with one policy.
_parse_cached = lru_cache(maxsize=_CACHED_POLICIES)(_parse)


def _malformed(problem: BaseException) -> Validation:
    return Validation(ValidationKind.INVALID_POLICY_JSON, f"malformed: {problem}")


def _document(value: ExecutionPolicy | Mapping[str, Any] | str | bytes) -> dict[str, Any]:
    """Whatever was given, as the plain object that JSON would hold."""
    try:
        if isinstance(value, ExecutionPolicy):
            document = _typed_document(value)
        else:
            text = value if isinstance(value, (str, bytes)) else msgspec.json.encode(value, enc_hook=_plain)
            document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as problem:
        raise _malformed(problem) from problem
    if not isinstance(document, dict):
        raise _malformed(TypeError("a policy is a JSON object"))
    return document


def _plain(value: Any) -> Any:
    if isinstance(value, str):  # ids are subclasses, which msgspec leaves to this hook
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _typed_document(policy: ExecutionPolicy) -> Any:
    document = msgspec.json.decode(msgspec.json.encode(policy, enc_hook=_plain))
    # A struct cannot tell "left out" from "written as the default", so members left at None are taken as left out,
    # and a reclaim cap left at its default gives way to one written in the timeout policy.
    document = {name: member for name, member in document.items() if member is not None}
    nested = policy.timeout_policy.max_reclaim_count if policy.timeout_policy else DEFAULT_MAX_RECLAIM_COUNT
    if policy.max_reclaim_count == DEFAULT_MAX_RECLAIM_COUNT != nested:
        document["max_reclaim_count"] = nested
    return document


_Check: TypeAlias = Callable[[Any, str], Any]
_OMIT: Final = object()


def _members(document: Any, where: str, known: Mapping[str, tuple[_Check, Any]]) -> dict[str, Any]:
    """The known members in their order, checked or defaulted, then the unknown ones by name, untouched."""
    if not isinstance(document, dict):
        raise _Malformed(f"{where} must be an object")
    result: dict[str, Any] = {}
    for name, (check, default) in known.items():
        value = document.get(name)
        if value is not None:
            result[name] = check(value, f"{where}.{name}")
        elif default is not _OMIT:
            result[name] = default
    for name in sorted(document.keys() - known.keys()):
        result[name] = document[name]
    return result


def _integer(minimum: int, maximum: int) -> _Check:
    """An integer; one that is too large for its type means the largest, a negative one where none can be is refused."""

    def check(value: Any, where: str) -> int:
        if type(value) is not int:
            raise _Malformed(f"{where} must be an integer")
        if value < 0 <= minimum:
            raise _Malformed(f"{where} must not be negative")
        return max(minimum, min(value, maximum))

    return check


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _Malformed(f"{where} must be a string")
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _Malformed(f"{where} must be true or false")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Malformed(f"{where} must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise _Malformed(f"{where} must be a finite number that is not negative")
    return number


def _list_of(check: _Check, most: int | None = None) -> _Check:
    def check_list(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise _Malformed(f"{where} must be an array")
        if most is not None and len(value) > most:
            raise _Malformed(f"{where} has {len(value):,} entries, at most {most} are allowed")
        return [check(item, f"{where}[{index}]") for index, item in enumerate(value)]

    return check_list


def _identity(kind: type[BudgetId] | type[QuotaPolicyId]) -> _Check:
    """An id, or a name that says whose thing is meant."""

    def check(value: Any, where: str) -> str:
        text = _text(value, where)
        if is_name(text):
            return text
        try:
            return str(kind(text))
        except IdError:
            raise _Malformed(f"{where} must be a UUID") from None

    return check


def _object(known: Mapping[str, tuple[_Check, Any]]) -> _Check:
    return lambda value, where: _members(value, where, known)


_U32_VALUE = _integer(0, _MAX_U32)
_U64_VALUE = _integer(0, _MAX_U64)
_MILLISECONDS = _integer(-_MAX_I64 - 1, _MAX_I64)

_FIXED: Mapping[str, tuple[_Check, Any]] = {
    "type": (_text, _OMIT),
    "delay_ms": (_U64_VALUE, DEFAULT_INITIAL_DELAY_MS),
}
_EXPONENTIAL: Mapping[str, tuple[_Check, Any]] = {
    "type": (_text, _OMIT),
    "initial_delay_ms": (_U64_VALUE, DEFAULT_INITIAL_DELAY_MS),
    "max_delay_ms": (_U64_VALUE, DEFAULT_MAX_DELAY_MS),
    "multiplier": (_number, DEFAULT_MULTIPLIER),
    "jitter": (_flag, False),
}
_BACKOFFS = {"fixed": _FIXED, "exponential": _EXPONENTIAL}
_DEFAULT_BACKOFF: Mapping[str, Any] = _members({"type": "exponential"}, "backoff", _EXPONENTIAL)


def _backoff(value: Any, where: str) -> dict[str, Any]:
    """A backoff of a type not known here is kept as it is; it acts as a pause of one second."""
    kind = value.get("type") if isinstance(value, dict) else None
    return _members(value, where, _BACKOFFS.get(kind, {}) if isinstance(kind, str) else {})


_TIER: Mapping[str, tuple[_Check, Any]] = {
    "provider": (_text, _OMIT),
    "model": (_text, _OMIT),
    "timeout_ms": (_U64_VALUE, _OMIT),
}


def _tier(value: Any, where: str) -> dict[str, Any]:
    tier = _members(value, where, _TIER)
    if "provider" not in tier or "model" not in tier:
        raise _Malformed(f"{where} needs a provider and a model")
    return tier


_RETRY: Mapping[str, tuple[_Check, Any]] = {
    "max_retries": (_U32_VALUE, DEFAULT_MAX_RETRIES),
    "backoff": (_backoff, _DEFAULT_BACKOFF),
    "retryable_categories": (_list_of(_text), ()),
}
_TIMEOUT: Mapping[str, tuple[_Check, Any]] = {
    "attempt_timeout_ms": (_U64_VALUE, _OMIT),
    "execution_deadline_ms": (_U64_VALUE, _OMIT),
    "max_reclaim_count": (_U32_VALUE, DEFAULT_MAX_RECLAIM_COUNT),
}
_SUSPENSION: Mapping[str, tuple[_Check, Any]] = {
    "default_timeout_ms": (_U64_VALUE, _OMIT),
    "timeout_behavior": (_text, DEFAULT_TIMEOUT_BEHAVIOR),
}
_ROUTING: Mapping[str, tuple[_Check, Any]] = {
    "required_capabilities": (lambda value, where: value, ()),  # judged by gate 3, after everything else
    "preferred_locality": (_text, _OMIT),
    "isolation_level": (_text, _OMIT),
}
_STREAM: Mapping[str, tuple[_Check, Any]] = {
    "durability_mode": (_text, DEFAULT_DURABILITY_MODE),
    "retention_maxlen": (_U64_VALUE, DEFAULT_RETENTION_MAXLEN),
    "retention_ttl_ms": (_U64_VALUE, _OMIT),
}
_POLICY: Mapping[str, tuple[_Check, Any]] = {
    "priority": (_integer(-_MAX_I32 - 1, _MAX_I32), 0),
    "delay_until": (_MILLISECONDS, _OMIT),
    "retry_policy": (_object(_RETRY), _OMIT),
    "timeout_policy": (_object(_TIMEOUT), _OMIT),
    "max_reclaim_count": (_U32_VALUE, DEFAULT_MAX_RECLAIM_COUNT),
    "suspension_policy": (_object(_SUSPENSION), _OMIT),
    "fallback_policy": (_object({"tiers": (_list_of(_tier), ())}), _OMIT),
    "max_replay_count": (_U32_VALUE, DEFAULT_MAX_REPLAY_COUNT),
    "budget_ids": (_list_of(_identity(BudgetId), MAX_NAMED_BUDGETS), ()),
    "quota_policy_id": (_identity(QuotaPolicyId), _OMIT),
    "routing_requirements": (_object(_ROUTING), _OMIT),
    "dedup_window_ms": (_U64_VALUE, _OMIT),
    "stream_policy": (_object(_STREAM), _OMIT),
    "max_signals_per_execution": (_U32_VALUE, DEFAULT_MAX_SIGNALS),
    "cancel_grace_ms": (_U64_VALUE, _OMIT),
}


def _policy(document: dict[str, Any]) -> dict[str, Any]:
    policy = _members(document, "policy", _POLICY)
    if document.get("max_reclaim_count") is None and "timeout_policy" in policy:
        # Filling in the top-level default would override a cap that was written one level down.
        policy["max_reclaim_count"] = policy["timeout_policy"]["max_reclaim_count"]
    return policy


# --- the tolerant door ----------------------------------------------------------------------------------------------


class PolicyView(Struct, frozen=True):
    """What rules read. `max_reclaim_count` is None when the policy does not say: the caller's argument then counts."""

    retry_policy: RetryPolicy | None = None
    attempt_timeout_ms: int | None = None
    execution_deadline_ms: int | None = None
    max_reclaim_count: int | None = None
    max_replay_count: int = DEFAULT_MAX_REPLAY_COUNT
    dedup_window_ms: int = DEFAULT_DEDUP_WINDOW_MS
    required_capabilities: tuple[str, ...] = ()
    retention_maxlen: int = DEFAULT_RETENTION_MAXLEN
    retention_ttl_ms: int | None = None
    max_signals_per_execution: int = DEFAULT_MAX_SIGNALS
    budget_ids: tuple[str, ...] = ()
    quota_policy_id: str | None = None
    suspension_policy: SuspensionPolicy | None = None
    cancel_grace_ms: int | None = None


_EMPTY: Final = PolicyView()


def read_policy(text: str | None) -> PolicyView:
    """What a stored policy says. None is the policy that says nothing; text that is no JSON object is corruption."""
    if text is None:
        return _EMPTY
    return _read_policy(text) if len(text) <= MAX_REMEMBERED else _read_policy.__wrapped__(text)


@lru_cache(maxsize=_CACHED_POLICIES)
def _read_policy(text: str) -> PolicyView:
    document = _stored_object(text, "policy")
    timeout = _sub(document, "timeout_policy")
    stream = _sub(document, "stream_policy")
    reclaim_count = _count(document, "max_reclaim_count")
    ids = document.get("budget_ids")
    quota_policy_id = document.get("quota_policy_id")
    return PolicyView(
        retry_policy=_retry_policy(document.get("retry_policy")),
        attempt_timeout_ms=_count(timeout, "attempt_timeout_ms"),
        execution_deadline_ms=_count(timeout, "execution_deadline_ms"),
        max_reclaim_count=_count(timeout, "max_reclaim_count") if reclaim_count is None else reclaim_count,
        max_replay_count=_count_or(document, "max_replay_count", DEFAULT_MAX_REPLAY_COUNT),
        dedup_window_ms=_count_or(document, "dedup_window_ms", DEFAULT_DEDUP_WINDOW_MS),
        required_capabilities=_required(document),
        retention_maxlen=_count_or(stream, "retention_maxlen", DEFAULT_RETENTION_MAXLEN),
        retention_ttl_ms=_count(stream, "retention_ttl_ms"),
        max_signals_per_execution=_count_or(document, "max_signals_per_execution", DEFAULT_MAX_SIGNALS),
        budget_ids=tuple(item for item in ids if isinstance(item, str)) if isinstance(ids, list) else (),
        quota_policy_id=quota_policy_id if isinstance(quota_policy_id, str) and quota_policy_id else None,
        suspension_policy=_suspension_policy(document.get("suspension_policy")),
        cancel_grace_ms=_count(document, "cancel_grace_ms"),
    )


def read_retry_policy(text: str) -> RetryPolicy | None:
    """A retry policy that came by itself, as `fail_execution` takes it; empty text means no retries."""
    return _read_retry_policy(text) if text else None


@remembered_by_text(_CACHED_POLICIES)
def _read_retry_policy(text: str) -> RetryPolicy:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
        raise _malformed(problem) from problem
    if not isinstance(document, dict):
        raise _malformed(TypeError("a retry policy is a JSON object"))
    # How deep a reader can follow differs between versions of Python.
    if nests_deeper(text.encode(), MAX_JSON_DEPTH):
        raise _malformed(ValueError(f"a policy nests at most {MAX_JSON_DEPTH} deep"))
    return _retry_policy(document) or RetryPolicy()


def _stored_object(text: str, column: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
        raise Validation(ValidationKind.CORRUPTION, f"{column}: not JSON") from problem
    if not isinstance(document, dict):
        raise Validation(ValidationKind.CORRUPTION, f"{column}: not a JSON object")
    return document


def _sub(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _count(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    # SQL JSON functions may have turned an integer into 3.0.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return min(value, _MAX_I64) if type(value) is int and value >= 0 else None


def _count_or(document: Mapping[str, Any], name: str, default: int) -> int:
    value = _count(document, name)
    return default if value is None else value


def _required(document: Mapping[str, Any]) -> tuple[str, ...]:
    routing = document.get("routing_requirements", {})
    tokens = routing.get("required_capabilities", []) if isinstance(routing, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return _UNMATCHABLE
    return tuple(sorted(set(tokens)))


def _retry_policy(value: Any) -> RetryPolicy | None:
    if value is None:
        return None
    # Something else than an object still means that retries were meant to be bounded.
    document = value if isinstance(value, dict) else {}
    categories = document.get("retryable_categories")
    return RetryPolicy(
        max_retries=_count_or(document, "max_retries", DEFAULT_MAX_RETRIES),
        backoff=_stored_backoff(document.get("backoff")),
        retryable_categories=tuple(map(str, categories)) if isinstance(categories, list) else (),
    )


def _stored_backoff(value: Any) -> Backoff:
    if value is None:
        return ExponentialBackoff()
    document = value if isinstance(value, dict) else {}
    kind = document.get("type")
    if kind == "fixed":
        return FixedBackoff(_count_or(document, "delay_ms", DEFAULT_INITIAL_DELAY_MS))
    if kind != "exponential":
        return FixedBackoff(DEFAULT_INITIAL_DELAY_MS)
    multiplier = document.get("multiplier")
    is_number = isinstance(multiplier, (int, float)) and not isinstance(multiplier, bool)
    return ExponentialBackoff(
        _count_or(document, "initial_delay_ms", DEFAULT_INITIAL_DELAY_MS),
        _count_or(document, "max_delay_ms", DEFAULT_MAX_DELAY_MS),
        multiplier if is_number and multiplier is not None else DEFAULT_MULTIPLIER,
        document.get("jitter") is True,
    )


def _suspension_policy(value: Any) -> SuspensionPolicy | None:
    if not isinstance(value, dict):
        return None
    behavior = value.get("timeout_behavior")
    return SuspensionPolicy(
        _count(value, "default_timeout_ms"),
        behavior if isinstance(behavior, str) and behavior else DEFAULT_TIMEOUT_BEHAVIOR,
    )


def backoff_delay_ms(backoff: Backoff, retry_count: int, jitter_factor: float = 1.0) -> int:
    """The pause before the next retry; `retry_count` is the count before this failure.

    `jitter_factor` is drawn by the caller from [0.5, 1.0] and used only if the backoff asks for jitter.
    """
    if isinstance(backoff, FixedBackoff):
        return min(max(backoff.delay_ms, 0), _MAX_I64)
    try:
        delay = backoff.initial_delay_ms * float(backoff.multiplier) ** retry_count
    except OverflowError:
        delay = math.inf
    # Zero times infinity is not a number; a pause that starts at nothing stays nothing.
    if backoff.initial_delay_ms <= 0 or math.isnan(delay):
        return 0
    limited = min(delay, backoff.max_delay_ms)
    if backoff.jitter:
        limited *= jitter_factor
    return min(max(int(limited), 0), _MAX_I64)
