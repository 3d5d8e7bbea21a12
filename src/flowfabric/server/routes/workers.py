"""Workers: a grant for the next execution that one could run."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from flowfabric.model.operations.executions import ClaimGrant, Granted
from flowfabric.server.http.problems import refused
from flowfabric.server.http.request import GrantTtl, Name
from flowfabric.server.http.response import Answer, plain
from flowfabric.server.http.validation import flaw_of
from flowfabric.server.operations import Call, Route


class ClaimBody(Struct, kw_only=True):
    """From which lane, for which process."""

    lane_id: str
    worker_instance_id: Name
    grant_ttl_ms: GrantTtl
    capabilities: list[str] | None = None


async def claim(call: Call) -> Answer:
    """A grant, if there is something to do."""
    body: ClaimBody = call.body
    try:
        worker = msgspec.convert(call.path["worker_id"], Name)
    except msgspec.ValidationError as error:
        raise refused(400, f"invalid worker_id: {flaw_of(error)}") from None
    found = await call.engine.claim_for_worker(
        lane_id=body.lane_id,
        worker_id=worker,
        worker_instance_id=body.worker_instance_id,
        worker_capabilities=body.capabilities,
        grant_ttl_ms=body.grant_ttl_ms,
        namespaces=call.principal.namespaces,
    )
    return plain(found.grant) if isinstance(found, Granted) else Answer(204)


ROUTES = (
    Route(
        name="claim_for_worker",
        method="POST",
        path="/v1/workers/{worker_id}/claim",
        summary="A grant for the next execution that this worker could run",
        handler=claim,
        body=ClaimBody,
        answers={200: ClaimGrant, 204: None},
    ),
)
