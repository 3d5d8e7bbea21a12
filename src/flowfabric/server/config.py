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
    partitions: PartitionCounts = PartitionCounts()
    max_stream_ops: int = 64
    #: Clients that may follow frames and events at once.
    max_followers: int = 1_000
    postgres_pool_size: int = 10
    metrics: bool = True
    #: How long a shutdown waits for each of its steps.
    grace_ms: int = 15_000

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
    token = flags.get("api_token") or given.get("FF_API_TOKEN") or None
    required = _flag(given, "FF_REQUIRE_CREDENTIAL")
    host, port = _address(flags.get("listen") or given.get("FF_LISTEN_ADDR") or "", token is not None or required)
    return {
        "store_url": _store(given, flags.get("store_url")),
        "single_node": bool(flags.get("single_node")) or given.get("FF_DEV_MODE") == "1",
        "host": host,
        "port": port,
        "api_token": token,
        "allow_unauthenticated": bool(flags.get("allow_unauthenticated")) or _flag(given, "FF_ALLOW_UNAUTHENTICATED"),
        "require_credential": required,
        "guard_host": token is None and not required and is_loopback(host),
        "cors_origins": _origins(flags.get("cors_origins", given.get("FF_CORS_ORIGINS"))),
        "hmac_secret": flags.get("hmac_secret") or given.get("FF_WAITPOINT_HMAC_SECRET", ""),
        "lanes": _lanes(flags.get("lanes", given.get("FF_LANES", "default"))),
        "partitions": PartitionCounts(
            _number(given, "FF_FLOW_PARTITIONS", 256, 65_535),
            _number(given, "FF_BUDGET_PARTITIONS", 32, 65_535),
            _number(given, "FF_QUOTA_PARTITIONS", 32, 65_535),
        ),
        "max_stream_ops": _number(
            given,
            "FF_MAX_CONCURRENT_STREAM_OPS" if "FF_MAX_CONCURRENT_STREAM_OPS" in given else "FF_MAX_CONCURRENT_TAIL",
            64,
            100_000,
        ),
        "max_followers": _number(given, "FF_MAX_FOLLOWERS", 1_000, 1_000_000),
        "postgres_pool_size": _number(given, "FF_POSTGRES_POOL_SIZE", 10, 10_000),
        "metrics": given.get("FF_METRICS", "1").lower() in ("1", "true"),
    }


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


def _store(given: Mapping[str, str], url: str | None) -> str:
    url = url or given.get("FF_STORE_URL", "")
    if url:
        return url
    backend = given.get("FF_BACKEND", "").lower()
    if backend == "postgres":
        if not given.get("FF_POSTGRES_URL"):
            raise ConfigError("FF_BACKEND=postgres needs FF_POSTGRES_URL, such as postgresql://user@host/database")
        return given["FF_POSTGRES_URL"]
    if backend == "sqlite":
        _number(given, "FF_SQLITE_POOL_SIZE", 4, 10_000)
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


def _lanes(text: str) -> tuple[str, ...]:
    lanes = tuple(each.strip() for each in text.split(",") if each.strip())
    if not lanes:
        raise ConfigError("FF_LANES names no lane: unset it, or list lanes such as default,reports")
    if len(set(lanes)) < len(lanes):
        raise ConfigError("FF_LANES names a lane twice")
    try:
        return tuple(LaneId(each) for each in lanes)
    except LaneIdError as error:
        raise ConfigError(f"FF_LANES: {error}") from None


def _number(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= most:
        raise ConfigError(f"{name}={text}: expected a whole number from 1 to {most}")
    return int(text)


def _flag(given: Mapping[str, str], name: str) -> bool:
    return given.get(name, "").lower() in ("1", "true")


#: For tests and for apps that mount the server: no credential, nothing listens.
EMBEDDED = ServerConfig()


def replaced(config: ServerConfig, **changes: Any) -> ServerConfig:
    """The same, with changes."""
    return msgspec.structs.replace(config, **changes)
