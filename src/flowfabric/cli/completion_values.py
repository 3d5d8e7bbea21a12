"""Values offered by shell completion: ids of runs, files with apps, and states."""

from __future__ import annotations

import re
from typing import Final

from flowfabric.model.states import PublicState

#: Commands whose first word is a run, and those whose first word is an app.
RUNS: Final = (
    "approve",
    "asks",
    "cancel",
    "flows",
    "logs",
    "priority",
    "replay",
    "result",
    "show",
    "signal",
    "tail",
    "why",
)
APPS: Final = ("check", "dev", "run", "submit", "worker")
_STATES: Final = " ".join(each.value for each in PublicState)
_WITH_VALUES = re.compile(r"local options_with_values='([^']*)'")

# Bash breaks words at colons and equals signs: the line itself is looked at, and what stands before the last break is
# not offered again.
_BASH: Final = r"""
_flowfabric_offers() {
  local line="${COMP_LINE:0:COMP_POINT}" skip=0 command="" count=0 word
  local cur="${line##*[[:space:]]}" given
  local -a words found=()
  read -ra words <<< "${line%"$cur"}"
  for word in "${words[@]:1}"; do
    if ((skip)); then skip=0; continue; fi
    case "$word" in
      -*) [[ " @VALUES@ " == *" $word "* ]] && skip=1 ;;
      *) if [[ -z "$command" ]]; then command="$word"; else count=$((count + 1)); fi ;;
    esac
  done
  given="${cur#*=}"
  if [[ "$cur" == --state=* ]] || { ((skip)) && [[ "${words[-1]}" == --state || "${words[-1]}" == -s ]]; }; then
    mapfile -t found < <(compgen -W "@STATES@" -- "$given")
  elif ((skip || count)) || [[ -z "$command" || "$cur" == -* ]]; then
    _flowfabric "$@"
    return
  elif [[ " @RUNS@ " == *" $command "* ]]; then
    mapfile -t found < <(compgen -W "$(flowfabric completion runs 2>/dev/null)" -- "$cur")
    [[ "$COMP_WORDBREAKS" == *:* && "$cur" == *:* ]] && found=("${found[@]#"${cur%:*}:"}")
  elif [[ " @APPS@ " == *" $command "* ]]; then
    mapfile -t found < <(compgen -d -- "$cur"; compgen -f -X '!*.py' -- "$cur")
    compopt -o filenames 2>/dev/null
  else
    _flowfabric "$@"
    return
  fi
  COMPREPLY=("${found[@]}")
}

complete -F _flowfabric_offers flowfabric
"""

#: The script only defines a function of another name. In a folder of ``fpath`` it is loaded as ``_flowfabric`` and has
#: to complete at once; read with ``source`` it has to be registered.
_ZSH: Final = """
_flowfabric_runs() {
  local -a found
  found=(${(f)"$(flowfabric completion runs 2>/dev/null)"})
  compadd -a found
}

if [ "$funcstack[1]" = "_flowfabric" ]; then
  _cyclopts_flowfabric "$@"
else
  compdef _cyclopts_flowfabric flowfabric
fi
"""
_ZSH_FIRST = re.compile(
    r"^(        (\S+)\)\n          _arguments \\\n            '1:(?:[^'\n]|'\\'')*)(' \\)$", re.MULTILINE
)
_ZSH_STATE = re.compile(r"^( *'\*(?:--state|-s)\[Only in this state[^\n]*\]:\w+)(' \\)$", re.MULTILINE)

#: Files are offered only where an app is meant.
_FISH: Final = "complete -c flowfabric -f\n"
#: Options with a value, too: -x is -r without files.
_FISH_VALUE = re.compile(r"^(complete -c flowfabric .* -[ls] \S+ )-r\b", re.MULTILINE)
_FISH_STATE = re.compile(r"^(complete -c flowfabric .* (?:-l state|-s s) -x)( -d 'Only in this state)", re.MULTILINE)


def offering(script: str, shell: str) -> str:
    """A generated script with what it lacks."""
    if not script.endswith("\n"):
        script += "\n"
    match shell:
        case "bash":
            return _bash(script)
        case "zsh":
            return _zsh(script)
        case "fish":
            return _fish(script)
    return script


def _bash(script: str) -> str:
    values = _WITH_VALUES.search(script)
    parts = {"VALUES": values[1] if values else "", "STATES": _STATES, "RUNS": " ".join(RUNS), "APPS": " ".join(APPS)}
    return script + re.sub(r"@([A-Z]+)@", lambda found: parts[found[1]], _BASH)


def _zsh(script: str) -> str:
    def first(found: re.Match[str]) -> str:
        action = ":_flowfabric_runs" if found[2] in RUNS else ":_files" if found[2] in APPS else ""
        return f"{found[1]}{action}{found[3]}"

    return _ZSH_STATE.sub(rf"\1:({_STATES})\2", _ZSH_FIRST.sub(first, script)) + _ZSH


def _fish(script: str) -> str:
    script = _FISH_STATE.sub(rf"\1 -a '{_STATES}'\2", _FISH_VALUE.sub(r"\1-x", script))
    lines = [_first_in_fish(name, "-f -a '(flowfabric completion runs 2>/dev/null)'") for name in RUNS]
    return _FISH + script + "".join(lines + [_first_in_fish(name, "-F") for name in APPS])


def _first_in_fish(name: str, offered: str) -> str:
    here = f"__fish_flowfabric_using_command {name}; and test (__fish_flowfabric_positional_index 1) = 0"
    return f"complete -c flowfabric -n '{here}' {offered}\n"
