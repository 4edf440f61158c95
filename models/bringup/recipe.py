"""Recipes: the way clusters of one kind are built, and the checks that must be green before people use them.

A recipe is validated whole and named by its hash. It is data: no program runs unless the worker's own settings list it
(activities/adapters/runners). Source: docs/bringup.md, "Recipe, clusters, first quotas", "Checks".
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from models.base import HOUR, Count, Documented, Duration, PositiveCount, Text, Words, fault_at
from models.bringup.checks import CheckKind, EnoughOf
from models.bringup.graph import find_circle
from models.bringup.placeholders import placeholders, spelling_of
from models.bringup.runs import NO_TIME_LIMIT, Runner
from models.cluster.policy import MOST_NAMES
from models.hashes import content_hash
from models.texts import brief

_MINUTE = timedelta(minutes=1)
StepName = Annotated[
    str,
    *spelling_of(
        r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?",
        "up to 64 lower-case letters, digits, dots, dashes and underscores, a letter or digit at both ends",
    ),
]
"""The name of a recipe, a step or a check, which must fit keys, commands and file names."""
Argument = Annotated[Text, Field(max_length=4000)]
SUPPLY, CAPACITY = "supply", "capacity"
"""The names of Backstop's own checks, which no check of a recipe may have."""


class RunInstructions(Documented):
    """The instructions for a runner; `with` decides which fields count."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    with_: Runner | None = Field(default=None, alias="with")
    """The runner: command, buildkite or http. Default: none (a touch); an undo has its step's runner."""
    run: tuple[Argument, ...] = Field(default=(), max_length=200)
    """command: the program (an absolute path) and its arguments. No shell reads them. Default: none."""
    pipeline: Argument = ""
    """buildkite: the pipeline's slug. Default: none."""
    branch: Argument = "main"
    """buildkite: the branch that is built."""
    commit: Argument = "HEAD"
    """buildkite: the commit that is built."""
    values: dict[StepName | Text, Argument] = Field(default_factory=dict, max_length=100)
    """buildkite: environment and meta-data; http: the JSON body. Default: none."""
    url: Argument = ""
    """http: the URL to POST to. Default: none."""
    status_url: Argument = ""
    """http: the URL to GET the run's state from; {id} is the id in POST's answer. Default: the POST is sent again."""
    field: Argument = "status"
    """http: the dotted path of the field that has the run's state."""
    succeeded: tuple[Argument, ...] = ("succeeded",)
    """http: values of that field that mean success. Default: succeeded."""
    failed: tuple[Argument, ...] = ("failed",)
    """http: values of that field that mean failure. Default: failed."""
    limit: Duration = Field(default=timedelta(days=1), gt=timedelta(0), le=NO_TIME_LIMIT)
    """The time after which the run is stopped and counts as failed."""
    repeatable: bool = False
    """Whether Backstop may run it again by itself: after a failure, or if it is unknown whether it began."""
    retries: Count = Field(default=0, le=100)
    """The number of further runs after a failure before Backstop calls a person; needs repeatable."""
    pause: Duration = Field(default=_MINUTE, le=timedelta(days=1))
    """The time between a failure and the next try; it doubles with each failure, up to 1d."""

    @model_validator(mode="after")
    def _check_retries(self) -> Self:
        if self.retries and not self.repeatable:
            raise ValueError(f"retries is {self.retries}, but repeatable is not set: set it to true, or remove retries")
        return self

    def texts(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield every text that may hold placeholders, with its place."""
        yield from ((("run", n), text) for n, text in enumerate(self.run))
        for name in ("pipeline", "branch", "commit", "url", "status_url"):
            yield (name,), getattr(self, name)
        yield from ((("values", name), text) for name, text in self.values.items())


_NEEDED = {Runner.COMMAND: "run", Runner.BUILDKITE: "pipeline", Runner.HTTP: "url"}


def _check_runner(runs: RunInstructions, runner: Runner, under: tuple[str, ...] = ()) -> None:
    """Check that it has the field of its runner, and none of another. Errors: ValueError."""
    if not getattr(runs, _NEEDED[runner]):
        raise fault_at(under, f"{_NEEDED[runner]} is missing: a step with {runner} needs it")
    for other, field in _NEEDED.items():
        if other is not runner and getattr(runs, field):
            raise fault_at((*under, field), f"is only for a step with {other}, but this step has {runner}: remove it")
    if runner is Runner.COMMAND:
        _check_program(runs.run, (*under, "run"))


def _check_program(run: tuple[str, ...], path: tuple[str | int, ...]) -> None:
    program = run[0]
    if not program.startswith("/") or "/../" in f"{program}/" or placeholders(program):
        raise fault_at(
            (*path, 0), f"must be the absolute path of a program, without placeholders, not {brief(program)}"
        )


class RecipeUndo(RunInstructions):
    """The undo of a step."""


class RecipeStep(RunInstructions):
    """A step of provisioning: a run, or a touch by a person."""

    name: StepName
    """The step's name, unique in its recipe."""
    touch: Words = ""
    """The work that a person does before they give `check-in`. A step has a touch or a runner. Default: none."""
    after: tuple[StepName, ...] = Field(default=(), max_length=MOST_NAMES)
    """Steps that must be done before this one. Default: none."""
    undo: RecipeUndo | None = None
    """The undo, by the step's runner or its own. Default: none; the result stays, and Backstop names it."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.touch:
            if self.with_ is not None or any(getattr(self, field) for field in _NEEDED.values()):
                raise ValueError(f"step {self.name} has a touch, which a person does, and a runner: remove one of them")
        elif self.with_ is None:
            raise ValueError(f"step {self.name} needs a runner (with: command, buildkite or http) or a touch")
        else:
            _check_runner(self, self.with_)
        if self.undo is not None:
            self._check_undo(self.undo)
        if len(set(self.after)) != len(self.after):
            raise ValueError(f"after has the same step twice: {', '.join(self.after)}")
        return self

    def _check_undo(self, undo: RecipeUndo) -> None:
        runner = undo.with_ or self.with_
        if runner is None:
            raise fault_at(("undo",), f"with is missing: step {self.name} has no runner, so its undo must name one")
        _check_runner(undo, runner, ("undo",))

    def runs(self, *, undo: bool) -> RunInstructions:
        """Return the instructions for the step, or for its undo."""
        if not undo:
            return self
        assert self.undo is not None
        return self.undo

    def runner(self, *, undo: bool) -> Runner:
        chosen = (self.undo.with_ or self.with_) if undo and self.undo is not None else self.with_
        assert chosen is not None
        return chosen

    def texts(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().texts()
        yield ("touch",), self.touch
        if self.undo is not None:
            yield from ((("undo", *place), text) for place, text in self.undo.texts())


class RecipeCheck(Documented):
    """A condition that must be green: a command, a URL, a query, or the state of a health source."""

    name: StepName
    """The check's name, unique among the checks of its recipe."""
    command: tuple[Argument, ...] = Field(default=(), max_length=200)
    """The program (an absolute path) and its arguments. Exit code 0 is green, a time-out is unknown, any other code is
    red. Default: none.
    """
    http: Argument = ""
    """The URL to GET. A 2xx status is green, no answer is unknown, any other status is red. Default: none."""
    promql: Argument = ""
    """A PromQL query for one number, which must lie within at_least and at_most. Default: none."""
    healthy: EnoughOf | None = None
    """The share of the installed GPUs that must be healthy. Default: none."""
    contiguous: PositiveCount | None = None
    """The size of a block of GPUs that one island must have on wholly healthy nodes. Default: none."""
    connection: Argument = "local"
    """promql: the Prometheus server, by its name in the worker's file."""
    at_least: float | None = None
    """promql: the least number that is green. Default: any."""
    at_most: float | None = None
    """promql: the largest number that is green. Default: any."""
    every: Duration = Field(default=timedelta(minutes=5), gt=timedelta(0), le=timedelta(days=1))
    """The check runs once per interval; a result is valid for twice the interval."""
    once: bool = False
    """True: the check runs only once all others are green, and again after a red check was repaired."""
    limit: Duration = Field(default=_MINUTE, gt=timedelta(0), le=timedelta(days=1))
    """The longest time that the check may take."""

    @property
    def kind(self) -> CheckKind:
        return next(kind for kind in _CHECKS if self._asks(kind))

    def _asks(self, kind: CheckKind) -> bool:
        return getattr(self, kind.value) not in (None, (), "")

    @model_validator(mode="after")
    def _one(self) -> Self:
        asked = [kind.value for kind in _CHECKS if self._asks(kind)]
        if len(asked) != 1:
            what = f"has {' and '.join(asked)}" if asked else "has none"
            raise ValueError(f"check {self.name} needs exactly one of {', '.join(_CHECKS)}, but {what}")
        if self.command:
            _check_program(self.command, ("command",))
        bounds = self.at_least is not None or self.at_most is not None
        if bounds != bool(self.promql):
            needs = "needs at_least or at_most" if self.promql else "has at_least or at_most, which are only for promql"
            raise ValueError(f"check {self.name} {needs}")
        return self

    def texts(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from ((("command", n), text) for n, text in enumerate(self.command))
        yield ("http",), self.http
        yield ("promql",), self.promql
        yield ("connection",), self.connection


_CHECKS = (CheckKind.COMMAND, CheckKind.HTTP, CheckKind.PROMQL, CheckKind.HEALTHY, CheckKind.CONTIGUOUS)


class Reading(Documented):
    """A source of what is there: a program that prints JSON, or a URL that answers it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    with_: Runner = Field(default=Runner.COMMAND, alias="with")
    """The way to read it: command or http."""
    run: tuple[Argument, ...] = Field(default=(), max_length=200)
    """command: the program (an absolute path) and its arguments. Default: none."""
    url: Argument = ""
    """http: the URL to GET. Default: none."""
    every: Duration = Field(default=timedelta(minutes=5), gt=timedelta(0), le=timedelta(days=7))
    """The interval between readings."""
    limit: Duration = Field(default=_MINUTE, gt=timedelta(0), le=HOUR)
    """The longest time that a reading may take."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.with_ is Runner.BUILDKITE:
            raise fault_at(("with",), "must be command or http, not buildkite")
        field, other = ("run", "url") if self.with_ is Runner.COMMAND else ("url", "run")
        if not getattr(self, field):
            raise ValueError(f"{field} is missing, which `with: {self.with_}` needs")
        if getattr(self, other):
            raise fault_at((other,), f"cannot be given together with {field}")
        if self.run:
            _check_program(self.run, ("run",))
        return self

    def texts(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from ((("run", n), text) for n, text in enumerate(self.run))
        yield ("url",), self.url


class Supply(Reading):
    """The quotas that the subscription must grant before anything is built. It is asked every hour by default."""

    every: Duration = Field(default=HOUR, gt=timedelta(0), le=timedelta(days=7))
    """The interval between readings."""
    needs: dict[StepName, PositiveCount] = Field(min_length=1, max_length=MOST_NAMES)
    """The amount that is needed under each name; the reading is a JSON object with these names."""


class ClusterRecipe(Documented):
    """The way clusters of one kind are built and validated."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    name: StepName
    """The recipe's name, unique in its file. Entries refer to it."""
    supply: Supply | None = None
    """The quotas of the subscription that must be granted before the first step. Default: nothing."""
    accept_at_least: EnoughOf = Fraction(1)
    """The share of the ordered nodes that must be there before provisioning is done."""
    capacity: Reading | None = None
    """The source that reports the nodes. Default: the entry's source of health or, if none, the entry itself."""
    provision: tuple[RecipeStep, ...] = Field(min_length=1, max_length=MOST_NAMES)
    """The steps; they run in parallel where `after` allows it."""
    checks: tuple[RecipeCheck, ...] = Field(default=(), max_length=MOST_NAMES, alias="validate")
    """The checks that must be green together for `soak`. Default: none; the nodes only have to be there."""
    soak: Duration = timedelta(hours=2)
    """The time for which all checks must be green together before the cluster is in production."""
    validate_within: Duration = Field(default=timedelta(days=7), gt=timedelta(0))
    """The time that the nodes, and then the checks, may take before Backstop calls a person."""
    stale_after: Duration = timedelta(minutes=30)
    """The time after which an unknown check counts as red."""
    watch_every: Duration = Field(default=HOUR, gt=timedelta(0), le=timedelta(days=1))
    """The interval between runs of a check during probation."""
    probation: Duration = timedelta(days=7)
    """The time for which checks still run after the cluster is in production."""
    settle: Duration = Field(default=2 * _MINUTE, gt=timedelta(0), le=HOUR)
    """How long Backstop looks for a run that left no trace, before it starts the run again or calls it unclear."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_names([step.name for step in self.provision], "provision", "step")
        _check_names([c.name for c in self.checks], "validate", "check")
        for number, check in enumerate(self.checks):
            if check.name in (SUPPLY, CAPACITY):
                raise fault_at(
                    ("validate", number, "name"), f"{check.name!r} is reserved by Backstop: choose another name"
                )
        after = {step.name: step.after for step in self.provision}
        for number, step in enumerate(self.provision):
            stranger = next((name for name in after[step.name] if name not in after), "")
            if stranger:
                raise fault_at(
                    ("provision", number, "after"), f"names {stranger!r}, which is not a step of this recipe"
                )
        round_ = find_circle(after)
        if round_:
            number = [step.name for step in self.provision].index(round_[0])
            raise fault_at(("provision", number, "after"), f"has a cycle: {' -> '.join(round_)}")
        return self

    @cached_property
    def steps(self) -> dict[str, RecipeStep]:
        return {step.name: step for step in self.provision}

    @cached_property
    def after(self) -> dict[str, tuple[str, ...]]:
        """The graph: each step with those that must be done before."""
        return {step.name: step.after for step in self.provision}

    @property
    def hash(self) -> str:
        """The hash by which a bring-up knows its recipe; a default that is written out makes no difference."""
        return content_hash(self, exclude_defaults=True)

    def texts(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Every text that may hold placeholders, with its place in the recipe."""
        groups: list[tuple[tuple[str | int, ...], RecipeStep | RecipeCheck | Reading]] = [
            *((("provision", n), step) for n, step in enumerate(self.provision)),
            *((("validate", n), check) for n, check in enumerate(self.checks)),
        ]
        groups += [] if self.supply is None else [((SUPPLY,), self.supply)]
        groups += [] if self.capacity is None else [((CAPACITY,), self.capacity)]
        for place, part in groups:
            yield from (((*place, *inner), text) for inner, text in part.texts())


def _check_names(names: list[str], field: str, what: str) -> None:
    for number, name in enumerate(names):
        if name in names[:number]:
            raise fault_at((field, number, "name"), f"{what} {name!r} is given twice")


class RecipeFile(Documented):
    """A file of recipes, checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    recipes: tuple[ClusterRecipe, ...] = Field(min_length=1, max_length=MOST_NAMES)
    """The recipes, at least one; no name twice."""
    schema_: Words | None = Field(default=None, alias="$schema")
    """The address of the JSON Schema, for an editor that checks the file. Backstop ignores it. Default: none."""

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        _check_names([recipe.name for recipe in self.recipes], "recipes", "recipe")
        return self

    def recipe(self, name: str) -> ClusterRecipe | None:
        return next((recipe for recipe in self.recipes if recipe.name == name), None)
