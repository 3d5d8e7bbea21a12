"""Credentials: made, listed, verified, taken away."""

from __future__ import annotations

import pytest

from flowfabric import AlreadySatisfied, CredentialRevoked, NotFound, Scope
from flowfabric.engine import Engine
from flowfabric.model.operations.access import Credential
from tests.contract.probe import ManualClock


async def test_a_credential_from_beginning_to_end(engine: Engine, clock: ManualClock) -> None:
    made = await engine.create_credential(name="ci", scopes=["submit", "read", "read"], namespaces=["b", "a"])
    text = made.token.reveal()
    assert text.startswith(f"ff_{made.credential.credential_id}_")
    assert all(text not in shown for shown in (repr(made), str(made.token), f"{made.token}", repr(made.token)))
    assert made.credential.scopes == (Scope.READ, Scope.SUBMIT)
    assert made.credential.namespaces == ("a", "b")
    assert await engine.verify_credential(made.token) == made.credential
    for wrong in (text[:-1] + "x", text[:-1], text.upper(), "", "ff__", f"{text}0"):
        assert await engine.verify_credential(wrong) is None
    other = await engine.create_credential(name="ci", scopes=["admin"])
    assert other.credential.namespaces is None
    mixed = f"ff_{made.credential.credential_id}_{other.token.reveal().rpartition('_')[2]}"
    assert await engine.verify_credential(mixed) is None
    identity = made.credential.credential_id
    assert await engine.revoke_credential(identity) == CredentialRevoked(
        identity, "ci", (Scope.READ, Scope.SUBMIT), ("a", "b")
    )
    assert await engine.revoke_credential(identity) == AlreadySatisfied("revoked")
    assert await engine.verify_credential(made.token) is None
    assert await engine.verify_credential(other.token) == other.credential
    page = await engine.list_credentials(limit=1)
    rest = await engine.list_credentials(page.next_cursor)
    found = {each.credential_id: each.revoked_at_ms for each in (*page.credentials, *rest.credentials)}
    assert found == {identity: clock(), other.credential.credential_id: None}
    with pytest.raises(NotFound):
        await engine.revoke_credential("nobody")


async def test_a_credential_runs_out(engine: Engine, clock: ManualClock) -> None:
    made = await engine.create_credential(name="visitor", scopes=["read"], expires_at=clock() + 10)
    assert await engine.verify_credential(made.token) is not None
    clock.advance(10)
    assert await engine.verify_credential(made.token) is None


async def test_secrets_are_not_stored(engine: Engine) -> None:
    made = await engine.create_credential(name="n", scopes=["read"])
    from flowfabric.model.decisions import Get

    identity = made.credential.credential_id
    stored = (await engine._view(Get(Credential, identity))).get(Credential, identity)
    assert stored is not None
    assert made.token.reveal().rpartition("_")[2] not in (stored.digest, stored.name, repr(stored))
    assert len(stored.digest) == 64
