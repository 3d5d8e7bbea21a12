"""An agent that repairs a function: it thinks, runs the tests, and asks a person before anything is merged.

Each thought is a run of its own with retries, each test run a remembered step: after a crash the agent goes on where it
was, and pays for no thought twice.
"""

import asyncio
from dataclasses import dataclass, field

import model
from scratch import store_url

from flowfabric import App, Ask, Ctx, days, seconds

app = App(store_url())

ISSUE = "mean([]) crashes. It should be 0."
SOURCE = "def mean(numbers):\n    return sum(numbers) / len(numbers)\n"
#: What the stand-in proposes, one after the other.
PROPOSALS = (
    "def mean(numbers):\n    return sum(numbers) / len(numbers) if numbers else None\n",
    "def mean(numbers):\n    return sum(numbers) / len(numbers) if numbers else 0\n",
    'def mean(numbers):\n    """0 for no numbers."""\n    return sum(numbers) / len(numbers) if numbers else 0\n',
)


@dataclass
class Review:
    ok: bool
    feedback: str = ""


@dataclass
class Patch:
    code: str
    turns: int
    notes: list[str] = field(default_factory=list)


@app.task(retry=3, timeout=seconds(120))
async def think(ctx: Ctx, issue: str, code: str, notes: list[str]) -> str:
    """The next version of the code, without a fence around it."""
    if not model.is_real():
        return PROPOSALS[min(len(notes), len(PROPOSALS) - 1)]
    prompt = f"Answer with the whole corrected Python code and nothing else.\n{issue}\n{code}\nNotes: {notes}"
    async for token in model.stream(prompt):
        await ctx.emit(token)
    return ctx.stream.text.strip().removeprefix("```python").removesuffix("```").strip() + "\n"


@app.step
async def test(ctx: Ctx, code: str) -> str:
    """What is wrong with the code; nothing, if nothing is. (An agent of yours would run this in a sandbox.)"""
    await ctx.emit("running the tests")
    scope: dict[str, object] = {}
    exec(code, scope)
    for numbers, expected in (([1, 2], 1.5), ([], 0)):
        found = scope["mean"](numbers)  # type: ignore[operator]
        if found != expected:
            return f"mean({numbers}) is {found}, not {expected}"
    return ""


@app.workflow
async def repair(issue: str, code: str, most_turns: int = 8) -> Patch:
    notes: list[str] = []
    for turn in range(1, most_turns + 1):
        code = await think(issue, code, notes)
        problem = await test(code)
        if not problem:
            review = await Ask(f"merge the patch of turn {turn}?", Review, show=code, of="reviewer", within=days(7))
            if review.ok:
                return Patch(code, turn, notes)
            problem = f"the reviewer says: {review.feedback}"
        notes.append(problem)
    raise RuntimeError(f"no patch after {most_turns} turns: {notes}")


async def main() -> None:
    async with app, app.worker():
        run = await repair.start(ISSUE, SOURCE)
        reviews = [Review(ok=False, feedback="please add a docstring"), Review(ok=True)]
        for review in reviews:
            [ask] = await app.asks(run, wait=seconds(60))
            print(f"review needed: {ask.question}\n{ask.show}")
            print(f"reviewer: {'yes' if review.ok else review.feedback}\n")
            await ask.answer(review)
        patch = await run.result(timeout=seconds(60))
        print(f"merged after {patch.turns} turns; what went wrong before:")
        for note in patch.notes:
            print(" -", note)


if __name__ == "__main__":
    asyncio.run(main())
