"""A list as an answer: rendered in pieces, charged, with the tag of its content."""

import time
from collections.abc import Iterable
from typing import Any

import trio

from server.http.asgi import Exchange
from server.http.etags import ETag
from server.problems import Answer, body_answer, encode

# What is rendered between two checkpoints: 10 ms.
AT_ONCE_BYTES = 512 * 1024


async def listed(exchange: Exchange, name: str, items: Iterable[Any]) -> Answer:
    """A list as `{name: [...]}`: a tenant may have 1,000 entries of 60 KiB each.

    Its tag is computed from the parts, which are rendered for each request: a 304 saves bytes, not work.
    """
    parts, size, tag = [b'{"%b":[' % name.encode()], 0, ETag()
    began_s = time.thread_time()
    for item in items:
        if len(parts) > 1:
            parts.append(b",")
        parts.append(encode(item))
        tag.add(parts[-1])
        size += len(parts[-1])
        if size >= AT_ONCE_BYTES:
            exchange.charge(time.thread_time() - began_s)
            await trio.lowlevel.checkpoint()
            size, began_s = 0, time.thread_time()
    parts.append(b"]}")
    known = tag.is_known(exchange.headers)
    answer = tag.unchanged() if known else tag.on(body_answer(b"".join(parts)))  # all of it is copied once
    exchange.charge(time.thread_time() - began_s)
    return answer
