"""A document as a tool: its run with a model answers the caller's input."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog
import trio

from agents.agent import AgentInfo, Call
from agents.asking import ROUNDS
from agents.chatmd.history import given
from agents.chatmd.program import Part, Program, Words
from agents.chatmd.run import Budget, Step, without_fence
from agents.code.calls import around
from agents.code.entries import Loading, Means, NotLoaded, Place, tenants_of
from agents.registry import Registry
from agents.shapes.checked import CheckedSchema
from agents.shapes.schema import returns_schema, with_defaults
from agents.tool import Called, ModelRun, Tool, ToolInfo
from agents.tools.conversation import Conversation, DocumentFailed, Shared, chosen
from engine.config import ChatmdEntry
from engine.engine import Engine
from engine.errors import Code, Problem, amount, limit_use
from engine.models.calling import CalledModel
from engine.models.reserving import MICRO
from engine.models.shapes import parsed
from engine.run import Usage, new_run_id
from engine.tenant import Tenant
from sandbox.wire.outcome import Outcome

log = structlog.get_logger("agents.chatmd")

# The parameters of a document that declares none.
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
# The outcomes of codes that have another name; of those that are in neither list, the run was refused.
_OUTCOMES = {Code.AGENT_ERROR: Outcome.SCRIPT_ERROR}


class Document(Protocol):
    """An agent that is a document."""

    @property
    def info(self) -> AgentInfo: ...

    @property
    def program(self) -> Program: ...

    @property
    def parameters(self) -> Mapping[str, Any] | None: ...

    @property
    def read(self) -> Mapping[Path, Any]: ...


@dataclass(frozen=True, slots=True)
class ChatmdTool:
    """Answers by a run of the document: one string, or with `returns` a value."""

    able: ToolInfo
    program: Program
    entry: ChatmdEntry
    engine: Engine = field(repr=False)
    means: Means = field(repr=False)
    registry: Registry = field(repr=False)
    checked: CheckedSchema | None = None
    # Its name in the books and in the log: NAME, and for a published document NAME@VERSION.
    label: str = ""
    own: frozenset[Path] | None = None
    # Whose it is, and what it says of itself while none of them has a model.
    tenants: Sequence[str] = ()
    unable: ToolInfo | None = None

    @property
    def info(self) -> ToolInfo:
        """As the tenants' models are now: `[models]` may change while a published document stays."""
        if self.unable is None or any(self.means.models.of(tenant) for tenant in self.tenants):
            return self.able
        return self.unable

    @classmethod
    def from_agent(
        cls,
        agent: Document,
        entry: ChatmdEntry,
        engine: Engine,
        means: Means,
        registry: Registry,
        *,
        tenants: Sequence[str],
        known: Callable[[str], ToolInfo | None],
        label: str | None = None,
        own: frozenset[Path] | None = None,
    ) -> "ChatmdTool":
        """The tool of a document for these tenants; `known` finds a tool of theirs by its name.

        `own` are the documents in its folder that its tools may read; None: all.
        """
        about = agent.info
        described, returns = about.description, returns_schema(entry.returns)
        info = ToolInfo(
            name=about.name,
            title=about.title,
            description=described,
            builtin=False,
            parameters=PARAMETERS if agent.parameters is None else agent.parameters,
            returns=returns,
            read_only=reads_only(agent.program, entry.tools, known),
        )
        checked = None if returns is None else CheckedSchema(returns)
        unable = info.model_copy(update={"description": f"{described}\n\nIt cannot run: {means.models.missing}."})
        return cls(
            info, agent.program, entry, engine, means, registry, checked, label or about.name, own, tuple(tenants),
            unable,
        )  # fmt: skip

    async def execute(self, params: Mapping[str, Any], call: Call) -> Called:
        """Run the document. Raises Problem: `unavailable` without a model, `agent_error`, those of models and limits.

        Each, but that without a model, has the figures of the run.
        """
        model = self.model_for(call.tenant)
        run = self._run(call, model)
        run.say(0.0, "Starting agent")
        try:
            async with self.engine.spending.model_run(call.tenant, run.label) as run.shared.spending:
                value = await self._answer(run, params)
        except Problem as problem:
            run.outcome = _outcome_of(problem)
            run.closed_by = problem.closed_by if isinstance(problem, DocumentFailed) else None
            problem.run_id, problem.run = run.id, run.figures().as_json()
            raise
        else:
            run.outcome = Outcome.OK
        finally:
            run.end()
        return Called(value, model_run=run.figures())

    async def first_step(self, params: Mapping[str, Any], call: Call, model: str | None = None) -> Step:
        """What the model would be asked first: nothing is sent. `model` is one of the tenant's, instead of its own."""
        run = self._run(call, self.model_for(call.tenant, model))
        conversation, last = self._begun(run, params)
        return await conversation.first_step(last)

    def model_for(self, tenant: Tenant, named: str | None = None) -> CalledModel:
        """The model of a run for this tenant. Raises Problem `unavailable`, naming the setting."""
        named = named or self.entry.model
        found = chosen(self.means.models, tenant.id, named) if named else None
        if named and found is None:
            mine = ", ".join(self.means.models.of(tenant.id)) or "none"
            raise Problem(Code.UNAVAILABLE, f"{self.subject}: its model {named[:64]!r} is not one of yours: {mine}")
        found = (
            found or chosen(self.means.models, tenant.id, self.program.model) or self.means.models.default_of(tenant.id)
        )
        if found is None:
            raise Problem(Code.UNAVAILABLE, f"{self.subject} cannot run: {self.means.models.missing}")
        return self.means.models.model(found, tenant.id)

    @property
    def subject(self) -> str:
        return f"agent '{self.info.name}'"

    def _run(self, call: Call, model: CalledModel) -> "_RunOfDocument":
        # A model thinks longer than a script computes: without a `timeout`, a run has what the ceilings allow.
        asked = {"timeout_s": math.inf, **self.entry.limits}
        bound = self.engine.limits_for(asked, call.tenant)
        limits = {name: bound[name] for name in ("model_turns", "tool_calls", "model_tokens", "cost_usd")}
        if model.entry.api == "client":  # so that the last question that the client answers is one without tools
            limits["model_turns"] = min(limits["model_turns"], ROUNDS)
        budget = Budget(limits)
        chain = (*around(call), self.info.name)
        shared = Shared(
            self.engine, self.registry, self.means, call, self.entry, chain, bound, budget, self.subject, self.own
        )  # fmt: skip
        return _RunOfDocument(new_run_id(), self.label or self.info.name, model, shared)

    def _begun(self, run: "_RunOfDocument", params: Mapping[str, Any]) -> tuple[Conversation, Sequence[Part]]:
        named = self.entry.parameters is not None
        values = with_defaults(self.info.parameters, params) if named else params
        program, text = given(self.program, values, named=named)
        last = (Words(text),) if text or not named else ()
        conversation = Conversation(
            run.shared, program, run.model, program.documents, self.info.returns, self.checked
        )  # fmt: skip
        return conversation, last

    async def _answer(self, run: "_RunOfDocument", params: Mapping[str, Any]) -> Any:
        bound = run.shared.bound
        with trio.move_on_after(bound["timeout_s"]) as scope:
            conversation, last = self._begun(run, params)
            answered = await conversation.answer(last)
            run.closed_by = answered.closed_by
            return answered.text if self.checked is None else parsed(without_fence(answered.last))
        assert scope.cancelled_caught
        raise Problem(
            Code.TIMEOUT,
            f"{self.subject} did not end within {amount(bound['timeout_s'], 's')} (limits.timeout_s)",
            limit=limit_use(bound, "timeout_s"),
        )


@dataclass(slots=True)
class _RunOfDocument:
    """One call of a document: its figures, its line in the log."""

    id: str
    name: str
    model: CalledModel
    shared: Shared
    outcome: Outcome = Outcome.CANCELLED
    closed_by: str | None = None
    began_at: float = field(default_factory=trio.current_time)

    def say(self, progress: float, message: str) -> None:
        if (hear := self.shared.call.hearers.progress) is not None:
            hear(progress, message)

    @property
    def label(self) -> str:
        """Its name in the books."""
        return f"agent:{self.name}"

    def end(self) -> None:
        """Report the end, and book the run: also one that was cancelled, or refused before it began."""
        if self.outcome is not Outcome.CANCELLED:
            self.say(1.0, "Completed" if self.outcome is Outcome.OK else "Failed")
        tenant = self.shared.call.tenant
        usage = Usage(wall_s=trio.current_time() - self.began_at)
        self.shared.engine.accounts.ended(tenant, self.label, self.outcome, usage)
        log.info("document ran", name=self.name, tenant=tenant.id, **self.figures().as_json())

    def figures(self) -> ModelRun:
        budget = self.shared.budget
        return ModelRun(
            run_id=self.id,
            outcome=self.outcome,
            model=self.model.name,
            turns=budget.turns,
            tool_calls=budget.calls,
            input_tokens=budget.used.input,
            cached_tokens=budget.used.cached,
            output_tokens=budget.used.output,
            cost_usd=budget.cost / MICRO if budget.priced and self.model.price is not None else None,
            estimated=budget.used.estimated,
            closed_by=self.closed_by,
        )


def _outcome_of(problem: Problem) -> Outcome:
    code = problem.code
    if code in _OUTCOMES:
        return _OUTCOMES[code]
    return Outcome(code.value) if code.value in {*Outcome} else Outcome.REJECTED


def reads_only(program: Program, allowed: Sequence[str] | None, known: Callable[[str], ToolInfo | None]) -> bool:
    """Whether nothing that a run of the document may call has side effects, as far as is known when it is loaded."""
    for declared in program.tools:
        match declared.kind:
            case "tenant":
                if allowed is not None and declared.name not in allowed:
                    continue
                info = known(declared.name)
                if info is None or not info.read_only:
                    return False
            case "mcp":
                return False
            case "document" | "file":
                pass
    return all(reads_only(each, allowed, known) for each in program.documents.values())


def tool_of(place: Place, entry: ChatmdEntry, agent: Document, loading: Loading) -> Tool:
    """The tool of a document that is being loaded. Raises NotLoaded for a model or a limit that cannot hold."""
    tenants = tenants_of(entry)
    found = [_model_of(place, entry, agent.program, loading, tenant) for tenant in tenants]
    free = next((name for name in found if name is not None and not loading.means.models.priced(name)), None)
    if "cost_usd" in entry.limits and free is not None:
        raise NotLoaded(f"limits.cost_usd cannot hold: the model {free!r} has no price (models.{free}.price)")

    def known(name: str) -> ToolInfo | None:
        each = [loading.fresh.tool(tenant, name) for tenant in tenants]
        infos = [offered.tool.info for offered in each if offered is not None]
        return infos[0] if len(infos) == len(tenants) and all(info.read_only for info in infos) else None

    return ChatmdTool.from_agent(
        agent, entry, loading.engine, loading.means, loading.live, tenants=tenants, known=known,
        own=frozenset(agent.read),
    )  # fmt: skip


def _model_of(place: Place, entry: ChatmdEntry, program: Program, loading: Loading, tenant: str) -> str | None:
    """The model that a tenant's runs have, if there is one. A model that is not there is a warning, or NotLoaded."""
    models = loading.means.models
    mine = models.of(tenant)
    if entry.model is not None:
        if mine and (found := chosen(models, tenant, entry.model)) is None:
            raise NotLoaded(f"model = {entry.model!r}: the tenant '{tenant}' has the models {', '.join(mine)}")
        return chosen(models, tenant, entry.model)
    if (found := chosen(models, tenant, program.model)) is not None:
        return found
    default = models.default_of(tenant)
    if program.model is not None and default is not None:
        loading.warnings.append(
            f"{place.key}: unknown-model: the document names {program.model[:64]!r}, which is no model of the tenant "
            f"'{tenant}'; it runs with {default!r}"
        )
    return default
