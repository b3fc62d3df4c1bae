"""The assembled seccomp filter, interpreted here: what it allows, with which arguments, and that all else is killed."""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.confine import arch, seccomp
from sandbox.confine.plan import Plan

PID = 4711
PLAN = Plan(fd_in=3, fd_out=4, fd_status=5)
KILL, ALLOW, EBADF = 0x80000000, 0x7FFF0000, 0x00050009
MACHINES = {"x86_64": arch.X86_64, "aarch64": arch.AARCH64}
PROT_READ, PROT_WRITE, PROT_EXEC = 1, 2, 4
SIGKILL, SIGABRT = 9, 6

machines = pytest.mark.parametrize("name", MACHINES)


class Op(NamedTuple):
    code: int
    jump_true: int
    jump_false: int
    k: int


def program(name: str) -> list[Op]:
    code = seccomp.assemble(MACHINES[name], seccomp.rules(PLAN, PID))
    assert len(code) % 8 == 0
    return [Op(*struct.unpack("=HBBI", code[at : at + 8])) for at in range(0, len(code), 8)]


def interpret(ops: list[Op], number: int, audit: int, arguments: tuple[int, ...]) -> int:
    """What the kernel would answer: a classic BPF machine with the instructions that the filter uses."""
    data = struct.pack("=iIQ6Q", number if number < 1 << 31 else number - (1 << 32), audit, 0, *arguments)
    accumulator, at = 0, 0
    while True:
        code, jump_true, jump_false, k = ops[at]
        at += 1
        match code:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                assert k % 4 == 0
                assert k + 4 <= len(data)
                (accumulator,) = struct.unpack_from("=I", data, k)
            case 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
                at += jump_true if accumulator == k else jump_false
            case 0x45:  # BPF_JMP | BPF_JSET | BPF_K
                at += jump_true if accumulator & k else jump_false
            case 0x06:  # BPF_RET | BPF_K
                return k
            case _:
                raise AssertionError(f"an instruction {code:#x} that this interpreter does not know")


def verdict(name: str, call: str | int, *arguments: int, audit: int | None = None) -> int:
    machine = MACHINES[name]
    number = machine.numbers[call] if isinstance(call, str) else call
    padded = (*arguments, *[0] * (6 - len(arguments)))
    return interpret(program(name), number, machine.audit if audit is None else audit, padded)


def anything() -> Iterator[tuple[int, ...]]:
    yield (0,) * 6
    yield (3, 4, 5, 6, 7, 8)
    yield ((1 << 64) - 1,) * 6


CLOCKS = (*range(8), 11)
# CPU clocks by process and by thread, of our own number too (clock_getcpuclockid(3)), and one of a descriptor.
NOT_CLOCKS = tuple(
    number & 0xFFFFFFFF
    for number in (8, 9, 10, 12, *((~pid << 3) | kind for pid in (0, 1, PID, 1 << 22) for kind in (*range(8),)))
)
# call -> arguments that are allowed; arguments that are not, with what they are answered.
TABLE: dict[str, tuple[list[tuple[int, ...]], list[tuple[tuple[int, ...], int]]]] = {
    "read": ([(3, 0, 100)], [((0,), KILL), ((4,), KILL), ((5,), KILL), ((1 << 31,), KILL)]),
    "write": ([(4, 0, 100)], [((1,), EBADF), ((2,), EBADF), ((3,), EBADF), ((5,), EBADF), ((99,), EBADF)]),
    "pread64": ([(5, 0, 8192, 0)], [((3,), KILL), ((4,), KILL), ((0,), KILL)]),
    "close": ([(5,)], [((3,), KILL), ((4,), KILL), ((0,), KILL)]),
    "mmap": (
        [(0, 4096, PROT_READ | PROT_WRITE), (0, 4096, 0), (0, 4096, PROT_READ)],
        [((0, 4096, PROT_EXEC), KILL), ((0, 4096, 7), KILL), ((0, 4096, PROT_READ | PROT_EXEC), KILL)],
    ),
    "mprotect": (
        [(0, 4096, PROT_READ | PROT_WRITE), (0, 4096, 0)],
        [((0, 4096, PROT_EXEC), KILL), ((0, 4096, 7), KILL)],
    ),
    "madvise": (
        [(0, 4096, 4), (0, 4096, 8), (0, 4096, 14), (0, 4096, 15)],
        [((0, 4096, 0), KILL), ((0, 4096, 100), KILL), ((0, 4096, 101), KILL)],  # 100, 101: poison and offline memory
    ),
    "futex": (
        [(0, op | flags) for op in (0, 1, 9, 10) for flags in (0, 128, 256, 384)],
        [((0, op | flags), KILL) for op in (2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 1 << 31) for flags in (0, 128)],
    ),
    "clock_gettime": ([(clock,) for clock in CLOCKS], [((clock,), KILL) for clock in NOT_CLOCKS]),
    "clock_nanosleep": ([(clock, 1) for clock in CLOCKS], [((clock, 1), KILL) for clock in NOT_CLOCKS]),
    "tgkill": (
        [(PID, 1, SIGABRT), (PID, PID, SIGABRT)],
        [((PID, 1, SIGKILL), KILL), ((PID, 1, 0), KILL), ((1, 1, SIGABRT), KILL), ((PID + 1, 1, SIGABRT), KILL)],
    ),
}
WHATEVER = (
    *("munmap", "mremap", "brk", "sched_yield"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack"),
    *("getrandom", "getpid", "gettid", "exit", "exit_group"),
)


@machines
def test_the_rules_are_those_of_this_table(name: str) -> None:
    """A new rule needs a row here: what it allows and what it refuses."""
    assert {rule.name for rule in seccomp.rules(PLAN, PID)} == {*TABLE, *WHATEVER}


@machines
@pytest.mark.parametrize("call", TABLE)
def test_a_checked_call_is_allowed_with_the_right_arguments_only(name: str, call: str) -> None:
    allowed, refused = TABLE[call]
    for arguments in allowed:
        assert verdict(name, call, *arguments) == ALLOW, arguments
    for arguments, answer in refused:
        assert verdict(name, call, *arguments) == answer, arguments


@machines
@pytest.mark.parametrize("call", WHATEVER)
def test_an_unchecked_call_is_allowed_whatever_its_arguments(name: str, call: str) -> None:
    for arguments in anything():
        assert verdict(name, call, *arguments) == ALLOW


@machines
def test_every_other_number_is_killed_whatever_its_arguments(name: str) -> None:
    listed = {MACHINES[name].numbers[call] for call in (*TABLE, *WHATEVER)}
    ops, audit = program(name), MACHINES[name].audit
    for number in {*range(501), 0xFFFFFFFF, 0x7FFFFFFF} - listed:
        for arguments in anything():
            assert interpret(ops, number, audit, arguments) == KILL, number


@machines
def test_every_other_architecture_is_killed(name: str) -> None:
    i386, arm, other = 0x40000003, 0x40000028, MACHINES["aarch64" if name == "x86_64" else "x86_64"].audit
    for audit in (i386, arm, other, 0, 0xFFFFFFFF):
        for number in range(501):
            assert interpret(program(name), number, audit, (4, 4, 0, 0, 0, 0)) == KILL


def test_the_second_abi_of_x86_64_is_killed() -> None:
    ops = program("x86_64")
    for number in range(600):
        assert interpret(ops, number | 0x40000000, arch.X86_64.audit, (3, 0, 0, 0, 0, 0)) == KILL


@given(st.sampled_from(sorted(MACHINES)), st.integers(0, 2**32 - 1), st.tuples(*[st.integers(0, 2**64 - 1)] * 6))
def test_no_call_and_no_arguments_get_more_than_the_rules_say(
    name: str, number: int, arguments: tuple[int, ...]
) -> None:
    answer = verdict(name, number, *arguments)
    by_number = {MACHINES[name].numbers[rule.name]: rule for rule in seccomp.rules(PLAN, PID)}
    if number not in by_number:
        assert answer == KILL
        return
    holds: dict[str, Callable[[int, tuple[int, ...]], bool]] = {
        "equal": lambda value, wanted: value in wanted,
        "clear": lambda value, bits: value & bits[0] == 0,
    }
    rule = by_number[number]
    passed = all(holds[c.how](arguments[c.argument] & 0xFFFFFFFF, c.values) for c in rule.checks)
    assert answer == (ALLOW if passed else rule.otherwise)


@machines
def test_the_program_is_one_that_the_kernel_takes(name: str) -> None:
    """Within its size, every jump inside it, every path ends in a return (bpf_check_classic of the kernel)."""
    ops = program(name)
    assert len(ops) <= 4096
    for at, op in enumerate(ops):
        if op.code in (0x15, 0x45):
            assert at + 1 + max(op.jump_true, op.jump_false) < len(ops)
    assert ops[-1] == Op(0x06, 0, 0, KILL)


def test_the_numbers_of_the_two_machines_are_unique_within_each() -> None:
    for machine in MACHINES.values():
        assert len(set(machine.numbers.values())) == len(machine.numbers)


def test_dangerous_calls_have_no_rule() -> None:
    """By number, not by name: x86-64's open, socket, clone, fork, execve, kill, ptrace, unshare, io_uring, bpf."""
    for number in (2, 41, 56, 57, 59, 62, 101, 165, 257, 272, 304, 310, 319, 321, 425, 435, 437, 438):
        assert verdict("x86_64", number, 3, 4, 5) == KILL


@machines
def test_refused_calls_fail_and_the_rest_stays_as_it_is(name: str) -> None:
    calls = ("openat", "open", "ioctl")  # of which aarch64 has no `open`
    plan = Plan(refused=calls)
    code = seccomp.assemble(MACHINES[name], seccomp.rules(plan, PID))
    ops = [Op(*struct.unpack("=HBBI", code[at : at + 8])) for at in range(0, len(code), 8)]
    usual, audit, numbers = program(name), MACHINES[name].audit, MACHINES[name].numbers
    refused = {numbers[call] for call in calls if call in numbers}
    assert len(refused) == (3 if name == "x86_64" else 2)
    for number in range(501):
        for arguments in anything():
            expected = seccomp.EACCES if number in refused else interpret(usual, number, audit, arguments)
            assert interpret(ops, number, audit, arguments) == expected
