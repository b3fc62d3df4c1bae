"""The zygote is replaced now and then, beside the runs: none is dropped, and nothing of the old one stays."""

import os
import socket
from dataclasses import replace

import psutil
import pytest
import trio
import trio.testing
import warm_start
from engine_support import request, run, small_config

import engine.engine
from engine.engine import open_engine
from engine.tenant import Tenant
from engine.workers.worker import Worker
from engine.workers.zygote import Zygote
from sandbox.wire import messages
from sandbox.wire.outcome import Outcome


@pytest.mark.parametrize("isolation", ["execution", "tenant"])
async def test_a_zygote_that_forked_enough_is_replaced_without_dropping_a_run(
    monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    settings = engine.engine.pool_settings

    def renewing(config):  # type: ignore[no-untyped-def]
        return replace(settings(config), forks_per_zygote=5, max_runs_per_worker=1)

    monkeypatch.setattr(engine.engine, "pool_settings", renewing)
    zygotes: set[int] = set()
    async with open_engine(small_config(f"workers = 2\nreserve = 1\nisolation = '{isolation}'")) as opened:

        async def client() -> None:
            for _ in range(15):
                result = await run(opened, "return 1")
                assert result.outcome is Outcome.OK, result.failure
                zygotes.add(id(opened._pool._zygote))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client)
            nursery.start_soon(client)
        assert len(zygotes) >= 4
        assert (await run(opened, "return 1")).outcome is Outcome.OK
        await only_one_launcher_is_left()
    assert launchers() == []


async def test_a_run_on_the_old_zygote_ends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = engine.engine.pool_settings
    monkeypatch.setattr(engine.engine, "pool_settings", lambda config: replace(settings(config), forks_per_zygote=3))
    async with open_engine(small_config("workers = 2\nreserve = 1\nisolation = 'execution'")) as opened:
        old = opened._pool._zygote
        results = []

        async def slow() -> None:
            counting = "local n = 0 for i = 1, 2e7 do n = n + 1 end return n"
            results.append(await opened.execute(request(opened, counting, limits={"cpu_s": 20, "timeout_s": 60})))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow)
            for _ in range(8):
                assert (await run(opened, "return 1")).outcome is Outcome.OK
        assert opened._pool._zygote is not old
        assert [result.outcome for result in results] == [Outcome.OK]


async def test_idle_workers_of_an_old_zygote_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = engine.engine.pool_settings
    monkeypatch.setattr(engine.engine, "pool_settings", lambda config: replace(settings(config), forks_per_zygote=4))
    async with open_engine(small_config("workers = 2\nreserve = 0")) as opened:
        old = opened._pool._zygote
        for number in range(6):  # each tenant has a worker of its own, which stays idle after its run
            tenant = Tenant(f"t{number}")
            result = await opened.execute(request(opened, "return 1", tenant=tenant))
            assert result.outcome is Outcome.OK
        assert opened._pool._zygote is not old
        await only_one_launcher_is_left()
        assert (await run(opened, "return 1")).outcome is Outcome.OK


async def test_the_reserve_is_filled_again_when_a_lease_replaces_the_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = engine.engine.pool_settings
    monkeypatch.setattr(engine.engine, "pool_settings", lambda config: replace(settings(config), forks_per_zygote=3))
    async with open_engine(small_config("workers = 4\nreserve = 2")) as opened:
        pool = opened._pool
        while len(pool._pristine) < 2:  # noqa: ASYNC110 (there is no event)
            await trio.sleep(0.001)
        # A lease finds the reserve empty, forks for itself, and the reserve is full again before it renews the zygote.
        pristine, pool._pristine[:] = pool._pristine[:], []
        forking = pool._renewing
        await forking.acquire()
        leases: list[Worker] = []

        async def lease() -> None:
            leases.append(await pool.lease("t", 1.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease)
            await trio.testing.wait_all_tasks_blocked()
            pool._pristine[:] = pristine
            assert pool._zygote is not None
            pool._zygote.forks = 3
            forking.release()
        with trio.fail_after(20):
            while len(pool._pristine) < 2:  # noqa: ASYNC110 (there is no event)
                await trio.sleep(0.001)
        pool.give_back(leases[0], clean=False)


def launchers() -> list[psutil.Process]:
    """The processes that we exec'd: one for each zygote that lives."""
    return warm_start.children()


async def only_one_launcher_is_left() -> None:
    """The old zygotes end with their last worker. The reserve, filled after a run, may renew the zygote once more."""
    with trio.fail_after(20):
        while len(launchers()) != 1:  # noqa: ASYNC110 (there is no event)
            await trio.sleep(0.01)


async def test_a_worker_without_a_waiting_run_is_released_also_when_the_zygote_is_lost_with_it() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sleeper = await trio.lowlevel.open_process(["sleep", "60"])
    try:
        with ours, theirs:
            zygote = Zygote(trio.socket.from_stdlib_socket(ours))
            pidfd, pipe = os.pidfd_open(sleeper.pid), os.pipe()
            socket.send_fds(theirs, [messages.encode(messages.Forked(7))], [pidfd, *pipe])
            for fd in (pidfd, *pipe):
                os.close(fd)
            theirs.close()
            with trio.fail_after(5):
                await zygote.listen()
            assert zygote.lost.is_set()
            assert sleeper.poll() is None  # what was let go is not signalled: its number may be another's by then
    finally:
        sleeper.kill()
        await sleeper.wait()


async def test_a_worker_that_arrives_while_its_caller_is_cancelled_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_engine(small_config("workers = 1\nreserve = 0")) as opened:
        assert (await run(opened, "return 1")).outcome is Outcome.OK
        zygote = opened._pool._zygote
        assert zygote is not None
        before, others = len(os.listdir("/proc/self/fd")), set(zygote._children)
        send = zygote._control.send

        with trio.CancelScope() as caller:

            async def sent(packet: bytes) -> None:
                """Returns once the worker is there and its caller is cancelled: before the caller can receive it."""
                await send(packet)
                while set(zygote._children) == others:  # noqa: ASYNC110 (there is no event)
                    await trio.sleep(0.005)
                caller.cancel()

            monkeypatch.setattr(zygote._control, "send", sent)
            await zygote.fork(cpu_s=1, memory_bytes=1 << 26)
        assert caller.cancelled_caught
        monkeypatch.setattr(zygote._control, "send", send)
        with trio.fail_after(20):
            while set(zygote._children) != others:  # noqa: ASYNC110 (there is no event)
                await trio.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) == before
        assert (await run(opened, "return 1")).outcome is Outcome.OK
