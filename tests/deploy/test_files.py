"""Files for deployments say what the program does."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from flowfabric import ClaimPolicy
from flowfabric.cli.application import loaded
from flowfabric.engine import Engine
from flowfabric.engine.timers.loop import TIMERS
from flowfabric.sdk.worker.worker import UNWIND_S
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.environment import VARIABLES
from flowfabric.server.routes import ROUTES
from flowfabric.server.serving import LEAST_GRACE_S
from flowfabric.telemetry.worker import WorkerMetrics
from tests.server.conftest import client_of

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PANELS = """
    Claim-from-grant latency per lane|Claim-from-grant rate per lane|Lease renewals by outcome
    |Worker-at-capacity rejections|Admission control|Scanner cycle duration p95|Scanner cycle cadence
    |Cancel-reconciler backlog depth|HTTP request rate by status class|HTTP p95 latency by path
    |Attempt outcomes per lane
"""


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana-flowfabric-ops.json").read_text())
    return found


def test_the_dashboard_is_one() -> None:
    found = dashboard()
    assert found["uid"] == "flowfabric-ops"
    assert found["title"]
    assert found["schemaVersion"] >= 36
    assert (found["refresh"], found["time"]) == ("30s", {"from": "now-1h", "to": "now"})
    assert [each["name"] for each in found["templating"]["list"]] == ["datasource"]
    panels = found["panels"]
    assert len({each["id"] for each in panels}) == len(panels) > 0
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        assert panel["type"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert target["expr"].count("(") == target["expr"].count(")")
    assert {" ".join(each.split()) for each in PANELS.split("|")} <= {each["title"] for each in panels}


async def exposed() -> dict[str, set[str]]:
    """Metrics that a server and a worker really tell of, with their labels."""
    async with await Engine.open("memory://") as engine:
        server = create_app(engine, ServerConfig())
        async with client_of(server) as client:
            await engine.create_execution(lane_id="a")
            handle = await engine.claim("a", (), ClaimPolicy("w", "w-1"))
            assert handle is not None
            await engine.renew(handle)
            await engine.complete(handle, b"")
            await engine.create_execution(lane_id="a")
            await engine.run_due()
            await client.get("/v1/lanes")
            text = (await client.get("/metrics")).text
    found: dict[str, set[str]] = {}
    declared = {metric.name: set(metric.labels) for metric in (*server.metrics.metrics, *WorkerMetrics().metrics)}
    for name in re.findall(r"^# TYPE (\S+)", text + WorkerMetrics().text().decode(), re.MULTILINE):
        found[name] = declared[name]
    for line in text.splitlines():
        if not line.startswith("#"):
            name = re.sub(r"_(bucket|sum|count)$", "", re.split(r"[{ ]", line)[0])
            labels = set(re.findall(r'(\w+)="', line)) - {"le"}
            assert labels == found.get(name, found.get(re.split(r"[{ ]", line)[0])), line
    return found


async def test_the_dashboard_asks_for_metrics_that_are_there() -> None:
    known = await exposed()
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"\bff_\w+", target["expr"])
            assert names
            (name,) = {re.sub(r"_(bucket|count)$", "", each) for each in names}
            assert name in known, panel["title"]
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            labels = {each.strip() for each in grouped[0].split(",")} if grouped else set()
            assert labels <= known[name] | {"le", "instance", "class"}, panel["title"]
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= labels, panel["title"]


async def test_the_guide_names_every_metric() -> None:
    guide = (ROOT / "docs" / "server.md").read_text().split("## Metrics")[1].split("\n## ")[0]
    named = set(re.findall(r"`(ff_\w+)`", guide))
    assert named == set(await exposed())


def parsed(*arguments: str) -> str:
    """The command that the program takes these arguments for."""
    command, _, _ = loaded().parse_args(list(arguments), exit_on_error=False, print_error=False)
    return str(command.__name__)


def test_they_name_variables_that_are_read() -> None:
    known = {each.name for each in VARIABLES} | {timer.variable for timer in TIMERS}
    known.add("FF_URL")
    for path in (each for each in DEPLOY.iterdir() if each.suffix != ".json"):
        named = set(re.findall(r"\bFF_[A-Z_]+", path.read_text()))
        assert named <= known, path.name
        assert named, path.name


def test_the_unit() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "flowfabric.service").read_text())
    program, *arguments = unit["Service"]["ExecStart"].split()
    assert parsed(*arguments) == "server"
    # What a guide says to install is where the unit and the container look for it, under the name of the script.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert program == f"/opt/flowfabric/bin/{next(iter(project['scripts']))}"
    assert unit["Service"]["WorkingDirectory"] == f"/var/lib/{unit['Service']['StateDirectory']}"
    assert unit["Service"]["Type"] == "exec", "it says nothing to systemd when it is ready"
    # As long as a shutdown may take.
    assert int(unit["Service"]["TimeoutStopSec"]) > ServerConfig().grace_ms / 1000 + 2 * LEAST_GRACE_S
    assert unit["Service"]["EnvironmentFile"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_unit_of_a_worker() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "flowfabric-worker.service").read_text())
    _, *arguments = unit["Service"]["ExecStart"].split()
    assert parsed(*arguments) == "worker"
    assert unit["Service"]["WorkingDirectory"] == f"/var/lib/{unit['Service']['StateDirectory']}"
    drain_s = int(arguments[arguments.index("--drain-seconds") + 1])
    assert int(unit["Service"]["TimeoutStopSec"]) > drain_s + UNWIND_S


def test_the_manifest() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    paths = {each.path for each in ROUTES}
    assert set(re.findall(r"path: (/\w+)", text)) == {"/livez", "/readyz"} <= paths
    server, _, worker = text.split("\n---\n")
    server_kill_s, worker_kill_s = (
        int(re.findall(r"terminationGracePeriodSeconds: (\d+)", each)[0]) for each in (server, worker)
    )
    (hook_s,) = re.findall(r'sleep, "(\d+)"', server)
    (grace_s,) = re.findall(r'FF_SHUTDOWN_GRACE_S, value: "(\d+)"', server)
    assert server_kill_s > int(hook_s) + int(grace_s) + 2 * LEAST_GRACE_S
    (command,) = re.findall(r"command: \[flowfabric, (.+)\]", worker)
    arguments = command.replace('"', "").split(", ")
    assert parsed(*arguments) == "worker"
    assert worker_kill_s > int(arguments[-1]) + UNWIND_S
    assert f":{ServerConfig().port}" in server


def test_the_container() -> None:
    lines = (DEPLOY / "Containerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"\.\[([\w,]+)\]", lines)
    assert set(extras.split(",")) == set(project["optional-dependencies"]), "whatever the store"
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", lines, re.MULTILINE)
    (command,) = re.findall(r"^CMD (\[.*\])$", lines, re.MULTILINE)
    program, *arguments = [*json.loads(entry), *json.loads(command)]
    assert program in project["scripts"]
    assert parsed(*arguments) == "server"
    (place,) = re.findall(r"python -m venv (\S+)", lines)
    assert f"COPY --from=build {place} {place}" in lines
    assert f"ENV PATH={place}/bin:$PATH" in lines
    assert "STOPSIGNAL SIGTERM" in lines, "what the server takes as the wish to stop"
    supported = project["requires-python"].removeprefix(">=").split(".")
    for image in re.findall(r"^FROM \S+/python:(\d+)\.(\d+)", lines, re.MULTILINE):
        assert list(map(int, image)) >= list(map(int, supported)), image
    assert str(ServerConfig().port) in re.findall(r"EXPOSE (\d+)", lines)
    assert re.search(r"^USER \d+$", lines, re.MULTILINE)
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", lines, re.MULTILINE):
        for each in copied.split():
            assert (ROOT / each).exists(), each
    (asked,) = re.findall(r"http://127\.0\.0\.1:(\d+/\w+)", lines)
    assert asked == f"{ServerConfig().port}/livez"
    assert "/livez" in {each.path for each in ROUTES}


def test_the_guides_mention_them() -> None:
    guides = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    for path in DEPLOY.iterdir():
        assert f"deploy/{path.name}" in guides, path.name
