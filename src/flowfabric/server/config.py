"""The configuration of a server: environment variables, and the flags that say the same."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from flowfabric.model.ids import LaneId, LaneIdError
from flowfabric.model.partitions import PartitionCounts
from flowfabric.model.secrets import Discreet
from flowfabric.server import environment as var
from flowfabric.stores.environment import ConfigError, Variable, number, store_url, whole
from flowfabric.telemetry.logs import BadFilter, read_filter, redacted

DEFAULT_PORT = 9090
#: The first signing key's name.
FIRST_KID = "k1"
#: Hexadecimal digits of a signing secret, and the fewest characters of a token that may do everything.
SECRET_DIGITS, MIN_TOKEN = 64, 16


class ServerConfig(Discreet, Struct, frozen=True, kw_only=True):
    """Everything a server can be told. ``store_url`` is not needed where an engine is handed in."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"api_token", "hmac_secret", "sentry_dsn"})

    store_url: str = ""
    single_node: bool = False
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_token: str | None = None
    allow_unauthenticated: bool = False
    #: Never serve anybody without one, not even before the first is stored.
    require_credential: bool = False
    #: Whether callers without a credential must call this machine by a name of its own.
    guard_host: bool = False
    #: ``None``: same origin only; ``("*",)``: everybody; otherwise these.
    cors_origins: tuple[str, ...] | None = None
    hmac_secret: str = ""
    lanes: tuple[str, ...] = ("default",)
    #: ``None``: those of the store, or 256, 32 and 32 if it is new.
    partitions: PartitionCounts | None = None
    #: What opening the store does about its tables: ``apply`` migrations, or ``check`` that none are left to apply.
    migrate: str = "apply"
    #: How long a start waits for a Valkey that does not answer yet.
    store_patience_s: float = 60.0
    max_stream_ops: int = 64
    #: Clients that may follow frames and events at once.
    max_followers: int = 1_000
    postgres_pool_size: int = 10
    max_connections: int = 5_000
    #: Bytes of bodies that all requests together may hold.
    max_body_bytes: int = 67_108_864
    #: Bytes of answers that may wait for their readers, all together.
    max_answer_bytes: int = 67_108_864
    #: How long a request's head and its body may take to arrive, how long a reader may take in nothing of the answer,
    #: and how long a connection may be idle after it.
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    keep_alive_s: int = 75
    #: Requests a second of one credential, or of one address without; 0 means any number.
    rate_limit: float = 0
    rate_burst: int = 1
    metrics: bool = True
    #: Whether the web console is served at /.
    console: bool = True
    #: Where the console links traces to; ``{trace_id}`` stands for the trace.
    trace_url: str = ""
    #: Which log lines are written; see ``telemetry.logs``.
    log: str = ""
    sentry_dsn: str | None = None
    sentry_environment: str = "production"
    sentry_release: str | None = None
    #: How long a shutdown waits for each of its steps.
    grace_ms: int = 15_000
    #: What was said and changes nothing, for the log.
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.api_token is not None and len(self.api_token) < MIN_TOKEN:
            raise ConfigError(
                f"FF_API_TOKEN is too short and can be guessed: use at least {MIN_TOKEN} characters, "
                "for example those that `openssl rand -hex 32` prints"
            )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = Discreet.__rich_repr__(self)
        return [(name, redacted(value) if name == "store_url" else value) for name, value in shown]

    @property
    def listens_on_loopback(self) -> bool:
        """Whether nobody beyond this machine can connect."""
        return is_loopback(self.host)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **flags: Any) -> ServerConfig:
        """Read the environment; flags that are not ``None`` go before it."""
        given = os.environ if environment is None else environment
        found = _read(given, {name: value for name, value in flags.items() if value is not None})
        return checked(cls(**found))


def is_loopback(host: str) -> bool:
    """Whether an address cannot be reached from elsewhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _read(given: Mapping[str, str], flags: dict[str, Any]) -> dict[str, Any]:
    token = flags.get("api_token") or given.get(var.API_TOKEN.name) or None
    required = bool(flags.get("require_credential")) or _flag(given, var.REQUIRE_CREDENTIAL)
    host, port = _address(flags.get("listen") or given.get(var.LISTEN_ADDR.name) or "", token is not None or required)
    rate = number(given, var.RATE_LIMIT, flags.get("rate_limit"))
    return {
        "store_url": _store(given, flags.get("store_url")),
        "single_node": bool(flags.get("single_node")) or given.get(var.DEV_MODE.name) == "1",
        "migrate": _migrate(flags.get("migrate") or given.get(var.MIGRATE.name) or "apply"),
        "host": host,
        "port": port,
        "api_token": token,
        "allow_unauthenticated": bool(flags.get("allow_unauthenticated")) or _flag(given, var.ALLOW_UNAUTHENTICATED),
        "require_credential": required,
        "guard_host": token is None and not required and is_loopback(host),
        "cors_origins": _origins(flags.get("cors_origins", given.get(var.CORS_ORIGINS.name))),
        "hmac_secret": flags.get("hmac_secret") or given.get(var.SECRET.name, ""),
        "lanes": read_lanes(flags.get("lanes", given.get(var.LANES.name, "default"))),
        "partitions": read_partitions(given) if any(each.name in given for each in _PARTITIONS) else None,
        "store_patience_s": number(given, var.STORE_PATIENCE),
        "max_stream_ops": whole(given, var.STREAM_OPS if var.STREAM_OPS.name in given else var.TAIL),
        "max_followers": whole(given, var.FOLLOWERS),
        "postgres_pool_size": whole(given, var.POSTGRES_POOL_SIZE, flags.get("pool_size")),
        "max_connections": whole(given, var.CONNECTIONS, flags.get("max_connections")),
        "max_body_bytes": whole(given, var.BODY_BYTES),
        "max_answer_bytes": whole(given, var.ANSWER_BYTES),
        "header_timeout_s": number(given, var.HEADER_TIMEOUT),
        "body_timeout_s": number(given, var.BODY_TIMEOUT),
        "write_timeout_s": number(given, var.WRITE_TIMEOUT),
        "keep_alive_s": whole(given, var.KEEP_ALIVE),
        "grace_ms": 1_000 * whole(given, var.SHUTDOWN_GRACE),
        "rate_limit": rate,
        "rate_burst": whole(given, var.RATE_BURST) or max(1, round(2 * rate)),
        "metrics": given.get(var.METRICS.name, "1").lower() in ("1", "true"),
        "console": given.get(var.CONSOLE.name, "1").lower() in ("1", "true"),
        "trace_url": _trace_url(given.get(var.TRACE_URL.name, "")),
        "log": _log_filter(flags.get("log") or given.get(var.LOG.name, "")),
        "sentry_dsn": given.get(var.SENTRY_DSN.name) or None,
        "sentry_environment": given.get(var.SENTRY_ENVIRONMENT.name) or "production",
        "notices": _notices(given),
        "sentry_release": given.get(var.SENTRY_RELEASE.name) or None,
    }


def _trace_url(text: str) -> str:
    if text and not (text.startswith(("https://", "http://")) and "{trace_id}" in text and text.isprintable()):
        raise ConfigError(
            "FF_TRACE_URL: write it like https://traces.example/trace/{trace_id}; {trace_id} stands for the trace"
        )
    return text


def _notices(given: Mapping[str, str]) -> tuple[str, ...]:
    """What is accepted for those who come from elsewhere, and has no effect here."""
    name = var.SQLITE_POOL_SIZE.name
    if name not in given:
        return ()
    size = whole(given, var.SQLITE_POOL_SIZE)
    return (f"{name}={size} has no effect: one connection writes to SQLite and one reads, in each process; unset it",)


def checked(config: ServerConfig) -> ServerConfig:
    """Refuse what must not be started."""
    secret = config.hmac_secret
    if not secret:
        raise ConfigError(
            "FF_WAITPOINT_HMAC_SECRET is not set: set it to at least 64 hexadecimal digits, for example those "
            "that `openssl rand -hex 32` prints"
        )
    odd = len(secret) % 2 == 1 or any(each not in "0123456789abcdefABCDEF" for each in secret)
    if odd or len(secret) < SECRET_DIGITS:
        raise ConfigError(
            f"FF_WAITPOINT_HMAC_SECRET must be an even number of hexadecimal digits, at least {SECRET_DIGITS}: set it "
            "to those that `openssl rand -hex 32` prints"
        )
    asked_for = config.api_token is not None or config.require_credential
    if not asked_for and not config.listens_on_loopback and not config.allow_unauthenticated:
        raise ConfigError(
            f"{config.host} is open to other machines without a credential: set FF_API_TOKEN, listen on "
            "127.0.0.1, set FF_REQUIRE_CREDENTIAL=1 if credentials are stored, or pass --allow-unauthenticated "
            "(FF_ALLOW_UNAUTHENTICATED=1) if you really want that"
        )
    if not asked_for and config.cors_origins == ("*",):
        raise ConfigError(
            "FF_CORS_ORIGINS=* lets every web page call without a credential: name the origins that may "
            "call, such as https://example.com, or set FF_API_TOKEN or FF_REQUIRE_CREDENTIAL=1"
        )
    return config


def _store(given: Mapping[str, str], url: str | None) -> str:
    found = store_url(given, url)
    if found is None:
        raise ConfigError(
            "no store is configured: set FF_STORE_URL to sqlite:///file, postgresql://user@host/database, "
            "valkey://host:port or memory://"
        )
    return found


def _address(text: str, has_credential: bool) -> tuple[str, int]:
    if not text:
        return ("0.0.0.0" if has_credential else "127.0.0.1"), DEFAULT_PORT
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"FF_LISTEN_ADDR={text}: expected an address and a port, such as 127.0.0.1:9090")
    return host.strip("[]") or "0.0.0.0", int(port)


def _origins(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    origins = tuple(each.strip() for each in text.split(",") if each.strip())
    if not origins:
        raise ConfigError(
            "FF_CORS_ORIGINS is empty: unset it, or set it to * or to origins such as https://example.com"
        )
    if "*" in origins:
        return ("*",)
    usable = tuple(each for each in origins if each.isascii() and each.isprintable())
    if not usable:
        raise ConfigError("FF_CORS_ORIGINS: none of its origins can be used; write them like https://example.com")
    return usable


def read_lanes(text: str) -> tuple[str, ...]:
    """Names of lanes with commas between."""
    lanes = tuple(each.strip() for each in text.split(",") if each.strip())
    if not lanes:
        raise ConfigError("FF_LANES names no lane: unset it, or list lanes such as default,reports")
    if len(set(lanes)) < len(lanes):
        raise ConfigError("FF_LANES names a lane twice")
    try:
        return tuple(LaneId(each) for each in lanes)
    except LaneIdError as error:
        raise ConfigError(f"FF_LANES: {error}") from None


def _flag(given: Mapping[str, str], variable: Variable) -> bool:
    return given.get(variable.name, "").lower() in ("1", "true")


_PARTITIONS = (var.FLOW_PARTITIONS, var.BUDGET_PARTITIONS, var.QUOTA_PARTITIONS)


def read_partitions(given: Mapping[str, str]) -> PartitionCounts:
    """How many partitions there are to be."""
    return PartitionCounts(*(whole(given, each) for each in _PARTITIONS))


def _migrate(text: str) -> str:
    if text not in ("apply", "check"):
        raise ConfigError(f"FF_MIGRATE={text}: expected apply (bring the tables up to date) or check (refuse old ones)")
    return text


def _log_filter(text: str) -> str:
    try:
        read_filter(text)
    except BadFilter as error:
        raise ConfigError(str(error)) from None
    return text


#: For tests and for apps that mount the server: no credential, nothing listens.
EMBEDDED = ServerConfig()


def replaced(config: ServerConfig, **changes: Any) -> ServerConfig:
    """The same, with changes."""
    return msgspec.structs.replace(config, **changes)
