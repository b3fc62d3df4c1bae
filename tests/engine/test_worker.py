"""One worker as the supervisor holds it, with a process of the test's own in the place of a confined one."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import engine.workers.worker
from engine.tenant import DEFAULT_TENANT, bind_limits
from engine.workers.verdict import Mark, Verdict
from engine.workers.worker import Worker, WorkerLost, reply_parts
from engine.workers.zygote import Child, Zygote
from sandbox.wire import messages
from sandbox.wire.frame import FrameDecoder, encode_frame
from sandbox.wire.messages import PROTOCOL_VERSION, Done, HostCall, HostReply, LayerReport, Log, Progress, Ready, Run
from sandbox.wire.outcome import Outcome

RUN = Run(b"", "", "t.lua", "agent", "resolve", b"", 1 << 20, 1 << 20, 65536, 64, 10)
LIMITS = bind_limits({"timeout_s": 0.3}, DEFAULT_TENANT, {}, {})
READY = Ready(PROTOCOL_VERSION, ())


def frames(*sent: object) -> bytes:
    return b"".join(encode_frame(messages.encode(message)) for message in sent)


# What the process does: `say` writes bytes to the supervisor, `hear` waits for any from it.
_PROCESS = """
import os, signal, sys, time
came, goes = map(int, sys.argv[1:])
def say(data):
    while data: data = data[os.write(goes, data):]
def hear():
    if not os.read(came, 65536): os._exit(0)
def sleep():
    while True: time.sleep(1)
"""


@asynccontextmanager
async def worker_that(code: str) -> AsyncIterator[Worker]:
    """A worker that is this code. At the end of the block it has been closed."""
    to_read, to_worker = os.pipe()
    from_worker, from_write = os.pipe()
    process = await trio.lowlevel.open_process(
        [sys.executable, "-I", "-S", "-c", _PROCESS + code, str(to_read), str(from_write)],
        pass_fds=[to_read, from_write],
    )
    os.close(to_read)
    os.close(from_write)
    child = Child(1, os.pidfd_open(process.pid), to_worker, from_worker)

    async def reap() -> None:
        status = await process.wait()
        child.status = -status if status < 0 else status << 8
        child.ended.set()

    with trio.socket.socket() as control:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reap)
            worker = Worker(child, Zygote(control))  # whose child it is matters to the pool alone
            try:
                yield worker
            finally:
                await worker.close()


@dataclass
class Heard:
    calls: list[HostCall]
    lines: list[Log]

    async def on_call(self, call: HostCall) -> HostReply:
        self.calls.append(call)
        await trio.lowlevel.checkpoint()
        return HostReply(True, b"\xc0")

    def on_taken(self, reply: HostReply) -> None:
        pass

    def on_log(self, message: Log) -> None:
        self.lines.append(message)

    def on_progress(self, message: Progress) -> None:
        raise NotImplementedError


async def run(worker: Worker) -> tuple[Verdict, Heard]:
    heard = Heard([], [])
    with trio.fail_after(20):
        await worker.ready()
        worker.begin()
        return await worker.run(RUN, LIMITS, heard), heard


async def test_a_worker_that_does_as_it_should_is_clean_afterwards() -> None:
    call, done = frames(HostCall("a", b"")), frames(Done(b"*"))
    code = f"say({frames(READY)!r}); hear(); say({call!r}); hear(); say({done!r}); hear()"
    async with worker_that(code) as worker:
        verdict, heard = await run(worker)
        assert (verdict.outcome, verdict.value) == (Outcome.OK, 42)
        assert [call.name for call in heard.calls] == ["a"]
        assert worker.alive
        assert worker.mark is None
        assert worker.runs == 1
        assert worker.bytes_out > 0


async def test_messages_that_come_byte_by_byte_are_the_same_messages() -> None:
    said = frames(READY)
    answer = frames(Log("info", "a"), Log("warn", "b"), Done(b"\x07"))
    code = f"[say(bytes([b])) for b in {said!r}]; hear(); [say(bytes([b])) for b in {answer!r}]; hear()"
    async with worker_that(code) as worker:
        verdict, heard = await run(worker)
        assert verdict.value == 7
        assert heard.lines == [Log("info", "a"), Log("warn", "b")]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os._exit(3)", "exit status 3"),
        ("os.kill(os.getpid(), signal.SIGSYS)", "SIGSYS"),
        ("say(bytes(200))", "broke the protocol"),
        ("say(b'xxxx' * 10); sleep()", "broke the protocol"),
        (f"say({frames(Done(b''))!r}); sleep()", "Done in state STARTING"),
        (f"say({frames(Ready(PROTOCOL_VERSION + 1, ()))!r}); os._exit(0)", "was not ready"),
        ("os.close(goes); sleep()", "did not answer"),
        ("sleep()", "did not answer"),
    ],
)
async def test_a_worker_that_does_not_become_ready_is_lost_and_says_why(
    code: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.workers.worker, "READY_TIMEOUT_S", 1.0 if "sleep" in code else 10.0)
    async with worker_that(code) as worker:
        with pytest.raises(WorkerLost, match=reason), trio.fail_after(20):
            await worker.ready()


@pytest.mark.parametrize("layer", ["seccomp", "no_new_privs"])
async def test_a_worker_that_claims_a_layer_which_the_kernel_knows_nothing_of_is_lost(layer: str) -> None:
    ready = Ready(PROTOCOL_VERSION, (LayerReport(layer, "active", "as told"),))
    async with worker_that(f"say({frames(ready)!r}); sleep()") as worker:
        with pytest.raises(WorkerLost, match=f"claims the layer {layer}"), trio.fail_after(20):
            await worker.ready()


async def test_a_worker_that_ends_right_after_it_was_ready_is_lost_and_nothing_else() -> None:
    ready = Ready(PROTOCOL_VERSION, (LayerReport("seccomp", "active", "as told"),))
    async with worker_that(f"say({frames(ready)!r}); os._exit(0)") as worker:
        with trio.fail_after(20):
            await worker.wait()
            with pytest.raises(WorkerLost):
                await worker.ready()


async def test_a_worker_that_closes_its_channel_and_lives_on_is_killed() -> None:
    async with worker_that(f"say({frames(READY)!r}); hear(); os.close(goes); sleep()") as worker:
        verdict, _ = await run(worker)
        assert verdict.outcome is Outcome.POLICY_VIOLATION
        assert "lived on" in (verdict.security_event or "")
        assert not worker.alive


async def test_a_worker_that_never_reads_is_ended_by_the_deadline_even_while_we_write() -> None:
    large = Run(b"x" * (1 << 20), "", "t.lua", "agent", "resolve", b"", 1 << 20, 1 << 20, 65536, 64, 10)
    async with worker_that(f"say({frames(READY)!r}); sleep()") as worker:
        with trio.fail_after(20):
            await worker.ready()
            worker.begin()
            verdict = await worker.run(large, LIMITS, Heard([], []))
        assert verdict.outcome is Outcome.TIMEOUT
        assert not worker.alive


async def test_a_worker_that_ends_while_we_write_is_lost() -> None:
    large = Run(b"x" * (1 << 20), "", "t.lua", "agent", "resolve", b"", 1 << 20, 1 << 20, 65536, 64, 10)
    async with worker_that(f"say({frames(READY)!r}); hear(); os._exit(9)") as worker:
        with trio.fail_after(20):
            await worker.ready()
            worker.begin()
            verdict = await worker.run(large, LIMITS, Heard([], []))
        assert verdict.outcome is Outcome.WORKER_LOST


async def test_a_run_that_is_cancelled_takes_its_worker_along_before_it_comes_out() -> None:
    async with worker_that(f"say({frames(READY)!r}); hear(); sleep()") as worker:
        await worker.ready()
        worker.begin()
        with trio.move_on_after(0.1) as scope:
            await worker.run(RUN, LIMITS, Heard([], []))
        assert scope.cancelled_caught
        assert not worker.alive
        assert worker.mark == Mark(Outcome.CANCELLED)


async def test_deadline_is_not_a_crash() -> None:
    """The mark is there before the signal: a reader that sees the end of the worker finds the reason."""
    async with worker_that(f"say({frames(READY)!r}); hear(); sleep()") as worker:
        verdict, _ = await run(worker)
        assert verdict.outcome is Outcome.TIMEOUT
        assert worker.mark == Mark(Outcome.TIMEOUT, "timeout_s")


async def test_the_first_reason_for_a_kill_stays() -> None:
    async with worker_that("sleep()") as worker:
        worker.kill(Mark(Outcome.CALL_LIMIT, "host_calls", 1))
        worker.kill(Mark(Outcome.CANCELLED))
        with trio.fail_after(10):
            await worker.wait()
        worker.kill(Mark(Outcome.TIMEOUT))
        assert worker.mark == Mark(Outcome.CALL_LIMIT, "host_calls", 1)


async def test_an_answer_that_comes_before_the_end_of_its_worker_counts() -> None:
    async with worker_that(f"say({frames(READY)!r}); hear(); say({frames(Done(b'*'))!r}); os._exit(1)") as worker:
        verdict, _ = await run(worker)
        assert (verdict.outcome, verdict.value) == (Outcome.OK, 42)
        with trio.fail_after(10):
            await worker.wait()
        assert not worker.alive


async def test_closing_kills_reaps_and_gives_back_and_cannot_be_cancelled_half_way() -> None:
    async with worker_that("signal.signal(signal.SIGTERM, signal.SIG_IGN); sleep()") as worker:
        with trio.CancelScope() as scope:
            scope.cancel()
            await worker.close()
        assert worker.closed.is_set()
        assert not worker.alive
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(worker._child.pidfd)
        worker.close = _nothing  # type: ignore[method-assign]


async def _nothing() -> None:
    pass


async def test_the_cpu_time_of_a_worker_that_has_ended_is_what_the_zygote_said() -> None:
    async with worker_that("sum(range(3_000_000)); sleep()") as worker:
        with trio.fail_after(10):
            while worker.cpu_s() == 0.0:
                await trio.lowlevel.checkpoint()
        worker._child.cpu_s = 1.5
        os.kill(worker.pid, signal.SIGKILL)
        with trio.fail_after(10):
            await worker.wait()
        assert worker.cpu_s() == 1.5


@given(st.booleans(), st.binary(max_size=70_000), st.integers(0, 1 << 32))
def test_a_reply_that_is_sent_in_parts_is_the_frame_that_it_is_in_one(ok: bool, value: bytes, call: int) -> None:
    (payload,) = FrameDecoder(1 << 20).feed(b"".join(reply_parts(HostReply(ok, value, call))))
    assert messages.decode_to_worker(payload) == HostReply(ok, value, call)
