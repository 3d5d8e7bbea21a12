"""Errors to Sentry: only if asked for, and without what must not leave this machine."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from flowfabric.server import ServerConfig
from flowfabric.server.telemetry.sentry import reporting
from flowfabric.stores.environment import ConfigError

DSN = "https://key@sentry.invalid/1"


@pytest.fixture
def sentry(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a stand-in for the package is told."""
    told: list[Any] = []
    module: Any = types.ModuleType("sentry_sdk")
    module.init = lambda **options: told.append(("init", options))
    module.capture_exception = lambda error: told.append(("error", error))
    module.flush = lambda seconds: told.append(("flush", seconds))
    monkeypatch.setitem(sys.modules, "sentry_sdk", module)
    return told


def test_off_unless_it_is_asked_for(sentry: list[Any]) -> None:
    with reporting(ServerConfig()):
        pass
    assert sentry == []


def test_a_crash_is_reported_and_goes_on(sentry: list[Any]) -> None:
    config = ServerConfig(sentry_dsn=DSN, sentry_environment="staging", sentry_release="7")
    broken = RuntimeError("broken")
    with pytest.raises(RuntimeError), reporting(config):
        raise broken
    (_, options), *rest = sentry
    assert (options["dsn"], options["environment"], options["release"]) == (DSN, "staging", "7")
    assert (options["send_default_pii"], options["include_local_variables"]) == (False, False)
    assert rest == [("error", broken), ("flush", 5)]
    event = {"message": "Bearer abc", "extra": [{"token": "k1:" + "0f" * 32}], "level": 3}
    assert options["before_send"](event, {}) == {
        "message": "<REDACTED>",
        "extra": [{"token": "k1:<REDACTED>"}],
        "level": 3,
    }


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    with pytest.raises(ConfigError, match="pip install sentry-sdk"), reporting(ServerConfig(sentry_dsn=DSN)):
        pass
