"""`[models]`: language models, and which of them a tenant uses. Pure."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from engine.config.fields import Count, FilePath, Model, Name, Seconds, Strings, Text
from engine.egress.rules import parse_url

# A key that is a secret of the tenant: its name.
SECRET = re.compile(r"secret:([A-Za-z_][A-Za-z0-9_]{0,63})")


def _phrase(text: str) -> PydanticCustomError:
    return PydanticCustomError("phrase", "{text}", {"text": text})


def _base(value: str) -> str:
    try:
        target = parse_url(value)
    except ValueError as error:  # its text is without the address
        raise _phrase(f"expected the address of a server: {error}") from None
    if "?" in target.path:
        raise _phrase("expected the address of a server, without a query")
    return target.url.rstrip("/")


def _key(value: str) -> str:
    if value.startswith("secret:") and not SECRET.fullmatch(value):
        raise _phrase("expected secret: and the name of a secret: letters, digits and '_'")
    if not all(33 <= ord(character) <= 126 for character in value):  # never shown
        raise _phrase("expected a key of ASCII characters, without white space")
    return value


Key = Annotated[str, AfterValidator(_key)]
Dollars = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class PriceConfig(Model):
    """`price`: US dollars for a million tokens. Cached input costs what other input does, unless it has a price."""

    input: Dollars
    cached_input: Dollars | None = None
    output: Dollars


# Of the wires that are no servers: the key that they need, and those that have no meaning.
_KEYS: Mapping[str, tuple[str | None, tuple[str, ...]]] = {
    "script": ("path", ("url", "key")),
    "client": (None, ("url", "key", "path", "model", "requests_per_minute", "price")),
}


class ModelEntry(Model):
    """`[models.NAME]`. An empty key is none, for `${NAME:-}`."""

    api: Literal["openai", "anthropic", "script", "client"]
    url: Annotated[Text, AfterValidator(_base)] | None = None
    model: Text | None = None
    key: Key | None = Field(default=None, repr=False)
    path: FilePath | None = None
    max_output_tokens: Count = 4096
    context_tokens: Count = 128_000
    at_once: Annotated[int, Field(ge=1, le=10_000)] = 16
    requests_per_minute: Count | None = None
    timeout_s: Annotated[Seconds, Field(le=3600)] = 120
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    tenants: Strings | None = None
    price: PriceConfig | None = None

    @model_validator(mode="after")
    def _what_its_api_needs(self) -> "ModelEntry":
        needed, foreign = _KEYS.get(self.api, ("model", ("path",)))
        if needed is not None and getattr(self, needed) is None:
            raise _phrase(f"required key {needed!r} is missing (api = {self.api!r})")
        for name in foreign:
            if getattr(self, name) is not None:
                raise _phrase(f"{name} has no meaning with api = {self.api!r}")
        return self

    @property
    def secret(self) -> str | None:
        """The tenant's secret that is the key, if it is one."""
        match = SECRET.fullmatch(self.key or "")
        return match[1] if match else None

    @property
    def is_shared(self) -> bool:
        """Whether several tenants have it."""
        return "*" in (self.tenants or ()) or len(set(self.tenants or ())) > 1


class ModelsConfig(Model):
    """`[models]`: models by name, in the order of the file, and the name of the default one."""

    default: Name | None = None
    entries: dict[Name, ModelEntry] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _the_default_is_there(self) -> "ModelsConfig":
        if self.default is not None and self.default not in self.entries:
            known = ", ".join(self.entries) or "none"
            raise _phrase(f"default names the model {self.default!r}, which is not configured; configured: {known}")
        return self

    def of(self, tenant: str) -> dict[str, ModelEntry]:
        """The tenant's models."""
        return {
            name: entry for name, entry in self.entries.items() if {tenant, "*"} & set(entry.tenants or ("default",))
        }

    def default_of(self, tenant: str) -> str | None:
        """The tenant's model where none is named: the default, else the first that the tenant has."""
        found = self.of(tenant)
        return self.default if self.default in found else next(iter(found), None)
