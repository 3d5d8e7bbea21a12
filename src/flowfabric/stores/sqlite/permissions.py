"""Who may read the files of a SQLite database: they hold payloads and the keys that sign tokens."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import stat

from flowfabric.stores.sqlite.location import Location, locate

_log = logging.getLogger("flowfabric.stores.sqlite")
#: For its owner alone.
PRIVATE = 0o600
#: What SQLite keeps beside a database, with the database's mode.
COMPANIONS = ("", "-wal", "-shm", "-journal")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
#: Files whose readers were warned of in this process.
_warned: set[str] = set()


def make_private(location: Location) -> None:
    """Make the file of a new database, for its owner alone whatever the umask, before SQLite does."""
    if location.in_memory or not location.may_create:
        return
    # What cannot be made is for SQLite to complain about.
    with contextlib.suppress(OSError):
        made = os.open(location.identity, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE)
        try:
            if os.name == "posix":
                os.fchmod(made, PRIVATE)
        finally:
            os.close(made)


def exposed(location: Location) -> tuple[str, ...]:
    """The files of a database that others than their owner may read or write."""
    if location.in_memory or os.name != "posix":
        return ()
    found = []
    for companion in COMPANIONS:
        with contextlib.suppress(OSError):
            if os.stat(location.identity + companion).st_mode & _OTHERS:
                found.append(location.identity + companion)
    return tuple(found)


def exposed_files(url: str) -> tuple[str, ...]:
    """The same by the address of a store; other stores have no files of ours."""
    return exposed(locate(url)) if url.startswith(("sqlite:", "file:")) else ()


def remedy(files: tuple[str, ...]) -> str:
    """The command that keeps others out."""
    return "chmod 600 " + " ".join(map(shlex.quote, files))


def warn_if_exposed(location: Location) -> None:
    """Say once that others may read the database. Its mode is its owner's business, so it is not changed."""
    files = exposed(location)
    if files and location.identity not in _warned:
        _warned.add(location.identity)
        _log.warning(
            "other users of this machine can open %s, which holds payloads and signing keys; lock them out: %s",
            location.identity,
            remedy(files),
        )
