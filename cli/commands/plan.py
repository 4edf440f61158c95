"""`backstop plan`: from a file alone, or from the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cli.lazy import command
from cli.lazy_models import import_lightly
from cli.list_options import Listing, listed
from cli.options import LOOK, Actor, Buffer, ClusterOrAll, MaxTier, Overlay, SettingsOption, actor_of, opt, overlay_of
from models.errors import BadInput

if TYPE_CHECKING:
    from cli.json_answers_plan import PlanAnswer, PlansAnswer
    from client.backstop import Backstop
    from models.buffers.hourly_health import Series
    from models.cluster.policy import Policy
    from models.cluster.snapshot import Snapshot
    from models.cluster.sources import GitSource
    from models.planning.plan import Plan


@command(
    LOOK,
    "backstop plan --file examples/fleet.yaml",
    "backstop plan --file examples/fleet.yaml --cluster h100-worked --max-tier unscheduled",
    "backstop plan h100-worked --buffer 0.10 --json",
    "backstop plan --filter wave=busy --sort -cut_gpus -o wide",
    "backstop plan --file examples/fleet.yaml --cluster h100-worked --render kueue",
    "backstop plan h100-worked --render kueue --manifests clusters/h100/queues",
    "backstop plan h100-worked --render git",
    "backstop plan h100-worked --render yaml --pointer '/teams/{team}/gpus' --manifests quotas.yaml",
)
@listed
def plan(
    named: ClusterOrAll = "",
    cluster: Annotated[str, opt("NAME", "The same as CLUSTER.")] = "",
    file: Annotated[str, opt("FILE", "Read a fleet file (-: stdin) instead of the ledger.")] = "",
    health: Annotated[
        str,
        opt(
            "FILE",
            "With --file: health history as CSV, for policies with `buffer: health`. Without a history, these "
            "policies use their fallback buffer (`floor`, 15 % by default).",
        ),
    ] = "",
    buffer: Buffer = "",
    max_tier: MaxTier = "",
    policy: SettingsOption = None,
    render: Annotated[
        str,
        opt(
            "DIALECT",
            "Print the plan as a change of quota files: yaml, kueue, kai, volcano, yunikorn or git. For git, Backstop "
            "clones the cluster's branch with this machine's git (docs/git.md).",
        ),
    ] = "",
    manifests: Annotated[
        str,
        opt(
            "PATH",
            "With --render: the file or folder to compute the change for; Backstop only reads it. "
            "Default: complete new objects are printed (for git: the change to the branch's files).",
        ),
    ] = "",
    pointer: Annotated[
        str, opt("POINTER", "With --render yaml: where a team's GPU count is in the file, such as /teams/{team}/gpus.")
    ] = "",
    resource: Annotated[
        str, opt("NAME", "With --render: the GPU resource's name in the files. Default: nvidia.com/gpu.")
    ] = "",
    *,
    how: Listing,
    actor: Actor = "",
) -> None:
    """Show what a rollout would do: how many GPUs it would cut from each quota, from which tier, and why.

    Changes nothing. A plan that cannot cut enough, or is not backed, says so and names the first tier that would
    suffice (docs/reading.md).
    """
    if named and cluster and named != cluster:
        raise BadInput(f"--cluster {cluster!r} is given together with CLUSTER {named!r}: give one of them")
    import_lightly()
    from models.cluster.policy import Policy

    if health and not file:
        raise BadInput("--health is only for --file: without --file, the plan uses the ledger's own health history")
    _check_rendering(render, {"--manifests": manifests, "--pointer": pointer, "--resource": resource}, how)
    wanted = cluster or named
    if wanted:
        how.of_one(f"CLUSTER {wanted!r}")
    overlay = overlay_of(policy, buffer=buffer, max_tier=max_tier)
    overlay.apply_to(Policy())  # a slip is named here, by its option
    snapshots, unplannable = plan_from(file, wanted, actor_of(actor), overlay)
    if health and not any(overlay.apply_to(own).terms for _, own in snapshots):
        raise BadInput("--health is given, but the buffer does not use it: give --buffer health too")
    history = _histories(health)
    plans = [_plan_of(snapshot, overlay.apply_to(own), history) for snapshot, own in snapshots]
    if render:
        _print_change(plans, snapshots, render, manifests, pointer, resource, file, actor_of(actor))
        return
    _answer(plans, unplannable, bool(wanted), how)


def _check_rendering(render: str, options: Mapping[str, str], how: Listing) -> None:
    if render and (not how.for_people or how.options):
        raise BadInput(f"--render prints a change of files: leave out {(how.options or [how.form_text])[0]}")
    for option in () if render else (name for name, value in options.items() if value):
        raise BadInput(f"{option} needs --render DIALECT")


def _print_change(
    plans: list[Plan],
    snapshots: list[tuple[Snapshot, Policy]],
    render: str,
    manifests: str,
    pointer: str,
    resource: str,
    file: str,
    actor: str,
) -> None:
    from cli.output import show_exactly
    from client.inputs.documents import STANDARD_INPUT, read_fleet
    from client.inputs.manifests import OWN, branch_files, read_manifests, render_diff, source_for
    from models.cluster.classes import those_of

    # Standard input was read for the plan, and has no second reading.
    fleet = read_fleet(file) if file and file != STANDARD_INPUT else None
    spec = fleet.cluster(plans[0].cluster) if fleet is not None and len(plans) == 1 else None
    source = None if spec is None else spec.git
    if render != OWN:
        source = source_for(render, pointer, resource, source)
    elif manifests or pointer or resource:
        raise BadInput(
            "--render git reads the files, pointer and resource from the cluster's field `git`: leave --manifests, "
            "--pointer and --resource out"
        )
    if len(plans) != 1:
        which = f": name one of {_some(plan.cluster for plan in plans)}" if plans else ", and no cluster has a plan"
        raise BadInput(f"--render takes one cluster{which}")
    if source is None:
        source = None if file else _own_git(plans[0].cluster, actor)
    if source is None:
        raise BadInput(f"--render git: no Git repository holds the quotas of {plans[0].cluster}; give another DIALECT")
    texts = branch_files(source) if render == OWN else read_manifests(manifests) if manifests else None
    (snapshot, policy), *_ = snapshots
    parents = {quota.parent for quota in snapshot.quotas}  # only leaves hold jobs
    classes = {
        quota.team: those_of(quota.classes, policy.classes) for quota in snapshot.quotas if quota.team not in parents
    }
    show_exactly(render_diff(plans[0], source, manifests or source.path, texts, classes))


def _own_git(cluster: str, actor: str) -> GitSource | None:
    """Return the repository that holds the cluster's quotas, as the ledger knows it."""
    from cli.session import ask

    async def question(door: Backstop) -> GitSource | None:
        return next((one.git for one in await door.clusters_named([cluster])), None)

    return ask(actor, question)


def plan_from(
    file: str, wanted: str, actor: str, overlay: Overlay | None = None
) -> tuple[list[tuple[Snapshot, Policy]], dict[str, str]]:
    """Return the plan of the named cluster, or of all, as a launch would make it now, from a fleet file, else the
    ledger.

    The second part says, by cluster, why one cannot be planned now: it is reported and does not stop the others.
    `overlay`: settings over the policy.
    """
    from cli.output import report_left_out

    if file:
        return _from_file(file, wanted), {}
    plannable, unplannable = _from_ledger(wanted, actor, overlay.for_snapshot if overlay else {})
    report_left_out(unplannable)
    return plannable, unplannable


def _from_file(file: str, wanted: str) -> list[tuple[Snapshot, Policy]]:
    from client.inputs.documents import read_fleet
    from models.cluster.snapshot import snapshot_of

    fleet = read_fleet(file)
    if wanted and fleet.cluster(wanted) is None:
        raise BadInput(f"cluster {wanted!r} is not in {file}; it has {_some(c.name for c in fleet.clusters)}")
    return [(snapshot_of(c), fleet.policy_of(c)) for c in fleet.clusters if wanted in ("", c.name)]


def _some(names: Any) -> str:
    from models.texts import some_of

    return some_of([*names], 10)


def _from_ledger(wanted: str, actor: str, over: dict[str, Any]) -> tuple[list[tuple[Snapshot, Policy]], dict[str, str]]:
    from cli.session import ask

    async def question(door: Backstop) -> tuple[list[tuple[Snapshot, Policy]], dict[str, str]]:
        return ([await door.snapshot(wanted, over)], {}) if wanted else await door.plannable(over)

    return ask(actor, question)


def _histories(file: str) -> dict[str, Series]:
    if not file:
        return {}
    from client.inputs.health_series import read_series

    return {series.cluster: series for series in read_series(file)}


def _plan_of(snapshot: Snapshot, policy: Policy, history: Mapping[str, Series]) -> Plan:
    from models.planning.plan import make_plan

    series = history.get(snapshot.cluster)
    if policy.terms is not None and series is not None:
        from models.buffers.backtest import derived_gpus

        derived = derived_gpus(series, snapshot.total_gpus, snapshot.gpus_per_node, policy.terms)
        snapshot = snapshot.model_copy(update={"derived": derived})
    return make_plan(snapshot, policy)


def _answer(plans: list[Plan], unplannable: dict[str, str], single: bool, how: Listing) -> None:
    from views.plan import in_order, plan_parts, plans_parts

    if single:
        (only,) = plans
        how.tell(lambda: _json_answer(only), lambda: plan_parts(only), [only.cluster])
        return
    chosen = in_order(plans)
    if how.options:
        from cli.json_answers_plan import PlanAnswer

        chosen = [*how.rows(map(_json_answer, chosen), PlanAnswer)]

    def answer() -> PlansAnswer:
        from cli.json_answers_plan import PlansAnswer

        return PlansAnswer(plans=tuple(map(_json_answer, chosen)), left_out=unplannable)

    how.tell(answer, lambda: plans_parts(chosen), [p.cluster for p in chosen], (len(plans), "cluster"))


def _json_answer(plan: Plan) -> PlanAnswer:
    """Return the plan as its JSON answer. It imports every answer's models, which text does without."""
    from cli.json_answers_plan import PlanAnswer

    return plan if isinstance(plan, PlanAnswer) else PlanAnswer.of(plan)
