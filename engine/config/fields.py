"""The types of settings: texts, counts, addresses, tables of limits. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from engine.egress.rules import parse_rule, parse_url
from engine.names import valid_name
from engine.quota import QUOTAS
from knowledge.access import MAX_LABEL_CHARACTERS, MAX_LABELS, check_labels
from sandbox.wire.layers import NAMES as LAYERS
from sandbox.wire.limits import SPECS
from storage.teams.budgets import BUDGETS

INT64 = 2**63 - 1
_BIND = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")


def parse_bind(text: str) -> tuple[str, int]:
    """The host and port of `HOST:PORT` or `[IPv6]:PORT` (host without brackets; port 0..65535, 0 means any free one).

    Raises ValueError for anything else.
    """
    match = _BIND.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ValueError(f"expected HOST:PORT, got {text!r}")
    return match[1].strip("[]"), int(match[2])


def expected(what: str) -> PydanticCustomError:
    return PydanticCustomError("expected", "{what}", {"what": what})


def _resolve(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise expected("a path")
    root: Path | None = (info.context or {}).get("root")
    return root / value if root is not None else Path(value)


def _check_bind(value: str) -> str:
    try:
        parse_bind(value)
    except ValueError:
        raise expected("HOST:PORT") from None
    return value


_PERIOD = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_S = 366 * 86400


def _period(value: Any) -> float:
    match = _PERIOD.fullmatch(value) if isinstance(value, str) else None
    seconds = int(match[1]) * _UNIT_S[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST_S:
        raise expected("a period of 1s to 366d, such as 90s, 15m, 12h, 30d or 8w")
    return float(seconds)


def _check_name(value: str) -> str:
    if not valid_name(value):
        raise expected("a name of 1 to 64 letters, digits, '_', '.' or '-'")
    return value


def _check_host_rule(value: str) -> str:
    try:
        parse_rule(value)
    except ValueError as error:
        raise expected(str(error).removeprefix("expected ")) from None
    return value


def _check_label(value: str) -> str:
    try:
        check_labels((value,))
    except ValueError:
        raise expected(
            f"a label of 1 to {MAX_LABEL_CHARACTERS} letters, digits, '_', '.', ':' or '-', not beginning with "
            "'.', ':' or '-'"
        ) from None
    return value


def _check_url(value: str) -> str:
    try:
        parse_url(value)
    except ValueError as error:  # its text is shown without the address, which may hold a password
        raise PydanticCustomError("phrase", "expected the address of a page: {why}", {"why": str(error)}) from None
    return value


def _check_service_url(value: str) -> str:
    try:
        parse_url(value)
    except ValueError as error:
        raise PydanticCustomError("phrase", "expected the address of a service: {why}", {"why": str(error)}) from None
    return value


def _check_layer(value: str) -> str:
    # A misspelt layer would silently be ignored.
    if value not in LAYERS:
        raise expected(f"one of {', '.join(LAYERS)}")
    return value


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A table of numbers: for each key its least whole number, or None for any number above 0."""

    least: Callable[[], Mapping[str, int | None]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.typed_dict_schema(
            {
                name: core_schema.typed_dict_field(
                    core_schema.float_schema(gt=0, allow_inf_nan=False, strict=True)
                    if least is None
                    else core_schema.int_schema(ge=least, le=INT64, strict=True),
                    required=False,
                )
                for name, least in self.least().items()
            },
            extra_behavior="forbid",
        )


# Relative paths are resolved against the root in the validation context; without one they stay as given.
FilePath = Annotated[Path, BeforeValidator(_resolve)]
Text = Annotated[str, Field(min_length=1)]
Label = Annotated[str, AfterValidator(_check_label)]
Labels = Annotated[tuple[Label, ...], Field(strict=False, max_length=MAX_LABELS)]
Strings = Annotated[tuple[Text, ...], Field(strict=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# A text such as `15m`, in seconds.
Period = Annotated[float, BeforeValidator(_period)]
Count = Annotated[int, Field(ge=1, le=INT64)]
Bind = Annotated[str, AfterValidator(_check_bind)]
HostRules = Annotated[tuple[Annotated[Text, AfterValidator(_check_host_rule)], ...], Field(strict=False)]
Urls = Annotated[tuple[Annotated[Text, AfterValidator(_check_url)], ...], Field(strict=False)]
ServiceUrl = Annotated[str, AfterValidator(_check_service_url)]
Layer = Annotated[str, AfterValidator(_check_layer)]
Name = Annotated[str, AfterValidator(_check_name)]
LimitTable = Annotated[
    dict[str, float], _Numbers(lambda: {name: 1 if spec.integral else None for name, spec in SPECS.items()})
]
QUOTA_NUMBERS = _Numbers(lambda: {name: spec.least for name, spec in QUOTAS.items()})
BUDGET_NUMBERS = _Numbers(
    lambda: {name: 0 if spec.unit in ("count", "bytes") else None for name, spec in BUDGETS.items()}
)
QuotaTable = Annotated[dict[str, float], QUOTA_NUMBERS]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


# Where MCP clients see an agent: among the prompts, among the tools, or both.
Exposure = Annotated[tuple[Literal["prompt", "tool"], ...], Field(strict=False)]
