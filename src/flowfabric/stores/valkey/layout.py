"""The marker that a store begins here, and its layout."""

from __future__ import annotations

import asyncio

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.stores.valkey.address import Address, parse
from flowfabric.stores.valkey.connection import CLOSE_TIMEOUT_S, Wire, info_facts, suitable_version
from flowfabric.stores.valkey.errors import checked, lost
from flowfabric.stores.valkey.keys import Keys

#: How the values are laid out; another layout has another number.
LAYOUT = 4


def stored_facts(answer: list[bytes]) -> dict[str, str]:
    """What HGETALL finds under ``Keys.meta``; nothing where no store was begun."""
    texts = [each.decode() for each in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def check_layout(facts: dict[str, str], address: Address) -> None:
    """Refuse what another release has written."""
    if facts.get("layout") != str(LAYOUT):
        raise Validation(
            ValidationKind.INVALID_INPUT,
            f"the data at {address.shown} has layout {facts.get('layout', 'unknown')}, this release writes "
            f"layout {LAYOUT}: use the release that wrote it, or another prefix",
        )


async def is_begun(url: str) -> bool:
    """Whether a store was begun there. Nothing is changed, and no function is brought."""
    address = parse(url)
    wire = Wire()
    try:
        await wire.connect(address)
        info, answer = checked(await wire.ask(("INFO", "server"), ("HGETALL", Keys(address.prefix).meta)))
    except OSError as error:
        raise lost(f"cannot connect to {address.shown}: {error}") from error
    finally:
        wire.abort()
        await asyncio.wait([wire.closed], timeout=CLOSE_TIMEOUT_S)
    suitable_version(info_facts(info))
    facts = stored_facts(answer)
    if facts:
        check_layout(facts, address)
    return bool(facts)
