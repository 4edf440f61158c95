"""Oddities of a fleet file: legal entries where a person may have meant something else."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

from models.cluster.contact_secrets import NAMED, is_masked, mask_secrets
from models.cluster.fleet_file import ClusterSpec, Fleet
from models.cluster.import_outcome import Oddity
from models.cluster.island import total
from models.cluster.quota import Quota
from models.texts import count_text, gpus_text, some_of, verb_of

TIMES = 10
"""A promise of more than this many times the installed GPUs is probably a mistake."""
_MOST_NAMED = 5
_SCHEMES = ("mailto", "mailtos", "slack", "json", "jsons", "https", "webhook+http", "webhook+https")
"""The schemes of activities/adapters/notify/contact_routes.py; a test compares the two lists."""
_MAIL = re.compile(r"[^@\s:/]+@[^@\s:/]+")
_CHANNEL = re.compile(r"[#@][\w.-]{1,80}")
_SLACK = re.compile(r"slack://(\w+@)?[A-Za-z0-9]+(/[A-Za-z0-9]+){2}.*")


def oddities_of(fleet: Fleet, contacts: Mapping[str, Sequence[str]]) -> tuple[Oddity, ...]:
    """Return the oddities in the file's order. `contacts`: every team's, after the import."""
    of_clusters = [odd for number, cluster in enumerate(fleet.clusters) for odd in _of_cluster(cluster, number)]
    return (*of_clusters, *_of_teams(fleet, contacts))


def _of_cluster(cluster: ClusterSpec, number: int) -> Iterator[Oddity]:
    at = ("clusters", number)
    installed = total(cluster.islands)
    promised = sum(quota.gpus for quota in cluster.quotas if quota.parent is None)
    if promised > TIMES * installed:
        times = f"{promised / installed:.0f} times the {installed} installed" if installed else "but has none installed"
        yield Oddity(text=f"{cluster.name} promises {gpus_text(promised)}, {times}", path=at)
    scheduled = sum(quota.scheduled_gpus or 0 for quota in cluster.quotas)
    if scheduled > installed:
        text = f"{cluster.name} has {gpus_text(scheduled)} scheduled, more than the {installed} installed"
        yield Oddity(text=text, path=at)
    largest = {island.name: island.total_gpus for island in cluster.islands}
    for place, quota in enumerate(cluster.quotas):
        yield from _of_quota(cluster.name, quota, largest, (*at, "quotas", place))


def _of_quota(cluster: str, quota: Quota, installed: Mapping[str, int], at: tuple[str | int, ...]) -> Iterator[Oddity]:
    mine = {name: installed[name] for name in quota.islands or installed}
    who, most = f"{quota.team} of {cluster}", max(mine.values())
    where = "of its islands" if quota.islands else "island"
    for block in sorted({block for block in quota.protected_blocks if block > most}):
        text = f"{who} has a protected block of {gpus_text(block)}, larger than any {where} (at most {most})"
        yield Oddity(text=text, path=(*at, "protected_blocks"))
    if quota.islands and quota.gpus > sum(mine.values()):
        text = f"{who} has a quota of {gpus_text(quota.gpus)}, above the {sum(mine.values())} installed in its islands"
        yield Oddity(text=text, path=(*at, "islands"))


def _of_teams(fleet: Fleet, contacts: Mapping[str, Sequence[str]]) -> Iterator[Oddity]:
    parents = {(c.name, quota.parent) for c in fleet.clusters for quota in c.quotas}
    holders = {quota.team for c in fleet.clusters for quota in c.quotas if (c.name, quota.team) not in parents}
    silent = sorted(team for team in holders if not contacts.get(team))
    if silent:
        many = f"{count_text(len(silent), 'team')} {verb_of(len(silent), 'has', 'have')} no contact"
        so = verb_of(len(silent), "its notices", "their notices")
        text = f"{many}, so {so} go only to the log: {some_of(silent, _MOST_NAMED)}"
        yield Oddity(text=text, path=("teams",) if fleet.teams else ())
    everyone = {quota.team for c in fleet.clusters for quota in c.quotas}
    for number, team in enumerate(fleet.teams):
        near = difflib.get_close_matches(team.name, sorted(holders - {t.name for t in fleet.teams}), 1, 0.8)
        if team.name not in everyone and near:
            text = f"team {team.name} has no quota in this file: did you mean {near[0]}?"
            yield Oddity(text=text, path=("teams", number, "name"))
        for place, contact in enumerate(team.contacts):
            if fault := contact_fault(contact):
                text = f"a contact of {team.name} cannot receive notices: {fault}"
                yield Oddity(text=text, path=("teams", number, "contacts", place))


def contact_fault(contact: str) -> str:
    """Return why no notice could be sent there, judged by its form only and without its secrets; empty: one could."""
    text = contact.strip()
    scheme, colon, rest = text.partition(":")
    kind = scheme.lower()
    if kind in ("log", NAMED.rstrip(":")) or is_masked(text) or _MAIL.fullmatch(text):
        return ""
    if _CHANNEL.fullmatch(text):
        return f"{text} looks like a channel; give the URL of a Slack webhook instead (docs/notices.md)"
    if not colon or kind not in (*_SCHEMES, "http"):
        return f"{mask_secrets(text)} is not a kind of address that Backstop supports (docs/notices.md lists them)"
    if kind == "http":
        return f"{mask_secrets(text)} would send without encryption: use https, or write webhook+http:// if you mean it"
    if kind == "slack" and not _SLACK.fullmatch(text):
        return "slack: needs the three parts of a webhook, slack://A/B/C, optionally followed by / and a channel's name"
    if kind not in ("mailto", "slack") and not rest.startswith("//"):
        return f"{mask_secrets(text)} is not a URL: write // after {kind}:"
    if kind == "mailto" and not rest.strip("/"):
        return "mailto: has no address after it"
    return ""
