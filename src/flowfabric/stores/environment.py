"""Which store the environment means. Servers and commands read it here, so that one setting serves both."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from msgspec import Struct

from flowfabric.stores.kinds import SCHEMES


class ConfigError(Exception):
    """What was set cannot be; the sentence says what to set."""


class Variable(Struct, frozen=True):
    """One variable: the flag that says the same, what it is without, and for numbers the least and the most.

    Without a flag are secrets, which others could see among the arguments of a process, and what ``--store`` says.
    """

    name: str
    flag: str = ""
    default: int | float | str | None = None
    least: float | None = None
    most: float | None = None


STORE_URL = Variable("FF_STORE_URL", "--store")
#: The name that the command line has always used.
URL = Variable("FF_URL", "--store")
BACKEND = Variable("FF_BACKEND")
POSTGRES_URL = Variable("FF_POSTGRES_URL")
SQLITE_PATH = Variable("FF_SQLITE_PATH", default=":memory:")
#: Where a Valkey is, for ``FF_BACKEND=valkey``.
VALKEY_HOST = Variable("FF_HOST", default="localhost")
VALKEY_PORT = Variable("FF_PORT", "", 6379, 1, 65_535)
VALKEY_TLS = Variable("FF_TLS", default="false")
VALKEY_CLUSTER = Variable("FF_CLUSTER", default="false")
STORE_VARIABLES: tuple[Variable, ...] = tuple(each for each in vars().copy().values() if isinstance(each, Variable))


def store_url(given: Mapping[str, str], url: str | None = None) -> str | None:
    """The store that is meant: ``url``, or by one address, or by the name of its kind; ``None`` if none is named."""
    # The address of another server is for the command line, which hands it over as ``url``.
    other = given.get(URL.name, "")
    named = url or given.get(STORE_URL.name) or ("" if other.startswith("http") else other)
    found = named or _by_family(given)
    if found and found.startswith(SCHEMES["valkey"]) and truth(given, VALKEY_CLUSTER):
        raise ConfigError(
            "FF_CLUSTER=true: a store uses one Valkey primary with its replicas, not a cluster; unset "
            "FF_CLUSTER and name that primary"
        )
    return found


def number(given: Mapping[str, str], variable: Variable, flag: float | None = None) -> float:
    """A number within the variable's bounds."""
    text = given.get(variable.name) if flag is None else str(flag)
    if text is None or text == "":
        return float(variable.default or 0)
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    assert variable.least is not None and variable.most is not None
    if not variable.least <= found <= variable.most:
        raise ConfigError(f"{variable.name}={text}: expected a number from {variable.least:g} to {variable.most:g}")
    return found


def whole(given: Mapping[str, str], variable: Variable, flag: int | None = None) -> int:
    """A whole number within the variable's bounds."""
    text = given.get(variable.name) if flag is None else str(flag)
    found = number({} if text is None else {variable.name: text}, variable)
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{variable.name}={text}: expected a whole number")
    return int(found)


def truth(given: Mapping[str, str], variable: Variable) -> bool:
    """For what must not be taken for no when it was meant as yes."""
    text = given.get(variable.name, "").lower()
    if text not in ("", "0", "1", "false", "true"):
        raise ConfigError(f"{variable.name}={text}: expected true or false")
    return text in ("1", "true")


def _by_family(given: Mapping[str, str]) -> str | None:
    backend = given.get(BACKEND.name, "").lower()
    if not backend:
        return None
    if backend == "postgres":
        if not given.get(POSTGRES_URL.name):
            raise ConfigError("FF_BACKEND=postgres needs FF_POSTGRES_URL, such as postgresql://user@host/database")
        return given[POSTGRES_URL.name]
    if backend == "sqlite":
        path = given.get(SQLITE_PATH.name) or str(SQLITE_PATH.default)
        return path if path.startswith("file:") else f"sqlite:///{path}"
    if backend == "valkey":
        return _valkey_url(given)
    raise ConfigError(f"FF_BACKEND={backend}: expected 'valkey', 'postgres', or 'sqlite'")


def _valkey_url(given: Mapping[str, str]) -> str:
    host = (given.get(VALKEY_HOST.name) or str(VALKEY_HOST.default)).strip("[]")
    if re.fullmatch(r"[\w.:-]+", host, re.ASCII) is None or (":" in host and not _is_ipv6(host)):
        # Not repeated: what is more than a name may be a password.
        raise ConfigError(
            "FF_HOST: expected a name or an address, such as cache.example.com; put an account, a database or options "
            "into FF_STORE_URL, such as valkey://user:password@host:port/0"
        )
    scheme = "valkeys" if truth(given, VALKEY_TLS) else "valkey"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{whole(given, VALKEY_PORT)}"


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
