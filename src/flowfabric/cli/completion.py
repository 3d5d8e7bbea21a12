"""``flowfabric completion``, and ``flowfabric --install-completion``."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from flowfabric.cli.application import OK, OPERATING, application, command
from flowfabric.cli.stores import AS_TEXT, How
from flowfabric.cli.terminal import say_json

application.register_install_completion_command(help="Set up completion for the shell that runs this.")


_FISH_VALUE = re.compile(r"^(complete -c flowfabric .* -[ls] \S+ )-r\b", re.MULTILINE)


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
    script = completed(application.generate_completion(prog_name="flowfabric", shell=shell), shell)
    if how.json:
        say_json({"shell": shell, "script": script})
    else:
        sys.stdout.write(script)
    return OK


#: The script only defines a function of another name. In a folder of ``fpath`` it is loaded as ``_flowfabric`` and has
#: to complete at once; read with ``source`` it has to be registered.
_ZSH = """
if [ "$funcstack[1]" = "_flowfabric" ]; then
  _cyclopts_flowfabric "$@"
else
  compdef _cyclopts_flowfabric flowfabric
fi
"""
#: No command takes files, so none are offered.
_FISH = "complete -c flowfabric -f\n"


def completed(script: str, shell: str) -> str:
    """A generated script with what it lacks to be used as the help of this command says."""
    if not script.endswith("\n"):
        script += "\n"
    if shell == "zsh":
        return script + _ZSH
    if shell == "fish":
        # Options with a value, too: -x is -r without files.
        return _FISH + _FISH_VALUE.sub(r"\1-x", script)
    return script
