"""Plain numbered SQL files, applied in order, each once, checked by checksum."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources

from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


class Migration(Struct, frozen=True):
    """One file: ``0001_engine.sql``."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file's text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The files of a dialect (``sqlite`` or ``postgres``) in order."""
    found = [
        Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8"))
        for entry in resources.files("flowfabric.stores").joinpath("migrations", dialect).iterdir()
        if (match := _NAME.fullmatch(entry.name))
    ]
    return tuple(sorted(found, key=lambda migration: migration.version))


def pending(dialect: str, applied: dict[int, str]) -> tuple[Migration, ...]:
    """What is still to be applied. A file that changed after it was applied, or a newer database, is refused."""
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


def script(dialect: str) -> str:
    """All migrations of a dialect as one printable text."""
    return "\n".join(f"-- {m.version:04}_{m.name} sha256={m.checksum}\n{m.sql}" for m in migrations(dialect))
