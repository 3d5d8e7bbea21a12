"""The command line: ``flowfabric``. One module per group of commands; see ``application`` for what they share."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the ``flowfabric`` script."""
    try:
        from flowfabric.cli.application import run
    except ModuleNotFoundError as error:
        if error.name not in ("cyclopts", "rich"):
            raise
        sys.exit(f"flowfabric: the command line needs {error.name}; install it with: pip install 'flowfabric[cli]'")
    sys.exit(run(sys.argv[1:]))
