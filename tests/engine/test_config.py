"""The configuration: what loads, what it means, and the one line that each mistake gets."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import (
    TEMPLATE,
    Config,
    ConfigError,
    UnsetVariable,
    expand,
    find_config,
    load_config,
    parse_bind,
    parse_config,
)
from engine.embedders import settings
from engine.tenant import DEFAULT_TENANT, bind_limits
from knowledge.embedding.fusion import DEFAULT
from sandbox.wire import layers
from sandbox.wire.limits import SPECS

CWD = Path("/work-dir")

# Section 14 of the agents' specification, as it stands there.
COMPLETE_EXAMPLE = '''
[db]
path = "./data/ctx.sqlite"

[chunking]
max_tokens = 700

[retrieval]
final_limit = 12

[server]
bind = "127.0.0.1:7331"

# ── Connectors ──────────────────────────────────

[connectors.git.platform]
url = "https://github.com/acme/platform.git"
branch = "main"
root = "docs/"

[connectors.git.runbooks]
url = "https://github.com/acme/runbooks.git"
branch = "main"

# ── Tools ───────────────────────────────────────

[tools.script.create_jira_ticket]
path = "tools/create-jira-ticket.lua"
url = "https://acme.atlassian.net"
api_token = "${JIRA_API_TOKEN}"

# ── Agents (inline) ────────────────────────────

[agents.code-reviewer]
description = "Reviews code against project conventions"
tools = ["search", "get"]
system_prompt = """
You are a senior code reviewer. Use search to find coding
conventions, then review the user's code against them.
"""

[agents.architect]
description = "Answers architecture questions"
tools = ["search", "get", "sources"]
system_prompt = """
You are a software architect. Search for ADRs and design
docs to ground your recommendations.
"""

# ── Agents (Lua) ───────────────────────────────

[agents.script.incident-responder]
path = "agents/incident-responder.lua"
timeout = 30
search_limit = 5
'''


def parsed(text: str, **environ: str) -> Config:
    return parse_config(text, environ=environ, cwd=CWD)[0]


def error_of(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, environ=environ, cwd=CWD, shown_as="engine.toml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("engine.toml: ")
    return message.removeprefix("engine.toml: ")


# ---- what loads -------------------------------------------------------------------------------------------------


def test_the_complete_example_of_the_specification_loads_as_it_stands():
    config = parsed(COMPLETE_EXAMPLE, JIRA_API_TOKEN="t0ken-of-jira")
    assert config.db.path == CWD / "data/ctx.sqlite"
    assert config.connectors.labels() == ("git:platform", "git:runbooks")
    assert config.connectors.git["platform"].root == "docs/"  # inside the repository, so not resolved
    tool = config.tools.script["create_jira_ticket"]
    assert tool.path == CWD / "tools/create-jira-ticket.lua"
    assert tool.extra == {"url": "https://acme.atlassian.net", "api_token": "t0ken-of-jira"}
    assert tool.from_environment == ("t0ken-of-jira",)
    assert tool.unset is None
    script = config.agents.script["incident-responder"]
    assert script.limits == {"timeout_s": 30}
    assert script.extra == {"search_limit": 5}
    assert list(config.agents.inline) == ["code-reviewer", "architect"]
    assert config.agents.inline["architect"].tools == ("search", "get", "sources")


def test_without_the_variable_only_the_script_that_needs_it_is_affected():
    config = parsed(COMPLETE_EXAMPLE)
    assert config.tools.script["create_jira_ticket"].unset == (
        "tools.script.create_jira_ticket.api_token: environment variable JIRA_API_TOKEN is not set"
    )
    assert config.agents.script["incident-responder"].unset is None


def test_an_empty_file_is_the_built_in_defaults():
    config, warnings = parse_config("", environ={}, cwd=CWD)
    assert warnings == ()
    assert config.root == CWD
    assert config.db.path == CWD / "data/engine.sqlite"
    assert (config.chunking.max_tokens, config.chunking.overlap_tokens) == (700, 0)
    assert (config.retrieval.final_limit, config.retrieval.hybrid_alpha) == (12, 0.95)
    assert (config.retrieval.candidate_k_keyword, config.retrieval.candidate_k_vector) == (80, 80)
    assert (config.embedding.provider, config.embedding.batch_size, config.embedding.max_retries) == ("auto", 64, 5)
    assert (config.server.bind, config.server.max_body_bytes) == ("127.0.0.1:7331", 4 * 1024 * 1024)
    assert (config.server.body_timeout_s, config.server.graceful_timeout_s) == (15, 10)
    assert (config.sandbox.workers, config.sandbox.reserve, config.sandbox.isolation) == (None, 2, "tenant")
    assert (config.sandbox.max_runs_per_worker, config.sandbox.require) == (10_000, None)
    assert config.limits.defaults == {name: spec.default for name, spec in SPECS.items()}
    assert config.limits.max == {name: spec.ceiling for name, spec in SPECS.items()}
    assert config.limits.queue_timeout_s == 10
    assert config.tenants.enabled is False
    assert (config.tenants.quota["burst"], config.tenants.quota["stored_bytes"]) == (40, 2**30)


def test_limits_and_ceilings_are_read_and_can_be_bound():
    config = parsed("[limits]\ncpu_s = 2.5\nhost_calls = 7\nqueue_timeout_s = 3\n[limits.max]\ncpu_s = 1")
    assert config.limits.queue_timeout_s == 3
    bound = bind_limits({}, DEFAULT_TENANT, config.limits.defaults, config.limits.max)
    assert (bound["cpu_s"], bound["host_calls"], bound["timeout_s"]) == (1, 7, 30)


def test_a_limit_above_the_ceiling_loads_because_it_is_lowered_elsewhere():
    config = parsed('[agents.script.x]\npath = "x.lua"\ntimeout = 9999\nlimits = {memory_bytes = 99999999999}')
    assert config.agents.script["x"].limits == {"timeout_s": 9999, "memory_bytes": 99999999999}


def test_timeout_and_the_limit_of_the_same_value_agree():
    assert parsed('[agents.script.x]\npath = "x"\ntimeout = 5\nlimits.timeout_s = 5.0').agents.script["x"].timeout == 5


def test_relative_paths_start_at_root_and_root_starts_at_the_working_directory():
    config = parsed(
        """
        root = "project"
        db.path = "data/store.sqlite"
        [connectors.filesystem.docs]
        root = "docs"
        [connectors.filesystem.absolute]
        root = "/srv/docs"
        [connectors.git.repo]
        url = "https://example.com/r.git"
        cache_dir = "cache"
        [agents.chatmd.helper]
        path = "helper.chatmd"
        [tenants]
        store = "tenants.sqlite"
        """
    )
    assert config.root == CWD / "project"
    assert config.db.path == CWD / "project/data/store.sqlite"
    assert config.connectors.filesystem["docs"].root == CWD / "project/docs"
    assert config.connectors.filesystem["absolute"].root == Path("/srv/docs")
    assert config.connectors.git["repo"].cache_dir == CWD / "project/cache"
    assert config.agents.chatmd.entries["helper"].path == CWD / "project/helper.chatmd"
    assert config.tenants.store == CWD / "project/tenants.sqlite"


def test_inline_agents_may_stand_under_agents_or_under_agents_inline():
    config = parsed(
        """
        [agents.one]
        description = "1"
        system_prompt = "p"
        [agents.inline.two]
        description = "2"
        system_prompt = "p"
        tenants = ["acme", "*"]
        """
    )
    assert {name: agent.description for name, agent in config.agents.inline.items()} == {"two": "2", "one": "1"}
    assert config.agents.inline["two"].tenants == ("acme", "*")


def test_all_known_keys_of_a_script_are_taken_and_the_rest_is_its_own():
    entry = parsed(
        """
        [tools.script.t]
        path = "t.lua"
        allow_hosts = ["api.example.com"]
        env = ["HOME"]
        tools = []
        tenants = ["acme"]
        since = 1979-05-27T07:32:00Z
        day = 1979-05-27
        at = 07:32:00
        extra = "is an ordinary key here"
        unset = "so is this"
        deep = {list = [1, 2.5, true, "${WHO:-nobody}"], table = {when = 1979-05-27}}
        """
    ).tools.script["t"]
    assert (entry.allow_hosts, entry.env, entry.tools, entry.tenants) == (
        ("api.example.com",), ("HOME",), (), ("acme",),
    )  # fmt: skip
    assert entry.unset is None
    assert entry.extra == {
        "since": "1979-05-27T07:32:00+00:00",
        "day": "1979-05-27",
        "at": "07:32:00",
        "extra": "is an ordinary key here",
        "unset": "so is this",
        "deep": {"list": [1, 2.5, True, "nobody"], "table": {"when": "1979-05-27"}},
    }


def test_the_text_form_of_a_configuration_hides_what_may_be_a_secret():
    config = parsed(COMPLETE_EXAMPLE + '[tenants]\noperator_key = "${KEY}"', JIRA_API_TOKEN="hush-1", KEY="hush-2")
    assert config.tenants.operator_key == "hush-2"
    assert "hush" not in repr(config)


def test_agents_and_tools_are_given_in_the_order_of_the_file():
    config = parsed(
        '''
        [agents.script.a]
        path = "a"
        [agents.b]
        description = ""
        system_prompt = """
[agents.python.c]
        """
        [agents.chatmd."d.e"]
        path = "d"
        [agents.python.c]
        path = "c"
        [agents.script.b]
        path = "b"
        [tools.python.x]
        path = "x"
        [tools.script.x]
        path = "x"
        '''
    )
    assert [item[:2] for item in config.agents.in_order()] == [
        ("script", "a"), ("inline", "b"), ("chatmd", "d.e"), ("python", "c"), ("script", "b"),
    ]  # fmt: skip
    assert [item[:2] for item in config.tools.in_order()] == [("python", "x"), ("script", "x")]


def test_what_ctx_knows_and_this_engine_does_not_is_accepted_with_a_warning():
    _, warnings = parse_config(
        """
        [vector_index]
        backend = "auto"
        [registries.community]
        path = "x"
        """,
        environ={},
        cwd=CWD,
        shown_as="ctx.toml",
    )
    assert warnings == ("ctx.toml: vector_index has no effect here", "ctx.toml: registries has no effect here")


def test_what_ctx_says_of_retrieval_is_read():
    text = '[retrieval]\ngroup_by = "document"\ndoc_agg = "max"\nmax_chunks_per_doc = 3\nfinal_limit = 5'
    config, warnings = parse_config(text, environ={}, cwd=CWD, shown_as="ctx.toml")
    assert (config.retrieval.final_limit, warnings) == (5, ())
    assert settings(config) == DEFAULT
    other = parsed('[retrieval]\ngroup_by = "chunk"\ndoc_agg = "avg"\nmax_chunks_per_doc = 9\ndefault_mode = "hybrid"')
    assert settings(other) == replace(DEFAULT, group_by="chunk", doc_agg="avg", max_chunks_per_doc=9)
    assert other.retrieval.default_mode == "hybrid"


def test_another_embedding_provider_is_accepted_by_the_model():
    assert parsed('[embedding]\nprovider = "openai"\nmodel = "m"\ndims = 3').embedding.dims == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('provider = "openai"', "embedding: openai needs model and dims"),
        ('provider = "ollama"\nmodel = "m"', "embedding: ollama needs dims: the length of its vectors"),
        ("dims = 16385", "embedding.dims: expected at most 16384"),
        ('url = "ftp://x"', "embedding.url: expected the address of a service: the scheme must be http or https"),
        (
            'url = "https://u:geheim@x"',
            "embedding.url: expected the address of a service: the URL must not hold a user",
        ),
        ('api_key = "${KEY}"', "embedding.api_key: expected a key of at most 4,096 visible ASCII characters"),
    ],
)
def test_an_embedding_service_that_cannot_work_is_refused_without_showing_its_secrets(text, said):
    with pytest.raises(ConfigError) as error:
        parse_config(f"[embedding]\n{text}", environ={"KEY": "geheim\n"}, cwd=Path("/"))
    assert said in str(error.value)
    assert "geheim" not in str(error.value)


def test_the_key_of_an_embedding_service_is_not_printed():
    text = '[embedding]\nprovider = "openai"\nmodel = "m"\ndims = 3\napi_key = "geheim"'
    config = parsed(text)
    assert config.embedding.api_key == "geheim"
    assert "geheim" not in repr(config)


def test_a_misspelled_embedding_provider_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"expected one of auto, static, disabled.*, got 'sttaic'"):
        parsed('[embedding]\nprovider = "sttaic"')


def test_a_language_that_is_not_known_is_shown_with_those_there_are():
    with pytest.raises(ConfigError, match=r"retrieval.language: expected none or one of ar, .*, yi, got 'english'"):
        parsed('[retrieval]\nlanguage = "english"')


@pytest.mark.parametrize("key", ["[embedding]\nprovider", "[retrieval]\nlanguage"])
def test_a_refused_choice_that_came_from_the_environment_is_not_shown(key):
    with pytest.raises(ConfigError) as error:
        parse_config(f'{key} = "${{KEY}}"', environ={"KEY": "geheim"}, cwd=Path("/"))
    assert "'${KEY}'" in str(error.value)
    assert "geheim" not in str(error.value)


def test_the_template_loads_as_it_stands_and_with_every_line_uncommented():
    assert parsed(TEMPLATE.read_text()).db.path == CWD / "data/engine.sqlite"
    everything = parsed(re.sub(r"(?m)^#(?=[\[a-z])", "", TEMPLATE.read_text()))
    assert everything.agents.script["incident-responder"].extra == {"search_limit": 5}
    assert everything.tools.script["create_ticket"].extra == {"api_token": ""}
    assert everything.limits == Config().limits  # the template shows the real defaults


# ---- expansion --------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
PLAIN = st.text(st.characters(exclude_characters="$"))
DEFAULTS = st.text(st.characters(exclude_characters="}"))


@given(st.text().filter(lambda text: "${" not in text))
def test_a_text_without_variables_stays_as_it_is(text: str):
    assert expand(text, {}) == text


@given(PLAIN, NAMES, st.text(), PLAIN)
def test_a_value_comes_in_verbatim_and_is_not_expanded_again(before: str, name: str, value: str, after: str):
    assert expand(f"{before}${{{name}}}{after}", {name: value}) == before + value + after


@given(NAMES)
def test_a_variable_that_holds_its_own_name_does_not_loop(name: str):
    assert expand(f"${{{name}}}", {name: f"${{{name}}}"}) == f"${{{name}}}"


@given(NAMES, DEFAULTS, st.sampled_from([{}, {"X": "unrelated"}]))
def test_a_default_stands_in_verbatim_for_an_unset_variable(name: str, default: str, environ: dict[str, str]):
    environ = {key: value for key, value in environ.items() if key != name}
    assert expand(f"${{{name}:-{default}}}", environ) == default


@given(NAMES)
def test_an_unset_variable_without_default_is_named(name: str):
    with pytest.raises(UnsetVariable) as caught:
        expand(f"a ${{{name}}} b", {})
    assert caught.value.name == name


@given(st.lists(st.tuples(PLAIN, NAMES, st.text(min_size=1)), max_size=5))
def test_each_of_several_variables_gets_its_own_value(parts: list[tuple[str, str, str]]):
    environ = {name: value for _, name, value in parts}
    text = "".join(f"{plain}${{{name}:-unused}}" for plain, name, _ in parts)
    assert expand(text, environ) == "".join(plain + environ[name] for plain, name, _ in parts)


def test_a_default_also_stands_in_for_an_empty_value_and_an_empty_value_alone_is_empty():
    assert expand("${A:-x}", {"A": ""}) == "x"
    assert expand("[${A}]", {"A": ""}) == "[]"


@pytest.mark.parametrize("text", ["$HOME", "${", "${}", "${1A}", "${A-b}", "${a.b}", "$${", "}${"])
def test_other_dollars_are_left_alone(text: str):
    assert expand(text, {}) == text


def test_variables_are_expanded_in_values_everywhere_and_never_in_keys():
    config = parsed(
        """
        db.path = "${DIR}/store.sqlite"
        [server]
        allowed_hosts = ["${HOST:-localhost}"]
        [agents.x]
        description = "for ${WHO}"
        system_prompt = "p"
        [tools.script.t]
        path = "${DIR}/t.lua"
        "${KEY}" = "v"
        """,
        DIR="/data",
        WHO="you",
        KEY="expanded",
    )
    assert config.db.path == Path("/data/store.sqlite")
    assert config.server.allowed_hosts == ("localhost",)
    assert config.agents.inline["x"].description == "for you"
    assert config.tools.script["t"].path == Path("/data/t.lua")
    assert config.tools.script["t"].extra == {"${KEY}": "v"}


def test_what_came_from_the_environment_is_not_shown_in_an_error():
    message = error_of('[server]\nbind = "${SECRET}"', SECRET="hunter2")
    assert message == "server.bind: expected HOST:PORT, got '${SECRET}'"


# ---- one line for each mistake ----------------------------------------------------------------------------------

SCRIPT = '[agents.script.x]\npath = "x.lua"\n'

MISTAKES = {
    # unknown keys
    "[retrieval]\nfinal_limt = 3": "retrieval.final_limt: unknown key; did you mean 'final_limit'?",
    "[conector.git.x]": "conector: unknown key; did you mean 'connectors'?",
    "[limits]\ntimout_s = 1": "limits.timout_s: unknown key; did you mean 'timeout_s'?",
    "[limits]\nque_timeout_s = 1": "limits.que_timeout_s: unknown key; did you mean 'queue_timeout_s'?",
    "[limits.max]\nhost_call = 1": "limits.max.host_call: unknown key; did you mean 'host_calls'?",
    "[db]\nzz = 1": "db.zz: unknown key; known keys here: path",
    '[connectors.filesystem.x]\nroot = "r"\naccess = ["a b"]': (
        "connectors.filesystem.x.access[0]: expected a label of 1 to 64 letters, digits, '_', '.', ':' or '-', not "
        "beginning with '.', ':' or '-', got 'a b'"
    ),
    '[connectors.filesystem.x]\nroot = "r"\naccess_rules = [{ files = "a", access = [] }]': (
        "connectors.filesystem.x.access_rules[0].files: unknown key; known keys here: glob, access"
    ),
    '[connectors.filesystem.x]\nroot = "r"\naccess_rules = [{ glob = "a[", access = [] }]': (
        "connectors.filesystem.x.access_rules[0].glob: 'a[' has a '[' without its counterpart"
    ),
    "[connectors.gti.x]": "connectors.gti: unknown key; did you mean 'git'?",
    '[connectors.git.x]\nurl = "u"\nbrnch = "b"': "connectors.git.x.brnch: unknown key; did you mean 'branch'?",
    '[agents.x]\ndescription = ""\nsystem_promt = ""': (
        "agents.x.system_promt: unknown key; did you mean 'system_prompt'?"
    ),
    '[agents.inline.x]\ndescription = ""\nsystem_prompt = ""\ntool = []': (
        "agents.inline.x.tool: unknown key; did you mean 'tools'?"
    ),
    '[agents.python.x]\npath = "x"\ntimout = 3': "agents.python.x.timout: unknown key; did you mean 'timeout'?",
    '[agents.chatmd.x]\npath = "x"\nextra = 3': (
        "agents.chatmd.x.extra: unknown key; "
        "known keys here: path, description, title, model, parameters, returns, confirm, strict, roots, timeout, "
        "limits, tools, tenants, expose, allow_hosts"
    ),
    "[agents.chatmd]\ndir = 3": "agents.chatmd.dir: expected a path, got 3",
    '[agents.chatmd.dir]\npath = "x"': (
        "agents.chatmd.dir: expected a path, got a table; no agent can have this name"
    ),
    '[agents.chatmd]\nfolder = "x"': "agents.chatmd.folder: unknown key; known keys here: dir",
    '[agents.chatmd.x]\npath = "x"\nconfirm = "all"': (
        "agents.chatmd.x.confirm: expected names of tools or \"destructive\", got 'all'"
    ),
    '[agents.scripts.x]\npath = "x"': "agents.scripts: unknown table; did you mean agents.script?",
    "[tenants.quota]\nbrst = 3": "tenants.quota.brst: unknown key; did you mean 'burst'?",
    SCRIPT + "limits = {memory = 3}": "agents.script.x.limits.memory: unknown key; did you mean 'memory_bytes'?",
    # wrong types
    "db = 3": "db: expected a table, got 3",
    "agents = 3": "agents: expected a table, got 3",
    "[agents]\nx = 3": "agents.x: expected a table, got 3",
    "[agents]\nscript = 3": "agents.script: expected a table, got 3",
    "[agents.script]\nx = 3": "agents.script.x: expected a table, got 3",
    "limits = 3": "limits: expected a table, got 3",
    "[limits]\nmax = 3": "limits.max: expected a table, got 3",
    "root = 3": "root: expected a path, got 3",
    'root = ""': "root: expected a path, got ''",
    '[db]\npath = ""': "db.path: expected a path, got ''",
    '[db]\npath = "a\\u0000b"': "db.path: expected a path, got 'a\\x00b'",
    "[db]\npath = 1979-05-27": "db.path: expected a path, got a date or time",
    '[retrieval]\nfinal_limit = "3"': "retrieval.final_limit: expected a whole number, got '3'",
    "[retrieval]\nfinal_limit = true": "retrieval.final_limit: expected a whole number, got true",
    "[retrieval]\nfinal_limit = 1.5": "retrieval.final_limit: expected a whole number, got 1.5",
    '[server]\nallow_anonymous = "yes"': "server.allow_anonymous: expected true or false, got 'yes'",
    '[server]\nallowed_hosts = "x"': "server.allowed_hosts: expected a list, got 'x'",
    '[sandbox]\nrequire = ["seccomp", 3]': "sandbox.require[1]: expected a text, got 3",
    '[sandbox]\nrequire = ["secomp"]': (
        f"sandbox.require[0]: expected one of {', '.join(layers.NAMES)}, got 'secomp'"
    ),
    "[agents.x]\ndescription = 1": "agents.x.description: expected a text, got 1",
    SCRIPT + 'timeout = "3"': "agents.script.x.timeout: expected a number, got '3'",
    SCRIPT + "timeout = false": "agents.script.x.timeout: expected a number, got false",
    SCRIPT + "env = {}": "agents.script.x.env: expected a list, got a table",
    SCRIPT + 'allow_hosts = [""]': "agents.script.x.allow_hosts[0]: expected a text that is not empty, got ''",
    SCRIPT + "big = 99999999999999999999": (
        "agents.script.x.big: expected a whole number of 64 bits, got 99999999999999999999"
    ),
    # wrong ranges
    "[retrieval]\nfinal_limit = 0": "retrieval.final_limit: expected at least 1, got 0",
    "[retrieval]\nfinal_limit = 101": "retrieval.final_limit: expected at most 100, got 101",
    '[retrieval]\ngroup_by = "file"': "retrieval.group_by: expected 'document' or 'chunk', got 'file'",
    "[retrieval]\nmax_chunks_per_doc = 0": "retrieval.max_chunks_per_doc: expected at least 1, got 0",
    "[retrieval]\nhybrid_alpha = 1.5": "retrieval.hybrid_alpha: expected at most 1, got 1.5",
    "[chunking]\nmax_tokens = 5\noverlap_tokens = 5": "chunking: overlap_tokens must be smaller than max_tokens",
    "[sandbox]\nworkers = 0": "sandbox.workers: expected at least 1, got 0",
    '[sandbox]\nisolation = "none"': "sandbox.isolation: expected 'tenant' or 'execution', got 'none'",
    "[server]\nbody_timeout_s = inf": "server.body_timeout_s: expected a finite number, got inf",
    '[server]\nbind = "here"': "server.bind: expected HOST:PORT, got 'here'",
    "[limits]\ntimeout_s = 0": "limits.timeout_s: expected more than 0, got 0",
    "[limits]\ntimeout_s = nan": "limits.timeout_s: expected a finite number, got nan",
    "[limits]\nmemory_bytes = -1": "limits.memory_bytes: expected at least 1, got -1",
    "[limits]\nmemory_bytes = 1.5": "limits.memory_bytes: expected a whole number, got 1.5",
    "[limits.max]\ncpu_s = -1": "limits.max.cpu_s: expected more than 0, got -1",
    SCRIPT + "timeout = 0": "agents.script.x.timeout: expected more than 0, got 0",
    SCRIPT + "limits = {host_calls = 0}": "agents.script.x.limits.host_calls: expected at least 1, got 0",
    SCRIPT + "timeout = 3\nlimits = {timeout_s = 4}": (
        "agents.script.x: timeout = 3 and limits.timeout_s = 4 disagree; give one of them"
    ),
    # missing and twice
    "[agents.script.x]": "agents.script.x: required key 'path' is missing",
    "[agents.script.x]\npaht = 0": "agents.script.x: required key 'path' is missing; 'paht' may be a misspelling of it",
    "[server]\n[server]": "not valid TOML: Cannot declare [server] twice (at line 2, column 8)",
    "[a.b]\n[a.b]": "not valid TOML: Cannot declare [a.b] twice (at line 2, column 5)",
    '[agents.x]\ndescription = ""': "agents.x: required key 'system_prompt' is missing",
    '[connectors.git."r.x"]': "connectors.git.\"r.x\": required key 'url' is missing",
    '[agents.x]\ndescription=""\nsystem_prompt=""\n[agents.inline.x]\ndescription=""\nsystem_prompt=""': (
        "agents.x: defined twice, here and as agents.inline.x"
    ),
    # names
    '[agents.script."a b"]\npath = "x"': (
        "agents.script.\"a b\": expected a name of 1 to 64 letters, digits, '_', '.' or '-', got 'a b'"
    ),
    f'[tools.script.{"n" * 65}]\npath = "x"': (
        f"tools.script.{'n' * 65}: expected a name of 1 to 64 letters, digits, '_', '.' or '-', "
        f"got '{'n' * 57}...'"
    ),
    # variables
    '[server]\nbind = "${BIND}"': "server.bind: environment variable BIND is not set",
    '[agents.x]\ndescription = "${D}"\nsystem_prompt = ""': "agents.x.description: environment variable D is not set",
    '[tools.script.t]\npath = "${P}/t.lua"': "tools.script.t.path: environment variable P is not set",
    '[server]\nallowed_hosts = ["a", "${H}"]': "server.allowed_hosts[1]: environment variable H is not set",
    # not TOML
    "[db]\npath = ": "not valid TOML: Invalid value (at end of document)",
    "[db]\n\npath 3": "not valid TOML: Expected '=' after a key in a key/value pair (at line 3, column 6)",
    "x = " + "[" * 5000: "not valid TOML: nested too deeply",
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES.items(), ids=[message[:60] for message in MISTAKES.values()])
def test_each_mistake_gets_one_line_with_key_what_was_seen_and_what_was_expected(text: str, message: str):
    assert error_of(text) == message


KEYS = st.sampled_from(["script", "path", "x", "max", "limits", "extra"]) | st.text(max_size=3)
VALUES = st.recursive(
    st.integers() | st.booleans() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
)
SECTIONS = st.sampled_from(["db", "agents", "tools", "limits", "server", "root"]) | st.text(max_size=3)


def as_toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case str():
            return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
        case list():
            return "[" + ", ".join(map(as_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{as_toml(key)} = {as_toml(item)}" for key, item in value.items()) + "}"
    raise AssertionError(value)


@given(st.dictionaries(SECTIONS, VALUES, max_size=3))
def test_whatever_the_file_holds_it_loads_or_fails_with_one_line(tree: dict[str, object]):
    said: list[str] = []
    try:
        parsed("".join(f"{as_toml(key)} = {as_toml(value)}\n" for key, value in tree.items()))
    except ConfigError as error:
        said.append(str(error))
    assert all(len(message.splitlines()) == 1 for message in said)


# ---- where it is looked up --------------------------------------------------------------------------------------


def test_the_configuration_is_looked_up_in_the_contracts_order(tmp_path: Path):
    places = ["engine.toml", ".ctx/config.toml", "config/ctx.toml"]
    assert find_config(None, {}, tmp_path) is None
    for place in reversed(places):  # each one found beats those after it
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("")
        assert find_config(None, {}, tmp_path) == tmp_path / place
    environ = {"CTX_CONFIG": "from-ctx.toml"}
    assert find_config(None, environ, tmp_path) == tmp_path / "from-ctx.toml"
    environ["ENGINE_CONFIG"] = "/etc/engine.toml"
    assert find_config(None, environ, tmp_path) == Path("/etc/engine.toml")
    assert find_config(Path("mine.toml"), environ, tmp_path) == tmp_path / "mine.toml"
    assert find_config(None, {"ENGINE_CONFIG": ""}, tmp_path) == tmp_path / "engine.toml"


def test_a_loaded_configuration_says_where_it_came_from(tmp_path: Path):
    assert load_config(None, environ={}, cwd=tmp_path).path is None
    (tmp_path / "engine.toml").write_bytes(b'\xef\xbb\xbfroot = "sub"\r\n')  # as some editors write it
    loaded = load_config(None, environ={}, cwd=tmp_path)
    assert loaded.path == tmp_path / "engine.toml"
    assert loaded.root == loaded.config.root == tmp_path / "sub"


def test_a_named_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path):
    def message(name: str, **environ: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load_config(Path(name) if name else None, environ=environ, cwd=tmp_path)
        return str(caught.value)

    (tmp_path / "latin.toml").write_bytes(b'x = "\xe9"')
    (tmp_path / "bad.toml").write_text("[db]\npth = 1")
    (tmp_path / "dir.toml").mkdir()
    assert message("gone.toml") == "gone.toml: no such configuration file"
    assert message("", ENGINE_CONFIG="/nowhere/x.toml") == "/nowhere/x.toml: no such configuration file"
    assert message("latin.toml") == "latin.toml: not valid TOML: not UTF-8 text"
    assert message("dir.toml") == "dir.toml: cannot read the configuration file: Is a directory"
    assert message("bad.toml") == "bad.toml: db.pth: unknown key; did you mean 'path'?"


# ---- the rest ---------------------------------------------------------------------------------------------------


def test_a_bind_address_is_a_host_and_a_port():
    assert parse_bind("127.0.0.1:7331") == ("127.0.0.1", 7331)
    assert parse_bind("[::1]:0") == ("::1", 0)
    assert parse_bind("localhost:65535") == ("localhost", 65535)


@pytest.mark.parametrize("text", ["", ":7331", "host", "host:", "host:65536", "::1:80", "a b:80", "host:80\n", "h:-1"])
def test_anything_else_is_not_a_bind_address(text: str):
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        parse_bind(text)


def test_reading_a_configuration_loads_no_event_loop():
    code = "import engine.config, sys; sys.exit('trio' in sys.modules or 'asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- labels and sources


def test_connectors_give_labels_and_scripts_ask_for_them() -> None:
    text = """
        [connectors.filesystem.docs]
        root = "docs"
        access = ["staff"]
        access_rules = [{ glob = "hr/**", access = ["hr"] }]
        [connectors.script.tickets]
        path = "t.lua"
        labels = ["bug"]
        sources = "inbox"
        [agents.script.reads]
        path = "x.lua"
        labels = ["hr"]
        sources = ["docs"]
        [agents.script.own]
        path = "x.lua"
        labels = "for the script alone"
        sources = { a = 1 }
    """
    config, warnings = parse_config(text, environ={}, cwd=CWD)
    access = config.connectors.access()["filesystem:docs"]
    assert (access.labels_of("hr/pay.md"), access.labels_of("a.md")) == ({"hr"}, {"staff"})
    reads, own = config.agents.script["reads"], config.agents.script["own"]
    assert (reads.labels, reads.sources) == (("hr",), ("docs",))
    assert reads.extra == {"labels": ["hr"], "sources": ["docs"]}  # a script may have keys of these names itself
    assert (own.labels, own.sources) == ((), None)
    assert own.extra == {"labels": "for the script alone", "sources": {"a": 1}}
    assert len([each for each in warnings if "it is no list of texts" in each]) == 2
    tickets = config.connectors.script["tickets"]
    assert (tickets.labels, tickets.sources) == ((), None)
    assert tickets.extra == {"labels": ["bug"], "sources": "inbox"}
