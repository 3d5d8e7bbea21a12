"""Build, test in parallel, ask two people, deploy, verify; and nobody holds a worker while people think."""

import asyncio
import time
from dataclasses import dataclass

from scratch import store_url

from flowfabric import App, Ask, Ctx, days, gather, minutes, seconds

app = App(store_url())

SUITES = ("unit", "integration", "end to end")


@dataclass
class Verdict:
    """What an approver answers. It is checked when it arrives; its one ``bool`` says yes or no."""

    ok: bool
    note: str = ""


@app.task(timeout=minutes(10))
async def build(ctx: Ctx, commit: str) -> str:
    for line in ("fetching", "compiling", "packing"):
        await ctx.emit(line)
        await asyncio.sleep(0.05)
    return f"shop:{commit[:7]}"


@app.task(retry=1)
async def check(image: str, suite: str) -> int:
    await asyncio.sleep(0.4)
    return len(image) * len(suite)


@app.step
def roll_out(image: str, share: int) -> str:
    return f"{image} on {share} % of the machines"


@app.step
async def verify(image: str) -> bool:
    await asyncio.sleep(0.05)
    return True


@app.workflow
async def deploy(commit: str) -> str:
    image = await build(commit)
    passed = await gather(*(check.using(key=suite)(image, suite) for suite in SUITES))
    await roll_out(image, 5)  # the canary
    verdict = await Ask(
        "deploy to everybody?",
        Verdict,
        show={"image": image, "tests": dict(zip(SUITES, passed, strict=True))},
        of={"alice", "bob", "carol"},
        need=2,
        within=days(1),
        otherwise=Verdict(ok=False, note="nobody had time"),
    )
    if not verdict.ok:
        return f"not deployed: {verdict.note}"
    done = await roll_out(image, 100)
    return done if await verify(image) else await roll_out("the image before", 100)


async def main() -> None:
    async with app:
        run = await deploy.start("9f3c2a1d77")
        began = time.monotonic()
        async with app.worker(name="monday"):
            [ask] = await app.asks(run, wait=seconds(30))
        print(f"built and tested in {time.monotonic() - began:.1f} s, three suites of 0.4 s at once")
        print(f"the question: {ask.question} {ask.show}")
        print(f"it waits for {ask.need} of {', '.join(ask.of)}; the run is {await run.status()}, no worker is alive")

        # Each approver has a link of his own: good for him, for this question, and for exactly what was shown.
        links = {name: await ask.link(name) for name in ask.of}
        for _ in range(2):  # the same answer again changes nothing
            await app.answer(links["alice"], Verdict(ok=True, note="looks good"))
        print(f"alice said yes, twice; still open: {len(await app.asks(run))}")
        await app.answer(links["carol"], Verdict(ok=True))
        print(f"carol said yes; still open: {len(await app.asks(run))}")

        async with app.worker(name="tuesday"):  # another process, days later: nothing is done twice
            print("result:", await run.result(timeout=seconds(30)))
        names = [step.name for step in await run.steps()]
        behind = names.index(f"ask:{ask.question}") + 1
        print(f"tuesday remembered {behind} calls and made {len(names) - behind}: {', '.join(names[behind:])}")


if __name__ == "__main__":
    asyncio.run(main())
