"""The one list of layers between a script and the host: what each stops, and what remains without it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. `required` ones are in the default `[sandbox] require`: without them the engine does not start.

    `evidence` is a field of proc_pid_status(5) and its value in a process where the layer is in effect: worker and
    supervisor both read it. Layers without evidence read back what they set.
    """

    name: str
    stops: str
    without_it: str
    required: bool = False
    evidence: tuple[str, str] | None = None


LAYERS: tuple[Layer, ...] = (
    Layer(
        "oom",
        "the supervisor being chosen when the host runs out of memory: workers go first",
        "the kernel may choose the supervisor",
    ),
    Layer(
        "cgroup",
        "all workers together using more memory or processes than the host can spare",
        "host memory is bounded by the address space limit of each worker alone",
    ),
    Layer(
        "namespaces",
        "seeing the network, other processes, IPC and mounts, from below seccomp",
        "Landlock and seccomp carry that (containers mostly forbid namespaces)",
    ),
    Layer(
        "empty_root",
        "any path naming anything, from below Landlock and seccomp",
        "the host's files have names in a worker, which Landlock and seccomp refuse to open",
    ),
    Layer(
        "process",
        "inherited descriptors, core dumps, ptrace by equals, outliving the zygote",
        "a worker could hold what its parent held",
        required=True,
    ),
    Layer(
        "privileges",
        "acting as the supervisor's user or with a capability; sharing a user with anything else",
        "a worker has the supervisor's user: signals and ptrace then rest on seccomp",
        evidence=("CapEff", "0000000000000000"),
    ),
    Layer(
        "no_new_privs",
        "gaining privileges through a set-uid program; seccomp and Landlock need it",
        "neither of the two could be installed",
        required=True,
        evidence=("NoNewPrivs", "1"),
    ),
    Layer(
        "landlock",
        "opening files, TCP, abstract sockets and signals, from below seccomp",
        "seccomp alone carries that (kernels before 5.13, or Landlock disabled at boot)",
    ),
    Layer(
        "rlimits",
        "CPU time, address space, files and processes even while the supervisor is stopped",
        "a worker is bounded only while the supervisor runs",
        required=True,
    ),
    Layer(
        "mdwe",
        "making memory executable, from below seccomp",
        "seccomp refuses PROT_EXEC (kernels before 6.3)",
    ),
    Layer(
        "seccomp",
        "every system call that computing does not need, by killing the process",
        "code that broke out of the interpreter can make any system call",
        required=True,
        evidence=("Seccomp", "2"),
    ),
)

NAMES: tuple[str, ...] = tuple(layer.name for layer in LAYERS)
REQUIRED: tuple[str, ...] = tuple(layer.name for layer in LAYERS if layer.required)


def contradicted(name: str, status: Mapping[str, str]) -> str | None:
    """Why the kernel's status of a process contradicts that a layer is in effect there; None if it does not."""
    evidence = next((layer.evidence for layer in LAYERS if layer.name == name), None)
    if evidence is None or status.get(evidence[0]) == evidence[1]:
        return None
    return f"{evidence[0]} is {status.get(evidence[0])}, not {evidence[1]}"


def parse_status(text: str) -> dict[str, str]:
    """The fields of proc_pid_status(5)."""
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
