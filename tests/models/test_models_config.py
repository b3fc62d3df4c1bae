"""`[models]`: what it may hold, what tenants get of it, and one line for each mistake."""

from pathlib import Path

import pytest

from engine.config import Config, ConfigError, parse_config

OPENAI = '[models.a]\napi = "openai"\nmodel = "x"\n'


def parsed(text: str, **environ: str) -> Config:
    config, warnings = parse_config(text, environ=environ, cwd=Path("/root"), shown_as="engine.toml")
    assert warnings == ()
    return config


def test_models_are_read_in_the_order_of_the_file_with_their_variables() -> None:
    config = parsed(
        """
        [models]
        default = "b.c"
        [models.a]
        api = "anthropic"
        model = "x"
        url = "HTTPS://Models.Example.com:443/api/"
        key = "${KEY}"
        price = { input = 3, output = 15.5 }
        [models."b.c"]
        api = "script"
        path = "answers.toml"
        tenants = ["*"]
        """,
        KEY="sk-123",
    )
    models = config.models
    assert list(models.entries) == ["a", "b.c"]
    a, b = models.entries.values()
    assert (a.url, a.key, a.secret) == ("https://models.example.com/api", "sk-123", None)
    assert a.price is not None
    assert (a.price.input, a.price.cached_input, a.price.output) == (3, None, 15.5)
    assert b.path == Path("/root/answers.toml")
    assert list(models.of("default")) == ["a", "b.c"]
    assert list(models.of("acme")) == ["b.c"]
    assert models.default_of("acme") == "b.c"
    assert "sk-123" not in repr(config)


def test_without_a_default_it_is_the_first_that_the_tenant_has() -> None:
    models = parsed(OPENAI + '[models.b]\napi = "openai"\nmodel = "y"\ntenants = ["acme"]\n').models
    assert (models.default_of("default"), models.default_of("acme"), models.default_of("other")) == ("a", "b", None)


def test_a_secret_of_the_tenant_and_no_key_are_told_apart() -> None:
    assert parsed(OPENAI + 'key = "secret:MY_KEY"').models.entries["a"].secret == "MY_KEY"
    assert parsed(OPENAI + 'key = "${NONE:-}"').models.entries["a"].key == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models = 1", "models: expected a table, got 1"),
        ('[models]\ndefualt = "a"', "models.defualt: unknown key; did you mean 'default'?"),
        ('[models]\ndefault = "z"', "models: default names the model 'z', which is not configured; configured: none"),
        ("[models.default]", "models.default: expected the name of a model, got a table; no model can have this name"),
        ('[models.a]\nmodel = "x"', "models.a: required key 'api' is missing"),
        ('[models.a]\napi = "mind"', "models.a.api: expected 'openai', 'anthropic', 'script' or 'client', got 'mind'"),
        ('[models.a]\napi = "openai"', "models.a: required key 'model' is missing (api = 'openai')"),
        ('[models.a]\napi = "script"', "models.a: required key 'path' is missing (api = 'script')"),
        ('[models.a]\napi = "script"\npath = "x"\nkey = "k"', "models.a: key has no meaning with api = 'script'"),
        (OPENAI + 'path = "x"', "models.a: path has no meaning with api = 'openai'"),
        (OPENAI + 'modle = "y"', "models.a.modle: unknown key; did you mean 'model'?"),
        (OPENAI + 'url = "ftp://x"', "models.a.url: expected the address of a server: the scheme must be http or"),
        (OPENAI + 'url = "http://me:hidden@x"', "models.a.url: expected the address of a server: the URL must not"),
        (OPENAI + 'url = "http://x/?key=hidden"', "models.a.url: expected the address of a server, without a query"),
        (OPENAI + 'key = "${NOPE}"', "models.a.key: environment variable NOPE is not set"),
        (OPENAI + 'key = "secret:a-b"', "models.a.key: expected secret: and the name of a secret"),
        (OPENAI + 'key = "hidden\\nkey"', "models.a.key: expected a key of ASCII characters, without white space"),
        (OPENAI + "price = { input = 1 }", "models.a.price: required key 'output' is missing"),
        (OPENAI + "price = { input = -1, output = 1 }", "models.a.price.input: expected at least 0, got -1"),
        (OPENAI + "at_once = 0", "models.a.at_once: expected at least 1, got 0"),
        (OPENAI + "retries = 11", "models.a.retries: expected at most 10, got 11"),
        (OPENAI + "timeout_s = 0", "models.a.timeout_s: expected more than 0, got 0"),
        ('[models."a b"]\napi = "openai"', "models.\"a b\": expected a name of 1 to 64 letters, digits, '_', '.' or"),
    ],
)
def test_every_mistake_is_one_line_that_names_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert str(caught.value).startswith(f"engine.toml: {said}")
    assert "hidden" not in str(caught.value)
    assert "\n" not in str(caught.value)
