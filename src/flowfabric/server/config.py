"""What a server is told: by the environment, and by the flags that say the same."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from flowfabric.model.ids import LaneId, LaneIdError
from flowfabric.model.partitions import PartitionCounts
from flowfabric.server import variables as var
from flowfabric.telemetry.logs import BadFilter, read_filter

DEFAULT_PORT = 9090
#: The first signing key's name.
FIRST_KID = "k1"


class ConfigError(Exception):
    """The server cannot start like this; the sentence says what to set."""


class ServerConfig(Struct, frozen=True, kw_only=True):
    """Everything a server can be told. ``store_url`` is not needed where an engine is handed in."""

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
    #: ``None``: those of the store, or its own if it is new.
    partitions: PartitionCounts | None = None
    #: What opening the store does about its tables: ``apply`` migrations, or ``check`` that there are none to apply.
    migrate: str = "apply"
    max_stream_ops: int = 64
    #: Clients that may follow frames and events at once.
    max_followers: int = 1_000
    postgres_pool_size: int = 10
    max_connections: int = 5_000
    #: Bytes of bodies that all requests together may hold.
    max_body_bytes: int = 67_108_864
    #: How long a request's head and its body may take to arrive, and how long a connection may be idle after it.
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    keep_alive_s: int = 75
    #: Requests a second of one credential, or of one address without; 0 means any number.
    rate_limit: float = 0
    rate_burst: int = 1
    metrics: bool = True
    #: Whether the web console is served at /.
    console: bool = True
    #: Which log lines are written; see ``telemetry.logs``.
    log: str = ""
    sentry_dsn: str | None = None
    sentry_environment: str = "production"
    sentry_release: str | None = None
    #: How long a shutdown waits for each of its steps.
    grace_ms: int = 15_000
    #: What was said and changes nothing, for the log.
    notices: tuple[str, ...] = ()

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
    rate = _number(given, var.RATE_LIMIT, flags.get("rate_limit"))
    return {
        "store_url": store_url(given, flags.get("store_url")),
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
        "max_stream_ops": _whole(given, var.STREAM_OPS if var.STREAM_OPS.name in given else var.TAIL),
        "max_followers": _whole(given, var.FOLLOWERS),
        "postgres_pool_size": _whole(given, var.POSTGRES_POOL_SIZE, flags.get("pool_size")),
        "max_connections": _whole(given, var.CONNECTIONS, flags.get("max_connections")),
        "max_body_bytes": _whole(given, var.BODY_BYTES),
        "header_timeout_s": _number(given, var.HEADER_TIMEOUT),
        "body_timeout_s": _number(given, var.BODY_TIMEOUT),
        "keep_alive_s": _whole(given, var.KEEP_ALIVE),
        "grace_ms": 1_000 * _whole(given, var.SHUTDOWN_GRACE),
        "rate_limit": rate,
        "rate_burst": _whole(given, var.RATE_BURST) or max(1, round(2 * rate)),
        "metrics": given.get(var.METRICS.name, "1").lower() in ("1", "true"),
        "console": given.get(var.CONSOLE.name, "1").lower() in ("1", "true"),
        "log": _log_filter(flags.get("log") or given.get(var.LOG.name, "")),
        "sentry_dsn": given.get(var.SENTRY_DSN.name) or None,
        "sentry_environment": given.get(var.SENTRY_ENVIRONMENT.name) or "production",
        "notices": _notices(given),
        "sentry_release": given.get(var.SENTRY_RELEASE.name) or None,
    }


def _notices(given: Mapping[str, str]) -> tuple[str, ...]:
    """What is accepted for those who come from elsewhere, and has no effect here."""
    name = var.SQLITE_POOL_SIZE.name
    if name not in given:
        return ()
    size = _whole(given, var.SQLITE_POOL_SIZE)
    return (f"{name}={size} has no effect: one connection writes to SQLite and one reads, in each process; unset it",)


def checked(config: ServerConfig) -> ServerConfig:
    """Refuse what must not be started."""
    secret = config.hmac_secret
    if not secret:
        raise ConfigError(
            "FF_WAITPOINT_HMAC_SECRET is not set: set it to 64 hexadecimal digits, for example those that "
            "`openssl rand -hex 32` prints"
        )
    if len(secret) % 2 or any(each not in "0123456789abcdefABCDEF" for each in secret):
        raise ConfigError("FF_WAITPOINT_HMAC_SECRET must be an even number of hexadecimal digits; 64 are recommended")
    asked_for = config.api_token is not None or config.require_credential
    if not asked_for and not config.listens_on_loopback and not config.allow_unauthenticated:
        raise ConfigError(
            f"{config.host} can be reached by others and no credential is asked for: set FF_API_TOKEN, listen on "
            "127.0.0.1, set FF_REQUIRE_CREDENTIAL=1 if credentials are stored, or say --allow-unauthenticated "
            "(FF_ALLOW_UNAUTHENTICATED=1) if that is really meant"
        )
    return config


def store_url(given: Mapping[str, str], url: str | None = None) -> str:
    """Which store is meant: by one address, or by the name of its kind."""
    # The address of another server is for the command line.
    other = given.get(var.URL.name, "")
    url = url or given.get(var.STORE_URL.name) or ("" if other.startswith("http") else other)
    if url:
        return url
    backend = given.get("FF_BACKEND", "").lower()
    if backend == "postgres":
        if not given.get("FF_POSTGRES_URL"):
            raise ConfigError("FF_BACKEND=postgres needs FF_POSTGRES_URL, such as postgresql://user@host/database")
        return given["FF_POSTGRES_URL"]
    if backend == "sqlite":
        path = given.get("FF_SQLITE_PATH", ":memory:")
        return path if path.startswith("file:") else f"sqlite:///{path}"
    if not backend:
        raise ConfigError(
            "no store is named: set FF_STORE_URL to sqlite:///file, postgresql://user@host/database or memory://"
        )
    if backend == "valkey":
        raise ConfigError("FF_BACKEND=valkey: there is no Valkey store here; set FF_STORE_URL to another one")
    raise ConfigError(f"FF_BACKEND={backend}: expected 'valkey', 'postgres', or 'sqlite'")


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


def _number(given: Mapping[str, str], variable: var.Variable, flag: float | None = None) -> float:
    """A number within the variable's bounds."""
    text = given.get(variable.name) if flag is None else str(flag)
    if text is None or text == "":
        return float(variable.default or 0)
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    assert variable.least is not None and variable.most is not None
    if not variable.least <= number <= variable.most:
        raise ConfigError(f"{variable.name}={text}: expected a number from {variable.least:g} to {variable.most:g}")
    return number


def _whole(given: Mapping[str, str], variable: var.Variable, flag: int | None = None) -> int:
    text = given.get(variable.name) if flag is None else str(flag)
    number = _number({} if text is None else {variable.name: text}, variable)
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{variable.name}={text}: expected a whole number")
    return int(number)


def _flag(given: Mapping[str, str], variable: var.Variable) -> bool:
    return given.get(variable.name, "").lower() in ("1", "true")


_PARTITIONS = (var.FLOW_PARTITIONS, var.BUDGET_PARTITIONS, var.QUOTA_PARTITIONS)


def read_partitions(given: Mapping[str, str]) -> PartitionCounts:
    """How many partitions there are to be."""
    return PartitionCounts(*(_whole(given, each) for each in _PARTITIONS))


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
