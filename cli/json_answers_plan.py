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
    """Healthy minus promised GPUs (H - A); below zero: more is promised than is healthy."""
    plan_cut_gpus: GpuCount = Field(alias="cut_gpus")
    """The cuts of all quotas together: phantom_gpus plus to_flex_gpus."""
    phantom_before_gpus: GpuCount
    """GPUs that were promised before the plan with no healthy GPU behind them."""
    phantom_after_gpus: GpuCount
    """Those of them that the plan does not remove."""
    after_all_waves: str
    """Why the cluster comes after all waves: no tier limit would suffice. Empty: the cluster is in a wave."""

    @staticmethod
    def of(plan: Plan) -> PlanAnswer:
        return PlanAnswer.build_from(
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
    """By cluster: why it cannot be planned now."""
