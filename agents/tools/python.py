"""Python tools: an author's async `execute(params, context)`, run in this process."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from agents.agent import Call
from agents.code.authoring import Context
from agents.code.entries import Loading, Place
from agents.code.kind import Kind
from agents.code.python import PythonCode, Unusable
from agents.shapes.checked import CheckedSchema
from agents.shapes.parameters import checking_answer
from agents.shapes.schema import parameters_schema, returns_schema, with_defaults
from agents.shapes.shape import JSON, ToolAnnotations, WrongShape, narrowed, tool_declaration
from agents.tool import Called, Tool, ToolInfo
from engine.config import PythonEntry
from engine.errors import Code, Problem
from engine.host.pieces import in_pieces


@dataclass(frozen=True, slots=True)
class PythonTool:
    """A tool that an author's object describes and executes. `model` is the class of its parameters, if it has one."""

    info: ToolInfo
    code: PythonCode
    tools: tuple[str, ...]
    model: type[BaseModel] | None
    _answers: CheckedSchema | None

    @classmethod
    def from_code(cls, code: PythonCode) -> "PythonTool":
        """The tool as its object declares it. Raises WrongShape and Unusable."""
        said = tool_declaration(code.declared("tools", "parameters", "returns", "annotations"), JSON)
        model = said.parameters if _is_model(said.parameters) else None
        returns = returns_schema(_schema(said.returns, "returns", "serialization"))
        hints = said.annotations or ToolAnnotations()  # only its author knows its side effects: it is not confined
        info = ToolInfo(
            name=code.name,
            title=said.title,
            description=said.description if said.description is not None else f"Python tool: {code.name}",
            builtin=False,
            parameters=parameters_schema(_schema(said.parameters, "parameters", "validation")),
            returns=returns,
            read_only=bool(hints.read_only),
            destructive=hints.destructive,
            idempotent=hints.idempotent,
            open_world=hints.open_world,
        )
        validator = None if returns is None else CheckedSchema(returns)
        return cls(info, code, narrowed(said.tools, code.entry.tools), model, validator)

    async def execute(self, params: Mapping[str, Any], call: Call) -> Called:
        """Await the author's `execute`. Raises Problem: tool_error, timeout, output_limit, bad_request (the model)."""

        async def step(context: Context) -> Any:
            return await self.code.target.execute(self._given(params), context)

        answer = await self.code.run(step, call, self.tools)
        try:
            if self._answers is not None:
                working = partial(self.code.engine.work_for, call.tenant)
                await in_pieces(checking_answer(self._answers, answer.value, working))
        except WrongShape as wrong:
            raise self.code.wrong_shape(answer.run_id, str(wrong)) from None
        return Called(answer.value)

    def _given(self, params: Mapping[str, Any]) -> Any:
        filled = with_defaults(self.info.parameters, params)
        if self.model is None:
            return filled
        try:
            # As JSON, so that a strict model accepts texts for types that JSON does not have (a date).
            return self.model.model_validate_json(json.dumps(filled))
        except ValidationError as invalid:
            first = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            said = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            raise Problem(Code.BAD_REQUEST, f"parameter '{name}': {said}" if name else said) from None


def _is_model(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, BaseModel)


def _schema(declared: Any, what: str, mode: Literal["validation", "serialization"]) -> Any:
    """A declared schema unchanged; for a pydantic model, its schema with every reference replaced by its definition."""
    if not _is_model(declared):
        return declared
    try:
        schema = declared.model_json_schema(mode=mode)
    except Exception as error:  # pydantic's, and those of the author's own schema hooks
        raise Unusable(f"{what}: {declared.__name__} has no JSON Schema: {str(error).splitlines()[0][:200]}") from None
    definitions = schema.pop("$defs", {})
    return _inlined(schema, definitions, (), what)


def _inlined(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...], what: str) -> Any:
    if isinstance(node, list):
        return [_inlined(item, definitions, inside, what) for item in node]
    if not isinstance(node, dict):
        return node
    rest = {key: _inlined(value, definitions, inside, what) for key, value in node.items() if key != "$ref"}
    if "$ref" not in node:
        return rest
    name = node["$ref"].removeprefix("#/$defs/")
    if name in inside:
        raise WrongShape(f"tool.{what}: {name} holds itself, which a schema without references cannot express")
    return _inlined(definitions[name], definitions, (*inside, name), what) | rest


async def _load(place: Place, entry: PythonEntry, loading: Loading) -> Tool:
    return PythonTool.from_code(await loading.code(place, entry))


KIND = Kind(table="python", load=_load)
