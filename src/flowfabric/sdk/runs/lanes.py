"""A lane as an operator holds it: ``app.lane_control("default").pause("migration")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowfabric.model.operations.lanes import LaneSnapshot
from flowfabric.model.states import LaneState

if TYPE_CHECKING:
    from flowfabric.sdk.app import App


class LaneControl:
    """One lane. What runs goes on, whatever its lane's state."""

    def __init__(self, app: App, name: str) -> None:
        self._app = app
        self.name = name

    def __repr__(self) -> str:
        return f"<lane {self.name}>"

    async def pause(self, reason: str = "") -> None:
        """Take new work in, but hand none out."""
        await self._app.engine.set_lane_state(self.name, LaneState.PAUSED, reason)

    async def drain(self, reason: str = "") -> None:
        """Hand out what is there, but take nothing new in."""
        await self._app.engine.set_lane_state(self.name, LaneState.DRAINING, reason)

    async def close(self, reason: str = "") -> None:
        """Neither take in nor hand out."""
        await self._app.engine.set_lane_state(self.name, LaneState.DISABLED, reason)

    async def resume(self) -> None:
        """Do both again."""
        await self._app.engine.set_lane_state(self.name, LaneState.ACTIVE)

    async def share(self, by: str | None) -> None:
        """Let keys take turns, so that a flood from one delays no other: the values of a tag (``"tenant"``), the
        namespaces (``"namespace"``), or nothing (``None``)."""
        if by is not None and by != "namespace":
            from flowfabric.sdk.options import tag_key

            by = f"tag:{tag_key(by)}"
        await self._app.engine.set_lane_fairness(self.name, by)

    async def info(self) -> LaneSnapshot | None:
        """The lane as it is; ``None`` if it was never used."""
        return await self._app.engine.describe_lane(self.name)
