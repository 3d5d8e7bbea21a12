"""The address of a Valkey server, and how safe a commit there has to be."""

from __future__ import annotations

import re
import ssl
from typing import ClassVar, Literal, cast, get_args
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.secrets import Discreet

Asked = Literal["always", "replicated", "relaxed"]

DEFAULT_PORT = 6379
DEFAULT_PREFIX = "ff"
#: Braces would decide where a cluster keeps a key, and ``*?[]`` are patterns in ACL rules.
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TLS_OPTIONS = ("tls_ca", "tls_cert", "tls_key")
_OPTIONS = ("durability", "prefix", *_TLS_OPTIONS)


class Address(Discreet, Struct, frozen=True):
    """Where the server is, who we are there, and what was asked of it."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"password"})

    host: str
    port: int = DEFAULT_PORT
    db: int = 0
    user: str | None = None
    password: str | None = None
    prefix: str = DEFAULT_PREFIX
    #: What a commit has to survive; nothing asked means as much as the server is set to, if that is not too little.
    durability: Asked | None = None
    tls: bool = False
    #: Files: authorities to trust instead of the system's, our certificate, and its key if it stands in another file.
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @property
    def shown(self) -> str:
        """For people: without the account."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'valkeys' if self.tls else 'valkey'}://{host}:{self.port}/{self.db}"


def parse(url: str) -> Address:
    """Read ``valkey[s]://[user[:password]@]host[:port][/db][?durability=…&prefix=…&tls_ca=…&tls_cert=…&tls_key=…]``."""
    try:
        parts = urlsplit(url)
        # Reading the port may fail: it does when a password holds an unencoded character.
        host, port = parts.hostname, parts.port
    except ValueError:
        raise bad_address() from None
    # Whatever stands behind an unencoded # or ? may be the rest of a password.
    if parts.scheme not in ("valkey", "valkeys") or not host or parts.fragment:
        raise bad_address()
    options = _options(parts)
    tls = parts.scheme == "valkeys"
    if not tls and any(name in options for name in _TLS_OPTIONS):
        raise _refused("the options tls_ca, tls_cert and tls_key are for valkeys://; write that instead of valkey://")
    if "tls_key" in options and "tls_cert" not in options:
        raise _refused("tls_key needs the certificate it belongs to: add tls_cert=FILE")
    return Address(
        host=host,
        port=DEFAULT_PORT if port is None else port,
        db=_database(parts.path),
        user=unquote(parts.username) if parts.username else None,
        password=None if parts.password is None else unquote(parts.password),
        prefix=_prefix(options.get("prefix", DEFAULT_PREFIX)),
        durability=_durability(options.get("durability")),
        tls=tls,
        tls_ca=options.get("tls_ca"),
        tls_cert=options.get("tls_cert"),
        tls_key=options.get("tls_key"),
    )


def tls_settings(address: Address) -> ssl.SSLContext | None:
    """How to encrypt, by the files as they are now; ``None`` for an address that does not ask for it."""
    if not address.tls:
        return None
    try:
        settings = ssl.create_default_context(cafile=address.tls_ca)
    except OSError as error:
        raise _refused(f"tls_ca: the file cannot be used ({error}); name a file of PEM certificates") from None
    if address.tls_cert is not None:
        try:
            settings.load_cert_chain(address.tls_cert, address.tls_key, password=_no_passphrase)
        except OSError as error:
            raise _refused(
                f"tls_cert or tls_key: the files cannot be used ({error}); name a PEM certificate and its key"
            ) from None
    return settings


def bad_address() -> Validation:
    """What is said of an address that cannot be read, without any part of it: that may be the password."""
    return _refused(
        "not valid; write valkey://user:password@host:port/database, with the characters : / ? # [ ] @ % of "
        "a password percent-encoded"
    )


def _refused(sentence: str) -> Validation:
    return Validation(ValidationKind.INVALID_INPUT, f"store URL: {sentence}")


def _no_passphrase() -> str:
    # Without this, OpenSSL would ask at the terminal, and the process would hang there.
    raise OSError("the key has a passphrase; use a key without one")


def _options(parts: SplitResult) -> dict[str, str]:
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise bad_address() from None
    options: dict[str, str] = {}
    for name, value in pairs:
        if name not in _OPTIONS:
            # A name with a character no option has may be the rest of a password that holds a question mark.
            said = f"{name!r} is not an option" if name.isidentifier() and "@" not in parts.query else "unknown option"
            raise _refused(f"{said}; the options are {', '.join(_OPTIONS)}")
        if name in options:
            raise _refused(f"the option {name} occurs twice; write it once")
        if not value:
            raise _refused(f"the option {name} is empty; give it a value, or leave it out")
        options[name] = value
    return options


def _database(path: str) -> int:
    number = path.removeprefix("/")
    if not number:
        return 0
    if not (number.isascii() and number.isdigit() and len(number) <= 6):
        raise _refused("the database must be a number after the host; write valkey://host/0, or leave it out")
    return int(number)


def _prefix(prefix: str) -> str:
    if _PREFIX.fullmatch(prefix) is None:
        raise _refused("prefix: use 1 to 64 letters, digits and the characters _ . : -")
    return prefix


def _durability(asked: str | None) -> Asked | None:
    if asked is not None and asked not in get_args(Asked):
        raise _refused(f"durability: use {', '.join(get_args(Asked))}, or leave it out")
    return cast("Asked | None", asked)
