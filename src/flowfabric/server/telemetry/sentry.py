"""Errors to Sentry, for those who want it: off unless ``FF_SENTRY_DSN`` is set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from flowfabric import __version__
from flowfabric.server.config import ServerConfig
from flowfabric.stores.environment import ConfigError
from flowfabric.telemetry.logs import redacted

#: How long the last reports may take when the program ends.
FLUSH_S = 5


@contextlib.contextmanager
def reporting(config: ServerConfig) -> Iterator[None]:
    """Report errors that are logged, and crashes, while the block lasts. Begin before anything can fail."""
    if config.sentry_dsn is None:
        yield
        return
    try:
        import sentry_sdk
    except ModuleNotFoundError:
        raise ConfigError(
            "FF_SENTRY_DSN is set and sentry-sdk is not installed: install it with `pip install sentry-sdk`, or unset "
            "FF_SENTRY_DSN"
        ) from None
    sentry_sdk.init(
        dsn=config.sentry_dsn,
        environment=config.sentry_environment,
        release=config.sentry_release or __version__,
        send_default_pii=False,
        include_local_variables=False,
        max_request_body_size="never",
        before_send=_cleaned,
    )
    try:
        yield
    except Exception as error:
        sentry_sdk.capture_exception(error)
        raise
    finally:
        sentry_sdk.flush(FLUSH_S)


def _cleaned(event: Any, hint: Any) -> Any:
    """A report without what must not leave this machine."""
    return _without_secrets(event)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: _without_secrets(each) for key, each in value.items()}
    return [_without_secrets(each) for each in value] if isinstance(value, list) else value
