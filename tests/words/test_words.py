"""Every sentence that people can see is on one list, and none of them uses a word that has to be decoded.

The list is ``tests/words/sentences.txt``: read what changes in it aloud. ``./dev run python -m tests.words.test_words``
writes it again.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.words.collecting import collected, recorded, texts_of_the_console, texts_of_the_documents

LIST = Path(__file__).with_name("sentences.txt")

ROOT = Path(__file__).parents[2]
#: Code that is read, and what its comments never say.
ROOMS = ("src", "bench", "deploy", "examples")
FOREIGN = re.compile(r"\b(whoever|whomever|anew|thrice|hence|thereof|herewith)\b", re.IGNORECASE)
#: Words and phrases that are not the usual ones of the field, as regular expressions; and what to write instead.
BANNED = {
    r"whoever|whomever": "anyone, callers, those who",
    r"anew": "again, or 'new' before the noun",
    r"(it|they|that|which) (is|are) none": "is not a …, is not one of …",
    r"is none of": "is not one of",
    r"of late": "recently",
    r"besides": "in addition to, beside",
    r"(tells?|told|hears?|heard) of": "report, record, notify",
    r"what has come": "what arrived",
    r"let go\b(?! of)|lets go\b(?! of)": "released, continues",
    r"(is|are) at it": "is running on",
    r"begun": "started",
    r"for good": "with no retries left, for ever",
    r"its rhythm": "the schedule",
    r"(all that|nothing|that) fits?": "matches",
    r"nobody is asked": "no open questions",
    r"was given nothing": "no input",
    r"(yes|no) was said": "answer recorded: yes",
    r"needs a person": "needs attention",
    r"choose it, or not": "select or deselect",
    r"is too much here": "unexpected argument",
    r"(has|have) come\b(?! from| to)": "is due, arrived",
    r"(stands?|stood) (before|behind|under|in|at|there)": "comes before, is in",
    r"(?<!there )(?<!it )is no (?!longer|more|less|later|earlier|answer|reason|need|result|worker)\w+": "is not a …",
    r"set aside": "blocked, reserved",
    r"(went|goes) wrong with it": "failed",
    r"many a\b": "many",
    r"thrice|hence|thereby|thereof|wherein|whereof|herewith": "plain words",
    r"tried again": "retried",
    r"trying again": "retrying",
    r"takes (no writes|nothing)": "accepts no writes",
    r"outside its life": "before it was created",
}


def test_every_sentence_is_on_the_list() -> None:
    found = recorded(collected())
    if LIST.read_text() != found:
        before, after = set(LIST.read_text().splitlines()), set(found.splitlines())
        lines = [f"+ {each}" for each in sorted(after - before)] + [f"- {each}" for each in sorted(before - after)]
        pytest.fail("write the list again: ./dev run python -m tests.words.test_words\n" + "\n".join(lines))


@pytest.mark.parametrize("phrase", BANNED)
def test_nobody_has_to_decode_a_sentence(phrase: str) -> None:
    pattern = re.compile(rf"\b(?:{phrase})\b" if phrase[-1].isalnum() else rf"\b(?:{phrase})", re.IGNORECASE)
    found = [f"{where}: {text.strip()}" for where, text in texts() if pattern.search(text)]
    assert found == [], f"write instead: {BANNED[phrase]}"


def test_comments_are_plain_english_too() -> None:
    found = []
    for path in (each for room in ROOMS for each in sorted((ROOT / room).rglob("*"))):
        # Migrations that were released stay as they are, and so does what others have written.
        if path.suffix in (".py", ".js", ".css", ".lua") and not {"vendor", "migrations"} & set(path.parts):
            lines = path.read_text().splitlines()
            found += [
                f"{path.relative_to(ROOT)}:{number}" for number, line in enumerate(lines, 1) if FOREIGN.search(line)
            ]
    assert found == []


def test_the_list_holds_what_is_shown() -> None:
    """One text of each kind: a command's help, an option's, an output, an error of each layer, a table's row."""
    found = collected()
    assert "Skip the confirmation." in found["cli/commands/act.py"]
    assert "Change the priority of a waiting run." in found["cli/commands/act.py"]
    assert 'Unexpected argument "{…}".{…}' in found["cli/application.py"]
    assert "the lease has expired" in found["model/errors/kinds.py"]
    assert "{…}: must not be empty" in found["engine/checks/values.py"]
    assert "the app is already open" in found["sdk/app.py"]
    assert "It is running on worker {…}." in found["core/explain/explain.py"]
    assert all(len(lines) == len(set(lines)) for lines in found.values())


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Everything that is checked: where it is, and the text."""
    program = ((module, line) for module, lines in collected().items() for line in lines)
    return (*program, *texts_of_the_documents(), *texts_of_the_console())


if __name__ == "__main__":
    LIST.write_text(recorded(collected()))
