"""Error answers of a Valkey server, and what to do about them."""

from __future__ import annotations

from typing import Any

import libvalkey

from flowfabric.model.errors import Transport, TransportKind

_AUTH, _CLUSTER, _OTHER, _PROTOCOL = (
    TransportKind.AUTH,
    TransportKind.CLUSTER,
    TransportKind.OTHER,
    TransportKind.PROTOCOL,
)
#: Servers may repeat arguments in their answers; nobody wants to read a commit in an error.
ANSWER_LIMIT = 300

#: The first word of an answer.
BY_WORD: dict[str, tuple[TransportKind, str]] = {
    "NOAUTH": (_AUTH, "the server wants a password: write valkey://user:password@host in the store URL"),
    "WRONGPASS": (
        _AUTH,
        (
            "the server refused the user or the password of the store URL: correct them, and write the characters "
            ": / ? # [ ] @ % of a password percent-encoded"
        ),
    ),
    "NOPERM": (
        _AUTH,
        (
            "the account of the store URL lacks a permission: give it (ACL SETUSER) all keys and channels below the "
            "prefix, and the commands that FlowFabric uses"
        ),
    ),
    "DENIED": (_AUTH, "the server runs in protected mode and refuses other machines: set a password there"),
    "READONLY": (_CLUSTER, "the server is a read-only replica: use the primary in the store URL"),
    "MASTERDOWN": (_CLUSTER, "the server is a replica that has lost its primary: use the primary in the store URL"),
    "NOREPLICAS": (
        _CLUSTER,
        "nothing was written: fewer replicas are connected than the server's min-replicas-to-write; start them",
    ),
    "UNBLOCKED": (_CLUSTER, "the server has just become a replica: use the primary in the store URL"),
    "CLUSTERDOWN": (_CLUSTER, "the cluster that the server belongs to is down: wait for it, or repair it"),
    "TRYAGAIN": (_CLUSTER, "the cluster is moving keys: retry when it has finished"),
    "ASK": (_CLUSTER, "the cluster is moving keys: retry when it has finished"),
    "MOVED": (
        _PROTOCOL,
        "the server belongs to a cluster, and another node holds these keys: use a server that is not in cluster mode",
    ),
    "CROSSSLOT": (
        _PROTOCOL,
        "the server belongs to a cluster, which spreads these keys: use a server that is not in cluster mode",
    ),
    "OOM": (
        _OTHER,
        "nothing was written: the server is out of memory; raise its maxmemory, or shorten what is retained",
    ),
    "MISCONF": (
        _OTHER,
        (
            "nothing was written: the server refuses writes because it cannot save to its disk; see its log, and make "
            "room or repair the disk"
        ),
    ),
    "LOADING": (TransportKind.BUSY_LOADING, "the server is still reading its data from the disk: wait for it"),
    "BUSY": (
        TransportKind.TIMEOUT,
        (
            "nothing was done: a function or script keeps the server busy; wait for its end, or stop it with "
            "FUNCTION KILL or SCRIPT KILL"
        ),
    ),
    "GONE": (
        _OTHER,
        (
            "nothing was read or written: the data was emptied or replaced while this process used it; restore it, or "
            "restart this process to begin with an empty store"
        ),
    ),
    "WRONGTYPE": (
        _PROTOCOL,
        "another program uses one of FlowFabric's keys: give FlowFabric its own prefix (?prefix=) or database",
    ),
}

#: What a function meets that uses a command or a key for which the account has no right.
_LATE = "ACL failure in script"
#: A part of answers that begin with no more than ``ERR``.
BY_PART: dict[str, tuple[TransportKind, str]] = {
    _LATE: BY_WORD["NOPERM"],
    "killed by user": (
        TransportKind.TIMEOUT,
        "the function was stopped before it wrote anything: retry",
    ),
    "AUTH <password> called without any password": (
        _AUTH,
        "the store URL has a password and the server has none: set one there, or leave it out",
    ),
    "max number of clients": (_OTHER, "the server is out of connections: raise its maxclients, or close some"),
    "DB index is out of range": (
        _PROTOCOL,
        "the server does not have this database: use a lower number in the store URL",
    ),
    "SELECT is not allowed in cluster mode": (_PROTOCOL, "a server in cluster mode has only database 0: use that one"),
    "Function not found": (TransportKind.SCRIPT_NOT_LOADED, "the server has lost FlowFabric's functions"),
    "unknown command": (
        _PROTOCOL,
        "the server lacks a command: FlowFabric needs Valkey 7.2 or newer, with no command renamed",
    ),
    "unknown subcommand": (
        _PROTOCOL,
        "the server lacks a command: FlowFabric needs Valkey 7.2 or newer, with no command renamed",
    ),
}


class Refusal(Transport):
    """The server answered with an error, whose first word is `word`."""

    def __init__(self, kind: TransportKind, sentence: str, word: str, *, half_way: bool = False) -> None:
        super().__init__("valkey", kind, sentence)
        self.word = word
        #: Whether a function may have written something before it failed.
        self.half_way = half_way


def refusal(answer: object) -> Refusal:
    """An error answer as an error of the engine; of an answer nobody has given, the first word is enough."""
    text = str(answer)
    word = text.partition(" ")[0]
    found = BY_WORD.get(word) or next((meant for part, meant in BY_PART.items() if part in text), None)
    said = text if len(text) <= ANSWER_LIMIT else text[:ANSWER_LIMIT] + "…"
    if found is None:
        return Refusal(_OTHER, f"the server said: {said}", word, half_way=True)
    sentence = found[1] if said == word else f"{found[1]}. The server said: {said}"
    return Refusal(found[0], sentence, word, half_way=_LATE in text)


def checked(answers: list[Any]) -> list[Any]:
    """The answers, unless one is an error."""
    for answer in answers:
        if isinstance(answer, libvalkey.ReplyError):
            raise refusal(answer)
    return answers


def unknown(reason: object) -> Transport:
    """A commit was sent, and nobody can say what became of it."""
    return Transport(
        "valkey", TransportKind.TRANSPORT, f"connection lost during commit, outcome unknown: {_told(reason)}"
    )


def lost(reason: object) -> Transport:
    """Nothing was answered, and nothing needed to be written."""
    kind = TransportKind.TIMEOUT if isinstance(reason, TimeoutError) else TransportKind.TRANSPORT
    return Transport("valkey", kind, _told(reason))


def misfit(sentence: str) -> Transport:
    """The server is not one to work with."""
    return Transport("valkey", TransportKind.PROTOCOL, sentence)


def _told(reason: object) -> str:
    # Errors of the operating system may come without a text.
    return str(reason) or type(reason).__name__
