"""The application: its commands, how it speaks, and its exit codes.

Exit codes: 0 done; 1 refused or failed, the message says why; 2 called wrongly; 3 looked and found problems.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import cyclopts
import msgspec
from rich.console import Console

from flowfabric.model.errors import EngineError
from flowfabric.sdk.app import App
from flowfabric.sdk.errors import SdkError

OK, REFUSED, MISUSED, PROBLEMS = 0, 1, 2, 3

application = cyclopts.App(
    name="flowfabric",
    help="Durable execution for Python: run workers, look after runs, check a deploy before it happens.",
    result_action="return_value",
    help_format="plaintext",
)


class Misused(Exception):
    """Something that was typed cannot be meant; the message says what to type instead."""


def out() -> Console:
    """Where people read: colours only if a terminal shows them."""
    return Console(highlight=False, soft_wrap=True)


def say_json(document: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2).decode() + "\n")


def load_app(target: str) -> App:
    """The app that ``module:name`` or ``path/to/file.py:name`` stands for; without a name, the only one there is."""
    where, _, name = target.partition(":")
    sys.path[:0] = [] if os.getcwd() in sys.path else [os.getcwd()]
    try:
        module = _module(where)
    except ModuleNotFoundError as error:
        raise Misused(f"{target}: there is no module {error.name!r}; run this where it can be imported") from None
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


def run(arguments: list[str]) -> int:
    """Run a command; its exit code."""
    for group in ("working", "serving", "runs", "operating", "databases"):
        importlib.import_module(f"flowfabric.cli.{group}")
    try:
        answer = application(arguments, exit_on_error=False, print_error=True)
    except cyclopts.CycloptsError:
        return MISUSED
    except Misused as error:
        Console(stderr=True, highlight=False).print(f"[red]flowfabric:[/red] {error}", markup=True, soft_wrap=True)
        return MISUSED
    except (SdkError, EngineError) as error:
        code = getattr(error, "code", type(error).__name__)
        Console(stderr=True, highlight=False).print(f"[red]{code}:[/red] {error}", markup=True, soft_wrap=True)
        return REFUSED
    except KeyboardInterrupt:
        return 130
    return answer if isinstance(answer, int) else OK
