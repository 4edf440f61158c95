"""Writes a fleet file into the ledger, as models/cluster/fleet_diff.py compares them: only what differs is written.

Writes to quotas that exist count as foreign ones: Backstop does not own them, a person changed the file. So they move
the generation, and the ledger's triggers may refuse them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import Row, add, delete, is_among, store, update
from activities.adapters.ledger.calendar import comma_joined, file_windows, hold_new_clusters, window_row
from activities.adapters.ledger.cluster_settings import settings_of
from activities.adapters.ledger.fleet_diff_reader import (
    barred_reasons,
    find_being_made,
    fleet_policy,
    others,
    present_clusters,
    teams_by_name,
)
from activities.adapters.ledger.health_and_usage import health_row, latest_health
from activities.adapters.ledger.quotas import attribute_changes
from activities.adapters.ledger.removal_and_renaming import remove_rows
from activities.bad_rows import those_that_do
from models.cluster.fleet_diff import (
    ClusterNow,
    default_refused,
    other_lines,
    policy_fault,
    resolve_cluster,
    resolve_teams,
    resolved_policy,
)
from models.cluster.fleet_export import cluster_document
from models.cluster.fleet_file import ClusterSpec, Fleet, Team
from models.cluster.fleet_oddities import oddities_of
from models.cluster.import_outcome import WRITES, FleetOutcome, ImportTerms, Line, Verb, outcome_of
from models.cluster.readings import Present
from models.cluster.sources import source_text
from models.cluster.windows import FILE
from models.errors import Refusal
from models.hashes import canonical_json
from models.ledger_tables import (
    ClusterRow,
    ContactRow,
    FleetRow,
    HealthRow,
    ImportRow,
    IslandRow,
    QuotaRow,
    TeamRow,
    UsageRow,
    WindowRow,
)
from models.texts import count_text, gpus_text

CLUSTERS_AT_ONCE = 250
CLUSTER_COLUMNS = ("name", "gpu_model", "gpus_per_node", "policy", "source", "health_source")
ISLAND_COLUMNS = ("cluster", "name", "total_gpus")
QUOTA_COLUMNS = ("cluster", "team", "gpus", "islands", "blocks", "minimum", "parent", "namespaces", "classes")
"""Columns that a file sets; the other columns belong to Backstop."""


@dataclass(frozen=True)
class Difference:
    """The changes that turn the present rows of one table into the wanted ones."""

    new: list[Row]
    changed: list[tuple[Row, Row]]
    """Each changed row, before and after."""
    gone: list[Row]


@dataclass
class Written:
    """The lines and counts of an import, as far as it has come."""

    lines: list[Line]
    counts: Counter[str]


def write_fleet(
    session: Session, fleet: Fleet, terms: ImportTerms, actor: str, now: datetime, *, brought_up: bool = False
) -> tuple[FleetOutcome, dict[str, dict[str, Any]]]:
    """Write the file's clusters, policy and teams into the ledger, each cluster whole or not at all.

    Returns the outcome of each, and the clusters that were removed, as a file has them. Health and usage become samples
    at `now`. A dry run writes nothing. `brought_up`: a bring-up hands its cluster over; a file may not bring in one
    that is being made. Errors: Refusal if something is refused and all was to go in, or if something else would be
    removed than was agreed to; and those of the triggers.
    """
    done = Written([], Counter(dict.fromkeys(("clusters", "quotas", "added", "changed", "removed"), 0)))
    default, lines = _default_policy(session, fleet, terms)
    teams, told_of_teams = resolve_teams(fleet, teams_by_name(session), prune=terms.prune)
    done.lines += [*lines, *told_of_teams]
    if not terms.dry_run:
        if any(line.verb in WRITES for line in lines):
            store(session, FleetRow, [{"id": 1, "policy": canonical_json(default)}])
        _write_teams(session, teams)
    numbers = {cluster.name: number for number, cluster in enumerate(fleet.clusters)}
    # By name: two imports that meet take the clusters' rows in the same order.
    for clusters in _portions(sorted(fleet.clusters, key=lambda c: c.name)):
        open_bringups = {} if brought_up else find_being_made(session, [c.name for c in clusters])
        _import_portion(session, clusters, numbers, terms, default, actor, now, done, open_bringups)
    gone = _remove_others(session, numbers, terms, now, done)
    oddities = oddities_of(fleet, _contacts_after(session, teams, terms))
    outcome = outcome_of(fleet, done.lines, dict(done.counts), oddities, done=not terms.dry_run)
    _refuse_what_was_not_meant(outcome, terms)
    return outcome, gone


def _refuse_what_was_not_meant(outcome: FleetOutcome, terms: ImportTerms) -> None:
    if terms.dry_run:
        return
    refused = outcome.of(Verb.REFUSED)
    if terms.whole and refused:
        raise Refusal("; ".join(line.sentence for line in refused[:3]) + (" and more" if len(refused) > 3 else ""))
    if terms.agreed and terms.agreed != outcome.removal:
        raise Refusal(
            "the import would now remove other things than the preview showed, so nothing was changed: preview it again"
        )
    if terms.policy and terms.policy != outcome.policy:
        raise Refusal(
            "the import would now change policies differently from what was countersigned, so nothing was changed: "
            "import again"
        )


def _import_portion(
    session: Session,
    clusters: Sequence[ClusterSpec],
    numbers: Mapping[str, int],
    terms: ImportTerms,
    default: Mapping[str, Any],
    actor: str,
    now: datetime,
    done: Written,
    being_made: Mapping[str, str],
) -> None:
    names = [cluster.name for cluster in clusters]
    if not terms.dry_run:
        lock_clusters(session, names)
    before = {**present_clusters(session, names, {c.name: c for c in clusters}), **being_made}
    fed = (
        read_other_sample_times(session, names),
        _others_samples_at(session, UsageRow, UsageRow.team, QuotaRow.team, names),
    )
    taken: list[ClusterSpec] = []
    changed: list[ClusterNow] = []
    for spec in clusters:
        present, place = before.get(spec.name), numbers[spec.name]
        if isinstance(present, str):
            lines = [Line(verb=Verb.REFUSED, kind="cluster", cluster=spec.name, why=present, path=("clusters", place))]
            after = None
        else:
            after, lines = resolve_cluster(spec, present, terms, place)
            if fault := policy_fault(default, after.policy) if after != present else "":
                lines = [_policy_refused(spec.name, fault, place)]
        done.lines += lines
        if any(line.verb is Verb.REFUSED for line in lines) or after is None:
            continue
        done.lines += _unheard_lines(spec, fed[0], place, session)
        taken.append(spec)
        changed += [after] if after != present else []
        done.counts["clusters"] += 1
        done.counts["quotas"] += sum(quota.team in after.by_team for quota in spec.quotas)
    if not terms.dry_run:
        with attribute_changes(session, names, actor):
            _write_clusters(session, changed, done.counts)
        _write_windows(session, changed, actor)
        hold_new_clusters(session, [c.name for c in changed if before.get(c.name) is None], now)
        _write_samples(session, taken, fed, actor, now)


def _default_policy(session: Session, fleet: Fleet, terms: ImportTerms) -> tuple[dict[str, Any], list[Line]]:
    """Return the default policy after the import: the file's, unless a valid cluster would be invalid with it."""
    standing_one = fleet_policy(session)
    default, lines = resolved_policy(fleet, standing_one, prune=terms.prune)
    if not any(line.verb in WRITES for line in lines):
        return default, lines
    if why := policy_fault(default, {}):
        why = f"does not fit values that the ledger has and the file does not: {why}"
    elif broken := _broken_clusters(session, fleet, terms, default, standing_one):
        first, why = next(iter(broken.items()))
        beside = f" (and {count_text(len(broken) - 1, 'other')})" if len(broken) > 1 else ""
        why = f"does not fit cluster {first}{beside}: {why}"
    return (standing_one, default_refused(lines, why)) if why else (default, lines)


def _broken_clusters(
    session: Session, fleet: Fleet, terms: ImportTerms, default: Mapping[str, Any], standing_one: Mapping[str, Any]
) -> dict[str, str]:
    """Return why staying clusters that are valid now are invalid with the new default, by name.

    The policy of a cluster in the file may be as the file has it or, if that is refused, as it is now.
    """
    own = {row.name: row.policy for row in session.execute(sa.select(col(ClusterRow.name), col(ClusterRow.policy)))}
    specs = {cluster.name: cluster for cluster in fleet.clusters}
    if terms.prune:
        stay = barred_reasons(session, sorted(own.keys() - specs.keys()))
        own = {name: text for name, text in own.items() if name in specs or name in stay}
    standing_own = dict(those_that_do(own.items(), lambda row: (row[0], settings_of(row[1]))))
    reasons = {
        name: why
        for name, policy in standing_own.items()
        if (why := policy_fault(default, policy)) and not policy_fault(standing_one, policy)
    }
    for clusters in _portions([specs[name] for name in sorted(reasons.keys() & specs.keys())]):
        for name, now in present_clusters(session, [c.name for c in clusters], specs).items():
            if isinstance(now, str):
                continue
            after, lines = resolve_cluster(specs[name], now, terms, 0)
            taken = not any(line.verb is Verb.REFUSED for line in lines)
            if taken and not policy_fault(default, after.policy):
                del reasons[name]
    return dict(sorted(reasons.items()))


def _policy_refused(cluster: str, fault: str, place: int) -> Line:
    path = ("clusters", place, "policy")
    return Line(verb=Verb.REFUSED, kind="policy", cluster=cluster, why=fault, path=path)


def _remove_others(
    session: Session, named: Mapping[str, int], terms: ImportTerms, now: datetime, done: Written
) -> dict[str, dict[str, Any]]:
    """Remove the clusters that the file does not name, if asked; return them as they were."""
    beside = others(session, named, prune=terms.prune)
    done.lines += other_lines(beside, prune=terms.prune)
    going = [one.name for one in beside if terms.prune and not one.barred]
    if terms.dry_run or not going:
        return {}
    health = latest_health(session, going, now)
    was = {
        name: cluster_document(each, {island.name: island for island in health[name].islands} if name in health else {})
        for name, each in present_clusters(session, going).items()
        if isinstance(each, ClusterNow)
    }
    for name in going:
        remove_rows(session, name)
    return was


def _contacts_after(
    session: Session, changed: Mapping[str, Team | None], terms: ImportTerms
) -> dict[str, tuple[str, ...]]:
    after: dict[str, Team | None] = {**teams_by_name(session), **(changed if terms.dry_run else {})}
    return {name: team.contacts for name, team in after.items() if team is not None}


def difference(key: Sequence[str], wanted: Iterable[Row], present: Iterable[Row]) -> Difference:
    """Compare rows whole; two rows with the same values in the key's columns are the same row."""
    before = {tuple(row[column] for column in key): row for row in present}
    after = {tuple(row[k] for k in key): row for row in wanted}
    return Difference(
        new=[row for k, row in after.items() if k not in before],
        changed=[(before[k], row) for k, row in after.items() if k in before and before[k] != row],
        gone=[row for k, row in before.items() if k not in after],
    )


def _portions(clusters: Sequence[ClusterSpec]) -> Iterator[Sequence[ClusterSpec]]:
    for start in range(0, len(clusters), CLUSTERS_AT_ONCE):
        yield clusters[start : start + CLUSTERS_AT_ONCE]


def _write_clusters(session: Session, clusters: Sequence[ClusterNow], counts: Counter[str]) -> None:
    names = [cluster.name for cluster in clusters]
    wanted = [_cluster_row(cluster) for cluster in clusters]
    present = _present(session, ClusterRow, CLUSTER_COLUMNS, col(ClusterRow.name), names)
    _write(session, ClusterRow, difference(["name"], wanted, present))

    wanted = [_island_row(c.name, name, total) for c in clusters for name, total in c.islands.items()]
    present = _present(session, IslandRow, ISLAND_COLUMNS, col(IslandRow.cluster), names)
    _write(session, IslandRow, difference(["cluster", "name"], wanted, present))

    wanted = [_quota_row(c.name, quota) for c in clusters for quota in c.quotas]
    present = _present(session, QuotaRow, QUOTA_COLUMNS, col(QuotaRow.cluster), names)
    quotas = difference(["cluster", "team"], wanted, present)
    _write_quotas(session, quotas)
    counts["added"] += len(quotas.new)
    counts["changed"] += len(quotas.changed)
    counts["removed"] += len(quotas.gone)


def lock_clusters(session: Session, clusters: Sequence[str]) -> None:
    rows = select(ClusterRow.name).where(col(ClusterRow.name).in_(clusters)).order_by(col(ClusterRow.name))
    session.exec(rows.with_for_update(key_share=True)).all()


def _present(
    session: Session, table: type[Any], columns: Iterable[str], cluster: Any, names: Sequence[str]
) -> list[Row]:
    chosen = [getattr(table, name) for name in columns]
    return [dict(row) for row in session.execute(sa.select(*chosen).where(cluster.in_(names))).mappings()]


def _write(session: Session, table: type[Any], difference: Difference) -> None:
    delete(session, table, difference.gone)
    update(session, table, [after for _, after in difference.changed])
    add(session, table, difference.new)


def _write_quotas(session: Session, difference: Difference) -> None:
    """Write what is given up first, so that a move inside a reservation's limit goes through.

    A quota comes before those that it is the sum of: while the last of these goes, it would hold jobs with all it had.
    """
    before = [*difference.gone, *(row for row, _ in difference.changed)]
    depth = _depths(before)
    delete(session, QuotaRow, sorted(difference.gone, key=depth))
    lowered = [after for before, after in difference.changed if after["gpus"] <= before["gpus"]]
    lowered.sort(key=depth)
    raised = [after for before, after in difference.changed if after["gpus"] > before["gpus"]]
    update(session, QuotaRow, lowered)
    add(session, QuotaRow, difference.new)
    update(session, QuotaRow, raised)


def _depths(rows: Sequence[Row]) -> Callable[[Row], int]:
    """Return a function that counts the parents above a row, among these rows."""
    parents = {(row["cluster"], row["team"]): row["parent"] for row in rows}

    def depth(row: Row) -> int:
        cluster, at, steps = row["cluster"], row["team"], 0
        while at is not None and steps <= len(parents):  # a circle that another tool left has no top
            at, steps = parents.get((cluster, at)), steps + 1
        return steps

    return depth


def _write_windows(session: Session, clusters: Sequence[ClusterNow], actor: str) -> None:
    """Replace the windows that files declared; windows from other sources stay."""
    present = file_windows(session, [c.name for c in clusters])
    changed = [cluster for cluster in clusters if set(cluster.windows) != set(present.get(cluster.name, ()))]
    stale = (col(WindowRow.cluster).in_([c.name for c in changed]), col(WindowRow.source) == FILE)
    session.execute(sa.delete(WindowRow).where(*stale))
    add(session, WindowRow, [window_row(c.name, window, FILE, actor) for c in changed for window in c.windows])


def read_other_sample_times(session: Session, clusters: Sequence[str]) -> dict[tuple[str, str], datetime]:
    """Return the time of the last health sample that no fleet file brought, by cluster and island."""
    return _others_samples_at(session, HealthRow, HealthRow.island, IslandRow.name, clusters)


_Fed = Mapping[tuple[str, str], datetime]
"""By cluster and island (or team), the time of the last sample that did not come from a fleet file."""


def _others_samples_at(
    session: Session, table: type[Any], key: Any, of: Any, names: Sequence[str]
) -> dict[tuple[str, str], datetime]:
    """Return the times of the last samples that no fleet file brought.

    A file that is imported again must not replace them by the health of the day when it was written. `key`: the
    sample's island or team; `of`: its column in its own table, from where one step leads to the latest sample, however
    long the history. A file's samples have the time of its import.
    """
    latest = sa.select(sa.func.max(table.at)).where(table.cluster == of.class_.cluster, key == of)
    rows = sa.select(of.class_.cluster, of, latest.correlate(of.class_).scalar_subquery()).where(
        is_among(of.class_.cluster, "names")
    )
    by_files = set(session.scalars(sa.select(col(ImportRow.at))))
    times = session.connection().execute(rows, {"names": list(names)})
    return {(cluster, name): at for cluster, name, at in times if at is not None and at not in by_files}


def _unheard_lines(spec: ClusterSpec, fed: _Fed, place: int, session: Session) -> list[Line]:
    """List the islands whose health comes from another source, which has another value than the file."""
    lines = []
    for number, island in enumerate(spec.islands):
        at = fed.get((spec.name, island.name))
        row = None if at is None else session.get(HealthRow, (spec.name, island.name, at))
        if row is not None and row.healthy_gpus != island.healthy_gpus:
            lines.append(
                Line(
                    verb=Verb.KEPT,
                    kind="health",
                    cluster=spec.name,
                    name=island.name,
                    before=gpus_text(row.healthy_gpus),
                    after=gpus_text(island.healthy_gpus),
                    why=f"its health comes from {row.source or 'an exporter'}",
                    path=("clusters", place, "islands", number, "healthy_gpus"),
                )
            )
    return lines


def _write_samples(
    session: Session, clusters: Sequence[ClusterSpec], fed: tuple[_Fed, _Fed], actor: str, now: datetime
) -> None:
    health = [
        health_row(cluster.name, island, now, actor)
        for cluster in clusters
        for island in cluster.islands
        if (cluster.name, island.name) not in fed[0]
    ]
    store(session, HealthRow, health)
    usage = [
        {
            "cluster": c.name,
            "team": quota.team,
            "at": now,
            "scheduled_gpus": quota.scheduled,
            "idle_gpus": quota.idle,
            "pending_gpus": quota.pending_gpus,
        }
        for c in clusters
        for quota in c.quotas
        if (quota.scheduled_gpus is not None or quota.idle_gpus is not None) and (c.name, quota.team) not in fed[1]
    ]
    store(session, UsageRow, usage)


def _write_teams(session: Session, teams: Mapping[str, Team | None]) -> None:
    """Store these teams; a team with None is removed."""
    stay = [team for team in teams.values() if team is not None]
    store(session, TeamRow, [{"name": t.name, "notify": None if t.notify is None else t.notify.value} for t in stay])
    session.execute(sa.delete(ContactRow).where(is_among(ContactRow.team, "names")), {"names": list(teams)})
    gone = sorted(name for name, team in teams.items() if team is None)
    session.execute(sa.delete(TeamRow).where(is_among(TeamRow.name, "names")), {"names": gone})
    contacts = [
        {"team": team.name, "position": position, "address": address}
        for team in stay
        for position, address in enumerate(team.contacts)
    ]
    add(session, ContactRow, contacts)


def _cluster_row(cluster: ClusterNow) -> Row:
    return {
        "name": cluster.name,
        "gpu_model": cluster.gpu_model,
        "gpus_per_node": cluster.gpus_per_node,
        "policy": canonical_json(cluster.policy),
        "source": source_text(cluster.holder),
        "health_source": source_text(cluster.prometheus or cluster.kubernetes),
    }


def _island_row(cluster: str, name: str, total_gpus: int) -> Row:
    return {"cluster": cluster, "name": name, "total_gpus": total_gpus}


def _quota_row(cluster: str, quota: Present) -> Row:
    return {
        "cluster": cluster,
        "team": quota.team,
        "gpus": quota.gpus,
        "islands": comma_joined(quota.islands),
        "blocks": ",".join(str(block) for block in quota.protected_blocks),
        "minimum": quota.minimum_gpus,
        "parent": quota.parent,
        "namespaces": comma_joined(quota.namespaces),
        "classes": None if quota.classes is None else ",".join(quota.classes),
    }
