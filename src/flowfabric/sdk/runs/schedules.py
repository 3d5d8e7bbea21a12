"""Tasks and workflows that start by the clock: as the program defines them, and as operators change them at run
time."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

import msgspec

from flowfabric.model.errors import Contention, NotFound, Unavailable, Validation
from flowfabric.model.operations.schedules import (
    CatchUp,
    Cron,
    Every,
    FireResult,
    Overlap,
    PutScheduleResult,
    ScheduleSnapshot,
    ScheduleSpec,
)
from flowfabric.model.policy import parse_policy
from flowfabric.sdk.definitions.tasks import Arguments, Startable
from flowfabric.sdk.durations import duration, milliseconds
from flowfabric.sdk.errors import BadOptions, BadSignature, UnknownSchedule
from flowfabric.sdk.paging import pages
from flowfabric.sdk.runs.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from flowfabric.sdk.app import App
    from flowfabric.sdk.definitions.tasks import Task

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Startable[..., Any])

#: How often a change is made again because somebody else has changed the schedule meanwhile.
CHANGE_TRIES = 16
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class ScheduleDecorator(Protocol):
    """What ``app.cron(…)`` and ``app.every(…)`` return."""

    @overload
    def __call__(self, function: S) -> S: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Task[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T]) -> Task[P, T]: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything about a schedule except its times."""

    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LAST
    catch_up_limit: int = 100
    jitter: timedelta | None = None

    @classmethod
    def of(cls, overlap: Any, catch_up: Any, catch_up_limit: Any, jitter: Any) -> Rules:
        """From what people write."""
        for name, value, words in (("overlap", overlap, Overlap), ("catch_up", catch_up, CatchUp)):
            if value not in tuple(words):
                raise BadOptions(f"{name}: {value!r} is not one of {', '.join(words)}", option=name)
        if type(catch_up_limit) is not int or catch_up_limit < 1:
            raise BadOptions(f"catch_up_limit: {catch_up_limit!r} is not a number above 0", option="catch_up_limit")
        spread = None if jitter is None else duration(jitter, "jitter")
        return cls(Overlap(overlap), CatchUp(catch_up), catch_up_limit, spread)

    def arguments(self) -> dict[str, Any]:
        """As ``put_schedule`` takes them."""
        return {
            "overlap": self.overlap,
            "catch_up": self.catch_up,
            "catch_up_limit": self.catch_up_limit,
            "jitter_ms": 0 if self.jitter is None else milliseconds(self.jitter),
        }


def spec_of(cron: str | None, tz: str, every: timedelta | None, anchor: datetime | None) -> ScheduleSpec:
    """When, from what people write; refused if nobody could follow it."""
    if (cron is None) == (every is None):
        raise BadOptions("pass either cron= or every=", option="cron")
    spec: ScheduleSpec
    if every is not None:
        if anchor is not None and anchor.tzinfo is None:
            raise BadOptions("anchor: the time has no time zone; write datetime(…, tzinfo=…)", option="anchor")
        start = 0 if anchor is None else (anchor - _EPOCH) // timedelta(milliseconds=1)
        spec = Every(milliseconds(every, "every", zero=False), start)
    else:
        if not isinstance(cron, str) or not isinstance(tz, str):
            raise BadOptions("cron: expected a string such as '0 6 * * mon-fri', and tz one such as 'Europe/Paris'")
        spec = Cron(" ".join(cron.split()), tz)
    from flowfabric.engine.timers import cron as slots

    try:
        slots.check(spec)
    except (Validation, Unavailable) as error:
        raise BadOptions(str(error.detail), option="cron") from None
    return spec


def _steps_of(before: ScheduleSpec, cron: str | None, every: timedelta | None, anchor: datetime | None) -> ScheduleSpec:
    """Equal steps, where what is not given stays as it was."""
    if not isinstance(before, Every):
        return spec_of(cron, "UTC", every, anchor)
    step = timedelta(milliseconds=before.every_ms) if every is None else every
    since = _EPOCH + timedelta(milliseconds=before.anchor_ms) if anchor is None else anchor
    return spec_of(cron, "UTC", step, since)


class Planned:
    """A schedule as the program defines it."""

    __slots__ = ("arguments", "definition", "name", "rules", "spec")

    def __init__(
        self, definition: Startable[..., Any], name: str, spec: ScheduleSpec, rules: Rules, arguments: Arguments[Any]
    ) -> None:
        self.definition = definition
        self.name = name
        self.spec = spec
        self.rules = rules
        self.arguments = arguments
        options = definition.start_options
        for option in ("tx", "debounce", "delay", "id", "key"):
            if getattr(options, option) is not None:
                raise BadOptions(f"{name}: a schedule sets its own start times and ids; leave out {option}=")
        # Annotations may name types that are defined later; then this is found out when a worker starts.
        with contextlib.suppress(BadSignature):
            definition.signature.pack(arguments.args, arguments.kwargs)

    async def put(self) -> Any:
        """Store it. If the stored schedule comes from the same definition, it stays as operators left it."""
        from flowfabric.sdk.runs.start import prepare

        definition = self.definition
        bound = definition.signature.bind(self.arguments.args, self.arguments.kwargs)
        prepared = await prepare(definition, bound, definition.start_options, kept=True)
        content: dict[str, Any] = {
            name: prepared.arguments[name]
            for name in ("lane_id", "execution_kind", "input_payload", "payload_encoding", "priority", "policy", "tags")
            if name in prepared.arguments
        }
        content |= self.rules.arguments()
        app = definition.app
        return await app.engine.put_schedule(
            self.name, namespace=app.namespace, spec=self.spec, source=self._source(content), **content
        )

    def _source(self, content: dict[str, Any]) -> str:
        shown = content | {"policy": parse_policy(content["policy"]), "spec": msgspec.structs.asdict(self.spec)}
        return hashlib.sha256(msgspec.json.encode(shown, order="deterministic")).hexdigest()


class Schedules:
    """``app.schedules``: stored schedules, by name. Changes last until the schedule's definition in the program
    changes."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.planned: dict[str, Planned] = {}

    def plan(
        self,
        definition: S,
        name: str | None,
        spec: ScheduleSpec,
        rules: Rules,
        arguments: Arguments[Any] | tuple[Any, ...] | None,
    ) -> S:
        """Add a schedule to the program; workers store it when they start."""
        if not isinstance(definition, Startable):
            raise BadOptions(f"{definition!r} is neither a task nor a workflow", option="schedule")
        chosen = definition.name if name is None else name
        if not chosen:
            raise BadOptions(f"name: {chosen!r} is not a name", option="name")
        if chosen in self.planned:
            raise BadOptions(f"name: schedule {chosen!r} already exists; give one of them another name=", option="name")
        given = arguments if isinstance(arguments, Arguments) else Arguments(tuple(arguments or ()), {})
        self.planned[chosen] = Planned(definition, chosen, spec, rules, given)
        return definition

    async def store(self) -> None:
        """Store all schedules of the program. Workers do this when they start."""
        for planned in self.planned.values():
            await planned.put()

    async def list(self) -> list[ScheduleSnapshot]:
        """All schedules of the app's namespace, by name."""
        listing = pages(lambda cursor: self._app.engine.list_schedules(self._app.namespace, cursor, 1_000))
        return [each async for page in listing for each in page.schedules]

    async def get(self, name: str) -> ScheduleSnapshot:
        """One schedule: its next slot, its last start, its last skipped slot and why."""
        found = await self._app.engine.get_schedule(name, self._app.namespace)
        if found is None:
            raise self._unknown(name)
        return found

    async def pause(self, name: str) -> None:
        """Start nothing until it is resumed."""
        with self._known(name):
            await self._app.engine.pause_schedule(name, self._app.namespace)

    async def resume(self, name: str) -> None:
        """Continue with the next slot from now."""
        with self._known(name):
            await self._app.engine.resume_schedule(name, self._app.namespace)

    async def delete(self, name: str) -> None:
        """Delete it. A worker whose program still defines it stores it again when it starts."""
        await self._app.engine.delete_schedule(name, self._app.namespace)

    async def trigger(self, name: str, *, overlap: Overlap | str | None = None) -> Run[Any] | None:
        """Start a run now, outside the schedule. Returns ``None`` if another one is running and ``overlap`` forbids a
        second."""
        with self._known(name):
            answer = await self._app.engine.trigger_schedule(name, self._app.namespace, overlap)
        if not isinstance(answer, FireResult.Started):
            return None
        planned = self.planned.get(name)
        signature = None if planned is None else planned.definition.signature
        return Run(self._app, answer.execution_ids[0], signature)

    async def change(
        self,
        name: str,
        *,
        cron: str | None = None,
        tz: str | None = None,
        every: timedelta | None = None,
        anchor: datetime | None = None,
        overlap: Overlap | str | None = None,
        catch_up: CatchUp | str | None = None,
        catch_up_limit: int | None = None,
        jitter: timedelta | None = None,
        priority: int | None = None,
        lane: str | None = None,
    ) -> ScheduleSnapshot:
        """Change some of its settings; the rest stays, whatever others change meanwhile. This lasts until the
        schedule's definition in the program changes."""
        wanted: dict[str, Any] = {
            "priority": priority,
            "lane_id": lane,
            "overlap": overlap,
            "catch_up": catch_up,
            "catch_up_limit": catch_up_limit,
        }
        for left in reversed(range(CHANGE_TRIES)):
            found = await self.get(name)
            spec = found.spec
            if every is not None or (anchor is not None and cron is None and tz is None):
                spec = _steps_of(spec, cron, every, anchor)
            elif cron is not None or tz is not None:
                before = spec if isinstance(spec, Cron) else Cron("")
                spec = spec_of(cron or before.expression, tz or before.time_zone, None, None)
            try:
                answer = await self._put_changed(found, spec, jitter, wanted)
            except Contention:
                # Somebody has changed it since it was read.
                if not left:
                    raise
                continue
            break
        return found if isinstance(answer, PutScheduleResult.Unchanged) else await self.get(name)

    async def _put_changed(
        self, found: ScheduleSnapshot, spec: ScheduleSpec, jitter: timedelta | None, wanted: dict[str, Any]
    ) -> Any:
        """Store what was read with the changes that are wanted, if nobody has changed it meanwhile."""
        settings = {name: getattr(found, name) if value is None else value for name, value in wanted.items()}
        chosen = settings.pop("overlap"), settings.pop("catch_up"), settings.pop("catch_up_limit")
        settings |= Rules.of(*chosen, jitter).arguments()
        if jitter is None:
            settings["jitter_ms"] = found.jitter_ms
        return await self._app.engine.put_schedule(
            found.schedule_id,
            namespace=self._app.namespace,
            spec=spec,
            execution_kind=found.execution_kind,
            input_payload=found.input_payload,
            payload_encoding=found.payload_encoding,
            tags=found.tags,
            policy=found.policy,
            revision=found.revision,
            **settings,
        )

    def _unknown(self, name: str) -> UnknownSchedule:
        return UnknownSchedule(
            f"no schedule {name!r} in {self._app.namespace!r}; workers store the schedules of their app when they "
            "start",
            schedule=name,
        )

    @contextlib.contextmanager
    def _known(self, name: str) -> Iterator[None]:
        try:
            yield
        except NotFound:
            raise self._unknown(name) from None
