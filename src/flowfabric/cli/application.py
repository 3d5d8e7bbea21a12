"""The application: its commands, its exit codes, and how it says that something is wrong.

Exit codes: 0 done; 1 refused or failed, the message says why; 2 called wrongly; 3 looked and found problems;
130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import cyclopts
from rich.markup import escape

from flowfabric.cli.terminal import Misused, err
from flowfabric.model.errors import EngineError
from flowfabric.sdk.app import App
from flowfabric.sdk.errors import SdkError

OK, REFUSED, MISUSED, PROBLEMS, INTERRUPTED = 0, 1, 2, 3, 130

_F = TypeVar("_F", bound=Callable[..., Any])

#: Modules with commands, in the order in which help shows their groups.
MODULES = (
    "developing",
    "serving",
    "administering",
    "working",
    "starting",
    "runs",
    "story",
    "graphs",
    "acting",
    "questions",
    "surroundings",
    "lanes",
    "schedules",
    "happenings",
    "credentials",
    "databases",
    "diagnosis",
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
    home = application
    for name in chain:
        home = home[name]
    known = [each for each in home if not each.startswith("-")]
    close = difflib.get_close_matches(word, known, 1)
    hint = f' Did you mean "{close[0]}"?' if close else ""
    return f'"{word}" is too much here.{hint}' if not known else f'Unknown command "{word}".{hint}'


def _help(error: cyclopts.CycloptsError) -> str:
    return f"See {' '.join(('flowfabric', *(error.command_chain or ())))} --help."


def examples(*lines: str) -> str:
    """What help shows below a command's parameters."""
    return "Examples:\n\n" + "\n".join(f"  {line}" for line in lines)


application = cyclopts.App(
    name="flowfabric",
    help="Durable execution for Python: run workers and servers, look after runs, check a deploy before it happens.",
    help_epilogue=examples(
        "flowfabric dev                      a server and its console, from zero",
        "flowfabric dev hello.py             … and a worker for the app in hello.py",
        "flowfabric run hello.py greet Ann   start a run and wait for its result",
        "flowfabric list --state failed      what went wrong",
    )
    + "\n\nCommands look at the store or server that --url or FF_URL names, else at ./flowfabric.db if it is there.",
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
    try:
        module = _module(where)
    except ModuleNotFoundError as error:
        raise Misused(f"{target}: there is no module {error.name!r}; run this where it can be imported") from None
    except Misused:
        raise
    except Exception as error:
        raise Misused(f"{target}: it cannot be imported: {type(error).__name__}: {error}{_place(error)}") from error
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, App):
            raise Misused(f"{target}: {name!r} is no App in {where}")
        return found
    apps = {each: value for each, value in vars(module).items() if isinstance(value, App)}
    if len({id(value) for value in apps.values()}) != 1:
        known = ", ".join(apps) or "none"
        raise Misused(f"{target}: say which app is meant, {where}:name; there are: {known}")
    return next(iter(apps.values()))


def _place(error: BaseException) -> str:
    """Where in the user's code it happened."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if isinstance(error, SyntaxError) or trace is None:
        return ""
    return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.exists() or spec is None or spec.loader is None:
        raise Misused(f"{where}: there is no such file")
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def loaded() -> cyclopts.App:
    """The application with all of its commands."""
    for name in MODULES:
        importlib.import_module(f"flowfabric.cli.{name}")
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
        text = str(error).replace("give App(…, token=…) one that is", "say --token, or set FF_API_TOKEN")
        return _said(str(getattr(error, "code", type(error).__name__)), text, REFUSED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read, as `head` does, has had enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if os.environ.get("FF_TRACEBACK") == "1":
            raise
        text = f"{type(error).__name__}: {error}. Set FF_TRACEBACK=1 to see where."
        return _said("unexpected", text, REFUSED)
    return answer if isinstance(answer, int) else OK


def _said(headline: str, error: object, code: int) -> int:
    text = " ".join(str(error).split())
    err().print(f"[red]{escape(headline)}:[/red] {escape(text)}")
    return code
