"""A story of jobs on flex, as a document: the cluster, its teams, and the steps that `models.flex.simulation` plays."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from models.base import Duration, GpuCount, Model, Name, Words, exact_fraction
from models.cluster.classes import classes_text
from models.flex.division import FlexDemand, FlexMode, FlexTeam

GRAIN = 1000
"""Parts per GPU: fractions of a GPU are exact to a thousandth."""


class JobTarget(StrEnum):
    """The kind of GPUs that a job may run on."""

    QUOTA = "quota"
    FLEX = "flex"
    BOTH = "both"
    """Quota where it has room, otherwise flex: best effort over quota."""


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _parts(value: Any) -> Fraction:
    gpus = exact_fraction(value)
    if (gpus * GRAIN).denominator != 1:
        raise ValueError(f"must be a number of GPUs with at most three decimals, not {value}")
    return gpus


def _on_one_or_on_whole(gpus: Fraction) -> Fraction:
    if gpus > 1 and gpus.denominator != 1:
        raise ValueError(
            f"must be whole GPUs or a part of one, not {float(gpus):g}: only a job of one GPU or less may take a part"
        )
    return gpus


Gpus = Annotated[
    Fraction,
    BeforeValidator(_parts),
    PlainSerializer(_number, return_type=float | int),
    WithJsonSchema({"type": "number"}),
]
"""A number of GPUs, or a fraction of one, to a thousandth."""


class FlexJob(Model):
    job: Name
    team: Name
    gpus: Annotated[Gpus, Field(gt=0, le=10**7), AfterValidator(_on_one_or_on_whole)]
    """Whole GPUs, or a part of one: several such jobs may share a GPU."""
    target: JobTarget = JobTarget.BOTH
    preemptible: bool = True
    """False: the job runs in quota or waits."""
    priority: Annotated[int, Field(ge=-(10**6), le=10**6)] = 0
    """Among jobs of one team and class, the larger priority goes first."""
    job_class: Name | None = None
    """A class of its team; None: the strongest, so that a forgotten class preempts no job."""
    namespace: Words = ""
    """The namespace that submits it; empty: the team itself, which may always target its own quota."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.target is JobTarget.FLEX and not self.preemptible:
            raise ValueError("preemptible must be true for a flex job, because jobs within quota may need its GPUs")
        return self

    def admit(self, namespaces: Sequence[str] | None) -> FlexJob | None:
        """Return the job as a quota with these `namespaces` admits it: unchanged, for flex only, or None if refused."""
        if namespaces is None or self.namespace in ("", self.team, *namespaces):
            return self
        may_wait_for_flex = self.target is not JobTarget.QUOTA and self.preemptible
        return self.model_copy(update={"target": JobTarget.FLEX}) if may_wait_for_flex else None


class FlexStep(Model):
    """A single event: a job is submitted, a job is deleted, or the capacity changes."""

    submit: FlexJob | None = None
    delete: Name | None = None
    capacity_gpus: GpuCount | None = None
    after: Duration = timedelta(0)
    """The time since the previous step."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(x is not None for x in (self.submit, self.delete, self.capacity_gpus)) != 1:
            raise ValueError("must have exactly one of submit, delete and capacity_gpus")
        return self


class FlexStory(Model):
    """A cluster, its teams, and the steps to play."""

    capacity_gpus: GpuCount
    mode: FlexMode = FlexMode.EQUAL
    teams: tuple[FlexTeam, ...] = Field(min_length=1)
    steps: tuple[FlexStep, ...] = Field(max_length=10_000)
    min_run: Duration = timedelta(0)
    """Claims of other teams take no job that has run for less than this."""
    window: Duration = timedelta(0)
    """After a claim on flex took a job, no other takes it within this time; the owner of a quota still may claim it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        FlexDemand(capacity_gpus=self.capacity_gpus, teams=self.teams)  # refuses what is wrong with the teams
        parents = {t.parent for t in self.teams}
        leaves = {t.team for t in self.teams} - parents
        classes = {t.team: t.classes for t in self.teams}
        for n, team in enumerate(self.teams):
            if team.classes and team.team in parents:
                raise ValueError(
                    f"teams[{n}].classes is {list(team.classes)} for team {team.team!r}, which has children: "
                    "only teams without children hold jobs"
                )
        submitted: set[str] = set()
        for n, step in enumerate(self.steps):
            if step.submit is not None:
                if step.submit.team not in leaves:
                    fault = (
                        "which has children: only teams without children hold jobs"
                        if step.submit.team in parents
                        else "which is not among the file's teams"
                    )
                    raise ValueError(f"steps[{n}].submit.team is {step.submit.team!r}, {fault}")
                team_classes = classes[step.submit.team]
                if step.submit.job_class is not None and step.submit.job_class not in team_classes:
                    raise ValueError(
                        f"steps[{n}].submit.job_class is {step.submit.job_class!r}, but team {step.submit.team!r} "
                        + classes_text(team_classes)
                    )
                if step.submit.job in submitted:
                    raise ValueError(f"steps[{n}].submit.job {step.submit.job!r} exists already: use another name")
                submitted.add(step.submit.job)
            elif step.delete is not None:
                if step.delete not in submitted:
                    raise ValueError(f"steps[{n}].delete is {step.delete!r}, and no such job exists at that step")
                submitted.discard(step.delete)
        return self
