"""How often searches find the answers: the engine beside bare FTS5 and other rules, on the same questions, in one run.

    python -m benchmarks.quality [--config FILE] [--json FILE] [--against FILE]

MRR@10 is the mean of 1 divided by the rank of the first document with an answer; `section` counts a hit only where its
passage is of the answering section. Half of the questions, by the hash of their ids, are for choosing weights.
`[embedding]` and `[retrieval]` of a configuration say by what is searched; without one, the model `static`.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from benchmarks.quality import corpus, figures, questions, rules, words
from benchmarks.quality.figures import DEPTH, HALVES, Found, Places, Result
from benchmarks.quality.questions import Question
from engine import embedders
from engine.config import Config, ConfigError, load_config
from engine.config.models import EmbeddingConfig
from knowledge.access import EVERYTHING
from knowledge.embedding import Embedder
from knowledge.embedding.fusion import DEFAULT, Settings
from knowledge.sqlite.store import SqliteStore
from knowledge.store import Hit, Mode, SearchQuery

QUESTIONS = Path(__file__).with_name("questions.jsonl")
MODES: tuple[Mode, ...] = ("keyword", "semantic", "hybrid")
# Documents of each side that the other rules fuse: context-harness's default.
CANDIDATES = 80

# By rule, by question: its hits.
Hits = dict[str, dict[str, list[Found]]]


async def measure_configured(config: Config) -> dict[str, Any]:
    async with embedders.open_embedders(config) as found:
        if found is None:
            raise ConfigError("the configuration has no embedder")
        return await measure(found.current, embedders.settings(config))


async def measure(embedder: Embedder, settings: Settings = DEFAULT) -> dict[str, Any]:
    asked = questions.parse(QUESTIONS.read_text(encoding="utf-8"))
    answered = [each for each in asked if each.answers]
    documents = corpus.documents()
    bodies = {each.source_id: each.body for each in documents}
    hits = _bare(corpus.chunks(documents), answered)
    with tempfile.TemporaryDirectory() as folder:
        async with corpus.filled(Path(folder) / "corpus.sqlite", documents, embedder, settings) as store:
            for mode in MODES:
                found = {each.id: await _search(store, each, mode, DEPTH) for each in answered}
                hits[f"engine, {mode}"] = {name: [_found(hit) for hit in each] for name, each in found.items()}
            near = {each.id: await _search(store, each, "semantic", CANDIDATES) for each in asked}
    hits |= _fused(corpus.chunks(documents), answered, near)
    results = {rule: _results(answered, bodies, found) for rule, found in hits.items()}
    return {
        "model": embedder.model.name,
        "rules": {rule: figures.report(answered, each) for rule, each in results.items()},
        "cosines": _cosines(asked, near),
    }


def _bare(chunks: Sequence[corpus.Chunk], asked: Sequence[Question]) -> Hits:
    texts = {each.id: each.question for each in asked}
    return {
        f"FTS5, {tokenizer}": {
            name: [Found(chunk.source_id, chunk.lines) for chunk, _ in found]
            for name, found in words.search(chunks, texts, tokenizer).items()
        }
        for tokenizer in ("unicode61", "porter")
    }


def _fused(chunks: Sequence[corpus.Chunk], asked: Sequence[Question], near: Mapping[str, Sequence[Hit]]) -> Hits:
    texts = {each.id: each.question for each in asked}
    fused: Hits = {"ctx's rule": {}, "RRF": {}}
    for name, found in words.search(chunks, texts, "porter").items():
        by_words = {chunk.source_id: score for chunk, score in found[:CANDIDATES]}
        by_meaning = {hit.source_id: hit.score for hit in near[name]}
        fused["ctx's rule"][name] = [Found(each) for each in rules.ctx(by_words, by_meaning)]
        fused["RRF"][name] = [Found(each) for each in rules.rrf(by_words, by_meaning)]
    return fused


async def _search(store: SqliteStore, question: Question, mode: Mode, limit: int) -> tuple[Hit, ...]:
    answer = await store.search(SearchQuery(query=question.question, mode=mode, limit=limit), EVERYTHING)
    if answer.warnings:
        raise RuntimeError(f"{question.id}: {answer.warnings[0]}")
    return tuple(answer.hits)


def _found(hit: Hit) -> Found:
    return Found(hit.source_id, hit.lines)


def _results(
    asked: Sequence[Question], bodies: Mapping[str, str], found: Mapping[str, Sequence[Found]]
) -> dict[str, Result]:
    return {each.id: figures.result_of(_places(each, bodies), found[each.id]) for each in asked}


def _places(question: Question, bodies: Mapping[str, str]) -> Places:
    places: dict[str, list[tuple[int, int]]] = {}
    for answer in question.answers:
        sections = questions.answering(bodies[answer.source_id], answer.heading)
        places.setdefault(answer.source_id, []).extend((each.first, each.last) for each in sections)
    return places


def _cosines(asked: Sequence[Question], near: Mapping[str, Sequence[Hit]]) -> dict[str, float]:
    """The median of the best cosine, by kind: whether a question without an answer can be told from others."""
    best: dict[str, list[float]] = {}
    for each in asked:
        best.setdefault(each.kind, []).append(near[each.id][0].score if near[each.id] else 0.0)
    return {kind: round(sorted(values)[len(values) // 2], 3) for kind, values in best.items()}


def show(result: Mapping[str, Any]) -> None:
    print(f"model {result['model']}; MRR@{DEPTH} (95 %), recall@{DEPTH}, MRR@{DEPTH} of the answering section")
    for half in HALVES:
        first = next(iter(result["rules"].values()))[half]
        for kind in first:
            print(f"\n{half}, {kind}: {first[kind]['questions']} questions")
            for rule, each in result["rules"].items():
                one = each[half][kind]
                low, high = one["mrr_interval"]
                section = f"{one['section_mrr']:.3f}" if one["section_mrr"] else "    -"
                print(f"  {rule:18} {one['mrr']:.3f} ({low:.2f} to {high:.2f})  {one['recall']:.3f}  {section}")
    print(f"\nbest cosine, median: {', '.join(f'{kind} {value}' for kind, value in result['cosines'].items())}")


def show_worse(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    texts = {each.id: each.question for each in questions.parse(QUESTIONS.read_text(encoding="utf-8"))}
    found = figures.worse(before["rules"], now["rules"])
    print(f"\n{len(found)} worse than before")
    for rule, name, old, new in found:
        print(f"  {rule}, rank {old or 'none'} → {new or 'none'}: {name}: {texts[name]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, metavar="FILE", help="search by the model and weights of this one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    parser.add_argument("--against", type=Path, metavar="FILE", help="name the questions that stood higher in this one")
    given = parser.parse_args()
    try:
        config = Config(embedding=EmbeddingConfig(provider="static"))
        if given.config is not None:
            config = load_config(given.config, environ=os.environ, cwd=Path.cwd()).config
        result = trio.run(measure_configured, config)
    except ConfigError as error:
        parser.error(str(error))
    show(result)
    if given.against is not None:
        show_worse(json.loads(given.against.read_text(encoding="utf-8")), result)
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
