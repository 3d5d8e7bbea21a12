"""Log lines for machines: one JSON document each, on standard output, and a filter that says which.

``FF_LOG`` is a list such as ``info,flowfabric.timers=debug,audit=info``: levels by logger, and one without a name for
all others. What identifies somebody (waitpoint tokens, credentials, passwords in addresses) is taken out of every line,
no matter who wrote it there.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from flowfabric.tracing import current_trace

#: What is heard unless ``FF_LOG`` says otherwise. The account of operators' acts stays on unless it is named.
DEFAULT_FILTER = "warning,flowfabric=info,audit=info"
#: The id of the request that is being answered.
request_id: ContextVar[str | None] = ContextVar("flowfabric_request_id", default=None)

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": logging.CRITICAL + 1,
}
#: Attributes that every record has; others were added by the logging code.
_COMMON = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
# Every part begins at a place of its own and is bounded, so that a long text takes no longer than it is long.
_SECRETS = re.compile(
    r"(?<![\w.-])(?P<kid>[\w.-]{1,64}):[0-9a-f]{40,128}\b"  # a waitpoint's token
    r"|\bff_[0-9a-zA-Z]{1,64}_[\w-]{8,}"  # a credential
    r"|\b(?i:bearer)\s{1,8}[^\s\"',]+"
    r"|(?<!\w)(?P<url>\w{1,20}://[^\s/:@]{0,256}):[^\s/@]{1,256}@"  # a password in an address
    r"|\b(?P<named>(?i:password)=)[^\s&\"',]{1,256}"
    r"|\be2ZwO[\w-]{80,}"  # the link of an approver
)


#: A text without any of these holds no secret.
_SIGNS = (":", "ff_", "earer", "EARER", "assword", "ASSWORD", "e2ZwO")


class BadFilter(ValueError):
    """``FF_LOG`` cannot be read; the sentence says how to write it."""


def read_filter(text: str) -> dict[str, int]:
    """Levels by logger; the empty name stands for all others."""
    levels: dict[str, int] = {}
    for part in (each.strip() for each in f"{DEFAULT_FILTER},{text}".split(",")):
        if part:
            name, equals, level = part.rpartition("=")
            if level.lower() not in _LEVELS or (equals and not name.strip()):
                known = ", ".join(_LEVELS)
                raise BadFilter(f"FF_LOG: {part!r} is not a filter; write level or name=level, with one of {known}")
            # One level for everything is meant for what is named by default, too, but for the account of acts.
            if not equals and part != DEFAULT_FILTER.partition(",")[0]:
                levels.pop("flowfabric", None)
            levels[name.strip()] = _LEVELS[level.lower()]
    return levels


def redacted(text: str) -> str:
    """A text without what must not be in a log."""
    if any(each in text for each in _SIGNS):
        return _SECRETS.sub(_redaction, text)
    return text


def _redaction(found: re.Match[str]) -> str:
    if found["kid"]:
        return f"{found['kid']}:<REDACTED>"
    if found["named"]:
        return f"{found['named']}<REDACTED>"
    return f"{found['url']}:<REDACTED>@" if found["url"] else "<REDACTED>"


class JsonFormatter(logging.Formatter):
    """One line of JSON: when, how bad, who says it, what, in which request and trace, and what else was given."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        if (request := request_id.get()) is not None:
            line["request_id"] = request
        if (trace := current_trace()) is not None:
            line["trace_id"] = trace.trace_id
        for name, value in vars(record).items():
            if name not in _COMMON:
                line[name] = _plain(value)
        if record.exc_info:
            line["error"] = redacted(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()


_AS_THEY_ARE = (bool, int, float)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, _AS_THEY_ARE):
        return value
    if isinstance(value, Mapping):
        return {redacted(str(key)): _plain(each) for key, each in value.items()}
    return redacted(str(value))


def configure(text: str = "", stream: TextIO | None = None) -> logging.Handler:
    """Write what the filter lets through as JSON, to standard output unless a stream is given."""
    levels = read_filter(text)
    handler = logging.StreamHandler(sys.stdout if stream is None else stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    for earlier in root.handlers[:]:
        if isinstance(earlier.formatter, JsonFormatter):
            root.removeHandler(earlier)
    root.addHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
    return handler
