"""Addresses of Valkey servers: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import pickle
import ssl
import traceback
from pathlib import Path

import msgspec
import pytest

from flowfabric.model.errors import Validation
from flowfabric.stores.valkey.address import Address, parse, tls_settings

SECRET = "hunter2"


def test_the_shortest_address() -> None:
    assert parse("valkey://server") == Address("server", 6379, 0, prefix="ff")


def test_every_part() -> None:
    found = parse(
        "valkeys://me:p%40ss%3A%2Fword@[::1]:7000/3?durability=always&prefix=shop:ff"
        "&tls_ca=%2Fca.pem&tls_cert=/c.pem&tls_key=/k.pem"
    )
    assert found == Address(
        "::1", 7000, 3, "me", "p@ss:/word", "shop:ff", "always", True, "/ca.pem", "/c.pem", "/k.pem"
    )
    assert found.shown == "valkeys://[::1]:7000/3"


@pytest.mark.parametrize(
    ("account", "user", "password"),
    [("", None, None), ("me@", "me", None), (f":{SECRET}@", None, SECRET), (f"me:{SECRET}@", "me", SECRET)],
)
def test_accounts(account: str, user: str | None, password: str | None) -> None:
    found = parse(f"valkey://{account}server")
    assert (found.user, found.password) == (user, password)


@pytest.mark.parametrize("asked", ["always", "replicated", "relaxed"])
def test_durabilities(asked: str) -> None:
    assert parse(f"valkey://server?durability={asked}").durability == asked


def test_an_address_does_not_show_its_password() -> None:
    address = parse(f"valkey://me:{SECRET}@server")
    shown = (repr(address), str(address), address.shown, f"{address}", repr(address.__rich_repr__()))
    assert not any(SECRET in text for text in shown)
    assert "server" in repr(address)
    assert pickle.loads(pickle.dumps(address)) == address
    with pytest.raises(AttributeError):
        address.host = "other"  # type: ignore[misc]
    assert msgspec.structs.replace(address, db=2).password == SECRET


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://server", "write valkey://user:password@host:port/database"),
        ("valkey://", "write valkey://user:password@host:port/database"),
        (f"valkey://me:{SECRET}/x@server", "percent-encoded"),
        (f"valkey://me:{SECRET}#x@server", "percent-encoded"),
        (f"valkey://me:1?{SECRET}@server", "percent-encoded"),
        (f"valkey://me:1?{SECRET}=1@server", "unknown option; the options are durability, prefix, tls_ca"),
        (f"valkey://me:1/{SECRET}@server", "the database must be a number"),
        (f"valkey://me:{SECRET}@[::1", "percent-encoded"),
        (f"valkey://me:{SECRET}@server:99999", "percent-encoded"),
        (f"valkey://me:{SECRET}@server:port", "percent-encoded"),
        (f"valkey://me:{SECRET}@server/ff", "write valkey://host/0, or leave it out"),
        (f"valkey://me:{SECRET}@server/-1", "write valkey://host/0, or leave it out"),
        (f"valkey://me:{SECRET}@server?durabilty=always", "'durabilty' is not an option; the options are durability,"),
        (f"valkey://me:{SECRET}@server?durability=sometimes", "use always, replicated, relaxed, or leave it out"),
        (f"valkey://me:{SECRET}@server?prefix=a&prefix=b", "prefix occurs twice; write it once"),
        (f"valkey://me:{SECRET}@server?prefix=", "prefix is empty; give it a value"),
        (f"valkey://me:{SECRET}@server?prefix=%7Ba%7D", "prefix: use 1 to 64 letters, digits"),
        (f"valkey://me:{SECRET}@server?prefix={'a' * 65}", "prefix: use 1 to 64 letters, digits"),
        (f"valkey://me:{SECRET}@server?tls_ca=/ca.pem", "write that instead of valkey://"),
        (f"valkeys://me:{SECRET}@server?tls_key=/key.pem", "add tls_cert=FILE"),
    ],
)
def test_what_cannot_be_read_is_refused_without_the_password(url: str, said: str) -> None:
    with pytest.raises(Validation, match="store URL: ") as caught:
        parse(url)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)
    # Nor in what is logged of the error; the lines of this file are no part of that.
    logged = traceback.format_exception_only(caught.value)
    assert SECRET not in "".join(logged)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_tls_is_off_unless_asked_for_and_then_checks_the_server() -> None:
    assert tls_settings(parse("valkey://server")) is None
    settings = tls_settings(parse("valkeys://server"))
    assert settings is not None
    assert settings.verify_mode is ssl.CERT_REQUIRED
    assert settings.check_hostname


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("not a certificate")
    for name in ("absent.pem", "no.pem"):
        with pytest.raises(Validation, match=r"tls_ca: the file cannot be used .* name a file of PEM certificates"):
            tls_settings(parse(f"valkeys://server?tls_ca={tmp_path / name}"))
        with pytest.raises(Validation, match="tls_cert or tls_key: the files cannot be used"):
            tls_settings(parse(f"valkeys://server?tls_cert={tmp_path / name}"))
