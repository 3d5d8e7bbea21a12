"""See the engine work: a small fleet of workers, a few hundred executions, and things that go wrong on purpose.

Run it with ``./dev demo``, or ``python -m demo`` in the repository. It needs no server and leaves nothing behind.

    plan.py     what there is to do, and how each piece of it should end
    jobs.py     the work itself, as a user of the engine would write it
    worker.py   a worker: claim, keep the lease, complete or fail
    story.py    what happens meanwhile: a kill, a cancellation, a replay
    board.py    what there is to see; screen.py draws it
    rows.py     reads the stored rows back; checks.py holds them against the plan; report.py prints the end
"""
