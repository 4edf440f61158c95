"""Recipes for people: the steps in their order, the checks, and what the worker must allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from models.bringup.checks import CheckKind
from models.bringup.entry import BringupEntry
from models.bringup.graph import ready_steps
from models.bringup.placeholders import placeholders
from models.bringup.recipe import ClusterRecipe, RecipeCheck, RecipeStep
from models.bringup.runs import Runner
from models.cluster.policy import Policy
from models.cluster.quota import QuotaTree
from models.texts import gpus_text, some_of
from views.layout import FactSheet
from views.words import count, line, row, span, table

_OF_HEALTH = (CheckKind.HEALTHY, CheckKind.CONTIGUOUS)


def recipe_parts(recipe: ClusterRecipe) -> list[RenderableType]:
    """Return one recipe in full."""
    touches = sum(bool(step.touch) for step in recipe.provision)
    people = f"{count(touches, 'touch')} besides the entry" if touches else "no touch besides the entry"
    parts: list[RenderableType] = [
        line((recipe.name, "bold"), f" ({recipe.hash}): {count(len(recipe.provision), 'step')}, {people}."),
        _steps(recipe),
        Text(),
        FactSheet([(name, line(text)) for name, text in _terms(recipe)]),
    ]
    if recipe.checks:
        parts += [Text(), _checks(recipe)]
    left = [step.name for step in recipe.provision if step.undo is None]
    if left:
        steps = f"{count(len(left), 'step')} ({', '.join(left)})"
        parts.append(line(f"A cancel would not undo {steps}; it would only list what they made."))
    return [*parts, Text()]


def _order(recipe: ClusterRecipe) -> Iterator[RecipeStep]:
    done: list[str] = []
    while len(done) < len(recipe.provision):
        waiting = [step.name for step in recipe.provision if step.name not in done]
        for name in ready_steps(recipe.after, waiting, done):
            yield recipe.steps[name]
            done.append(name)


def _steps(recipe: ClusterRecipe) -> RenderableType:
    rows = table("=STEP", "AFTER", "=WITH", "~WHAT", "=UNDO", "=AGAIN", least=("AGAIN", "UNDO"))
    for step in _order(recipe):
        undo = "-" if step.undo is None else step.runner(undo=True).value
        again = "-" if step.touch else "by itself" if step.repeatable else "a person"
        way = "a person" if step.with_ is None else step.with_.value
        row(rows, step.name, ", ".join(step.after) or "-", way, _what(step), undo, again)
    return rows


def _what(step: RecipeStep) -> str:
    match step.with_:
        case None:
            return step.touch
        case Runner.COMMAND:
            return " ".join(step.run)
        case Runner.BUILDKITE:
            return f"pipeline {step.pipeline}, {step.branch} at {step.commit}"
        case Runner.HTTP:
            return f"POST {step.url}"


def _terms(recipe: ClusterRecipe) -> Iterator[tuple[str, str]]:
    if recipe.supply is not None:
        needs = ", ".join(f"{number:,} {name}" for name, number in recipe.supply.needs.items())
        yield "Supply", f"waits until {needs} are granted; asks every {span(recipe.supply.every)}"
    share = recipe.accept_at_least
    yield (
        "Accepted",
        f"with at least {float(100 * share):.4g}% of the ordered nodes" if share < 1 else "with all its nodes",
    )
    together = "all checks have been green together" if recipe.checks else "its nodes have been there"
    late = f"a person is called if that takes longer than {span(recipe.validate_within)}"
    yield "Production", f"when {together} for {span(recipe.soak)}; {late}"
    yield "Probation", f"checked every {span(recipe.watch_every)} for {span(recipe.probation)}"
    if programs := sorted(set(_programs(recipe))):
        yield "The worker must allow", ", ".join(programs)
    names = sorted({name for _, text in recipe.texts() for name in placeholders(text)} - {"id"})
    if names:
        yield "Filled by the entry", ", ".join(names)


def _programs(recipe: ClusterRecipe) -> Iterator[str]:
    for step in recipe.provision:
        for runs in (step, step.undo):
            if runs is None:
                continue
            yield from (runs.run[:1] or ())
            yield from ([f"pipeline {runs.pipeline}"] if runs.pipeline else ())
            yield from ([_host(runs.url)] if runs.url else ())
    for check in recipe.checks:
        yield from check.command[:1]
        yield from ([_host(check.http)] if check.http else ())
    for reading in (recipe.supply, recipe.capacity):
        if reading is not None:
            yield from reading.run[:1]
            yield from ([_host(reading.url)] if reading.url else ())


def _host(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _checks(recipe: ClusterRecipe) -> RenderableType:
    rows = table("=CHECK", "~GREEN WHERE", "=EVERY")
    for check in recipe.checks:
        row(rows, check.name, _green(check), "once" if check.once else span(check.every))
    return rows


def _green(check: RecipeCheck) -> str:
    match check.kind:
        case CheckKind.COMMAND:
            return f"{' '.join(check.command)} exits with 0"
        case CheckKind.HTTP:
            return f"GET {check.http} answers 2xx"
        case CheckKind.HEALTHY:
            assert check.healthy is not None
            return f"at least {float(100 * check.healthy):.4g}% of the cluster's GPUs are healthy"
        case CheckKind.CONTIGUOUS:
            return f"one island has a block of {gpus_text(check.contiguous or 0)} on healthy nodes"
        case _:
            bounds = [f"at least {check.at_least:g}"] if check.at_least is not None else []
            bounds += [f"at most {check.at_most:g}"] if check.at_most is not None else []
            return f"{check.promql} is {' and '.join(bounds)}"


def entries_parts(entries: Sequence[BringupEntry], recipes: Sequence[ClusterRecipe]) -> list[RenderableType]:
    """Return a line for each entry, the sum of its first quotas, and warnings."""
    if not entries:
        return []
    rows = table("CLUSTER", "=RECIPE", "OWNER", ">NODES", ">GPUS", ">FIRST QUOTAS")
    for entry in entries:
        tree = QuotaTree(entry.quotas)
        first = sum(tree.by_team[team].gpus for team in tree.leaves)
        row(rows, entry.cluster, entry.recipe, entry.owner, entry.nodes, entry.gpus, first or "-")
    kind = "cluster fits its recipe" if len(entries) == 1 else "clusters fit their recipes"
    warnings = (*_above_the_ceiling(entries), *unanswered_checks(entries, recipes))
    return [rows, line(f"{len(entries)} {kind}."), *map(line, warnings)]


def unanswered_checks(entries: Sequence[BringupEntry], recipes: Sequence[ClusterRecipe]) -> Iterator[str]:
    """Yield a warning for checks of health that nobody answers, because the entry has no source of health."""
    asking = {recipe.name: [c.name for c in recipe.checks if c.kind in _OF_HEALTH] for recipe in recipes}
    clusters: dict[str, list[str]] = {}
    for entry in entries:
        if not (entry.slurm or entry.prometheus or entry.kubernetes) and asking[entry.recipe]:
            clusters.setdefault(entry.recipe, []).append(entry.cluster)
    for recipe, names in clusters.items():
        checks = asking[recipe]
        have = "entry has" if len(names) == 1 else "entries have"
        yield (
            f"{some_of(names, 5)}: check{'s' * (len(checks) > 1)} {', '.join(checks)} would stay unknown, because the "
            f"{have} no source of health. Add slurm, prometheus or kubernetes, or use a check with command, "
            "http or promql."
        )


def _above_the_ceiling(entries: Sequence[BringupEntry]) -> Iterator[str]:
    """Yield what Backstop's default policy would refuse; only the ledger has the fleet's own policy."""
    from models.bringup.first_quotas import opening_policy, too_much

    any_above = False
    for entry in entries:
        if entry.quotas and (why := too_much(entry, opening_policy(entry.policy_over(Policy())))):
            any_above = True
            yield f"{entry.cluster}: {why}."
    if any_above:
        yield (
            "If an entry's policy has no value, this check uses Backstop's defaults; when the cluster is entered, "
            "the fleet's policy applies."
        )
