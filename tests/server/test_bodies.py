"""How many bytes of bodies are held at once: never beyond the bounds, and nothing is left once all have gone."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Code
from engine.host.memory import memory_for_process
from server.http.body_budget import BODIES, Bodies

STEPS = st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(1, 100)), max_size=60)


@given(STEPS, st.integers(1, 100), st.integers(0, 20_000))
def test_what_is_added_and_removed_leaves_nothing_and_bounds_hold(
    steps: list[tuple[str | None, int]], max_body: int, memory: int
) -> None:
    bodies = Bodies(max_body, memory)
    held: list[tuple[str | None, int]] = []
    for tenant, size in steps:
        problem = bodies.add(tenant, size)
        of_all = sum(each for _, each in held) + size
        own = sum(each for whose, each in held if whose == tenant) + size
        if tenant is not None and own > bodies.tenant_bound:
            assert problem is not None
            assert problem.code is Code.RATE_LIMITED
        elif of_all > bodies.bound:
            assert problem is not None
            assert problem.code is Code.UNAVAILABLE
        else:
            assert problem is None
            held.append((tenant, size))
            continue
        assert problem.retry_after_s == 1
        bodies.remove(tenant, size)
    for tenant, size in held:
        bodies.remove(tenant, size)
    for tenant in (None, "a", "b"):
        assert bodies.add(tenant, bodies.bound if tenant is None else bodies.tenant_bound) is None
        bodies.remove(tenant, bodies.bound if tenant is None else bodies.tenant_bound)


@given(st.integers(1, 1 << 30), st.integers(0, 1 << 40))
def test_the_bounds_follow_the_memory_and_always_take_a_body(max_body: int, memory: int) -> None:
    bodies = Bodies(max_body, memory)
    assert max_body <= bodies.tenant_bound <= bodies.bound <= BODIES * max_body
    assert bodies.bound <= max(2 * max_body, memory // 16)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_nearest_bound_of_memory_counts(tmp_path: Path) -> None:
    process = {"proc/self/statm": "1000 1 1", "proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4000 kB\n"}
    assert memory_for_process(tree(tmp_path / "none", process)) == 4000 * 1024
    v2 = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/memory.max": "2000000\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
    }
    assert memory_for_process(tree(tmp_path / "v2", process | v2)) == 2_000_000
    v1 = {
        "proc/self/cgroup": "5:cpu:/x\n3:memory:/c\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/c/memory.limit_in_bytes": "1000000\n",
    }
    assert memory_for_process(tree(tmp_path / "v1", process | v1)) == 1_000_000


def test_an_answer_of_any_size_is_sent_and_no_more_while_it_is_unread() -> None:
    answers = Bodies(10, 0)
    assert answers.add_answer("a", 1_000) is None
    for tenant, code in (("a", Code.RATE_LIMITED), ("b", Code.UNAVAILABLE), (None, Code.UNAVAILABLE)):
        refused = answers.add_answer(tenant, 20)
        assert refused is not None
        assert refused.code is code
    answers.remove("a", 1_000)
    assert answers.add_answer("b", 10) is None
    assert answers.add_answer("a", 10) is None
