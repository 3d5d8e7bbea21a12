"""Flags of ``flowfabric server`` that say no more than a variable of the environment does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated

from cyclopts import Group, Parameter

_MORE = Group("Limits and times", sort_key=50)
_Whole = int | None
_Number = float | None


@Parameter(name="*", group=_MORE)
@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What seldom has to be said. Names and bounds are those of ``server.variables``."""

    flow_partitions: Annotated[_Whole, Parameter(help="Partitions of executions (FF_FLOW_PARTITIONS).")] = None
    budget_partitions: Annotated[_Whole, Parameter(help="Partitions of budgets (FF_BUDGET_PARTITIONS).")] = None
    quota_partitions: Annotated[_Whole, Parameter(help="Partitions of quotas (FF_QUOTA_PARTITIONS).")] = None
    store_patience_s: Annotated[
        _Number, Parameter(help="Seconds to wait for Valkey at startup (FF_STORE_PATIENCE_S).")
    ] = None
    max_concurrent_stream_ops: Annotated[
        _Whole, Parameter(help="Concurrent stream reads and tails (FF_MAX_CONCURRENT_STREAM_OPS).")
    ] = None
    max_followers: Annotated[_Whole, Parameter(help="Concurrent event followers (FF_MAX_FOLLOWERS).")] = None
    max_body_bytes: Annotated[_Whole, Parameter(help="Bytes of all request bodies in memory (FF_MAX_BODY_BYTES).")] = (
        None
    )
    max_answer_bytes: Annotated[
        _Whole, Parameter(help="Bytes of unsent responses in memory (FF_MAX_ANSWER_BYTES).")
    ] = None
    header_timeout_s: Annotated[
        _Number, Parameter(help="Seconds to receive a request's headers (FF_HEADER_TIMEOUT_S).")
    ] = None
    body_timeout_s: Annotated[_Number, Parameter(help="Seconds to receive a request's body (FF_BODY_TIMEOUT_S).")] = (
        None
    )
    write_timeout_s: Annotated[_Number, Parameter(help="Seconds a client may read nothing (FF_WRITE_TIMEOUT_S).")] = (
        None
    )
    keep_alive_s: Annotated[_Whole, Parameter(help="Seconds a connection may be idle (FF_KEEP_ALIVE_S).")] = None
    shutdown_grace_s: Annotated[
        _Whole, Parameter(help="Seconds each step of a shutdown waits (FF_SHUTDOWN_GRACE_S).")
    ] = None
    rate_burst: Annotated[
        _Whole, Parameter(help="Requests allowed above the rate limit in a burst (FF_RATE_BURST).")
    ] = None
    waitpoint_hmac_grace_ms: Annotated[
        _Whole, Parameter(help="How long a previous key is accepted (FF_WAITPOINT_HMAC_GRACE_MS).")
    ] = None
    reclaim_grace_ms: Annotated[_Whole, Parameter(help="How long an expired lease is kept (FF_RECLAIM_GRACE_MS).")] = (
        None
    )
    no_metrics: Annotated[bool, Parameter(help="Do not serve /metrics (FF_METRICS=0).", negative=())] = False
    no_console: Annotated[bool, Parameter(help="Do not serve the console at / (FF_CONSOLE=0).", negative=())] = False
    trace_url: Annotated[
        str | None,
        Parameter(help="Where the console links traces to, with {trace_id} in it (FF_TRACE_URL)."),
    ] = None
    sentry_environment: Annotated[
        str | None, Parameter(help="The environment name for Sentry (FF_SENTRY_ENVIRONMENT).")
    ] = None
    sentry_release: Annotated[str | None, Parameter(help="The release name for Sentry (FF_SENTRY_RELEASE).")] = None

    def over(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment with what was said instead of it."""
        found = {}
        for each in fields(self):
            value, off = getattr(self, each.name), each.name.startswith("no_")
            if off and value:
                found[f"FF_{each.name.removeprefix('no_').upper()}"] = "0"
            elif not off and value is not None:
                found[f"FF_{each.name.upper()}"] = str(value)
        return {**environment, **found}


AS_IT_IS = Tuning()
