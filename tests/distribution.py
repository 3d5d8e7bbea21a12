"""How tests are spread over the workers of a run: in units, each of which one worker runs.

A unit is small where a test may take long, so that all workers end at the same time. Quick tests go together, since
each unit has to be handed out; and so do the tests of a file that share what takes longer to make than most of them.

Half of the workers begin at the front, where tests wait most of their time for browsers, processes and clocks, and the
others at the end, where tests compute: so the cores have something to do all the time. They meet in the middle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

#: Files whose tests stay together.
TOGETHER = (
    "tests/chaos/test_crash.py",
    "tests/console/test_hostile.py",
    "tests/console/test_owners.py",
    "tests/console/test_people.py",
    "tests/console/test_starting.py",
    "tests/server/routes/test_openapi.py",
    "tests/unit/test_servers.py",
)
#: Folders of quick tests, and how many of a file go together.
QUICK = ("tests/contract/*", "tests/docs/*", "tests/seeds/*", "tests/server/*", "tests/unit/*", "tests/words/*")
QUICK_UNIT = 6


def units(names: Sequence[str]) -> dict[str, str]:
    """The unit of each test, by their ids."""
    before: Counter[str] = Counter()
    kinds: dict[str, int] = {}
    found: dict[str, str] = {}
    for name in names:
        path = name.partition("::")[0]
        if path not in kinds:
            kinds[path] = size_of_units(path)
        size = kinds[path]
        found[name] = f"{path}:{before[path] // size}" if size else path
        before[path] += 1
    return found


def size_of_units(path: str) -> int:
    """How many tests of a file go together; 0 means all of them."""
    if path in TOGETHER:
        return 0
    return QUICK_UNIT if any(fnmatchcase(path, pattern) for pattern in QUICK) else 1


class Units(LoadScopeScheduling):
    """Hands out units, from the front or from the end, to workers that are about to have nothing to do."""

    def schedule(self) -> None:
        """Make the units once all workers have told the tests they found."""
        if self.collection is None:
            names = next(iter(self.registered_collections.values()))
            self._units = units(names)
            self._places = {name: place for place, name in enumerate(names)}
            # In the order of the tests: otherwise units of many tests, which are the quick ones, would be first.
            self.config.option.loadscopereorder = False
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._units[nodeid]

    def _assign_work_unit(self, node: WorkerController) -> None:
        unit, tests = self.workqueue.popitem(last=begins_at_the_end(node))
        self.assigned_work[node][unit] = tests
        node.send_runtest_some([self._places[name] for name, done in tests.items() if not done])

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """A test has ended. Units that are done go, so that they are not counted again after each test."""
        name = self.registered_collections[node][item_index]
        tests = self.assigned_work[node][self._units[name]]
        tests[name] = True
        if all(tests.values()):
            del self.assigned_work[node][self._units[name]]
        self._reschedule(node)


def begins_at_the_end(node: WorkerController) -> bool:
    """Every other worker."""
    return int(node.gateway.id.removeprefix("gw")) % 2 == 1
