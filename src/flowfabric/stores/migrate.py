"""Plain numbered SQL files, applied in order, each once, checked by checksum."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache
from importlib import resources
from typing import Any

from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.partitions import PartitionCounts

_log = logging.getLogger("flowfabric.stores")
#: What a file begins with that earlier releases cannot live with.
INCOMPATIBLE = "-- incompatible"
#: What a PostgreSQL file of indexes begins with that are made and dropped beside writers, outside of a transaction.
CONCURRENTLY = "-- concurrently"
#: What a database says of the migrations that were applied to it.
APPLIED = "SELECT version, checksum, backward_compatible FROM ff_migration_annotation ORDER BY version"
_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_INDEX = re.compile(r"(CREATE|CREATE UNIQUE|DROP) INDEX CONCURRENTLY (?:IF EXISTS )?(\w+)\b")


class Index(Struct, frozen=True):
    """A statement of such a file: it makes an index or drops one."""

    name: str
    made: bool
    statement: str


class Migration(Struct, frozen=True):
    """One file: ``0001_engine.sql``."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file's text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def backward_compatible(self) -> bool:
        """Whether earlier releases can live with it: a file says so if they cannot."""
        return not self.sql.startswith(INCOMPATIBLE)

    @property
    def concurrent(self) -> bool:
        """Whether it makes and drops indexes beside writers, and does nothing else."""
        return self.sql.startswith(CONCURRENTLY)

    def indexes(self) -> tuple[Index, ...]:
        """Its statements, if that is so."""
        plain = "\n".join(line for line in self.sql.splitlines() if not line.startswith("--"))
        found = [(each.strip(), _INDEX.match(each.strip())) for each in plain.split(";") if each.strip()]
        if any(match is None for _, match in found):
            raise ValueError(f"{self.version:04}_{self.name}: only indexes can be made or dropped concurrently")
        return tuple(Index(match[2], match[1] != "DROP", text) for text, match in found if match is not None)


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The files of a dialect (``sqlite`` or ``postgres``) in order."""
    found = [
        Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8"))
        for entry in resources.files("flowfabric.stores").joinpath("migrations", dialect).iterdir()
        if (match := _NAME.fullmatch(entry.name))
    ]
    return tuple(sorted(found, key=lambda migration: migration.version))


def binding(dialect: str, rows: Iterable[Sequence[Any]]) -> dict[int, str]:
    """The checksums of ``APPLIED`` rows by version. Migrations of a later release count only if this one cannot live
    with them: so there is a way back."""
    known = {migration.version for migration in migrations(dialect)}
    later = [version for version, _, compatible in rows if version not in known and compatible]
    if later:
        names = ", ".join(f"{version:04}" for version in later)
        _log.warning("a later release has migrated the database (%s); this one can live with it", names)
    return {version: checksum for version, checksum, compatible in rows if version in known or not compatible}


def pending(dialect: str, applied: dict[int, str]) -> tuple[Migration, ...]:
    """What is still to be applied. A file that changed after it was applied is refused, and so is one that this release
    does not know."""
    known = {migration.version: migration for migration in migrations(dialect)}
    for version, checksum in applied.items():
        if version not in known:
            raise Validation(
                ValidationKind.CORRUPTION,
                f"the database has migration {version:04}, which this release does not know; upgrade flowfabric",
            )
        if checksum != known[version].checksum:
            raise Validation(
                ValidationKind.CORRUPTION,
                f"migration {version:04} was applied from a different file; restore the released file",
            )
    return tuple(migration for version, migration in sorted(known.items()) if version not in applied)


_steps: ContextVar[Callable[[Migration], None] | None] = ContextVar("flowfabric_migration_steps", default=None)


@contextlib.contextmanager
def watched(step: Callable[[Migration], None]) -> Iterator[None]:
    """Let a function hear of each file as it is applied."""
    token = _steps.set(step)
    try:
        yield
    finally:
        _steps.reset(token)


def applied(migration: Migration) -> None:
    """A file was applied."""
    _log.debug("migration %04d_%s applied", migration.version, migration.name)
    step = _steps.get()
    if step is not None:
        step(migration)


#: What opening a store does about its tables: bring them up to date, refuse those that are not, or take them as they
#: are.
APPLY, CHECK, TAKE = "apply", "check", "take"


def wanted(migrate: object) -> str:
    """One of them, from what a caller gave; true and false are the first and the last. Without any it is what the
    environment says, in every process: where migrations are applied elsewhere, nobody should do so here."""
    if migrate is None:
        migrate = os.environ.get("FF_MIGRATE") or APPLY
    found = {True: APPLY, False: TAKE}.get(migrate) if isinstance(migrate, bool) else migrate
    if found not in (APPLY, CHECK, TAKE):
        raise Validation(ValidationKind.INVALID_INPUT, f"migrate: expected 'apply', 'check' or 'take', got {migrate!r}")
    return str(found)


def refuse_pending(dialect: str, applied: dict[int, str]) -> None:
    """Refuse tables that are not up to date."""
    missing = pending(dialect, applied)
    if missing and not applied:
        raise Validation(
            ValidationKind.INVALID_INPUT,
            "the database has no FlowFabric tables yet; create them with `flowfabric db migrate`, or start with "
            "FF_MIGRATE=apply",
        )
    if missing:
        names = ", ".join(f"{migration.version:04}" for migration in missing)
        raise Validation(
            ValidationKind.INVALID_INPUT,
            f"the database lacks the migrations {names}; apply them with `flowfabric db migrate`, or start with "
            "FF_MIGRATE=apply",
        )


def check_counts(stored: PartitionCounts, given: PartitionCounts | None) -> None:
    """Refuse counts that are not those of the first start."""
    if given is not None and given != stored:
        raise Validation(
            ValidationKind.INVALID_INPUT,
            f"partition_mismatch: the database has {_shown(stored)}, and {_shown(given)} are configured. Partition "
            "counts are fixed at deployment time: use the counts of the database, or start with an empty one",
        )


def _shown(counts: PartitionCounts) -> str:
    return f"{counts.flow} flow, {counts.budget} budget and {counts.quota} quota partitions"


def script(dialect: str) -> str:
    """All migrations of a dialect as one printable text."""
    return "\n".join(f"-- {m.version:04}_{m.name} sha256={m.checksum}\n{m.sql}" for m in migrations(dialect))
