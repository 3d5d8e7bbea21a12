"""Pages of other sites: a browser lets them send requests here, so what they may not ask is refused here.

A page cannot choose its ``Origin`` or ``Sec-Fetch-Site``, and cannot add ``X-Forwarded-Host`` without asking first.
Programs send none of these, and are not meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from flowfabric.server.http.problems import refused

#: Methods that change nothing.
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"http": 80, "https": 443}
EVERYBODY = ("*",)


def check_page(headers: Mapping[bytes, bytes], allowed: tuple[str, ...] | None) -> None:
    """Refuse what a page of another origin asks for, unless its origin is one of those allowed."""
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    if origin is None and site is None:
        return
    if allowed == EVERYBODY or (origin is not None and origin.decode("latin-1") in (allowed or ())):
        return
    if site == b"same-origin":
        return
    # "none" is the user's own act, and says nothing about an origin that is named all the same.
    if site in (None, b"none") and (origin is None or _is_own(origin, headers)):
        return
    text = "this server refuses pages of other origins; add the origin to FF_CORS_ORIGINS to allow it"
    raise refused(403, text, kind="forbidden", retryable=False)


def _is_own(origin: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Whether an origin has the host and port that was asked for; a proxy that speaks TLS changes only the scheme."""
    scheme, found, host = origin.decode("latin-1").partition("://")
    wanted = _place(host, scheme) if found else None
    if wanted is None:
        return False
    named = [headers.get(b"host", b""), *headers.get(b"x-forwarded-host", b"").split(b",")]
    return wanted in [_place(each.decode("latin-1").strip(), scheme) for each in named]


def _place(host: str, scheme: str) -> tuple[str, int] | None:
    """Name and port, or nothing if there is no name."""
    try:
        parts = urlsplit(f"//{host}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not name or parts.netloc != host or "@" in host or scheme not in _PORTS:
        return None
    return name, port or _PORTS[scheme]
