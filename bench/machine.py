"""What the figures were measured on."""

from __future__ import annotations

import datetime
import os
import platform
import sqlite3
import subprocess
from pathlib import Path

from bench import ROOT
from bench.workspace import Places


def describe(places: Places) -> dict[str, str]:
    """Processor, memory, disk, versions."""
    found = {
        "processor": f"{_processor()}, {_cores()} cores",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "disk of SQLite": _file_system(places.directory),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    if places.server is not None:
        found["postgresql"] = places.postgres_version
        found["disk of PostgreSQL"] = _file_system(places.server.directory)
    if places.valkey_directory is not None:
        found["valkey"] = places.valkey_version
        found["disk of Valkey"] = _file_system(places.valkey_directory)
    found["commit"] = _commit()
    return found


def load() -> str:
    """How busy the machine is: figures from a busy one say little."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def now() -> str:
    """The time, for the record."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def in_memory(places: Places) -> list[str]:
    """Names of the stores whose files are not on a disk, where durable commits cost nothing."""
    directories = {"SQLite": places.directory}
    if places.server is not None:
        directories["PostgreSQL"] = places.server.directory
    if places.valkey_directory is not None:
        directories["Valkey"] = places.valkey_directory
    return [name for name, path in directories.items() if _file_system(path).split()[0] in ("tmpfs", "ramfs")]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1024**3:.1f} GiB"
    except (ValueError, OSError):
        return "unknown"


def _file_system(path: Path) -> str:
    """Type and device of the file system, for example ``ext4 on /dev/vda1``."""
    best = ("", "unknown", "")
    try:
        for line in Path("/proc/self/mounts").read_text().splitlines():
            device, mounted, kind = line.split()[:3]
            within = path == Path(mounted) or Path(mounted) in path.parents
            if within and len(mounted) >= len(best[0]):
                best = (mounted, kind, device)
    except OSError:
        return "unknown"
    return f"{best[1]} on {best[2]}"


def _commit() -> str:
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
