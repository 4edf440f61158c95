"""The difference between a fleet file and the ledger: what an import would do, line by line, and the clusters after it.

Diff, dry run, prune and import use the same answer, so that they do what was shown.

Theory of operation. Clusters, islands, quotas, settings of a policy and teams are *entries*: one that the file leaves
out stays, and is removed only by pruning. An entry of the file is complete: a field that is left out has its default,
except in a table (`partial`), where a missing column changes nothing.

While a rollout is open its quotas are the rollout's. A file's value that the rollout, an earlier one or a grant has
overwritten is nobody's wish: the file is merely older, so the present value is kept. Any other value is a person's
change, and refused. A cluster goes in whole or, where one of its lines is refused, not at all.

Slurm decides for a cluster that it holds: which quotas there are, their values and their parents; the import does not
follow a file that differs, and keeps each such line. Only a file has the other fields of a quota, so those are taken
from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError

from models.base import Model, Name, in_one_sentence
from models.cluster.contact_secrets import is_masked, mask_secrets
from models.cluster.fleet_file import ClusterSpec, Fleet, Team, merged_policy
from models.cluster.import_outcome import FilePlace, ImportTerms, Line, Verb
from models.cluster.policy import Policy
from models.cluster.quota import Quota, QuotaTree, check_floors, check_islands, floors_above
from models.cluster.readings import Present
from models.cluster.sources import (
    ClassesInSlurm,
    GitMode,
    GitSource,
    KubernetesSource,
    KueueSource,
    PrometheusSource,
    QuotaSource,
    SlurmSource,
)
from models.cluster.windows import Window, span_text
from models.hashes import canonical_json
from models.texts import count_text, gpus_text, some_of


class ClusterNow(Model):
    """The parts of a cluster that a fleet file may set, as the ledger has them."""

    name: Name
    gpu_model: str | None = None
    gpus_per_node: int = 8
    islands: dict[str, int] = Field(default_factory=dict)
    """Installed GPUs by island."""
    policy: dict[str, Any] = Field(default_factory=dict)
    quotas: tuple[Present, ...] = ()
    windows: tuple[Window, ...] = ()
    """Windows that fleet files declared."""
    slurm: SlurmSource | None = None
    git: GitSource | None = None
    kueue: KueueSource | None = None
    prometheus: PrometheusSource | None = None
    kubernetes: KubernetesSource | None = None
    busy: str = Field(default="", exclude=True)
    """The reason why only a rollout may write its quotas; empty: an import may."""
    overwritten: dict[str, tuple[int, ...]] = Field(default_factory=dict, exclude=True)
    """By team: values that rollouts and grants overwrote, if they set the present value or a rollout is open."""

    @property
    def holder(self) -> QuotaSource | None:
        """The source that holds its quotas; None: the ledger."""
        return self.slurm or self.git or self.kueue

    @property
    def by_team(self) -> dict[str, Present]:
        return {quota.team: quota for quota in self.quotas}

    @property
    def summary(self) -> str:
        """A text such as `1 island, 361 GPUs installed; 3 quotas, 345 GPUs in all`."""
        sum_text = gpus_text(sum(quota.gpus for quota in self.quotas if quota.parent is None))
        one = f"1 quota of {sum_text}" if self.quotas else "no quotas"
        quotas = f"{count_text(len(self.quotas), 'quota')}, {sum_text} in all" if len(self.quotas) > 1 else one
        return f"{count_text(len(self.islands), 'island')}, {gpus_text(sum(self.islands.values()))} installed; {quotas}"


class OtherCluster(Model):
    """A cluster of the ledger that the file does not name."""

    name: Name
    summary: str
    barred: str = ""
    """The reason why it cannot be removed; empty: it can."""


def resolve_cluster(
    spec: ClusterSpec, now: ClusterNow | None, terms: ImportTerms, number: int
) -> tuple[ClusterNow, list[Line]]:
    """Return the cluster after the import, and the import's lines about it. `number`: its place in the file.

    If a line is refused, the cluster stays as it is.
    """
    at: FilePlace = ("clusters", number)
    if now is None:
        after = _cluster_in_file(spec)
        why = _ONLY_FOR_NOW.format(after.holder.title) if after.holder and after.quotas and not terms.partial else ""
        return after, [Line(verb=Verb.ADDED, kind="cluster", cluster=spec.name, after=after.summary, why=why, path=at)]
    if now.holder is not None and (spec.slurm or spec.git or spec.kueue) is None and not terms.partial:
        why = f"{now.holder.title} holds its quotas: add {now.holder.field}: to the file, or detach the cluster first"
        return now, [Line(verb=Verb.REFUSED, kind="cluster", cluster=now.name, why=why, path=at)]
    after, stays = _overlay(spec, now, terms, at)
    lines = [*_differences(now, after, spec, at), *stays]
    if fault := _tree_fault(now, after) if stays or terms.partial or now.holder else "":
        why = (
            f"does not fit values that the ledger has and the file does not: {fault}; add them to the file, or remove "
            "them from the ledger with --prune"
        )
        if not any(line.verb is Verb.LEFT_OUT for line in stays):
            why = f"does not fit the values that the ledger keeps: {fault}; change the file to fit them"
        lines = [Line(verb=Verb.REFUSED, kind="cluster", cluster=now.name, why=why, path=at)]
    if any(line.verb is Verb.REFUSED for line in lines):
        return now, [line for line in lines if line.verb in (Verb.REFUSED, Verb.KEPT)]
    return after, lines


def _cluster_in_file(spec: ClusterSpec) -> ClusterNow:
    return ClusterNow(
        name=spec.name,
        gpu_model=spec.gpu_model,
        gpus_per_node=spec.gpus_per_node,
        islands={island.name: island.total_gpus for island in spec.islands},
        policy=spec.policy,
        quotas=tuple(_present(quota) for quota in spec.quotas),
        windows=tuple(window.in_order for window in spec.windows),
        slurm=spec.slurm,
        git=spec.git,
        kueue=spec.kueue,
        prometheus=spec.prometheus,
        kubernetes=spec.kubernetes,
    )


_QUOTA_FIELDS = ("gpus", "islands", "protected_blocks", "minimum_gpus", "parent", "namespaces", "classes")


def _present(quota: Quota, now: Present | None = None, *, partial: bool = False) -> Present:
    """Return the quota as its row; from a table, fields without a column stay."""
    fields: dict[str, Any] = {field: getattr(quota, field) for field in _QUOTA_FIELDS}
    for field in ("islands", "namespaces"):
        fields[field] = None if fields[field] is None else tuple(sorted(fields[field]))
    if now is None:
        return Present(team=quota.team, **fields)
    taken = {field: value for field, value in fields.items() if not partial or field in quota.model_fields_set}
    return now.model_copy(update=taken)


def _overlay(spec: ClusterSpec, now: ClusterNow, terms: ImportTerms, at: FilePlace) -> tuple[ClusterNow, list[Line]]:
    """Return the cluster with the file laid over it, and lines for entries that stay although the file lacks them."""
    file_cluster = _cluster_in_file(spec)
    fields = ("gpu_model", "gpus_per_node", "windows", *SOURCES)
    taken = {
        field: getattr(file_cluster, field) for field in fields if not terms.partial or field in spec.model_fields_set
    }
    islands, policy = dict(file_cluster.islands), dict(file_cluster.policy)
    quotas, stays = _overlay_quotas(spec, now, terms, at)

    def leave_out(kind: str, name: str, value: str) -> None:
        stays.append(Line(verb=Verb.LEFT_OUT, kind=kind, cluster=now.name, name=name, before=value, path=at))

    from_slurm = terms.partial and spec.slurm is not None and "islands" in spec.model_fields_set  # no table has both
    if not terms.prune and not from_slurm:
        for name in sorted(now.islands.keys() - file_cluster.islands.keys()):
            islands[name] = now.islands[name]
            leave_out("island", name, gpus_text(islands[name]))
    if not terms.prune or (terms.partial and "policy" not in spec.model_fields_set):
        for key, value in now.policy.items():
            if key not in policy:
                policy[key] = value
                if "policy" in spec.model_fields_set or not terms.partial:
                    leave_out("policy", key, setting_text(value))
    return now.model_copy(update={**taken, "islands": islands, "policy": policy, "quotas": quotas}), stays


HOLDERS = ("slurm", "git", "kueue")
SOURCES = (*HOLDERS, "prometheus", "kubernetes")
_THEIRS = "{0} holds this value, so a file cannot set it: change it in {0}"
_ONLY_FOR_NOW = "{0} holds the cluster's quotas, so those in the file apply only until Backstop reads {0}"
_OLDER = "a rollout or a grant has changed this value; --reset takes the value of the file"


def _overlay_quotas(
    spec: ClusterSpec, now: ClusterNow, terms: ImportTerms, at: FilePlace
) -> tuple[tuple[Present, ...], list[Line]]:
    before, stays = now.by_team, list[Line]()
    after: dict[str, Present] = {}

    def stay(verb: Verb, team: str, value: str, path: FilePlace, **more: str) -> None:
        stays.append(Line(verb=verb, kind="quota", cluster=now.name, name=team, before=value, path=path, **more))

    for number, quota in enumerate(spec.quotas):
        place, standing = (*at, "quotas", number), before.get(quota.team)
        wanted = _present(quota, standing, partial=terms.partial)
        if standing is None and now.holder is not None:
            stay(Verb.KEPT, quota.team, "none", place, after=gpus_text(quota.gpus), why=now.holder.lacks)
            continue
        after[quota.team] = wanted
        for field, why in _kept_fields(standing, wanted, now, terms).items() if standing is not None else ():
            value = getattr(standing, field)
            after[quota.team] = after[quota.team].model_copy(update={field: value})
            if field in quota.model_fields_set and value != getattr(wanted, field):
                texts = {"after": setting_text(getattr(wanted, field)), "why": why, "field": field}
                stay(Verb.KEPT, quota.team, setting_text(value), (*place, field), **texts)
    spoken_of = "quotas" in spec.model_fields_set or not (terms.partial or now.holder)
    for team in sorted(before.keys() - after.keys()):
        if terms.prune and spoken_of and now.holder is None:
            continue
        after[team], value = before[team], gpus_text(before[team].gpus)
        if terms.prune and spoken_of:
            stay(Verb.KEPT, team, value, at, after="none", why=_theirs_text(now))
        elif spoken_of and now.holder is None:
            stay(Verb.LEFT_OUT, team, value, at)
    return tuple(after[team] for team in sorted(after)), stays


def _theirs_text(now: ClusterNow) -> str:
    return "" if now.holder is None else _THEIRS.format(now.holder.title)


def _kept_fields(standing: Present, wanted: Present, now: ClusterNow, terms: ImportTerms) -> dict[str, str]:
    """Return by field why the file's value is not taken: others or a rollout set it, or it is a floor above that."""
    kept: dict[str, str] = {}
    older = wanted.gpus != standing.gpus and wanted.gpus in now.overwritten.get(wanted.team, ())
    if now.holder is not None:
        kept = dict.fromkeys(now.holder.sets, now.busy or _theirs_text(now))
    elif older and (now.busy or not terms.reset):
        kept = {"gpus": now.busy or _OLDER}
    if kept and max(wanted.minimum_gpus, sum(wanted.protected_blocks)) > standing.gpus:
        kept |= dict.fromkeys(("minimum_gpus", "protected_blocks"), f"floors are above the kept {standing.gpus}")
    return kept


def _tree_fault(now: ClusterNow, after: ClusterNow) -> str:
    """Return why the quotas, with those that stay, are no valid tree; empty: they are.

    A floor that was above a quota before the import, where a rollout lowered that one, is not the file's fault.
    """
    quotas = [present.as_quota() for present in after.quotas]
    try:
        QuotaTree(quotas)
        check_islands(quotas, after.islands)
        before = _above_their_parents(now)
        if _above_their_parents(after) - before:
            check_floors(
                [
                    quota if quota.team not in before else quota.but(minimum_gpus=0, protected_blocks=())
                    for quota in quotas
                ]
            )
    except ValueError as error:
        return str(error)
    return ""


def _above_their_parents(cluster: ClusterNow) -> set[str]:
    """Return the teams whose floors are above a quota that they are part of."""
    try:
        quotas = [present.as_quota() for present in cluster.quotas]
        QuotaTree(quotas)
    except ValueError:  # another tool left it so
        return set()
    return {quota.team for _, quota, _ in floors_above(quotas)}


# --- what differs ---------------------------------------------------------------------------------------


def setting_text(value: object) -> str:
    """Return a setting as people read it."""
    if value is None or value == () or value == []:
        return "none"
    if isinstance(value, list | tuple):
        return some_of([str(each) for each in value])
    if isinstance(value, QuotaSource | PrometheusSource | KubernetesSource):
        return canonical_json(value.model_dump(mode="json", exclude_defaults=True))
    return value if isinstance(value, str) else canonical_json(value)


BEYOND = "beyond what is shown"
"""Why a line has the same text before and after: only the part that is not shown differs, as in a long list."""


def _diff_values(
    before: Mapping[str, Any], after: Mapping[str, Any], text: Callable[[Any], str] = setting_text
) -> Iterator[dict[str, Any]]:
    """Yield a line's fields for each value that differs, however much of it its text shows."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield {"name": name, "verb": Verb.ADDED, "after": text(after[name])}
        elif name not in after:
            yield {"name": name, "verb": Verb.REMOVED, "before": text(before[name])}
        elif before[name] != after[name]:
            yield {"name": name, "verb": Verb.CHANGED, **_texts_of(text(before[name]), text(after[name]))}


def _texts_of(old: str, new: str) -> dict[str, str]:
    return {"before": old, "after": new, **({"why": BEYOND} if old == new else {})}


def _differences(now: ClusterNow, after: ClusterNow, spec: ClusterSpec, at: FilePlace) -> list[Line]:
    """Return what the import writes; changes to quotas of a cluster with an open rollout are refused."""
    islands = {i.name: n for n, i in enumerate(spec.islands)}
    teams = {quota.team: n for n, quota in enumerate(spec.quotas)}
    lines: list[Line] = []
    moves = _quotas_place(now.holder) != _quotas_place(after.holder)

    def add_lines(kind: str, moved: Iterable[dict[str, Any]], place: Mapping[str, FilePlace]) -> None:
        for move in moved:
            line = Line(kind=kind, cluster=now.name, path=place.get(move["name"], at), **move)
            guarded = (kind == "island" and line.verb is Verb.REMOVED) or (
                kind == "field" and line.name in HOLDERS and moves
            )
            lines.append(_refuse(line, now.busy) if guarded and now.busy else line)

    fields = ("gpu_model", "gpus_per_node", *SOURCES)
    before, wanted = ({field: getattr(of, field) for field in fields} for of in (now, after))
    add_lines("field", _diff_values(before, wanted), {field: (*at, field) for field in fields})
    places: dict[str, FilePlace] = {name: (*at, "islands", n) for name, n in islands.items()}
    add_lines("island", _diff_values(now.islands, after.islands, gpus_text), places)
    add_lines("policy", _diff_values(now.policy, after.policy), {k: (*at, "policy", k) for k in after.policy})
    lines += [line.model_copy(update={"path": (*at, "windows")}) for line in _window_lines(now, after)]
    quotas = _quota_lines(now, after, {team: (*at, "quotas", n) for team, n in teams.items()}, at)
    # Classes are no promise: a rollout neither holds them nor takes a change for a drift.
    return [*lines, *(_refuse(line, now.busy) if now.busy and line.field != "classes" else line for line in quotas)]


def _window_lines(now: ClusterNow, after: ClusterNow) -> list[Line]:
    """Return lines for windows that come or go, in words that no two of them share."""
    moved = set(now.windows) ^ set(after.windows)
    texts: dict[Window, str] = {}
    for clock in ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f"):
        texts = {w: f"{span_text(w, clock)}: {w.reason}" for w in moved}
        if len(set(texts.values())) == len(texts):
            break
    return [
        Line(verb=Verb.ADDED if window in after.windows else Verb.REMOVED, kind="window", cluster=now.name, name=text)
        for window, text in sorted(texts.items(), key=lambda each: each[1])
    ]


def _quotas_place(source: QuotaSource | None) -> QuotaSource | None:
    """Return the place of the quotas: a source without how they are written, which a site may change at once."""
    if isinstance(source, GitSource):
        return source.model_copy(update={"mode": GitMode.PUSH})
    if not isinstance(source, SlurmSource):
        return source
    return source.model_copy(update={"classes": ClassesInSlurm.OFF, "yields": {}})


def _quota_lines(now: ClusterNow, after: ClusterNow, places: Mapping[str, FilePlace], at: FilePlace) -> Iterator[Line]:
    before, wanted = now.by_team, after.by_team
    for team in sorted(before.keys() | wanted.keys()):
        of: dict[str, Any] = {"kind": "quota", "cluster": now.name, "name": team, "path": places.get(team, at)}
        if team not in before:
            yield Line(verb=Verb.ADDED, after=gpus_text(wanted[team].gpus), **of)
        elif team not in wanted:
            yield Line(verb=Verb.REMOVED, before=gpus_text(before[team].gpus), **of)
        else:
            for field in _QUOTA_FIELDS:
                old, new = getattr(before[team], field), getattr(wanted[team], field)
                if old != new:
                    place = (*of["path"], field)
                    texts = _texts_of(setting_text(old), setting_text(new))
                    yield Line(verb=Verb.CHANGED, field=field, **{**of, **texts, "path": place})


def _refuse(line: Line, why: str) -> Line:
    return line.model_copy(update={"verb": Verb.REFUSED, "why": f"{_DONE[line.verb]} while {why}"})


_DONE = {Verb.ADDED: "cannot be added", Verb.CHANGED: "cannot be changed", Verb.REMOVED: "cannot be removed"}


# --- what is of the fleet as a whole -------------------------------------------------------------------------


def resolved_policy(fleet: Fleet, now: Mapping[str, Any], *, prune: bool) -> tuple[dict[str, Any], list[Line]]:
    """Return the default policy after the import, and its lines; a file without one changes nothing of it."""
    if "policy" not in fleet.model_fields_set:
        return dict(now), []
    file_policy = fleet.policy.model_dump(mode="json", exclude_unset=True)
    after = file_policy if prune else {**now, **file_policy}
    lines = [
        Line(kind="policy", path=("policy", moved["name"]) if moved["name"] in after else ("policy",), **moved)
        for moved in _diff_values(now, after)
    ]
    stays = sorted(now.keys() - file_policy.keys()) if not prune else ()
    left = [
        Line(verb=Verb.LEFT_OUT, kind="policy", name=k, before=setting_text(now[k]), path=("policy",)) for k in stays
    ]
    return after, [*lines, *left]


def default_refused(lines: Iterable[Line], why: str) -> list[Line]:
    """Refuse the lines of a default policy that is invalid, or makes a cluster's invalid: it stays as it is."""
    return [
        line if line.verb is Verb.LEFT_OUT else line.model_copy(update={"verb": Verb.REFUSED, "why": why})
        for line in lines
    ]


def resolve_teams(fleet: Fleet, now: Mapping[str, Team], *, prune: bool) -> tuple[dict[str, Team | None], list[Line]]:
    """Return the teams that change (None: removed) and their lines; a file without teams changes none."""
    after: dict[str, Team | None] = {}
    lines: list[Line] = []
    for number, entry in enumerate(fleet.teams):
        place, standing = ("teams", number), now.get(entry.name)
        contacts, fault = _unmask(entry, () if standing is None else standing.contacts)
        keeps = standing is not None and not prune and "notify" not in entry.model_fields_set
        team = entry.but(contacts=contacts, notify=standing.notify if standing and keeps else entry.notify)
        about: dict[str, Any] = {"kind": "team", "name": team.name, "path": place}
        if fault:
            lines.append(Line(verb=Verb.REFUSED, why=fault, **about))
        elif standing is None:
            after[team.name] = team
            lines.append(Line(verb=Verb.ADDED, after=_team_text(team), **about))
        elif (team.contacts, team.notify) != (standing.contacts, standing.notify):
            after[team.name] = team
            old, new = _team_text(standing), _team_text(team)
            why = "the part of the address that is not shown differs" if old == new else ""
            lines.append(Line(verb=Verb.CHANGED, before=old, after=new, why=why, **about))
    for name in sorted(now.keys() - {team.name for team in fleet.teams}) if "teams" in fleet.model_fields_set else ():
        verb = Verb.REMOVED if prune else Verb.LEFT_OUT
        lines.append(Line(verb=verb, kind="team", name=name, before=_team_text(now[name]), path=("teams",)))
        after |= {name: None} if prune else {}
    return after, lines


def _team_text(team: Team) -> str:
    contacts = setting_text([mask_secrets(contact) for contact in team.contacts])
    return contacts if team.notify is None else f"{contacts}, notify {team.notify}"


def _unmask(team: Team, standing: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return the contacts, a masked one (`slack://***`) replaced by the ledger's; or why that is impossible."""
    written_out = Counter(contact for contact in team.contacts if not is_masked(contact))
    left, contacts = [], list[str]()
    for one in standing:  # a contact that the file writes out is not a masked one
        if written_out[one]:
            written_out[one] -= 1
        else:
            left.append(one)
    for mask, times in Counter(filter(is_masked, team.contacts)).items():
        have = sum(mask_secrets(one) == mask for one in left)
        if times < have:
            return (), _unclear_text(mask, times, have)
    for contact in team.contacts:
        if not is_masked(contact):
            contacts.append(contact)
            continue
        same = next((one for one in left if mask_secrets(one) == contact), None)
        if same is None:
            return (
                (),
                f"*** in {contact} hides an address that the ledger lacks: write the whole address, or named:NAME",
            )
        left.remove(same)
        contacts.append(same)
    return tuple(contacts), ""


def _unclear_text(mask: str, in_file: int, have: int) -> str:
    times = "once" if in_file == 1 else f"{in_file} times"
    kept = "the contact that you keep" if in_file == 1 else "each contact that you keep"
    about = f"the file has {mask} {times}, but *** can hide {have} contacts of the ledger"
    return f"{about}: write the whole address of {kept}, so that Backstop knows which to remove"


def other_lines(others: Iterable[OtherCluster], *, prune: bool) -> list[Line]:
    """Return lines for clusters that the file does not name."""
    lines = []
    for one in others:
        verb = Verb.LEFT_OUT if not prune else Verb.REFUSED if one.barred else Verb.REMOVED
        why = f"cannot be removed: {one.barred}" if verb is Verb.REFUSED else ""
        lines.append(Line(verb=verb, kind="cluster", cluster=one.name, before=one.summary, why=why))
    return lines


def policy_fault(default: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return why a cluster's policy over this default is invalid; empty: it is valid."""
    try:
        merged_policy(Policy.model_validate(dict(default)), own)
    except ValidationError as error:
        return " ".join(in_one_sentence(error).split())
    return ""
