"""Open an engine as the current user, print what it says of its layers, and whether runs work. For test_privileges."""

import argparse
import ctypes
import json

import trio

from engine.config import Config
from engine.engine import SandboxUnavailable, open_engine
from engine.run import RunRequest, Script
from engine.tenant import DEFAULT_TENANT
from sandbox.confine import arch, libc, seccomp

ERRNO_EPERM = 0x00050001
BENIGN = b"agent = {} function agent.resolve() return 1 + 1 end"
ENDLESS = b"agent = {} function agent.resolve() while true do end end"


def forbid_namespaces() -> None:
    """Answer unshare(2) with EPERM for us and all our children, as the default profiles of containers do."""
    machine = arch.current()
    assert machine is not None
    number = {"x86_64": 272, "aarch64": 97}[machine.name]
    program = (
        seccomp._op(seccomp._LOAD, 0)
        + seccomp._op(seccomp._JEQ, number, 0, 1)
        + seccomp._op(seccomp._RET, ERRNO_EPERM)
        + seccomp._op(seccomp._RET, seccomp.ALLOW)
    )
    libc.prctl(38, 1)
    structure = seccomp._Program(len(program) // 8, program)
    libc.syscall(machine.numbers["seccomp"], 1, 1, ctypes.byref(structure))


async def main(config: Config) -> dict[str, object]:
    try:
        async with open_engine(config) as engine:
            outcomes = []
            for source, timeout in ((BENIGN, 5.0), (ENDLESS, 0.3), (BENIGN, 5.0)):
                request = RunRequest(
                    tenant=DEFAULT_TENANT,
                    name="probe",
                    script=Script.from_source("probe.lua", source),
                    root="agent",
                    method="resolve",
                    limits=engine.limits_for({"timeout_s": timeout}, DEFAULT_TENANT),
                )
                outcomes.append((await engine.execute(request)).outcome.value)
            return {"layers": {layer.name: [layer.state, layer.detail] for layer in engine.layers}, "runs": outcomes}
    except SandboxUnavailable as error:
        return {"refused": str(error)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--forbid-namespaces", action="store_true")
    parser.add_argument("--disable", nargs="*", default=[])
    parser.add_argument("--require", nargs="*", default=None)
    options = parser.parse_args()
    if options.forbid_namespaces:
        forbid_namespaces()
    sandbox = {"workers": 1, "reserve": 1, "disable": options.disable}
    if options.require is not None:
        sandbox["require"] = options.require
    print(json.dumps(trio.run(main, Config.model_validate({"sandbox": sandbox}))))
