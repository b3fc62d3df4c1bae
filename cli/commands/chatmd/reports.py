"""Diagnostics as text, JSON and SARIF 2.1.0 (docs.oasis-open.org/sarif). Pure."""

import json
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any, Literal
from urllib.parse import quote

from agents.chatmd.diagnostics import CODES, Diagnostic, Kind

Format = Literal["text", "json", "sarif"]

_SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def _text(found: Iterable[Diagnostic]) -> str:
    return "\n".join(" ".join(str(each).splitlines()) for each in found)


def _json(found: Iterable[Diagnostic]) -> str:
    return _dumped({"diagnostics": [each.as_json() for each in found]})


def _sarif(found: Iterable[Diagnostic]) -> str:
    results = list(found)
    codes = sorted({each.code for each in results})
    driver = {"name": "engine chatmd", "version": version("engine"), "rules": [_rule(code) for code in codes]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, codes.index(each.code)) for each in results],
    }
    return _dumped({"$schema": _SARIF, "version": "2.1.0", "runs": [run]})


def _rule(code: str) -> dict[str, Any]:
    kind, meaning = CODES[code]
    level = "error" if kind is Kind.ERROR else "warning"
    return {"id": code, "shortDescription": {"text": meaning}, "defaultConfiguration": {"level": level}}


def _result(found: Diagnostic, rule: int) -> dict[str, Any]:
    place = {
        "artifactLocation": {"uri": quote(found.at.file)},
        "region": {"startLine": found.at.line, "startColumn": found.at.column},
    }
    return {
        "ruleId": found.code,
        "ruleIndex": rule,
        "level": found.severity,
        "message": {"text": found.message},
        "locations": [{"physicalLocation": place}],
    }


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False)  # ASCII: names of files may be no text


WRITERS: dict[Format, Callable[[Iterable[Diagnostic]], str]] = {"text": _text, "json": _json, "sarif": _sarif}
