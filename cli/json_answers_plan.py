"""The JSON answers of `plan`, in a file of their own: importing all other answers' models takes longer than a plan."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cli.json_answer_base import JsonAnswer
from models.base import GpuCount
from models.planning.plan import Plan


class PlanAnswer(Plan, JsonAnswer, schema="plan"):
    """A plan with its hash, which an approval names."""

    plan_hash: str = Field(alias="hash")
    headroom_gpus: int
    """H - A: below zero where more is promised than is healthy."""
    plan_cut_gpus: GpuCount = Field(alias="cut_gpus")
    """What all quotas together give: phantom_gpus and to_flex_gpus."""
    phantom_before_gpus: GpuCount
    """Promised before the plan, and no healthy GPU behind it."""
    phantom_after_gpus: GpuCount
    """The same after it: what it does not remove."""
    after_all_waves: str
    """Why its cluster comes after all waves: no tier limit would do. Empty where it has its place in its wave."""

    @staticmethod
    def of(plan: Plan) -> PlanAnswer:
        return PlanAnswer.grown_from(
            plan,
            plan_hash=plan.hash,
            headroom_gpus=plan.healthy_gpus - plan.assigned_gpus,
            plan_cut_gpus=plan.cut_gpus,
            phantom_before_gpus=plan.phantom_gpus + plan.unbacked_gpus,
            phantom_after_gpus=plan.unbacked_gpus,
            after_all_waves=plan.why_last,
        )

    def as_json(self) -> Any:
        fields = super().as_json()
        return {"schema": fields["schema"], "hash": fields["hash"], **fields}  # what people look for comes first


class PlansAnswer(JsonAnswer, schema="plans"):
    """The plans of all clusters, in the order a rollout would visit them."""

    plans: tuple[PlanAnswer, ...]
    left_out: dict[str, str] = Field(default_factory=dict)
    """By cluster: why nobody can plan it now."""
