"""Runs of openai-agents, for `running.py`: `python agents_sdk.py URL`.

For each line of its standard input, a number, it does so many runs and prints their microseconds as a list of JSON. It
runs in the environment of the peers, whose package `agents` is not ours: so it imports nothing of ours.
"""

import asyncio
import importlib
import json
import sys
import time

QUESTION, ANSWER = "What is the weather in Oslo?", "It is 18 C in Oslo."


def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: 18 C"


async def main(url: str) -> None:
    sdk, openai = importlib.import_module("agents"), importlib.import_module("openai")
    sdk.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=url, api_key="none")
    model = sdk.OpenAIChatCompletionsModel(model="scripted", openai_client=client)
    tool = sdk.function_tool(weather)
    agent = sdk.Agent(name="weather", instructions="You know the weather.", model=model, tools=[tool])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        taken = []
        for _ in range(int(line)):
            began = time.perf_counter_ns()
            result = await sdk.Runner.run(agent, QUESTION)
            taken.append((time.perf_counter_ns() - began) / 1000)
            if result.final_output != ANSWER:
                raise SystemExit(f"another answer: {result.final_output!r}")
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
