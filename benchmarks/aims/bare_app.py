"""Unprotected apps on Hypercorn and trio, to compare the engine's server with.

    python -m benchmarks.aims.bare_app raw|quart

`raw` is a plain ASGI callable, `quart` the same route in Quart-Trio. `POST /prompt` runs the function of the job in
a Lua state of the server's own process, kept for all requests; the document comes from memory. Prints the address once
it listens there.
"""

import json
import sys
from typing import Any

import hypercorn.trio
import trio
from hypercorn.config import Config
from lupa.lua54 import LuaRuntime

from benchmarks.aims.floor_worker import JOB
from benchmarks.aims.job import AS_JSON, DOCUMENT
from benchmarks.aims.mcp_peers import ANNOUNCED, free_port


class Job:
    """The job without any protection."""

    def __init__(self) -> None:
        self._lua = LuaRuntime()
        self._run = self._lua.execute(JOB, self._host)

    def answer(self, body: bytes) -> bytes:
        found = self._run(json.loads(body)["id"])
        return json.dumps({"system": found["system"], "tools": [], "messages": []}).encode()

    def _host(self, name: str, document_id: str) -> Any:
        return self._lua.table_from(AS_JSON) if document_id == DOCUMENT.id else None


def raw_app() -> Any:
    """A plain ASGI callable."""
    job = Job()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        answer = job.answer(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


def quart_app() -> Any:
    """The same route in Quart-Trio."""
    from quart import Response, request
    from quart_trio import QuartTrio

    job = Job()
    app = QuartTrio(__name__)

    @app.post("/prompt")
    async def prompt() -> Response:
        body = await request.get_data(as_text=False)
        assert isinstance(body, bytes)
        return Response(job.answer(body), content_type="application/json")

    return app


async def serve(app: Any) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{free_port()}"]
    config.errorlog = None
    async with trio.open_nursery() as nursery:
        # The type of Hypercorn's task_status is older than Trio's.
        await nursery.start(lambda task_status: hypercorn.trio.serve(app, config, task_status=task_status))
        print(f"{ANNOUNCED}{config.bind[0]}", flush=True)


if __name__ == "__main__":
    trio.run(serve, {"raw": raw_app, "quart": quart_app}[sys.argv[1]]())
