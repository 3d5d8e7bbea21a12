"""A language model for the examples: a stand-in that needs nothing, or a real one if ``OPENROUTER_API_KEY`` is set.

The real one speaks the protocol that most providers share: chat completions, streamed. ``OPENROUTER_MODEL`` chooses
it, ``OPENROUTER_URL`` is another address.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator

URL = "https://openrouter.ai/api/v1"
DEFAULT_MODEL = "minimax/minimax-m2.7"


def is_real() -> bool:
    """Whether there is a key."""
    return bool(os.environ.get("OPENROUTER_API_KEY"))


async def stand_in(text: str, first_s: float = 0.0, each_s: float = 0.01) -> AsyncIterator[str]:
    """Words of a text, at the pace of a model."""
    await asyncio.sleep(first_s)
    for word in text.split(" "):
        await asyncio.sleep(each_s)
        yield word + " "


async def stream(prompt: str, model: str = "") -> AsyncIterator[str]:
    """Tokens of a real model's answer, as they come."""
    import httpx

    chosen = model or os.environ.get("OPENROUTER_MODEL", DEFAULT_MODEL)
    headers = {"Authorization": f"Bearer {os.environ['OPENROUTER_API_KEY']}"}
    body = {"model": chosen, "stream": True, "messages": [{"role": "user", "content": prompt}]}
    url = os.environ.get("OPENROUTER_URL", URL) + "/chat/completions"
    async with (
        httpx.AsyncClient(headers=headers, timeout=60) as client,
        client.stream("POST", url, json=body) as answer,
    ):
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            data = line.removeprefix("data: ")
            if data in (line, "[DONE]"):
                continue  # blank lines and comments keep the connection alive
            for choice in json.loads(data).get("choices", ()):
                if token := choice.get("delta", {}).get("content"):
                    yield token
