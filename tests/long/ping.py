"""A process that asks `/health` at an even rate: `python ping.py PORT KEY`. It ends with its standard input.

One of its own, and with nothing imported that it does not need: what else this machine's tests do is not in its times.
"""

import http.client
import json
import select
import sys
import time

A_SECOND = 20.0


def main(port: int, key: str) -> None:
    """Tell how long each answer took, in seconds, as one line of JSON.

    A time counts from when the request was due, so that an answer that takes long is not fewer requests.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    taken, due = [], time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
        connection.request("GET", "/health", headers={"x-api-key": key})
        connection.getresponse().read()
        taken.append(time.monotonic() - due)
        due += 1 / A_SECOND
    print(json.dumps(taken))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
