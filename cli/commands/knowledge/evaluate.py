"""How well the store answers questions whose answers are known: `engine eval`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import Parameter

from cli.commands.store import Mode, reading
from cli.evaluation import DEPTH, SWEPT, Question, Result, change, parse_questions, report, result_of, worse
from cli.options import AsJson, AsLabels, ConfigPath, TenantName, reader_of
from cli.output import FAILED, UNUSABLE, Exit, one_line, plural, say, say_json, table, warn
from engine.embedders import settings
from knowledge.access import Reader
from knowledge.sqlite.store import SqliteStore
from knowledge.store import EmbeddingsDisabled, SearchQuery, StoreError

# The keys of SWEPT.
Swept = Literal["hybrid_alpha", "candidate_k_keyword", "candidate_k_vector"]


async def evaluate(
    file: Path,
    /,
    *,
    mode: Annotated[list[Mode] | None, Parameter(help="How to search; may be repeated.", negative=())] = None,
    sweep: Annotated[Swept | None, Parameter(help="Also try values of this setting of [retrieval], in hybrid.")] = None,
    against: Annotated[Path | None, Parameter(help="Compare with this result of --json.")] = None,
    config: ConfigPath = None,
    as_json: AsJson = False,
    as_labels: AsLabels = None,
    tenant: TenantName = "default",
) -> None:
    """Measure how well searches answer questions with known answers."""
    questions = _questions(file)
    before = _before(against)
    modes: dict[str, Any] = {}
    warnings: dict[str, None] = {}
    with_hybrid: list[Mode] = ["hybrid"] if sweep else []
    async with reading(config, tenant, modes=(*(mode or ()), *with_hybrid) or (None,)) as (loaded, store):
        usual: Mode = "hybrid" if sweep else loaded.config.retrieval.default_mode
        reader = reader_of(as_labels)
        for each in dict.fromkeys(mode or [usual]):
            modes[each] = report(questions, await _results(store, questions, each, reader, warnings))
        found: dict[str, Any] = {"modes": modes}
        if sweep is not None:
            tried = []
            for value in SWEPT[sweep]:
                retrieval = loaded.config.retrieval.model_copy(update={sweep: value})
                other = store.with_settings(settings(loaded.config.model_copy(update={"retrieval": retrieval})))
                figures = report(questions, await _results(other, questions, "hybrid", reader, warnings))
                tried.append({"value": value, "all": figures["all"], "kinds": figures["kinds"]})
            found["sweep"] = {"setting": sweep, "values": tried}
    if before is not None:
        found |= {"change": change(before, modes), "worse": worse(before, modes)}
    if as_json:
        say_json(found | ({"warnings": list(warnings)} if warnings else {}))
        return
    for warning in warnings:
        warn(warning)
    _show(found, questions)


def _questions(file: Path) -> list[Question]:
    try:
        return parse_questions(file.read_text(encoding="utf-8"))
    except ValueError as error:  # UnicodeDecodeError included
        raise Exit(UNUSABLE, f"{file}: {one_line(error)}") from None


def _before(file: Path | None) -> Mapping[str, Any] | None:
    """The modes of an earlier result."""
    if file is None:
        return None
    try:
        modes = json.loads(file.read_text(encoding="utf-8"))["modes"]
        for mode, each in modes.items():
            if mode not in get_args(Mode) or not all(
                rank is None or (type(rank) is int and rank > 0) for rank in each["ranks"].values()
            ):
                raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Exit(UNUSABLE, f"{file} is not a result of engine eval --json") from None
    found: Mapping[str, Any] = modes
    return found


async def _results(
    store: SqliteStore, questions: list[Question], mode: Mode, reader: Reader, warnings: dict[str, None]
) -> dict[str, Result]:
    found = {}
    for each in questions:
        try:
            answer = await store.search(SearchQuery(query=each.question, mode=mode, limit=DEPTH), reader)
        except EmbeddingsDisabled as error:
            raise Exit(UNUSABLE, str(error)) from None
        except StoreError as error:
            raise Exit(FAILED, str(error)) from None
        warnings.update(dict.fromkeys(answer.warnings))
        found[each.id] = result_of(each, answer.hits)
    return found


def _show(found: Mapping[str, Any], questions: list[Question]) -> None:
    lines = [
        (mode, kind, figures["questions"], f"{figures['mrr']:.3f}", _range(figures), f"{figures['recall']:.3f}")
        for mode, each in found["modes"].items()
        for kind, figures in (*each["kinds"].items(), ("all", each["all"]))
    ]
    table(lines, heading=("MODE", "KIND", "QUESTIONS", f"MRR@{DEPTH}", "95 %", f"RECALL@{DEPTH}"), indent="")
    if "sweep" in found:
        say()
        _show_sweep(found["sweep"])
    if "worse" not in found:
        return
    say()
    for mode, each in found["change"].items():
        over = plural(each["questions"], "question")
        say(f"{mode}: MRR@{DEPTH} {each['mrr']:+.3f} over {over} of both, at 95 % {_range(each)}")
    say(f"{plural(len(found['worse']), 'question')} worse than before{':' if found['worse'] else ''}")
    texts = {each.id: each.question for each in questions}
    for each in found["worse"]:
        ranks = " → ".join("none" if each[when] is None else str(each[when]) for when in ("before", "now"))
        say(f"  {each['mode']}, rank {ranks}: {one_line(each['id'])}: {one_line(texts[each['id']])}")


def _show_sweep(sweep: Mapping[str, Any]) -> None:
    kinds = list(sweep["values"][0]["kinds"])
    lines = [
        (
            f"{each['value']:g}", f"{each['all']['mrr']:.3f}", _range(each["all"]), f"{each['all']['recall']:.3f}",
            *(f"{each['kinds'][kind]['mrr']:.3f}" for kind in kinds),
        )
        for each in sweep["values"]
    ]  # fmt: skip
    table(lines, heading=(sweep["setting"], f"MRR@{DEPTH}", "95 %", f"RECALL@{DEPTH}", *kinds), indent="")


def _range(figures: Mapping[str, Any]) -> str:
    low, high = figures["mrr_interval"]
    return f"{low:.3f} to {high:.3f}"
