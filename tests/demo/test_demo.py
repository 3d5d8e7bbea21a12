"""The demo ends by itself, keeps its promises and says so, on a terminal and without one."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "demo"]
TIMEOUT_S = 100
CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def environment(**more: str) -> dict[str, str]:
    """The variables of this process, without those that change how output looks."""
    kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")}
    return {**kept, "PYTHONUTF8": "1", **more}


def test_plain_lines_where_there_is_no_terminal() -> None:
    done = subprocess.run(
        COMMAND, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    for told in (
        r"executions submitted in one transaction",
        r"submitted again: \d+ duplicates, nothing new",
        r"is killed while it holds report 1",
        r"takes over report 1, epoch \d+",
        r"wakes up, wants to complete report 1: lease_conflict",
        r"an operator cancels crawl 1",
        r"an operator replays import 1",
        r"scan 1 hung and ran into its timeout: expired",
        r"all 300 executions have ended",
        r"taken over; epoch 1 is void",
        r"two drafts are in: edit may run, the third is cancelled in the same commit",
        r"a token with one digit changed: invalid_token",
        r"legal approves: appended to waitpoint duplicate",
        r"ops approves: resume condition satisfied",
        r"goes on with approve: legal and ops agreed",
        r"picture wants 35 cents, 20 are left: it is paused and asks",
        r"the flow has ended: published",
        r"Everything held\. 300 executions",
    ):
        assert re.search(told, done.stdout), f"{told!r} is missing in:\n{done.stdout}"
    assert "broken" not in done.stdout


def test_drawn_in_place_on_a_terminal() -> None:
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with subprocess.Popen(
        COMMAND,
        cwd=ROOT,
        env=environment(TERM="xterm-256color"),
        stdin=subprocess.DEVNULL,
        stdout=secondary,
        stderr=subprocess.STDOUT,
    ) as process:
        os.close(secondary)
        shown = read_all(primary)
        assert process.wait(TIMEOUT_S) == 0, shown.decode(errors="replace")
    assert CONTROL.search(shown), "nothing was drawn in place"
    plain = CONTROL.sub(b"", shown).decode()
    assert "stream of report 1, live" in plain
    assert "a quorum, two signatures, a budget" in plain
    assert "Everything held." in plain


def read_all(descriptor: int) -> bytes:
    """What was written to a terminal until the last writer closed it."""
    read = b""
    try:
        while piece := os.read(descriptor, 65_536):
            read += piece
    except OSError:
        pass  # Linux reports a terminal without writers as an error
    finally:
        os.close(descriptor)
    return read


def test_a_broken_promise_is_named_and_ends_with_1() -> None:
    """The demo must be able to fail: here it expects another end than the engine gave."""
    twisted = "import sys, demo.checks, demo.__main__; demo.checks.OUTCOMES['expired'] = 'success'; "
    done = subprocess.run(
        [sys.executable, "-c", f"{twisted} sys.exit(demo.__main__.main())"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "scan 1: announced ['expired'] instead of ['success']" in done.stdout
    assert "1 of 14 promises were broken" in done.stdout
