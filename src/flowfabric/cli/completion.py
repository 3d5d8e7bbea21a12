"""``flowfabric completion``, and ``flowfabric --install-completion``."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from flowfabric.cli.application import OK, OPERATING, application, command
from flowfabric.cli.stores import AS_TEXT, How
from flowfabric.cli.terminal import say_json

application.register_install_completion_command(help="Set up completion for the shell that runs this.")


@command(
    application,
    group=OPERATING,
    shows=(
        "flowfabric completion bash >> ~/.bash_completion",
        "flowfabric completion zsh > ~/.zfunc/_flowfabric",
        "flowfabric completion fish > ~/.config/fish/completions/flowfabric.fish",
    ),
)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="For which shell.")], /, *, how: How = AS_TEXT
) -> int:
    """Print a script that lets a shell complete commands."""
    script = application.generate_completion(prog_name="flowfabric", shell=shell)
    if how.json:
        say_json({"shell": shell, "script": script})
    else:
        sys.stdout.write(script if script.endswith("\n") else script + "\n")
    return OK
