"""Open many sessions at once, as the first thing that a process does, where files are few.

It prints how each session ended, with the errors' texts.
"""

import resource
import sys
from collections import Counter

import anyio

from ors_client import AsyncClient, ORSError, RetryPolicy, TaskRef, Timeouts

FEW = Timeouts(start_up=float(sys.argv[5]))


async def main(url: str, sessions: int, files: int) -> None:
    """Open them."""
    ended: Counter[str] = Counter()

    async def episode(client: AsyncClient) -> None:
        try:
            async with client.environment("counterenvironment").session(TaskRef("train", 0)) as session:
                ended[(await session.call_tool("step")).text] += 1
        except ORSError as error:
            ended[f"{type(error).__name__}: {error}"] += 1

    async with AsyncClient(url, timeout=FEW, retry=RetryPolicy(attempts=3, first_delay=0.05)) as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        async with anyio.create_task_group() as group:
            for _ in range(sessions):
                group.start_soon(episode, client)
    print(dict(ended))  # noqa: T201 - it is what the test reads


anyio.run(main, sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), backend=sys.argv[1])
