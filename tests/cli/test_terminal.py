"""The command line in a real terminal: colours, bars, questions, keys, and completion in bash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import sqlite3
import subprocess
from pathlib import Path

import pytest
from cyclopts import Token

from flowfabric import App
from flowfabric.cli.application import loaded
from flowfabric.cli.commands.completion import OFFERED
from flowfabric.cli.completion_values import APPS, RUNS
from flowfabric.cli.run_ids import read, read_any, short
from flowfabric.cli.terminal import Misused
from flowfabric.model.states import PublicState
from flowfabric.stores.migrate import migrations
from tests.cli.filling import WORK, fill
from tests.cli.pseudo import COMMAND, Terminal, environment
from tests.docs.test_commands import commands

COLOUR = "\x1b["


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


def piped(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The same without a terminal."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_colours_are_for_terminals(folder: Path) -> None:
    ids = asyncio.run(fill(f"sqlite:///{folder}/flowfabric.db"))
    with Terminal("list", cwd=folder) as terminal:
        assert terminal.end() == 0
        assert COLOUR in terminal.shown
        assert short(ids["done"]) in terminal.text
    with Terminal("list", cwd=folder, NO_COLOR="1") as terminal:
        assert terminal.end() == 0
        assert not re.search(r"\x1b\[3[0-9]", terminal.shown), "no colours"
    with Terminal("list", cwd=folder, columns=70) as terminal:
        assert terminal.end() == 0
        assert short(ids["done"]) in terminal.text, "an id is never cut, however narrow the terminal"
    done = piped(folder, "list")
    assert COLOUR not in done.stdout
    assert all(len(line) < 400 for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) == 7
    with Terminal("list", "--json", cwd=folder) as terminal:
        assert terminal.end() == 0
        assert COLOUR not in terminal.shown
        assert len(json.loads(terminal.text)) == 6


def test_a_question_before_many_are_cancelled(folder: Path) -> None:
    async def start() -> None:
        async with App(f"sqlite:///{folder}/flowfabric.db") as app:
            await app.engine.create_executions([{"execution_kind": "import"} for _ in range(300)])

    asyncio.run(start())
    with Terminal("cancel", "--kind", "import", cwd=folder) as terminal:
        terminal.until(r"… and 290 more")
        terminal.until(r"Cancel 300 runs\? \[y/N\]")
        terminal.type("n\n")
        assert terminal.end() == 1
        assert "aborted: nothing changed" in terminal.text
    with Terminal("cancel", "--kind", "import", cwd=folder) as terminal:
        terminal.until(r"\[y/N\]")
        terminal.type("\x03")
        assert terminal.end() == 130
    with Terminal("cancel", "--kind", "import", cwd=folder) as terminal:
        terminal.until(r"\[y/N\]")
        terminal.type("y\n")
        assert terminal.end() == 0
        assert "cancelled 300 runs" in terminal.text
        assert "━" in terminal.text, "a bar tells how far it is"
        assert re.search(r"\d+/300", terminal.text)
    assert "nothing to cancel" in piped(folder, "cancel", "--kind", "import", "--yes").stdout


def test_ctrl_c_stops_following_and_nothing_else(folder: Path) -> None:
    with Terminal("dev", "work.py", "--no-reload", "--listen", "127.0.0.1:0", cwd=folder) as server:
        server.until("Ctrl-C to stop")
        run = piped(folder, "submit", "work.py", "slow", "60").stdout.strip()
        with Terminal("tail", run, cwd=folder) as terminal:
            terminal.until("3 ")
            terminal.type("\x03")
            assert terminal.end() == 130
            assert "Traceback" not in terminal.text
        with Terminal("run", "work.py", "slow", "60", cwd=folder) as terminal:
            terminal.until(r"0 1 2 ")
            terminal.type("\x03")
            assert terminal.end() == 130
        states = [each["public_state"] for each in json.loads(piped(folder, "list", "--json").stdout)]
        assert states == ["active", "active"]
        server.type("\x03")
        assert server.end() == 0
        assert "Traceback" not in server.text


def test_a_reader_that_has_had_enough(folder: Path) -> None:
    asyncio.run(fill(f"sqlite:///{folder}/flowfabric.db"))
    text = " ".join([*map(_quoted, COMMAND), "events", "|", "true"])
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


class Bash:
    """Completion in a real bash: the words of a line are broken as bash does it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = piped(folder, "completion", "bash")
        assert script.returncode == 0
        (folder / "completion.bash").write_text(script.stdout)
        command = folder / "bin" / "flowfabric"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
        command.chmod(0o755)

    def __call__(self, line: str, **changes: str) -> set[str]:
        words = [each for each in re.split(r"(?<=[ :=])|(?=[:=])", line) if each != " "]
        words = [each.strip() for each in words] + ([""] if line.endswith(" ") else [])
        program = f"""
        source ./completion.bash
        COMP_WORDS=({" ".join(map(shlex.quote, words))})
        COMP_CWORD={len(words) - 1}
        COMP_LINE={shlex.quote(line)}
        COMP_POINT={len(line)}
        $(complete -p flowfabric | sed -E 's/.*-F ([^ ]+).*/\\1/') flowfabric {shlex.quote(words[-1])} {words[-2]}
        printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        found = environment(**changes)
        done = subprocess.run(
            ["bash", "--norc", "-c", program],
            cwd=self.folder,
            env=found | {"PATH": f"{self.folder}/bin:{found.get('PATH', '/usr/bin:/bin')}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == "", done.stderr
        return set(done.stdout.split())


def test_completion_in_bash(folder: Path) -> None:
    completed = Bash(folder)
    assert completed("flowfabric li") == {"list"}
    assert {"dev", "worker", "doctor", "token"} <= completed("flowfabric ")
    assert completed("flowfabric lanes pa") == {"pause"}
    assert {"--state", "--since"} <= completed("flowfabric list --s")
    assert completed("flowfabric completion b") == {"bash"}
    states = {each.value for each in PublicState}
    for line in ("flowfabric list --state ", "flowfabric list -s ", "flowfabric cancel --state="):
        assert completed(line) == states
    assert completed("flowfabric replay --kind x --state fa") == {"failed"}
    assert completed("flowfabric list --state=fa") == {"failed"}
    (folder / "notes.txt").write_text("")
    (folder / "apps").mkdir()
    for name in APPS:
        assert completed(f"flowfabric {name} ") == {"work.py", "apps", "bin"}
        assert completed(f"flowfabric {name} wo") == {"work.py"}
    assert "work.py" not in completed("flowfabric why w")


def test_completion_of_runs_in_bash(folder: Path) -> None:
    completed = Bash(folder)
    assert completed("flowfabric why ") == set(), "without a store there is nothing to say"
    assert completed("flowfabric why ", FF_URL="http://127.0.0.1:1") == set()
    assert not (folder / "flowfabric.db").exists()
    ids = {
        short(each) for name, each in asyncio.run(fill(f"sqlite:///{folder}/flowfabric.db")).items() if name != "link"
    }
    for name in ("why", "result --timeout 5s", "cancel"):
        assert completed(f"flowfabric {name} ") >= ids
    one = min(ids)
    partition, rest = one.split(":")
    assert rest in completed(f"flowfabric show {partition}:{rest[:4]}"), "bash has the part before the colon"
    assert one in completed(f"flowfabric show {partition}")
    assert completed(f"flowfabric priority {one} ") == set(), "the number is not a run"
    listed = json.loads(piped(folder, "completion", "runs", "--json").stdout)["runs"]
    assert set(listed) >= ids
    assert piped(folder, "completion", "runs", FF_URL="nonsense://").stdout == ""
    older = folder / "older.db"
    older.touch(mode=0o600)
    assert piped(folder, "completion", "runs", "--url", f"sqlite:///{older}").stdout == ""
    with contextlib.closing(sqlite3.connect(older)) as database:
        assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,), "a key changes no tables"


def test_only_the_newest_runs_are_offered(folder: Path) -> None:
    async def many() -> None:
        async with App(f"sqlite:///{folder}/flowfabric.db") as app:
            await app.engine.create_executions([{"lane_id": "x"} for _ in range(OFFERED + 5)])

    asyncio.run(many())
    assert len(piped(folder, "completion", "runs").stdout.split()) == OFFERED


def test_what_is_completed_is_what_commands_take() -> None:
    """Each command whose first word is an id or an app is known to the scripts."""
    takes_ids, takes_apps = set(), set()
    for path, command in commands():
        first = next((each for each in command.assemble_argument_collection() if not each.name.startswith("-")), None)
        if first is not None and len(path) == 1:
            takes_ids |= {path[0]} if first.parameter.converter in (read, read_any) else set()
            takes_apps |= {path[0]} if re.match(r"The app\b", first.parameter.help or "") else set()
    assert (takes_ids, takes_apps) == (set(RUNS), set(APPS))


def test_completion_for_zsh_and_fish(folder: Path) -> None:
    """What these shells were seen to need; every command and option is offered by both."""
    zsh, fish = (piped(folder, "completion", shell).stdout for shell in ("zsh", "fish"))
    assert zsh.startswith("#compdef flowfabric\n"), "compinit looks at the first line"
    # Loaded as _flowfabric it completes at once, read with source it is registered.
    then, _, other = zsh.rpartition('if [ "$funcstack[1]" = "_flowfabric" ]; then\n')[2].partition("else\n")
    assert then.strip() == '_cyclopts_flowfabric "$@"'
    assert other.strip().splitlines() == ["compdef _cyclopts_flowfabric flowfabric", "fi"]
    assert "\n_cyclopts_flowfabric() {\n" in zsh
    assert fish.startswith("complete -c flowfabric -f\n"), "no files where none are meant"
    assert not re.search(r"^complete .* -[ls] \S+ -r", fish, re.MULTILINE)
    assert re.search(r"^complete .* -l state -x -a 'waiting delayed .*failed", fish, re.MULTILINE)
    for name in RUNS:
        assert re.search(
            rf"^        {name}\)\n          _arguments .*\n            '1:.*:_flowfabric_runs' ", zsh, re.MULTILINE
        )
        assert re.search(
            rf"_command {name}; and .*-f -a '\(flowfabric completion runs 2>/dev/null\)'$", fish, re.MULTILINE
        )
    for name in APPS:
        assert re.search(rf"^        {name}\)\n          _arguments .*\n            '1:.*:_files' ", zsh, re.MULTILINE)
        assert re.search(rf"_command {name}; and .* -F$", fish, re.MULTILINE)
    assert zsh.count(":(waiting delayed ") == fish.count("-a 'waiting delayed ") == 6
    seen = set()
    for each in loaded():
        if each.startswith("-"):
            continue
        seen.add(each)
        assert f"\n        '{each}:" in zsh, each
        assert f"complete -c flowfabric -n __fish_use_subcommand -a '{each}' " in fish, each
    assert {"dev", "worker", "doctor", "token", "list"} <= seen
    for option in ("--since", "--flow-partitions", "--no-console"):
        assert option in zsh
        assert f"-l {option[2:]} " in fish


def test_installing_completion(folder: Path) -> None:
    home = folder / "home"
    home.mkdir()
    done = piped(folder, "--install-completion", HOME=str(home), SHELL="/bin/bash")
    assert done.returncode == 0, done.stderr
    written = [path for path in home.rglob("*") if path.is_file()]
    assert any("flowfabric completion runs" in path.read_text() for path in written)


def test_each_migration_is_told_of_as_it_is_applied(folder: Path) -> None:
    (folder / "flowfabric.db").unlink(missing_ok=True)
    names = [f"{each.version:04}_{each.name}" for each in migrations("sqlite")]
    with Terminal("db", "migrate", cwd=folder) as terminal:
        assert terminal.end() == 0
        assert re.findall(r"done +(\d{4}_\w+)", terminal.text) == names
        assert "migrating sqlite" in terminal.text
        assert f"applied {names[0]}, {names[1]}" in " ".join(terminal.text.split())
    with Terminal("db", "migrate", cwd=folder) as terminal:
        assert terminal.end() == 0
        assert "done" not in terminal.text


def test_help_in_a_narrow_terminal(folder: Path) -> None:
    with Terminal("--help", cwd=folder, columns=60) as terminal:
        assert terminal.end() == 0
        assert all(len(line) <= 60 for line in terminal.text.splitlines())


def test_without_anything_help_is_shown(folder: Path) -> None:
    done = piped(folder)
    assert done.returncode == 0
    assert "flowfabric dev" in done.stdout


def test_a_worker_stops_at_ctrl_c(folder: Path) -> None:
    with Terminal("worker", "work.py", cwd=folder) as terminal:
        terminal.until("serves default")
        terminal.type("\x03")
        assert terminal.end() == 0
        assert "has stopped" in terminal.text


@pytest.mark.parametrize("typed", ["", "nope", "7:", "86:01a1f678", "{fp:86}:01a1f678", "{fp:86}", "{fp:x}:0"])
def test_what_is_no_id_of_a_run_says_where_ids_are(typed: str) -> None:
    with pytest.raises(Misused, match="not the id of a run; `flowfabric list` shows ids, such as 7:1f0c…"):
        read(None, [Token(value=typed)])


@pytest.mark.parametrize("typed", ["86:{}", "{{fp:86}}:{}"])
def test_ids_are_typed_as_they_are_printed_or_as_programs_have_them(typed: str) -> None:
    uuid = "01a1f678-dc8e-7000-8000-0002f9ef119e"
    assert read(None, [Token(value=typed.format(uuid))]) == f"{{fp:86}}:{uuid}"
