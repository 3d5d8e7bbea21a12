"""``flowfabric admin``: what an operator asks without a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App as Commands, Parameter

from flowfabric.cli.application import MISUSED, OK, OPERATING, application, command, examples
from flowfabric.cli.store_option import AS_TEXT, How
from flowfabric.cli.terminal import say_json
from flowfabric.model.partitions import lane_partition
from flowfabric.stores.environment import ConfigError

admin = Commands(
    name="admin",
    help="Checks of a deployment that need no store.",
    help_epilogue=examples("FF_LANES=mail,reports flowfabric admin partition-collisions"),
    group=OPERATING,
    group_commands="Commands",
)
application.command(admin)

_REMEDY = (
    "remediation:",
    "  1. rename one of the colliding lanes",
    "  2. raise FF_FLOW_PARTITIONS on a deployment without data",
    "  3. choose ids yourself, to spread them over other partitions",
)


@admin.default
def usage(*unknown: Annotated[str, Parameter(show=False)], how: How = AS_TEXT) -> int:
    """Show the usage."""
    print("usage: flowfabric admin partition-collisions", file=sys.stderr)
    return MISUSED


@command(admin, shows=("FF_LANES=mail,reports flowfabric admin partition-collisions",))
def partition_collisions(*, how: How = AS_TEXT) -> int:
    """Show which lanes in FF_LANES share a partition; FF_FLOW_PARTITIONS sets the number of partitions."""
    try:
        from flowfabric.server.config import read_lanes, read_partitions
    except ModuleNotFoundError as error:
        print(
            f"flowfabric: this needs {error.name}; install it with: pip install 'flowfabric[server]'", file=sys.stderr
        )
        return MISUSED
    try:
        count = read_partitions(os.environ).flow
        lanes = read_lanes(os.environ.get("FF_LANES", "default"))
    except ConfigError as error:
        print(f"flowfabric: {error}", file=sys.stderr)
        return MISUSED
    if how.json:
        placed = sharing(lanes, count)
        colliding = sum(bool(others) for _, _, others in placed)
        say_json(
            {
                "num_flow_partitions": count,
                "lanes": [
                    {"partition": where, "lane": lane, "collides_with": others} for where, lane, others in placed
                ],
                "severity": severity(colliding, len(lanes)),
            }
        )
        return OK
    print("\n".join(report(lanes, count)))
    return OK


def severity(colliding: int, lanes: int) -> str:
    """How bad it is, in whole numbers."""
    if not colliding:
        return "Clean"
    share = 100 * colliding
    if share < 5 * lanes:
        return "Watch"
    return "Elevated" if share <= 15 * lanes else "Remediate"


def sharing(lanes: Sequence[str], count: int) -> list[tuple[int, str, list[str]]]:
    """Each lane with its partition and those it shares that with, by partition and name."""
    placed = sorted((lane_partition(lane, count), lane) for lane in lanes)
    return [
        (where, lane, [other for there, other in placed if there == where and other != lane]) for where, lane in placed
    ]


def report(lanes: Sequence[str], count: int) -> list[str]:
    """The lines of the report."""
    placed = sharing(lanes, count)
    colliding = sum(bool(others) for _, _, others in placed)
    width = max(16, *(len(lane) for lane in lanes))
    lines = [
        "flowfabric lane partition collisions",
        f"num_flow_partitions: {count}",
        f"lanes configured: {len(lanes)}",
        f"lanes colliding: {colliding} ({100 * colliding / len(lanes):.1f}%)",
        f"severity: {severity(colliding, len(lanes))}",
        "",
        f"partition | {'lane':<{width}} | collides_with",
    ]
    lines += [f"{where:>9} | {lane:<{width}} | {', '.join(others) or '—'}" for where, lane, others in placed]
    return [*lines, "", *_REMEDY] if colliding else lines
