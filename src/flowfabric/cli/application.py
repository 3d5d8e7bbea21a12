"""The application: its commands, its exit codes, and how it says that something is wrong.

Exit codes: 0 done; 1 refused or failed, the message says why; 2 called wrongly; 3 looked and found problems;
130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import cyclopts
from cyclopts.completion import detect_shell
from rich.markup import escape

from flowfabric.cli.import_module import import_target
from flowfabric.cli.run_ids import shortened
from flowfabric.cli.terminal import Misused, err
from flowfabric.model.errors import EngineError
from flowfabric.sdk.app import App
from flowfabric.sdk.errors import SdkError

OK, REFUSED, MISUSED, PROBLEMS, INTERRUPTED = 0, 1, 2, 3, 130

_F = TypeVar("_F", bound=Callable[..., Any])

#: Modules with commands, in the order in which help shows their groups.
MODULES = (
    "dev",
    "server",
    "admin",
    "worker",
    "start",
    "runs",
    "show",
    "flows",
    "act",
    "asks",
    "workers_and_budgets",
    "lanes",
    "schedules",
    "events",
    "token",
    "db",
    "doctor",
    "completion",
)

RUNNING = cyclopts.Group("Run", sort_key=1)
STARTING = cyclopts.Group("Start work", sort_key=2)
LOOKING = cyclopts.Group("Look", sort_key=3)
ACTING = cyclopts.Group("Act", sort_key=4)
OPERATING = cyclopts.Group("Operate", sort_key=5)


def _told(error: cyclopts.CycloptsError) -> str:
    """One line instead of a box; a mistyped command is told what may be meant."""
    sentence = " ".join(str(error).split())
    if isinstance(error, cyclopts.UnusedCliTokensError) and error.unused_tokens:
        sentence = _meant(error.unused_tokens[0], error.command_chain or ())
    return f"[red]flowfabric:[/red] {escape(sentence)} [dim]{escape(_help(error))}[/dim]"


def _meant(word: str, chain: Sequence[str]) -> str:
    """What a word may be that nobody takes."""
    home: cyclopts.App = application
    for name in chain:
        home = home[name]
    known = [each for each in home if not each.startswith("-")]
    close = difflib.get_close_matches(word, known, 1)
    hint = f' Did you mean "{close[0]}"?' if close else ""
    return f'Unexpected argument "{word}".{hint}' if not known else f'Unknown command "{word}".{hint}'


def _help(error: cyclopts.CycloptsError) -> str:
    return f"See {' '.join(('flowfabric', *(error.command_chain or ())))} --help."


def examples(*lines: str) -> str:
    """What help shows below a command's parameters."""
    return "Examples:\n\n" + "\n".join(f"  {line}" for line in lines)


class _Application(cyclopts.App):
    """The command line, whose scripts for shells offer more than generated ones do."""

    def generate_completion(
        self, *, prog_name: str | None = None, shell: Literal["zsh", "bash", "fish", "powershell"] | None = None
    ) -> str:
        from flowfabric.cli.completion_values import offering

        chosen = shell or detect_shell()
        return offering(super().generate_completion(prog_name=prog_name, shell=chosen), chosen)


application = _Application(
    name="flowfabric",
    help="Durable execution for Python: run workers and servers, manage runs, check a deploy before you make it.",
    help_epilogue=examples(
        "flowfabric dev                      start a server and its console",
        "flowfabric dev hello.py             … and a worker for the app in hello.py",
        "flowfabric run hello.py greet Ann   start a run and wait for its result",
        "flowfabric list --state failed      what went wrong",
    )
    + "\n\nCommands use the store or server that --url or FF_URL names, else the store of FF_BACKEND, else "
    "./flowfabric.db if it exists.",
    result_action="return_value",
    help_format="plaintext",
    version_flags=("--version",),
    error_formatter=_told,
    group_commands=OPERATING,
)


def command(
    home: cyclopts.App, name: str | None = None, *, group: cyclopts.Group | None = None, shows: tuple[str, ...] = ()
) -> Callable[[_F], _F]:
    """Register a command with its examples."""

    def register(function: _F) -> _F:
        extra: dict[str, Any] = {} if group is None else {"group": group}
        if shows:
            extra["help_epilogue"] = examples(*shows)
        home.command(function, name=name, **extra)
        return function

    return register


def load_app(target: str) -> App:
    """The app that ``module:name`` or ``path/to/file.py:name`` stands for; without a name, the only one there is."""
    where, _, name = target.partition(":")
    sys.path[:0] = [] if os.getcwd() in sys.path else [os.getcwd()]
    module = import_target(where, target)
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, App):
            raise Misused(f"{target}: {name!r} in {where} is not an App")
        return found
    apps = {each: value for each, value in vars(module).items() if isinstance(value, App)}
    if len({id(value) for value in apps.values()}) != 1:
        known = ", ".join(apps) or "none"
        raise Misused(f"{target}: name the app as {where}:name; apps found: {known}")
    return next(iter(apps.values()))


def loaded() -> cyclopts.App:
    """The application with all of its commands."""
    for name in MODULES:
        importlib.import_module(f"flowfabric.cli.commands.{name}")
    return application


def run(arguments: list[str]) -> int:
    """Run a command; its exit code. Whatever goes wrong is one sentence, never a traceback."""
    try:
        answer = loaded()(arguments or ["--help"], exit_on_error=False, print_error=True, error_console=err())
    except cyclopts.CycloptsError:
        return MISUSED
    except Misused as error:
        return _said("flowfabric", error, MISUSED)
    except (SdkError, EngineError) as error:
        text = str(error).replace("with App(…, token=…)", "with --token or FF_API_TOKEN")
        # Errors of the engine say their code themselves.
        return _said(error.code, text.removeprefix(f"{error.code}: "), REFUSED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has had enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if os.environ.get("FF_TRACEBACK") == "1":
            raise
        text = f"{type(error).__name__}: {error}. Set FF_TRACEBACK=1 for the traceback."
        return _said("unexpected", text, REFUSED)
    return answer if isinstance(answer, int) else OK


def _said(headline: str, error: object, code: int) -> int:
    text = shortened(" ".join(str(error).split()))
    err().print(f"[red]{escape(headline)}:[/red] {escape(text)}")
    return code
