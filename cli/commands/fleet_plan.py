"""`backstop fleet plan`: show a fleet's plan, before or while it awaits approval, or write it to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cli.consent import can_ask, show_and_ask
from cli.options import Actor, AsJson, Buffer, MaxTier, SettingsOption, actor_of, opt, overlay_of, pilots_of, wave_of
from cli.session import ask
from models.errors import BadInput, Refusal
from models.texts import gpus_text

if TYPE_CHECKING:
    from client.backstop import Backstop
    from models.fleet.messages import FleetLaunch, FleetPlan, Prospect

_NOT_LAUNCHED = "not launched"


def plan(
    out: Annotated[str, opt("FILE", "Write the plan to this file.", "--out")] = "",
    wave: Annotated[list[str] | None, opt("N|TIER", "Only this wave: 1 to 4, or its tier. Repeatable.")] = None,
    pilot: Annotated[list[str] | None, opt("A,B", "Clusters that go first.")] = None,
    buffer: Buffer = "",
    max_tier: MaxTier = "",
    policy: SettingsOption = None,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Show what a fleet rollout would do: the plan that awaits approval, else the one that a launch would make now.

    Changes nothing. --out writes the plan to a file for `backstop fleet approve FILE`.
    """
    from cli.json_answers import FleetPlanFile
    from cli.output import show, show_json, write
    from models.cluster.policy import Policy
    from models.fleet.messages import FleetLaunch
    from models.fleet.state import Pace
    from views.fleet_rollout import plan_parts
    from views.words import line

    overlay = overlay_of(policy, buffer=buffer, max_tier=max_tier)
    overlay.apply_to(Policy())
    person, pilots, waves = actor_of(actor), pilots_of(pilot or ()), tuple(wave_of(text) for text in wave or ())
    launch = FleetLaunch(
        fleet=_NOT_LAUNCHED, owner=person, pilots=pilots, waves=waves, pilots_only=bool(pilots) and not waves,
        policy=overlay.settings,
    )  # fmt: skip
    chosen = [*(["--wave"] if waves else []), *(["--pilot"] if pilots else []), *overlay.settings]
    kept = FleetPlanFile.of(*ask(person, lambda door: _plan_to_show(door, launch, chosen)))
    if out:
        write(out, "--out", f"{kept.model_dump_json(by_alias=True, indent=2)}\n")
    if as_json and out != "-":
        show_json(kept.as_json())
    elif out != "-":
        show(*plan_parts(kept.plan, kept.pilots, Pace()))
        if out:
            show(line(), line(f"The plan is in {out}. After the launch, approve it: backstop fleet approve {out}"))


Cuts = dict[str, dict[str, int]]
"""GPUs that a plan cuts, by cluster and team; those without a cut are left out."""
_ASKED = 200
"""How many clusters one question asks about."""


async def _plan_to_show(
    door: Backstop, launch: FleetLaunch, chosen: Sequence[str]
) -> tuple[FleetPlan, Sequence[str], Cuts]:
    """Return the plan, its pilots and its cuts. Errors: BadInput for options beside a plan that awaits approval."""
    from models.fleet.state import FleetStage, Wave

    status = await door.open_fleet()
    if status is not None and status.stage is FleetStage.PLANNED:
        if chosen:
            raise BadInput(
                f"{chosen[0]} is given, but the plan of fleet rollout {status.fleet} already awaits approval: "
                f"leave {chosen[0]} out"
            )
        plan = await door.fleet_plan()
        pilots = [m.cluster for m in status.members if m.wave is Wave.PILOT]
        return plan, pilots, await cuts_of(door, plan, [p.cluster for p in plan.clusters])
    plan, cuts = await plan_now(door, launch)
    return plan, launch.pilots, cuts


async def cuts_of(door: Backstop, plan: FleetPlan, clusters: Sequence[str]) -> Cuts:
    """Return the cuts of the awaiting plan in these clusters, as far as the ledger has kept them."""
    from models.fleet_cut_questions import FleetEnvelopes

    hashes = {p.cluster: p.plan_hash for p in plan.clusters}
    cuts: Cuts = {}
    for start in range(0, len(clusters), _ASKED):
        question = FleetEnvelopes(fleet=plan.fleet, clusters=tuple(clusters[start : start + _ASKED]))
        for cluster, envelope in (await door.ask(question)).items():
            if envelope.plan_hash == hashes[cluster]:
                cuts[cluster] = {team: cut for team, cut in envelope.largest_cut.items() if cut}
    return cuts


async def plan_now(door: Backstop, launch: FleetLaunch) -> tuple[FleetPlan, Cuts]:
    """Return the plan that the launch would make now, and its cuts."""
    from models.fleet.messages import FleetPlan, Noted
    from models.fleet.order import plan_hash, prospect_of, take_prospects, unplanned_prospect
    from models.planning.plan import make_plan
    from models.status_questions import OpenRollouts

    snapshots, unplannable = await door.plannable(launch.policy)
    opened = {
        row.cluster: Noted(rollout=row.rollout, stage=row.stage, needs=row.needs)
        for row in await door.ask(OpenRollouts())
        if not (row.ended or row.shadow)
    }
    plans = [make_plan(snapshot, own) for snapshot, own in snapshots]
    prospects = [prospect_of(plan, opened.get(plan.cluster)) for plan in plans]
    prospects += [unplanned_prospect(cluster, why) for cluster, why in unplannable.items()]
    missing = tuple(sorted({*launch.pilots} - {p.cluster for p in prospects}))
    if missing:
        raise BadInput(
            f"--pilot {missing[0]}: the ledger has no such cluster; `backstop fleet show` lists the clusters"
        )
    taken = take_prospects(launch, prospects)
    mine = {p.cluster for p in taken}
    cuts = {
        p.cluster: {quota.team: quota.cut_gpus for quota in p.quotas if quota.cut_gpus}
        for p in plans
        if p.cluster in mine
    }
    return FleetPlan(fleet=launch.fleet, hash=plan_hash(taken), clusters=taken), cuts


def _as_it_was(file: str, kept: Prospect, now: Prospect) -> None:
    """Check that the file's figures are this plan's. Errors: BadInput naming a cluster whose figure differs."""
    for name in ("cut_gpus", "phantom_gpus", "to_flex_gpus", "assigned_gpus", "total_gpus", "healthy_gpus"):
        was, is_ = getattr(kept, name), getattr(now, name)
        if was != is_:
            raise BadInput(
                f"{file} was edited: it has {name} {was} for {kept.cluster}, but the plan that awaits approval has "
                f"{is_}; write the file again with `backstop fleet plan --out {file}`"
            )


def _cut_as_it_was(file: str, of: Prospect, kept: Mapping[str, int] | None, now: Mapping[str, int] | None) -> None:
    """Check the teams' cuts in the same way, as far as the file and the ledger have them."""
    if kept is None or now is None:
        return
    for team in sorted({*kept, *now}):
        was, is_ = kept.get(team, 0), now.get(team, 0)
        if was != is_:
            raise BadInput(
                f"{file} was edited: it cuts {gpus_text(was)} of team {team} in {of.cluster}, but the plan that awaits "
                f"approval cuts {is_}; write the file again with `backstop fleet plan --out {file}`"
            )


def agree_by_file(file: str, person: str, *, as_json: bool) -> str:
    """Return the hash of the awaiting plan, if it is the file's plan or a person agreed to what has changed since.

    Errors: BadInput naming file, field and value; Refusal if the plan has changed and nobody can be asked.
    """
    from cli.json_answers import FleetPlanFile
    from cli.output import show
    from client.inputs.documents import read_document
    from models.fleet.order import plan_hash
    from views.fleet_rollout import plan_diff_parts

    kept = read_document(
        file, FleetPlanFile, "the fields schema, at and plan, as `backstop fleet plan --out` writes them"
    )
    if (own := plan_hash(kept.plan.clusters)) != kept.plan.hash:
        raise BadInput(
            f"{file} was edited: plan.hash is {kept.plan.hash}, but the hash of its clusters is {own}; write the file "
            f"again with `backstop fleet plan --out {file}`"
        )
    before = {p.cluster: p for p in kept.plan.clusters}

    async def question(door: Backstop) -> tuple[FleetPlan, Cuts]:
        plan = await door.fleet_plan()
        in_both = [p for p in plan.clusters if p.cluster in before]
        moved = [p.cluster for p in in_both if p.plan_hash != before[p.cluster].plan_hash or p.cluster in kept.cuts]
        return plan, await cuts_of(door, plan, moved)

    now, cuts = ask(person, question)
    for prospect in now.clusters:
        same = before.get(prospect.cluster)
        if same is not None and same.plan_hash == prospect.plan_hash:
            _as_it_was(file, same, prospect)
            _cut_as_it_was(file, prospect, kept.cuts.get(prospect.cluster), cuts.get(prospect.cluster))
    if kept.plan.hash == now.hash:
        return now.hash
    parts: list[Any] = plan_diff_parts(kept.plan, now, kept.at, kept.cuts, cuts)
    if not can_ask(as_json=as_json):
        if not as_json:
            show(*parts)
        raise Refusal(
            f"plan {now.hash} awaits approval, but {file} has plan {kept.plan.hash}: write the file again with "
            f"`backstop fleet plan --out {file}`, or approve the current plan with --plan {now.hash}"
        )
    show_and_ask(f"Approve the current plan, {now.hash}, of {now.size_text}?", parts)
    return now.hash
