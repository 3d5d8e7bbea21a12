"""Durability: which failures a commit on a Valkey server survives, and whether that is what was asked for."""

from __future__ import annotations

import logging
from typing import Any

from msgspec import Struct

from flowfabric.model.errors import TransportKind
from flowfabric.stores.valkey.address import Asked
from flowfabric.stores.valkey.connection import CALL_TIMEOUT_S, Command, Connection, Identity, info_facts
from flowfabric.stores.valkey.errors import Refusal, misfit, unknown

_log = logging.getLogger("flowfabric.stores.valkey")
#: How long a commit waits for a replica before its outcome is unknown.
REPLICATED_TIMEOUT_S = 5.0
#: How long a replica has to show that it keeps a file. A new one takes some seconds to begin.
PROBE_TIMEOUT_S = 10.0
_EVICTION = "a server short of memory deletes all records of a kind at once, without an error"
_SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite")


class Durability(Struct, frozen=True):
    """How a server is set up."""

    #: What the store URL asks for.
    asked: Asked | None
    appendonly: bool
    #: ``always``, ``everysec`` or ``no``; ``None`` where the account may not read it.
    appendfsync: str | None
    #: Whether nothing is forced to the disk while the file is rewritten.
    pauses_in_rewrites: bool
    maxmemory_policy: str
    #: Replicas that are connected, and of those the ones that have shown that they keep a file.
    replicas: int
    safe_replicas: int = 0

    def facts(self) -> dict[str, str | int]:
        """How the server is set up, as its own settings say it."""
        pauses = "yes" if self.pauses_in_rewrites else "no"
        return {
            "appendonly": "yes" if self.appendonly else "no",
            "appendfsync": "unknown" if self.appendfsync is None else self.appendfsync,
            "no-appendfsync-on-rewrite": "unknown" if self.appendfsync is None else pauses,
            "maxmemory-policy": self.maxmemory_policy,
            "replicas": self.replicas,
        }

    def sentence(self) -> str:
        """What a commit survives."""
        return self._kept() + (f"; {_EVICTION}" if self._evicts else "")

    def _kept(self) -> str:
        if self.asked == "replicated":
            both = "" if self._at_once else ", but not of both in the same second"
            return f"a commit is acknowledged when a replica has it too and survives the loss of either machine{both}"
        if not self.appendonly:
            return "a commit is only in the server's memory (appendonly no): it is lost when the server stops"
        if self._at_once:
            return "a commit is on the server's disk before it is acknowledged: it survives crashes and power failures"
        if self.appendfsync is None:
            return (
                "a commit survives a restart of the server; whether it survives a crash is not known, as the account "
                "may not read appendfsync"
            )
        return f"a commit survives a restart of the server; {self._lost} of acknowledged work is lost if it fails"

    def check(self) -> None:
        """Refuse a server that keeps less than was asked for; warn of one that may lose what it has acknowledged."""
        self._check_eviction()
        if self.asked == "relaxed":
            return
        if not self.appendonly:
            raise misfit(
                "appendonly no: commits are lost when the server stops; set appendonly yes there, or accept the loss "
                "with ?durability=relaxed in the store URL"
            )
        if self.asked == "always":
            self._check_always()
        elif self.asked == "replicated" and not self.safe_replicas:
            raise misfit(
                f"durability=replicated: of {self.replicas} connected replicas, none has confirmed a write on its "
                f"disk within {PROBE_TIMEOUT_S:g} s; connect one that has appendonly yes"
            )
        if self.appendfsync is None:
            _log.warning("%s; let it run CONFIG GET", self.sentence())
        elif not self._at_once:
            _log.warning(
                "%s of acknowledged work is lost if the server or its machine fails; set appendfsync always and "
                "no-appendfsync-on-rewrite no to lose none, or accept it with ?durability=relaxed",
                self._lost,
            )

    @property
    def _at_once(self) -> bool:
        return self.appendonly and self.appendfsync == "always" and not self.pauses_in_rewrites

    @property
    def _lost(self) -> str:
        # Without an order to write, Linux does so after half a minute.
        return "up to a second" if self.appendfsync == "everysec" else "up to half a minute"

    @property
    def _evicts(self) -> bool:
        # None of our keys ever expires, so that policies for those that do take nothing from us.
        return self.maxmemory_policy != "noeviction" and not self.maxmemory_policy.startswith("volatile-")

    def _check_eviction(self) -> None:
        if self.asked != "relaxed" and self.maxmemory_policy != "noeviction":
            raise misfit(
                f"maxmemory-policy {self.maxmemory_policy}: a server short of memory would delete parts "
                "of executions; set maxmemory-policy noeviction there, or accept it with ?durability=relaxed"
            )
        if self._evicts:
            _log.warning("maxmemory-policy %s: %s; set noeviction there", self.maxmemory_policy, _EVICTION)

    def _check_always(self) -> None:
        if self.appendfsync is None:
            raise misfit(
                "durability=always: the account may not read the server's settings, so this is unknown; let it run "
                "CONFIG GET (ACL SETUSER … +config|get)"
            )
        if not self._at_once:
            raise misfit(
                f"durability=always: the server has appendfsync {self.appendfsync}, no-appendfsync-on-rewrite "
                f"{'yes' if self.pauses_in_rewrites else 'no'}; set appendfsync always and "
                "no-appendfsync-on-rewrite no there"
            )


async def examine(connection: Connection) -> Durability:
    """Find out how the server is set up."""
    asked = connection.address.durability
    facts = info_facts(await connection.command("INFO"))
    settings = await _settings(connection)
    appendonly = facts.get("aof_enabled") == "1"
    return Durability(
        asked=asked,
        appendonly=appendonly,
        appendfsync=settings.get("appendfsync"),
        pauses_in_rewrites=settings.get("no-appendfsync-on-rewrite") == "yes",
        maxmemory_policy=settings.get("maxmemory-policy") or facts.get("maxmemory_policy", "noeviction"),
        replicas=int(facts.get("connected_slaves", "0")),
        safe_replicas=await _safe_replicas(connection) if asked == "replicated" and appendonly else 0,
    )


async def call_replicated(
    connection: Connection,
    name: str,
    keys: list[bytes],
    arguments: list[bytes],
    *,
    timeout_s: float = REPLICATED_TIMEOUT_S,
    under: Identity | None = None,
) -> Any:
    """Call a function that writes, and return when its writes are in the files of the server and of a replica."""
    answer, _, (here, there) = await connection.call(
        name,
        keys,
        arguments,
        read_only=False,
        then=_confirmed(1, timeout_s),
        timeout_s=CALL_TIMEOUT_S + 2 * timeout_s,
        under=under,
    )
    if not (here and there):
        where = "no replica" if here else "the server's own disk has not"
        raise unknown(f"{where} confirmed the commit within {timeout_s:g} s; check that a replica is up")
    return answer


def _confirmed(here: int, timeout_s: float) -> tuple[Command, ...]:
    """Commands that wait until what this wire has written is in the files of the server and of a replica.

    WAITAOF alone would take up to a second: replicas tell what is on their disk when they are asked, which it does
    before they can have written it, and otherwise once a second. It asks again when WAIT has seen the writes arrive.
    """
    timeout_ms = max(1, int(timeout_s * 1000))
    return (("WAIT", 1, timeout_ms), ("WAITAOF", here, 1, timeout_ms))


async def _safe_replicas(connection: Connection) -> int:
    # A message is passed on to replicas like a write, and leaves nothing behind.
    probe: Command = ("PUBLISH", f"{connection.address.prefix}:probe", "")
    commands = (probe, *_confirmed(0, PROBE_TIMEOUT_S))
    answers = await connection.commands(*commands, timeout_s=CALL_TIMEOUT_S + 2 * PROBE_TIMEOUT_S)
    return int(answers[-1][1])


async def _settings(connection: Connection) -> dict[str, str]:
    """What CONFIG tells; nothing if the account or the server does not allow that."""
    try:
        answer = await connection.command("CONFIG", "GET", *_SETTINGS)
    except Refusal as error:
        if error.kind not in (TransportKind.AUTH, TransportKind.PROTOCOL):
            raise
        return {}
    words = [word.decode() for word in answer]
    return dict(zip(words[::2], words[1::2], strict=True))
