"""Workers: a grant for the next execution that one could run."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from flowfabric.model.results import ClaimGrant, Granted
from flowfabric.server.access import Scope
from flowfabric.server.answers import Answer, plain
from flowfabric.server.operations import Call, Operation
from flowfabric.server.problems import refused

Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\s\x00-\x1f\x7f]+$")]
GrantTtl = Annotated[int, Meta(ge=1, le=60_000)]


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
    except msgspec.ValidationError:
        raise refused(400, "invalid worker_id: 1 to 256 characters without spaces are expected") from None
    found = await call.engine.claim_for_worker(
        lane_id=body.lane_id,
        worker_id=worker,
        worker_instance_id=body.worker_instance_id,
        worker_capabilities=body.capabilities,
        grant_ttl_ms=body.grant_ttl_ms,
        namespaces=call.principal.namespaces,
    )
    return plain(found.grant) if isinstance(found, Granted) else Answer(204)


OPERATIONS = (
    Operation(
        name="claim_for_worker",
        method="POST",
        path="/v1/workers/{worker_id}/claim",
        scope=Scope.WORKER,
        summary="A grant for the next execution that this worker could run",
        handler=claim,
        body=ClaimBody,
        answers={200: ClaimGrant, 204: None},
    ),
)
