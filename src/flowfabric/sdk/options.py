"""What can be said about a task and about one start of it. Everything is checked where it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, TypeAlias

from flowfabric.model.policy import ExponentialBackoff, FixedBackoff, RetryPolicy
from flowfabric.sdk.durations import duration, milliseconds
from flowfabric.sdk.errors import BadOptions

Reuse: TypeAlias = Literal["existing", "reject", "after_completion"]
RunIn: TypeAlias = Literal["thread", "process"]
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
    """What the engine has counted, as people write it."""
    return Decimal(units) / MICRO if dimension in MONEY else units


def _count(value: Any, name: str, low: int) -> int:
    if type(value) is not int or value < low:
        raise BadOptions(f"{name}: {value!r} is not a whole number of at least {low}", option=name)
    return value


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast a failed attempt is followed by another.

    ``most`` excludes the first attempt. The pause begins at ``first`` and is multiplied by ``factor`` each time, up to
    ``longest``; ``jitter`` shortens each pause by up to a half, so that many failures do not come back at once.
    Errors of the types in ``give_up_on`` are final; if ``only_on`` is given, so are all others than those.
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
        """Whether this error ends the run, whatever number of retries is left."""
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
    """At most so many at once. ``key`` is a dotted path into the arguments (``"doc.tenant"``): so many for each value
    of it; without one, so many of the task altogether. Whoever finds no room waits in the queue."""

    most: int
    key: str | None = None
    when_full: Literal["queue"] = "queue"

    def __post_init__(self) -> None:
        _count(self.most, "Limit", 1)
        _checked_path(self.key)
        if self.when_full != "queue":
            raise BadOptions(f"when_full: {self.when_full!r} is not known; runs without room queue", option="when_full")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many starts in any window of length ``per``, in whole seconds. ``key`` is as for ``Limit``."""

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

    The first start that names a budget creates it; later ones join it, whatever limits they write (change them with
    ``engine.set_budget_limits``). Limits stand by dimension. Money (``usd``, ``eur`` …) is counted in millionths, so
    ``usd=0.05`` is 50,000 units in the engine; everything else in whole units. ``every`` begins anew after each such
    time. ``on_breach``: ``fail`` refuses the spending, ``ask`` suspends the run and asks, ``cancel`` also cancels runs
    that wait, ``warn`` only counts. ``under`` is a budget that has to have room as well.
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
            raise BadOptions(f"on_breach: {on_breach!r} is none of {', '.join(_ON_BREACH)}", option="on_breach")
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
        """The engine's word for what happens at the limit."""
        return _ON_BREACH[self.on_breach]


@dataclass(frozen=True, slots=True)
class Debounce:
    """Starts under one key that fall together share one run: it begins once nobody has started one for ``wait``, at
    the latest ``at_most`` after the first, with the arguments of the last. ``key`` may hold dotted paths into the
    arguments, as ids do: ``"{doc.url}"``. Keys of different tasks are apart."""

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
    """What one start asks for; what is ``None`` is as the task says."""

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
    """What holds for every run of a task, step or workflow."""

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
    ) -> TaskOptions:
        """From what a decorator takes."""
        if run_in not in ("thread", "process"):
            raise BadOptions(f"run_in: {run_in!r} is neither 'thread' nor 'process'", option="run_in")
        if isinstance(needs, str):
            raise BadOptions(f"needs: {needs!r} is one text; write needs={{{needs!r}}}", option="needs")
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
        )


def _text(value: Any, name: str) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise BadOptions(f"{name}: {value!r} is not a text", option=name)


def _priority(value: Any) -> None:
    if value is not None and type(value) is not int:
        raise BadOptions(f"priority: {value!r} is not a whole number", option="priority")


def _reuse(value: Any) -> None:
    if value is not None and value not in REUSES:
        raise BadOptions(f"reuse: {value!r} is none of {', '.join(REUSES)}", option="reuse")


def _limits(value: Iterable[Limit | Rate]) -> tuple[Limit | Rate, ...]:
    found = (value,) if isinstance(value, (Limit, Rate)) else tuple(value)
    for kind in (Limit, Rate):
        if sum(isinstance(each, kind) for each in found) > 1:
            raise BadOptions(f"limits: a task has at most one {kind.__name__}", option="limits")
    if not all(isinstance(each, (Limit, Rate)) for each in found):
        raise BadOptions("limits: expected Limit(…) and Rate(…)", option="limits")
    if len({each.key for each in found}) > 1:
        raise BadOptions(
            "limits: Limit and Rate of one task share one key; write the same key in both, or make two tasks",
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
        raise BadOptions(f"tags: {value!r} is not a mapping of texts", option="tags")
    from flowfabric.model.errors import Validation
    from flowfabric.model.ids import check_tag_key

    found = {}
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise BadOptions(f"tags: {key!r}={text!r}: keys and values are texts", option="tags")
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
