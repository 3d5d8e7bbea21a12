"""The console: static files in the package, served under a strict policy, loading nothing from elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from msgspec import Struct

from flowfabric.server.http.response import CAUTION, HTML, Answer, Headers

_MEDIA = {
    "html": HTML,
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
    "webmanifest": b"application/manifest+json",
}
#: Pages by their path; everything else lies under /console.
PAGES = {"": "index.html", "answer": "answer.html"}
#: Only files of this server run, style and are asked. Scripts are never made from texts, except the address of the one
#: worker that lays out graphs.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types flowfabric"
)
HEADERS: Headers = (
    *CAUTION,
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    # Always asked for again, and answered without a body as long as it is the same.
    (b"cache-control", b"no-cache"),
    (b"vary", b"accept-encoding"),
)


#: Comments that have lines of their own, in scripts and styles.
_COMMENTS = re.compile(rb"^[ \t]*(?://[^\n]*|/\*(?:[^*]|\*(?!/))*\*/[ \t]*)$", re.MULTILINE)


class File(Struct, frozen=True):
    """One file, and the same packed."""

    body: bytes
    packed: bytes
    tag: bytes
    media: bytes


def _sent(name: str, body: bytes) -> bytes:
    """A file as it is sent: our own comments stay here, and every line keeps its number. Licences are sent."""
    if "vendor/" in name or not name.endswith((".js", ".css")):
        return body
    return _COMMENTS.sub(lambda found: b"\n" * found[0].count(b"\n"), body)


def _walk(folder: Traversable, prefix: str) -> dict[str, File]:
    found: dict[str, File] = {}
    for each in folder.iterdir():
        name = f"{prefix}{each.name}"
        if each.is_dir():
            found.update(_walk(each, f"{name}/"))
        elif (media := _MEDIA.get(each.name.rpartition(".")[2])) is not None:
            body = _sent(f"{prefix}{each.name}", each.read_bytes())
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode()
            found[name] = File(body, gzip.compress(body, 9, mtime=0), tag, media)
    return found


@cache
def assets() -> dict[str, File]:
    """Every file by the path it is served under, without the first slash; read once."""
    found = _walk(files(__name__).joinpath("static"), "")
    pages = {path: found.pop(name) for path, name in PAGES.items()}
    return {**pages, **{f"console/{name}": file for name, file in found.items()}}


def page(path: str, known: bytes | None, encodings: bytes | None) -> Answer | None:
    """The answer for a path, if the console has a file there."""
    file = assets().get(path)
    if file is None:
        return None
    headers: Headers = ((b"etag", file.tag),)
    if known is not None and file.tag in (each.strip().removeprefix(b"W/") for each in known.split(b",")):
        return Answer(304, headers=headers, policy=HEADERS)
    if b"gzip" in (encodings or b""):
        return Answer(200, file.packed, file.media, (*headers, (b"content-encoding", b"gzip")), HEADERS, shared=True)
    return Answer(200, file.body, file.media, headers, HEADERS, shared=True)
