"""``./dev bench``: choose cases, run them, report."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench import machine, report
from bench.cases import chosen, every_case
from bench.context import Bench, Case
from bench.rows import Problem, Row
from bench.workspace import Places
from tests.servers import ServerError

RESULTS = Path("bench/results")
_HELP = """
Runs FlowFabric's engine beside hand-written limits, in turns, and prints ratios: a figure by itself says more about
the machine than about the engine. Everything takes about 45 minutes; --quick about 5, for a look that it works.
"""
_EXAMPLES = """
examples:
  ./dev bench                              everything
  ./dev bench --list                       what there is
  ./dev bench lifecycle/postgres/256       one case
  ./dev bench lifecycle pickup             two groups
  ./dev bench '*/sqlite*' --repeat 3       one store, fewer repetitions
  ./dev bench --quick                      a short look
  ./dev bench --enforce                    exit code 1 if a floor is missed

bench/README.md says what each case and each limit does, and how to read the figures.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="./dev bench",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("cases", nargs="*", metavar="case", help="names, parts of names or patterns (see --list)")
    found.add_argument("--list", action="store_true", help="list the cases and leave")
    found.add_argument("--quick", action="store_true", help="short windows, one repetition, small backlogs")
    found.add_argument("--repeat", type=_count, metavar="N", help="interleaved repetitions (5; 1 with --quick)")
    found.add_argument("--seconds", type=_seconds, metavar="S", help="length of a window (2; 0.4 with --quick)")
    found.add_argument("--json", type=Path, default=RESULTS / "latest.json", metavar="PATH", help="%(default)s")
    found.add_argument("--chart", type=Path, default=RESULTS / "latest.svg", metavar="PATH", help="%(default)s")
    found.add_argument("--enforce", action="store_true", help="exit code 1 if a row is below its floor")
    return found


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 600:
        raise argparse.ArgumentTypeError("between 0.05 and 600")
    return value


async def run(cases: list[Case], bench: Bench, console: Console) -> tuple[list[Row], list[Problem]]:
    """All cases, one after the other; one that fails does not stop the others."""
    rows: list[Row] = []
    problems: list[Problem] = []
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        total = sum(case.windows for case in cases) * bench.repeat
        task = progress.add_task("", total=total)
        bench.tick = lambda: progress.advance(task)
        for case in cases:
            started = time.monotonic()
            name = case.name

            def say(text: str, name: str = name) -> None:
                progress.update(task, description=f"{name}: {text}" if text else name)

            bench.say = say
            say("")
            try:
                found = await case.run(bench)
            except ServerError as error:
                problems.append(Problem(case.name, str(error), skipped=True))
            except Exception as error:
                problems.append(Problem(case.name, "".join(traceback.format_exception(error))))
                console.print(f"[red]failed[/] {case.name}: {error!r}")
            else:
                rows += found
                console.print(f"{case.name} [dim]({time.monotonic() - started:.1f} s)[/]", highlight=False)
                for row in found:
                    console.print(f"  {_line(row)}", highlight=False)
            bench.let_go()
    return rows, problems


def _line(row: Row) -> str:
    ratio = (
        ""
        if row.ratio is None or row.yardstick is None
        else (f", {report.number(row.ratio.median)}× of {report.number(row.yardstick.median)} ({row.yardstick.name})")
    )
    verdict = f" [{'red' if row.verdict == 'below floor' else 'green'}]{row.verdict}[/]" if row.verdict else ""
    return f"{row.label}: {report.number(row.ours.median)} {row.unit}{ratio}{verdict}"


def main(arguments: list[str]) -> int:
    """Run what the command line asks for."""
    options = parser().parse_args(arguments)
    # Wide enough for the table where nobody looks at a terminal.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    cases = chosen(options.cases)
    if not cases:
        console.print(f"no case is called {' or '.join(options.cases)}; there are:", style="red")
    if options.list or not cases:
        for case in cases or every_case():
            console.print(f"{case.name:<26} [dim]{case.about}[/]", highlight=False)
        return 0 if cases else 2
    repeat = options.repeat or (1 if options.quick else 5)
    seconds = options.seconds or (0.4 if options.quick else 2.0)
    started, clock, load_before = machine.now(), time.monotonic(), machine.load()
    with Places() as places:
        bench = Bench(places, seconds, repeat, options.quick)
        rows, problems = asyncio.run(run(cases, bench, console))
        found = report.Report(
            started=started,
            took_s=time.monotonic() - clock,
            seconds=seconds,
            repeat=repeat,
            quick=options.quick,
            machine=machine.describe(places),
            load_before=load_before,
            load_after=machine.load(),
            rows=rows,
            problems=problems,
        )
        for name in machine.in_memory(places):
            console.print(f"[red]{name} worked in memory: its commits cost less than durable ones[/]")
    report.show(found, console)
    report.write_json(found, options.json)
    report.write_chart(found, options.chart)
    console.print(f"written: {options.json}, {options.chart}", highlight=False)
    failed = any(not problem.skipped for problem in problems)
    return 1 if failed or (options.enforce and found.below_floor) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
