"""Options of a task and of a single start. Everything is checked where it is written."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, TypeAlias

from flowfabric.model.policy import ExponentialBackoff, FixedBackoff, RetryPolicy
from flowfabric.sdk.durations import duration, milliseconds
from flowfabric.sdk.errors import BadOptions

Reuse: TypeAlias = Literal["existing", "reject", "after_completion"]
RunIn: TypeAlias = Literal["thread", "process"]
#: What runs with ``run_in="process"`` need of a worker, which offers it while it has a process for them. So claims pass
#: them over meanwhile, and find what is behind them.
FREE_PROCESS: Final = "flowfabric.process"
OnBreach: TypeAlias = Literal["fail", "ask", "cancel", "warn"]
KeyPath: TypeAlias = str | Callable[..., str]
Amount: TypeAlias = int | float | Decimal | str

REUSES: Final = ("existing", "reject", "after_completion")
#: Dimensions that are money: counted in millionths, because the engine counts whole numbers.
MONEY: Final = frozenset(
    ("aud", "brl", "cad", "chf", "cny", "dkk", "eur", "gbp", "hkd", "inr", "jpy", "krw", "nok", "pln", "sek", "usd")
)
MICRO: Final = 1_000_000
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_ON_BREACH: Final = {"fail": "fail", "ask": "ask", "cancel": "cancel_pending", "warn": "warn"}


def amount(dimension: str, value: Amount) -> int:
    """A quantity as the engine counts it: money in millionths, anything else in whole units."""
    try:
        exact = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        raise BadOptions(f"{dimension}={value!r}: not a number", dimension=dimension) from None
    units = exact * MICRO if dimension in MONEY else exact
    if not units.is_finite() or units < 0:
        raise BadOptions(f"{dimension}={value!r}: must be finite and not negative", dimension=dimension)
    if units != units.to_integral_value():
        smallest = "a millionth" if dimension in MONEY else "a whole unit"
        raise BadOptions(f"{dimension}={value!r}: the smallest amount is {smallest}", dimension=dimension)
    return int(units)


def amounts(values: Mapping[str, Amount]) -> dict[str, int]:
    """Quantities by dimension, as the engine counts them."""
    return {name: amount(name, value) for name, value in values.items()}


def shown_amount(dimension: str, units: int) -> int | Decimal:
    """A quantity of the engine, as people write it."""
    return Decimal(units) / MICRO if dimension in MONEY else units


def _count(value: Any, name: str, low: int) -> int:
    if type(value) is not int or value < low:
        raise BadOptions(f"{name}: {value!r} is not a whole number of at least {low}", option=name)
    return value


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast a failed attempt is retried.

    ``most`` counts retries, without the first attempt. The pause starts at ``first`` and grows by ``factor`` each time,
    up to ``longest``; ``jitter`` shortens each pause by up to a half, so that many failures are not retried at the same
    moment. Errors of the types in ``give_up_on`` are not retried; with ``only_on``, only errors of those types are.
    """

    most: int
    first: timedelta = _SECOND
    longest: timedelta = _MINUTE
    factor: float = 2.0
    jitter: bool = True
    give_up_on: tuple[type[BaseException], ...] = ()
    only_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        _count(self.most, "retry", 0)
        duration(self.first, "first", zero=True)
        duration(self.longest, "longest", zero=True)
        factor: Any = self.factor
        if type(factor) not in (int, float) or not factor >= 1:
            raise BadOptions(f"factor: {self.factor!r} is not a number of at least 1", option="factor")
        for name in ("give_up_on", "only_on"):
            object.__setattr__(self, name, _error_types(getattr(self, name), name))

    def gives_up(self, error: BaseException) -> bool:
        """Whether this error ends the run, however many retries are left."""
        return isinstance(error, self.give_up_on) or bool(self.only_on and not isinstance(error, self.only_on))

    def policy(self) -> RetryPolicy:
        """The same for the engine."""
        first, longest = milliseconds(self.first), milliseconds(self.longest)
        if self.factor == 1 and not self.jitter:
            return RetryPolicy(self.most, FixedBackoff(first))
        return RetryPolicy(self.most, ExponentialBackoff(first, max(first, longest), float(self.factor), self.jitter))


def _error_types(value: Any, name: str) -> tuple[type[BaseException], ...]:
    types = value if isinstance(value, tuple) else (value,)
    for each in types:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise BadOptions(f"{name}: {each!r} is not an exception type", option=name)
    return types


@dataclass(frozen=True, slots=True)
class Limit:
    """At most ``most`` runs at once. With ``key``, a dotted path into the arguments (``"doc.tenant"``), for each value
    of it; without one, for the whole task. Runs over the limit wait in the queue."""

    most: int
    key: str | None = None
    when_full: Literal["queue"] = "queue"

    def __post_init__(self) -> None:
        _count(self.most, "Limit", 1)
        _checked_path(self.key)
        if self.when_full != "queue":
            raise BadOptions(f"when_full: {self.when_full!r} is unknown; use 'queue'", option="when_full")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``most`` starts within any period of length ``per``, in whole seconds. ``key`` works as for ``Limit``."""

    most: int
    per: timedelta
    key: str | None = None

    def __post_init__(self) -> None:
        _count(self.most, "Rate", 1)
        if duration(self.per, "per") % timedelta(seconds=1):
            raise BadOptions(f"per: {self.per} is not a whole number of seconds", option="per")
        _checked_path(self.key)


def _checked_path(key: Any) -> None:
    if key is None:
        return
    if not isinstance(key, str) or not all(part.isidentifier() for part in key.split(".")):
        raise BadOptions(f'key: {key!r} is not a dotted path such as "doc.tenant"', option="key")


@dataclass(frozen=True, init=False)
class Budget:
    """What runs may spend together, under one name: ``Budget("tenant:acme", usd=20, every=days(1), on_breach="ask")``.

    The first start that names a budget creates it; later ones share it, whatever limits they give (change them with
    ``engine.set_budget_limits``). Each dimension has its own limit. Money (``usd``, ``eur`` …) is counted in
    millionths, so ``usd=0.05`` is 50,000 units in the engine; everything else in whole units. ``every`` resets it after
    each such period. ``on_breach``: ``fail`` refuses the spending, ``ask`` suspends the run and asks, ``cancel`` also
    cancels waiting runs, ``warn`` only counts. ``under`` is a parent budget that must have room as well.
    """

    name: str
    limits: Mapping[str, int] = field(hash=False)
    every: timedelta | None
    on_breach: OnBreach
    under: Budget | None

    def __init__(
        self,
        name: str,
        *,
        every: timedelta | None = None,
        on_breach: OnBreach = "fail",
        under: Budget | None = None,
        **limits: Amount,
    ) -> None:
        if type(name) is not str or not name:
            raise BadOptions(f"Budget: {name!r} is not a name", option="budget")
        if on_breach not in _ON_BREACH:
            raise BadOptions(f"on_breach: {on_breach!r} is not one of {', '.join(_ON_BREACH)}", option="on_breach")
        if under is not None and not isinstance(under, Budget):
            raise BadOptions(f"under: {under!r} is not a Budget", option="under")
        for attribute, value in (
            ("name", name),
            ("limits", amounts(limits)),
            ("every", None if every is None else duration(every, "every")),
            ("on_breach", on_breach),
            ("under", under),
        ):
            object.__setattr__(self, attribute, value)

    @property
    def on_hard_limit(self) -> str:
        """The engine's name for what happens at the limit."""
        return _ON_BREACH[self.on_breach]


@dataclass(frozen=True, slots=True)
class Debounce:
    """Starts with the same key that follow each other closely share one run. It runs once there has been no start for
    ``wait``, at the latest ``at_most`` after the first, with the arguments of the last. ``key`` may contain dotted
    paths into the arguments, as ids do: ``"{doc.url}"``. Tasks do not share keys."""

    key: str
    wait: timedelta
    at_most: timedelta | None = None

    def __post_init__(self) -> None:
        if type(self.key) is not str or not self.key:
            raise BadOptions(f"Debounce: {self.key!r} is not a key", option="debounce")
        duration(self.wait, "wait")
        if self.at_most is not None:
            duration(self.at_most, "at_most")


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of a single start; ``None`` means the task's own.

    ``key``: tells calls of the same name apart inside a workflow: ``translate.using(key="fr")`` is ``translate[fr]``.
    ``id``: this run's id, instead of the one from the decorator.
    ``priority``: its place in the queue, from 0 to 9000; higher goes first.
    ``delay``: do not start it before this much time has passed.
    ``deadline``: the run expires if it has not ended this long after its start.
    ``tags``: labels to find it by, added to those of the decorator.
    ``lane``: the queue it waits in.
    ``budget``: one or more budgets that it spends from, added to those of the decorator.
    ``tx``: your open database connection; the run exists if and only if you commit. See docs/starting.md.
    ``debounce``: let starts that follow each other closely share one run. See docs/starting.md.
    ``reuse``: what a second start with the same id returns: ``"existing"``, ``"reject"`` or ``"after_completion"``.
    """

    key: str | None = None
    id: str | None = None
    priority: int | None = None
    delay: timedelta | None = None
    deadline: timedelta | None = None
    tags: Mapping[str, str] | None = None
    lane: str | None = None
    budget: Budget | tuple[Budget, ...] | None = None
    tx: Any = None
    debounce: Debounce | None = None
    reuse: Reuse | None = None

    def __post_init__(self) -> None:
        for name in ("key", "id", "lane"):
            _text(getattr(self, name), name)
        _priority(self.priority)
        if self.delay is not None:
            duration(self.delay, "delay", zero=True)
        if self.deadline is not None:
            duration(self.deadline, "deadline")
        if self.debounce is not None and not isinstance(self.debounce, Debounce):
            raise BadOptions(
                f"debounce: {self.debounce!r} is not a Debounce; write Debounce(key=…, wait=seconds(5))",
                option="debounce",
            )
        object.__setattr__(self, "tags", _tags(self.tags))
        object.__setattr__(self, "budget", _budgets(self.budget))
        _reuse(self.reuse)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets of this start."""
        return self.budget if isinstance(self.budget, tuple) else ()


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options of every run of a task, step or workflow.

    ``retry``: how often a failed attempt is retried: a number, or ``Retry(…)``. Without it a failure is final. A step
    retries in place and holds its worker while it pauses; a task returns to its queue.
    ``timeout``: how long one attempt may take, from when its function begins. After that it is cancelled and counts as
    failed with a ``TimeoutError``, and ``retry`` applies. For a workflow it counts whenever a worker runs it; while it
    waits, no time passes.
    ``deadline``: the run expires if it has not ended this long after its start, including all attempts and waits.
    ``priority``: its place in the queue, from 0 to 9000; higher goes first.
    ``lane``: the queue it waits in; by default the app's.
    ``needs``: what a worker must offer (``app.worker(capabilities=…)``) to get it: ``needs={"gpu"}``.
    ``tags``: labels to find runs by. A plain key such as ``team`` is stored as ``user.team``.
    ``limits``: at most one ``Limit`` (how many at once) and one ``Rate`` (how many per time), with the same key.
    ``budget``: one or more ``Budget`` objects that the runs spend from.
    ``id``: builds the run's id from its arguments: ``"order:{order.number}"``. The same id is the same run.
    ``reuse``: what a second start with the same id returns: ``"existing"`` (the default) the first run, ``"reject"`` an
    ``IdConflict``, ``"after_completion"`` the first run until it has ended and then a new one.
    ``run_in``: where a plain ``def`` runs: in a ``"thread"`` of the worker or in a ``"process"``.
    ``retention``: how long an ended run, and with it its id, is kept; 24 hours by default.
    ``version``: a label for the version of the code, for people. Runs are not tied to it: any worker that knows the
    workflow's name continues them, whatever its version.
    ``cancel_grace``: how long a cancelled workflow may take to clean up; then it ends anyway. 30 seconds by default;
    zero ends it at once.
    """

    retry: Retry = Retry(0)
    timeout: timedelta | None = None
    deadline: timedelta | None = None
    priority: int = 0
    lane: str | None = None
    needs: frozenset[str] = frozenset()
    tags: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[Limit | Rate, ...] = ()
    budget: tuple[Budget, ...] = ()
    id: str | None = None
    reuse: Reuse = "existing"
    run_in: RunIn = "thread"
    retention: timedelta | None = None
    version: str | None = None
    cancel_grace: timedelta | None = None

    @classmethod
    def of(
        cls,
        *,
        retry: Retry | int | None = None,
        timeout: timedelta | None = None,
        deadline: timedelta | None = None,
        priority: int = 0,
        lane: str | None = None,
        needs: Iterable[str] = (),
        tags: Mapping[str, str] | None = None,
        limits: Iterable[Limit | Rate] = (),
        budget: Budget | Iterable[Budget] | None = None,
        id: str | None = None,
        reuse: Reuse | None = None,
        run_in: RunIn = "thread",
        retention: timedelta | None = None,
        version: str | None = None,
        cancel_grace: timedelta | None = None,
    ) -> TaskOptions:
        """From what a decorator takes."""
        if run_in not in ("thread", "process"):
            raise BadOptions(f"run_in: {run_in!r} is neither 'thread' nor 'process'", option="run_in")
        if isinstance(needs, str):
            raise BadOptions(f"needs: {needs!r} is a single string; write needs={{{needs!r}}}", option="needs")
        _priority(priority)
        for name, value in (("lane", lane), ("id", id), ("version", version)):
            _text(value, name)
        _reuse(reuse)
        return cls(
            retry if isinstance(retry, Retry) else Retry(0 if retry is None else retry),
            None if timeout is None else duration(timeout, "timeout"),
            None if deadline is None else duration(deadline, "deadline"),
            priority,
            lane,
            frozenset(needs),
            _tags(tags) or {},
            _limits(limits),
            _budgets(budget) or (),
            id,
            reuse or "existing",
            run_in,
            None if retention is None else duration(retention, "retention"),
            version,
            None if cancel_grace is None else duration(cancel_grace, "cancel_grace", zero=True),
        )


#: How long a cancelled workflow may take to clean up, unless it says so.
CANCEL_GRACE: Final = timedelta(seconds=30)

#: What other libraries call our options.
_OTHER_NAMES: Final = {
    "retries": "retry",
    "max_retries": "retry",
    "max_attempts": "retry",
    "attempts": "retry",
    "retry_policy": "retry",
    "queue": "lane",
    "task_queue": "lane",
    "time_limit": "timeout",
    "expires": "deadline",
    "capabilities": "needs",
    "limit": "limits",
    "budgets": "budget",
    "workflow_id": "id",
    "task_id": "id",
}


#: Which decorators take an option, if not those of tasks and workflows: a step runs inside its workflow, and a
#: workflow's function on the worker's loop.
_TAKERS: Final = {
    "retry": ("task", "step", "workflow"),
    "timeout": ("task", "step", "workflow"),
    "run_in": ("task", "step"),
    "cancel_grace": ("workflow",),
    "version": ("workflow",),
}


def refuse_unknown(options: Mapping[str, Any], decorator: str) -> None:
    """Refuse options that a decorator does not take, and suggest the ones that may be meant."""
    known = [each.name for each in fields(TaskOptions)]
    for name in options:
        if name not in known:
            close = _OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, known, 1)), None)
            hint = f"write {close}=" if close else f"options: name, {', '.join(known)}"
            raise BadOptions(f"@app.{decorator}: unknown option {name}=; {hint}", option=name)
        takers = _TAKERS.get(name, ("task", "workflow"))
        if decorator not in takers:
            raise BadOptions(
                f"@app.{decorator}: {name}= is only for {' and '.join(f'{each}s' for each in takers)}", option=name
            )


def _text(value: Any, name: str) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise BadOptions(f"{name}: {value!r} is not a string", option=name)


def _priority(value: Any) -> None:
    if value is not None and type(value) is not int:
        raise BadOptions(f"priority: {value!r} is not a whole number", option="priority")


def _reuse(value: Any) -> None:
    if value is not None and value not in REUSES:
        raise BadOptions(f"reuse: {value!r} is not one of {', '.join(REUSES)}", option="reuse")


def _limits(value: Iterable[Limit | Rate]) -> tuple[Limit | Rate, ...]:
    found = (value,) if isinstance(value, (Limit, Rate)) else tuple(value)
    for kind in (Limit, Rate):
        if sum(isinstance(each, kind) for each in found) > 1:
            raise BadOptions(f"limits: a task takes at most one {kind.__name__}", option="limits")
    if not all(isinstance(each, (Limit, Rate)) for each in found):
        raise BadOptions("limits: expected Limit(…) and Rate(…)", option="limits")
    if len({each.key for each in found}) > 1:
        raise BadOptions(
            "limits: Limit and Rate of one task must use the same key; use one key, or make two tasks",
            option="limits",
        )
    return found


def _budgets(value: Any) -> tuple[Budget, ...] | None:
    if value is None:
        return None
    found = (value,) if isinstance(value, Budget) else tuple(value)
    if not all(isinstance(each, Budget) for each in found):
        raise BadOptions("budget: expected Budget(…), or several of them", option="budget")
    return found


def _tags(value: Any) -> dict[str, str] | None:
    """Tags as the engine spells them: a plain key such as ``team`` becomes ``user.team``, one with a dot stays."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise BadOptions(f"tags: {value!r} is not a mapping of strings", option="tags")
    from flowfabric.model.errors import Validation
    from flowfabric.model.ids import check_tag_key

    found = {}
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise BadOptions(f"tags: {key!r}={text!r}: keys and values must be strings", option="tags")
        name = tag_key(key)
        try:
            check_tag_key(name)
        except Validation:
            raise BadOptions(
                f"tags: {key!r}: a key is lower-case letters, digits and underscores, in parts joined by dots",
                option="tags",
            ) from None
        found[name] = text
    return found


def tag_key(key: str) -> str:
    """How a tag is stored: ``team`` as ``user.team``."""
    return key if "." in key else f"user.{key}"
