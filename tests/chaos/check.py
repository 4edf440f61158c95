"""The judge: from rows, histories and the script's own notes, what was lost. Empty is good.

It imports nothing of the product, so that no misunderstanding is shared: the machine's ways, the hash chain
and the replay of values are written down here a second time, from docs/design.md. `python -m tests.chaos.check
FILE` judges a saved outcome again.

Where Temporal's database was deleted, this and no more may be lost with it, and only of rollouts that ran in it then:
- the rollout itself: it ends without its own end, where another one has taken over all of its effects;
- what a person had been told is taken, where it is not in the archive yet: it stands in the history of before, and the
  archive ends before it (a command, and the last entries of all kinds; never one with a later one archived);
- of the last effect that was under way, whether it landed: the ledger knows, and no history does;
- notices that nobody was sent yet; of those that were sent, that it is archived;
- what was under way to the server when it died: it may be answered by the empty one, and count on both (a launch then
  opens its rollout on both, and what each archives under one key stands beside the other's);
- time: from the deletion until its rollout is taken over a promise is not guarded, and from then on it is none before
  the new rollout is enforced, which is judged as any other.
Never: a receipt, an entry that the ledger has acknowledged, a value, the first rollout's baseline.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.chaos.outcome import Attempted, Outcome, Row, Told

WAYS = {
    "planned": {"buffered", "aborted", "rolling_back", "stuck"},
    "buffered": {"enforced", "rolling_back", "stuck"},
    "enforced": {"monitored", "rolling_back", "stuck"},
    "monitored": {"closed", "rolling_back", "stuck"},
    "rolling_back": {"rolled_back", "stuck"},
    "rolled_back": {"planned", "rolling_back", "aborted", "closed"},
    "stuck": {"rolling_back", "closed"},
}
PROMISING = {"enforced", "monitored"}
UNWRITTEN = {"Drift", "BlastRadius"}
"""Failures that say that nothing was written."""
HARMLESS = {"UNHANDLED_COMMAND", "FORCE_CLOSE_COMMAND", "RESET_STICKY_TASK_QUEUE", "FAILOVER_CLOSE_COMMAND"}
"""Why a workflow task may fail without anybody's fault."""
NO_TIME = "TMPRL1101"
"""Of a step that had no two seconds: a worker that was frozen meanwhile says so of whatever it was at."""
_BESIDE = "/beside/"
"""In the key of an entry whose own key another one has."""
LATE = timedelta(seconds=10)
"""What a promise may outlast breach_after beside the faults, so that nobody is answered late for what others suffer."""
SLACK = timedelta(seconds=45)
"""What a promise may outlast breach_after beside the faults: two missed heartbeats, and the machine's noise."""


@dataclass(frozen=True)
class Loss:
    """One thing that is not as it must be."""

    kind: str
    where: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.evidence}"


class Case:
    """An outcome, indexed."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.told = [Told(run) for run in outcome.runs]
        self.rollouts = [t for t in self.told if t.type == "ClusterRollout"]
        self.effects: dict[str, list[Attempted]] = defaultdict(list)
        for told in sorted(self.rollouts, key=lambda t: str(t.events[0]["eventTime"])):
            self.effects[told.rollout] += told.effects()
        self.receipts = {(r["rollout"], r["counter"]): json.loads(r["receipt"]) for r in self.rows("receipts")}
        self.entries: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows("audit"):
            self.entries[row["cluster"]].append(json.loads(row["entry"]))
        self.registered = {row["id"]: row for row in self.rows("rollouts")}
        self.lost = {t.rollout for t in self.rollouts if t.lost}
        """Rollouts that ran when Temporal's database was deleted."""
        first = [{t.rollout for t in self.rollouts if t.is_first and t.before is before} for before in (True, False)]
        self.opened_twice = first[0] & first[1]
        """Rollouts whose launch was under way as the database was deleted, so that it opened them on both servers."""
        self.deleted = {what: _time(at) for what, at in outcome.deleted.items()}

    def rows(self, table: str) -> list[Row]:
        return self.outcome.tables[table]

    def writes(self, what: str) -> list[Row]:
        """Return the writes that the database itself recorded, in order."""
        return [w for w in self.rows("chaos_writes") if w["what"] == what]

    def crossed(self, said: Row) -> bool:
        """Return whether it was asked before Temporal's database was deleted, and answered after."""
        if not self.deleted or "until" not in said:
            return False
        return _time(said["at"]) <= self.deleted["until"] and _time(said["until"]) >= self.deleted["at"]

    def of_rollout(self, rollout: str) -> list[Row]:
        return [e for entries in self.entries.values() for e in entries if e["rollout"] == rollout]


def lost(outcome: Outcome) -> list[Loss]:
    """Everything that was lost, by every check."""
    case = Case(outcome)
    return [loss for check in CHECKS for loss in check(case)]


# --- effects ---------------------------------------------------------------------------------


def effects_landed_once(case: Case) -> Iterator[Loss]:
    """History and receipts agree, fence by fence."""
    explained = set()
    for rollout, effects in case.effects.items():
        counters = [e.counter for e in effects]
        if counters != list(range(1, len(counters) + 1)):
            yield Loss("fences", rollout, f"history schedules {counters}")
        for e in effects:
            key = (rollout, e.counter)
            explained.add(key)
            under_way = rollout in case.lost and e is effects[-1]
            yield from _one_effect(f"{rollout}#{e.counter} {e.change['kind']}", e, case.receipts.get(key), under_way)
    for key in case.receipts.keys() - explained:
        yield Loss("unexplained receipt", f"{key[0]}#{key[1]}", "no activity of any history asked for it")
    for row in case.rows("receipts"):
        receipt = json.loads(row["receipt"])
        said = (receipt["fence"]["rollout"], receipt["fence"]["counter"], receipt["kind"], receipt["cluster"])
        if said != (row["rollout"], row["counter"], row["kind"], row["cluster"]):
            yield Loss("receipt", f"{row['rollout']}#{row['counter']}", f"its row and its text differ: {said}")


def _one_effect(where: str, e: Attempted, stored: Row | None, under_way: bool) -> Iterator[Loss]:
    if e.receipt is None and not e.failure and not under_way:
        yield Loss("effect without an end", where, "history knows neither its result nor its failure")
    if e.shadow:
        if stored is not None:
            yield Loss("shadow", where, "a rehearsal has left a receipt")
        return
    if e.receipt is not None and stored != e.receipt:
        yield Loss("receipt", where, f"history has {e.receipt}, the ledger {stored}")
    if stored is not None and (stored["kind"], stored["cluster"]) != (e.change["kind"], e.change["cluster"]):
        yield Loss("receipt", where, f"it is for {stored['kind']} on {stored['cluster']}")
    if stored is not None and e.failure in UNWRITTEN:
        yield Loss("receipt", where, f"the call failed with {e.failure}, which writes nothing, and has a receipt")


def the_database_agrees(case: Case) -> Iterator[Loss]:
    """Each receipt stands for one transaction, and for every write that bears its mark."""
    made = {(w["after"]["rollout"], w["after"]["counter"]): w["tx"] for w in case.writes("receipts") if w["after"]}
    if altered := [w for w in case.writes("receipts") if w["before"]]:
        yield Loss("receipt", "the ledger", f"{len(altered)} receipts were changed or deleted")
    if made.keys() != case.receipts.keys():
        yield Loss("receipt", "the ledger", f"receipts come and go: {sorted(made.keys() ^ case.receipts.keys())}")
    counted: dict[tuple[str, int], list[int]] = defaultdict(list)
    for w in case.writes("clusters"):
        before, after = w["before"] or {}, w["after"]
        if after["last_counter"] not in (0, before.get("last_counter")):
            counted[after["open_rollout"], after["last_counter"]].append(w["tx"])
    for key in made.keys() | counted.keys():
        if set(counted.get(key, [])) != {made.get(key)}:
            where = f"{key[0]}#{key[1]}"
            yield Loss("landed twice", where, f"receipt in {made.get(key)}, counted in {counted.get(key)}")
    expected = {
        (e.rollout, e.counter, w["team"]): w["expected_gpus"]
        for effects in case.effects.values()
        for e in effects
        for w in e.change["writes"]
    }
    yield from _marked_writes(case, made, expected)


def _marked_writes(
    case: Case, made: dict[tuple[str, int], int], expected: dict[tuple[str, int, str], int]
) -> Iterator[Loss]:
    foreign = Counter((f["tx"], f["cluster"], f["team"], f["before"], f["after"]) for f in case.outcome.foreign)
    seen: Counter[tuple[Any, ...]] = Counter()
    for w in case.writes("quotas"):
        old, new = w["before"], w["after"]
        if old is None or new is None:
            continue  # the fleet's import, checked by its values
        where = f"{new['cluster']}/{new['team']}"
        if new["written_by"] == old["written_by"]:
            seen[w["tx"], new["cluster"], new["team"], old["gpus"], new["gpus"]] += 1
            continue
        rollout, _, counter = new["written_by"].rpartition("#")
        key = (rollout, int(counter))
        if made.get(key) != w["tx"]:
            text = f"{new['written_by']} wrote in {w['tx']}, its receipt is of {made.get(key)}"
            yield Loss("write without a receipt", where, text)
        if old["gpus"] == new["gpus"]:
            continue
        receipt = case.receipts.get(key, {"before": {}, "after": {}})
        said = (receipt["before"].get(new["team"]), receipt["after"].get(new["team"]))
        if said != (old["gpus"], new["gpus"]):
            text = f"{new['written_by']} says {said}, the row went {old['gpus']} -> {new['gpus']}"
            yield Loss("receipt", where, text)
        if expected.get((*key, new["team"])) != old["gpus"]:
            text = f"{new['written_by']} expected {expected.get((*key, new['team']))} and overwrote {old['gpus']}"
            yield Loss("overwritten unseen", where, text)
    for write, count in (seen - foreign).items():
        if write[1] in case.outcome.attacked and write[3] == write[4]:
            continue  # a poison row, and how it was taken away
        yield Loss("write of nobody", f"{write[1]}/{write[2]}", f"{count} x {write[3]} -> {write[4]} in {write[0]}")
    for write in foreign - seen:
        yield Loss("foreign write", f"{write[1]}/{write[2]}", f"{write[3]} -> {write[4]} never reached the table")


def values_follow(case: Case) -> Iterator[Loss]:
    """Receipts and foreign writes, put one after the other, lead from the import to the present values."""
    values = _imported(case)
    for at, what, cluster, team, before, after in _moves(case):
        known = values.get((cluster, team))
        if known != before:
            yield Loss("overwritten unseen", f"{cluster}/{team}", f"at {at} {what} saw {before} where {known} stood")
        values[cluster, team] = after
    for row in case.rows("quotas"):
        known = values.get((row["cluster"], row["team"]))
        if known != row["gpus"]:
            where = f"{row['cluster']}/{row['team']}"
            yield Loss("present value", where, f"receipts and foreign writes lead to {known}, not {row['gpus']}")


def commits_follow(case: Case) -> Iterator[Loss]:
    """In Git each effect is committed once, in the order of fences; colleagues change no quota; all ends agree."""
    values: dict[str, dict[str, int]] = {}
    allowed, last, undone = _values_of_receipts(case), dict[str, int](), set[str]()
    for row in reversed(case.outcome.commits):
        where, rollout = f"commit {row['commit'][:8]}", row["rollout"]
        moved = {c: after for c, after in row["after"].items() if row["before"][c] and row["before"][c] != after}
        values = row["after"] | values
        if set(moved) - {row["cluster"]}:
            yield Loss("commit", where, f"of {row['cluster'] or 'a colleague'} moved numbers of {sorted(moved)}")
        if not rollout:
            continue
        counter = int(row["counter"])
        if counter >= last.get(rollout, counter + 1):
            yield Loss("commit", where, f"{rollout}#{counter} lies before #{last[rollout]}")
        last[rollout] = counter
        for team, gpus in moved.get(row["cluster"], {}).items():
            if gpus not in allowed[row["cluster"], team]:
                yield Loss("commit", where, f"gave {team} {gpus}, which no receipt ever had")
        if (rollout, counter) not in case.receipts and rollout not in undone:
            yield Loss("commit", where, f"{rollout}#{counter} has no receipt, and nothing of its rollout undid it")
        if row["kind"] in ("restore", "soften"):
            undone.add(rollout)
    for row in case.rows("quotas"):
        there, where = values.get(row["cluster"], {}).get(row["team"], row["gpus"]), f"{row['cluster']}/{row['team']}"
        admits = row["mode"] == "soft" and there > row["gpus"]  # a soft quota keeps the number from before the rollout
        if there != row["gpus"] and not admits:
            yield Loss("commit", where, f"Git ends with {there}, the ledger with {row['gpus']} ({row['mode']})")


def _values_of_receipts(case: Case) -> dict[tuple[str, str], set[int]]:
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for key, gpus in _imported(case).items():
        found[key].add(gpus)
    for receipt in case.receipts.values():
        for team, gpus in (*receipt["before"].items(), *receipt["after"].items()):
            found[receipt["cluster"], team].add(gpus)
    return found


def _imported(case: Case) -> dict[tuple[str, str], int]:
    first = [w["after"] for w in case.writes("quotas") if w["before"] is None]
    return {(row["cluster"], row["team"]): row["gpus"] for row in first}


def _moves(case: Case) -> list[tuple[datetime, str, str, str, int, int]]:
    """(at, who, cluster, team, before, after) in order of time: both are stamped while they hold the row."""
    found = [
        (_time(f["at"]), "somebody", f["cluster"], f["team"], f["before"], f["after"]) for f in case.outcome.foreign
    ]
    for (rollout, counter), receipt in case.receipts.items():
        for team, before in receipt["before"].items():
            what = f"{rollout}#{counter}"
            found.append((_time(receipt["at"]), what, receipt["cluster"], team, before, receipt["after"][team]))
    return sorted(found)


def undone_is_as_before(case: Case) -> Iterator[Loss]:
    """After an undo each quota has the value and mode it had before, but for what others changed since."""
    writes = case.writes("quotas")
    for rollout, cluster, opened, ended in _undone(case):
        before, after = _rows_at(writes, cluster, opened), _rows_at(writes, cluster, ended)
        touched = {f["team"] for f in case.outcome.foreign if f["cluster"] == cluster and _time(f["at"]) > opened}
        theirs = {f["team"]: f["after"] for f in case.outcome.foreign if f["cluster"] == cluster}
        given = defaultdict(set)
        for change in case.outcome.foreign:
            given[change["cluster"], change["team"]].add(change["after"])
        for team, row in before.items():
            now = after.get(team)
            if now is None or (team not in touched and _bare(now) != _bare(row)):
                yield Loss("undo", f"{rollout} {team}", f"was {_bare(row)}, is {now and _bare(now)}")
            elif now["gpus"] not in {row["gpus"], *given[cluster, team]}:
                text = f"was {row['gpus']}, others set {theirs.get(team)}, is {now['gpus']}"
                yield Loss("undo", f"{rollout} {team}", text)


def _undone(case: Case) -> Iterator[tuple[str, str, datetime, datetime]]:
    """(rollout, cluster, before its first effect, after its last) of those whose last way was an undo.

    The first effect of one that took others over is the first of theirs.
    """
    for rollout, effects in case.effects.items():
        receipts = [case.receipts[rollout, e.counter] for e in effects if (rollout, e.counter) in case.receipts]
        if not receipts or receipts[-1]["kind"] not in ("release", "close"):
            continue
        backs = [e for e in _transitions(case, rollout) if e["data"]["after"] == "rolling_back"]
        later = [e for e in _transitions(case, rollout) if e["data"]["after"] == "buffered"]
        if not backs or (later and later[-1]["at"] > backs[-1]["at"]):
            continue
        if ": undo: " in backs[-1]["text"]:
            first = min(_time(r["at"]) for r in (receipts[0], *_inherited(case, rollout)))
            yield rollout, receipts[0]["cluster"], first, _time(receipts[-1]["at"])


def _inherited(case: Case, rollout: str) -> list[Row]:
    """Receipts of the rollouts whose effects it took over, and of those that they had."""
    found: list[Row] = []
    while (earlier := case.registered[rollout].get("adopted_from")) is not None:
        found += [receipt for (owner, _), receipt in case.receipts.items() if owner == earlier]
        rollout = earlier
    return found


def _rows_at(writes: list[Row], cluster: str, at: datetime) -> dict[str, Row]:
    """The cluster's quota rows as they stood at a time."""
    rows: dict[str, Row] = {}
    for w in writes:
        row = w["after"] or w["before"]
        if row["cluster"] == cluster and _time(w["at"]) <= at + timedelta(milliseconds=1):
            rows[row["team"]] = row
    return rows


def _bare(row: Row) -> Row:
    return {k: v for k, v in row.items() if k not in ("written_by", "written_gpus", "hand")}


# --- taking over -----------------------------------------------------------------------------


def lost_ones_are_taken_over(case: Case) -> Iterator[Loss]:
    """Whole, by one rollout, which changes no quota by that; the lost one writes nothing more."""
    begun: dict[str, Row] = {}
    for w in case.writes("clusters"):
        if w["after"] and w["after"]["open_rollout"]:
            begun.setdefault(w["after"]["open_rollout"], w)
    for row in case.registered.values():
        if row["superseded_by"] is None:
            continue
        heir = case.registered.get(row["superseded_by"])
        if row["id"] not in case.lost:
            yield Loss("taken over", row["id"], f"by {row['superseded_by']}, while it ran")
        if heir is None or heir["cluster"] != row["cluster"] or heir["id"] not in begun:
            yield Loss("taken over", row["id"], f"by {row['superseded_by']}, which is no rollout of its cluster")
            continue
        taken = begun[heir["id"]]
        receipts = [r for (owner, _), r in case.receipts.items() if owner == row["id"]]
        if (receipts or row.get("adopted_from")) and heir.get("adopted_from") != row["id"]:
            yield Loss("taken over", row["id"], f"{heir['id']} took over {heir.get('adopted_from')}, not its effects")
        if moved := [w for w in case.writes("quotas") if w["tx"] == taken["tx"]]:
            yield Loss("taken over", row["id"], f"{len(moved)} quotas changed in the transaction that took it over")
        later = [w["after"] for w in case.writes("receipts") if w["seq"] > taken["seq"] and w["after"]]
        if any(receipt["rollout"] == row["id"] for receipt in later):
            yield Loss("taken over", row["id"], "it has written after that")
        yield from _cut_once(case, row, heir)


def _cut_once(case: Case, row: Row, heir: Row) -> Iterator[Loss]:
    """On the same hardware, with nobody else's change, the same baseline is cut to the same values."""
    cluster = row["cluster"]
    cuts = [[r for (o, _), r in case.receipts.items() if o == x["id"] and r["kind"] == "set_soft"] for x in (row, heir)]
    if not all(cuts):
        return
    once, again = (_time(min(r["at"] for r in receipts)) for receipts in cuts)
    healthy = {h["healthy_gpus"] for h in case.outcome.health if h["cluster"] == cluster and _time(h["at"]) <= again}
    touched = any(f["cluster"] == cluster and _time(f["at"]) <= again for f in case.outcome.foreign)
    if len(healthy) != 1 or touched or cluster in case.outcome.attacked:
        return
    writes = case.writes("quotas")
    first, second = ({t: r["gpus"] for t, r in _rows_at(writes, cluster, at).items()} for at in (once, again))
    if first != second:
        yield Loss("cut twice", heir["id"], f"{row['id']} had set {first}, and it sets {second}")


# --- the end ---------------------------------------------------------------------------------


def everything_ended(case: Case) -> Iterator[Loss]:
    """All rollouts came to rest and ended; nothing is reserved, followed or open."""
    for cluster, where in case.outcome.restless.items():
        yield Loss("no rest", cluster, where)
    for row in case.rows("clusters"):
        open_still = {k: row[k] for k in ("open_rollout", "reserve_limit", "reserved_by") if row[k] is not None}
        open_still |= {k: row[k] for k in ("reserved_gpus", "follows_health", "last_counter") if row[k]}
        if open_still:
            yield Loss("left open", row["name"], str(open_still))
    for row in case.rows("reserve_limits"):
        yield Loss("left open", row["cluster"], f"a reservation of {row['limit_gpus']} GPUs on {row['islands']}")
    launched = {t.rollout for t in case.rollouts if t.is_first}
    for row in case.rows("rollouts"):
        ended = row["stage"] in ("closed", "aborted") or row["superseded_by"] is not None
        if row["ended_at"] is None or not ended:
            yield Loss("left open", row["id"], f"the registry says {row['stage']}, ended {row['ended_at']}")
        if row["id"] not in launched:
            yield Loss("left open", row["id"], "no workflow has opened it")
    for told in case.rollouts:
        if told.status not in ("COMPLETED", "CONTINUED_AS_NEW") and not told.lost:
            yield Loss("workflow", told.workflow, f"{told.status} ({told.run})")


def promises_are_kept(case: Case) -> Iterator[Loss]:
    """No promise is above H for longer than breach_after, what faults kept from acting aside."""
    for rest in case.outcome.rest:
        healthy = _healthy_at(case, rest["cluster"], _time(rest["at"]))
        promised = sum(rest["values"].values())
        withdrawn = _withdrawn_at(case, rest["cluster"], _time(rest["at"]))
        stage = _stage_at(case, rest["cluster"], _time(rest["at"]))
        if stage in PROMISING and promised > healthy and not withdrawn:
            yield Loss("promise", rest["cluster"], f"{promised} GPUs promised at rest, {healthy} healthy")
    yield from _too_long(case, SLACK)


def late(outcome: Outcome) -> list[Loss]:
    """Promises above hardware for longer than breach_after and `LATE`, of clusters that nobody attacked."""
    return list(_too_long(Case(outcome), LATE))


def _too_long(case: Case, slack: timedelta) -> Iterator[Loss]:
    for rollout in case.effects:
        for start, end, cluster in _promising(case, rollout):
            if cluster not in case.outcome.attacked:
                yield from _kept(case, rollout, cluster, start, end, slack)


def a_lie_moves_nothing(case: Case) -> Iterator[Loss]:
    """No rollout went back for a breach where a source lied of all its clusters: that takes a person."""
    shared = Counter(case.outcome.attacked.values())
    for cluster, source in case.outcome.attacked.items():
        for entry in case.entries[cluster] if shared[source] > 1 else ():
            back = entry["kind"] == "transition" and entry["data"]["after"] == "rolling_back"
            if back and ": undo: " not in entry["text"]:
                yield Loss("a lie", cluster, entry["text"])


def _kept(case: Case, rollout: str, cluster: str, start: datetime, end: datetime, slack: timedelta) -> Iterator[Loss]:
    leaves = _leaves(case, cluster)
    moves = [
        (_time(w["at"]), w["after"]) for w in case.writes("quotas") if w["after"] and w["after"]["cluster"] == cluster
    ]
    samples = [(_time(h["at"]), int(h["healthy_gpus"])) for h in case.outcome.health if h["cluster"] == cluster]
    times = sorted({start, end, *(t for t, _ in moves if start < t < end), *(t for t, _ in samples if start < t < end)})
    short_since: datetime | None = None
    for at, until in itertools.pairwise(times):
        values = {row["team"]: row["gpus"] for t, row in moves if t <= at}
        promised = sum(gpus for team, gpus in values.items() if team in leaves)
        if promised <= _healthy_at(case, cluster, at) or _withdrawn_at(case, cluster, at):
            short_since = None
            continue
        short_since = short_since or at
        said = [_time(e["at"]) for e in case.entries[cluster] if _withdraws(e) and at < _time(e["at"]) <= until]
        over = min([until, *said]) - short_since
        allowed = timedelta(seconds=case.outcome.clocks[cluster]) + slack + _disturbed(case, short_since, until)
        if over > allowed:
            text = f"{promised} GPUs promised for {over.total_seconds():.0f} s from {short_since}, {allowed} allowed"
            yield Loss("promise", rollout, text)
            return


def _promising(case: Case, rollout: str) -> Iterator[tuple[datetime, datetime, str]]:
    """When its quotas were promises. A shadow rollout promises nothing."""
    if any(e.shadow for e in case.effects[rollout]):
        return
    since: datetime | None = None
    for entry in _transitions(case, rollout):
        at = _time(entry["at"])
        if entry["data"]["after"] in PROMISING:
            since = since or at
        elif since is not None:
            yield since, at, entry["cluster"]
            since = None
    if since is not None and rollout in case.lost:
        yield since, case.deleted["at"], case.registered[rollout]["cluster"]


def _leaves(case: Case, cluster: str) -> set[str]:
    rows = [r for r in case.rows("quotas") if r["cluster"] == cluster]
    return {r["team"] for r in rows} - {r["parent"] for r in rows}


def _healthy_at(case: Case, cluster: str, at: datetime) -> int:
    samples = [h for h in case.outcome.health if h["cluster"] == cluster and _time(h["at"]) <= at]
    return int(max(samples, key=lambda h: _time(h["at"]))["healthy_gpus"])


def _withdraws(entry: Row) -> bool:
    """Return whether the promise ends with it, because the guard has reported a breach."""
    return bool(entry["kind"] == "guard" and "breach" in entry["data"])


def _withdrawn_at(case: Case, cluster: str, at: datetime) -> bool:
    state = False
    for entry in case.entries[cluster]:
        if _time(entry["at"]) > at:
            break
        if _withdraws(entry):
            state = True
        elif entry["kind"] == "transition" or entry["text"].startswith("backed again"):
            state = False
    return state


def _stage_at(case: Case, cluster: str, at: datetime) -> str:
    """Return the stage by the archive: the registry has it a moment later. A rollout that is launched is planned."""
    reached = [e for e in case.entries[cluster] if e["kind"] in ("transition", "command") and _time(e["at"]) <= at]
    told = [e for e in reached if e["kind"] == "transition" or e["text"].startswith("launched by ")]
    return str(told[-1]["data"].get("after", "planned")) if told else "planned"


def _disturbed(case: Case, start: datetime, end: datetime) -> timedelta:
    """Return how long faults, and their after-effects, may have kept Backstop from acting."""
    total = timedelta()
    for fault in case.outcome.faults:
        began, ended = _time(fault["at"]), _time(fault["until"]) + timedelta(seconds=15)
        total += max(timedelta(), min(end, ended) - max(start, began))
    return total


# --- people ----------------------------------------------------------------------------------


def commands_are_kept(case: Case) -> Iterator[Loss]:
    """Each command that was accepted is once in a history and once in the archive, and no other command is.

    Of a rollout that was lost with Temporal's database the archive may lack the last of them.
    """
    in_history: Counter[str] = Counter()
    servers: dict[str, Counter[bool]] = defaultdict(Counter)
    of_lost: set[str] = set()
    for told in case.rollouts:
        tokens = _commands(told)
        in_history.update(tokens)
        for token in tokens:
            servers[token][told.before] += 1
        of_lost |= {*tokens} if told.rollout in case.lost else set()
    commands = [e for entries in case.entries.values() for e in entries if e["kind"] == "command" and e["rollout"]]
    archived = Counter(e["reason"] for e in commands if not e["refused"])
    said = {s["token"]: s for s in case.outcome.said}
    unopened = {t.start["launch"]["reason"] for t in case.rollouts if t.is_first} - archived.keys()
    opened = {row["id"] for row in case.rows("rollouts")}
    unopened -= {t.start["launch"]["reason"] for t in case.rollouts if t.is_first and t.rollout in opened}
    for token, command in said.items():
        times = (in_history[token], archived[token])
        where = f"{command['cluster']} {command['command']} {token}"
        if case.crossed(command):
            if max(servers[token].values(), default=0) > 1 or times[1] > times[0]:
                yield Loss("command", where, f"as the server died; {times[0]} times in history, {times[1]} archived")
            continue
        if token in of_lost and times == (1, 0):
            continue  # `archives_end_where_they_were_cut` looks whether a later one is archived
        if command["answer"] == "taken" and times != (1, 1):
            yield Loss("command", where, f"acknowledged; {times[0]} times in history, {times[1]} in the archive")
        if command["answer"] == "refused" and command["command"] != "launch" and times != (0, 0):
            yield Loss("command", where, f"refused; {times[0]} times in history, {times[1]} in the archive")
        if command["answer"] == "unknown" and token not in unopened and times not in ((0, 0), (1, 1)):
            yield Loss("command", where, f"unanswered; {times[0]} times in history, {times[1]} in the archive")
    for token in (in_history.keys() | archived.keys()) - said.keys():
        yield Loss("command", token, "nobody gave it")


def _commands(told: Told) -> list[str]:
    """Their tokens, in order; the launch is the first."""
    launch = [str(told.start["launch"]["reason"])] if told.is_first else []
    return launch + [str(request["reason"]) for _, request in told.updates() if request]


def archives_end_where_they_were_cut(case: Case) -> Iterator[Loss]:
    """All that the ledger has acknowledged is archived; a lost rollout may lack only its last commands."""
    archived = {(row["key"].partition(_BESIDE)[0], json.loads(row["entry"])["text"]) for row in case.rows("audit")}
    for told in case.rollouts:
        for entry in told.recorded():
            if (entry["key"], entry["text"]) not in archived:
                yield Loss("archive", entry["key"], f"it was acknowledged, and is gone: {entry['text']}")
    for rollout in case.lost:
        # Its own: a call that the server's death cut off is made again, and its heir may have been asked the same.
        reasons = {e["reason"] for e in case.of_rollout(rollout) if e["kind"] == "command"}
        runs = [t for t in case.rollouts if t.rollout == rollout and t.before]
        runs.sort(key=lambda t: str(t.events[0]["eventTime"]))
        there = [token in reasons for t in runs for token in _commands(t)]
        if there != sorted(there, reverse=True):
            yield Loss("archive", rollout, f"a command is missing before one that is there: {there}")


def archive_is_whole(case: Case) -> Iterator[Loss]:
    """Each cluster's chain, by hashlib alone; and its head."""
    heads = {row["cluster"]: row for row in case.rows("audit_heads")}
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in case.rows("audit"):
        rows[row["cluster"]].append(row)
    for cluster in heads.keys() | rows.keys():
        previous = "0" * 64
        for number, row in enumerate(rows[cluster], start=1):
            if row["seq"] != number or row["previous_hash"] != previous:
                yield Loss("archive", cluster, f"row {row['seq']} does not follow row {number - 1}")
            text = _canonical(json.loads(row["entry"]))
            previous = hashlib.sha256((row["previous_hash"] + text).encode()).hexdigest()
            if previous != row["hash"]:
                yield Loss("archive", cluster, f"row {row['seq']} was altered")
            if json.loads(row["entry"])["key"] != row["key"]:
                yield Loss("archive", cluster, f"row {row['seq']} has another key than its entry")
        head = heads.get(cluster)
        if head is None or (head["length"], head["hash"]) != (len(rows[cluster]), previous):
            yield Loss("archive", cluster, f"the chain of {len(rows[cluster])} does not end at its head {head}")
    for key, count in Counter(row["key"] for row in case.rows("audit")).items():
        if count > 1:
            yield Loss("archive", key, f"archived {count} times")


def archive_tells_all(case: Case) -> Iterator[Loss]:
    """Transitions lead lawfully from planned to an end; each effect of history is archived once."""
    for rollout, effects in case.effects.items():
        if rollout not in case.registered and not effects:
            continue  # its launch was refused
        stage = "planned"
        for entry in _transitions(case, rollout):
            before, after = entry["data"]["before"], entry["data"]["after"]
            if before != stage or after not in WAYS.get(before, set()):
                yield Loss("transition", rollout, f"{before} -> {after} while {stage}")
            stage = after
        taken_over = rollout in case.lost and case.registered.get(rollout, {}).get("superseded_by") is not None
        if stage not in ("closed", "aborted") and not taken_over:
            yield Loss("transition", rollout, f"its archive ends at {stage}")
        archived = [e["data"] for e in case.of_rollout(rollout) if e["kind"] == "effect" and "receipt" in e["data"]]
        told = [e.receipt for e in effects if e.receipt is not None]
        if [a["receipt"] for a in archived] != told[: len(archived) if taken_over else None]:
            fences = [r["fence"]["counter"] for r in told], [a["fence"] for a in archived]
            text = f"history has fences {fences[0]}, the archive {fences[1]}"
            yield Loss("archive", rollout, text)
        if taken_over:
            continue  # what waited to be archived and sent is gone
        keys = [e["key"] for e in case.of_rollout(rollout) if e["key"].startswith(rollout)]
        if rollout not in case.opened_twice:
            yield from (Loss("archive", k, "another entry has its key") for k in keys if _BESIDE in k)
        last = (k.partition(_BESIDE)[0].rpartition("/")[2] for k in keys)
        serials = sorted(int(k) for k in last if k != "sent")  # which the ledger archives when it sends by itself
        told_notices = _notice_serials(case, rollout)
        if sorted({*serials, *told_notices}) != list(range(1, max(serials, default=0) + 1)):
            yield Loss("archive", rollout, f"entries are missing among {serials[-1:]}")


def _transitions(case: Case, rollout: str) -> list[Row]:
    return [e for e in case.of_rollout(rollout) if e["kind"] == "transition"]


def _notice_serials(case: Case, rollout: str) -> set[int]:
    """Entries and notices are numbered together."""
    keys = [n["key"] for n in case.outcome.notices]
    return {int(key.split("/")[-2]) for key in keys if key.rsplit("/", 2)[0] == rollout}


# --- workflows and notices -------------------------------------------------------------------


def no_workflow_task_failed(case: Case) -> Iterator[Loss]:
    """Nothing is nondeterministic, nothing fails by our own fault, and every history replays."""
    for told in case.told:
        for event, attributes in told.attributes("WorkflowTaskFailed"):
            cause = attributes.get("cause", "unknown").removeprefix("WORKFLOW_TASK_FAILED_CAUSE_")
            text = f"{cause}: {attributes.get('failure', {}).get('message', '')}"
            if cause not in HARMLESS and not (NO_TIME in text and _disturbed(case, *_around(event))):
                yield Loss("workflow task", f"{told.workflow} ({told.run}) event {event['eventId']}", text)
        if told.status in ("FAILED", "TERMINATED", "TIMED_OUT") and told.type != "LedgerDesk":
            yield Loss("workflow", told.workflow, told.status)
    for run, why in case.outcome.replays.items():
        yield Loss("replay", run, why)
    for line in case.outcome.logs:
        yield Loss("worker log", "nondeterminism", line)


def _around(event: Row) -> tuple[datetime, datetime]:
    """When it was under way: a worker that was frozen for longer is not heard any more."""
    at = _time(event["eventTime"])
    return at - timedelta(seconds=10), at


def notices_came_once(case: Case) -> Iterator[Loss]:
    """Once per key; a second time only where a worker was killed between sending and remembering."""
    lines: dict[str, list[datetime]] = defaultdict(list)
    for line in case.outcome.notices:
        lines[line["key"]].append(_time(line["at"]))
    killed = [_time(k) for k in case.outcome.killed]
    for key, times in lines.items():
        for first, second in itertools.pairwise(sorted(times)):
            if not any(first - timedelta(seconds=1) <= k <= second for k in killed):
                yield Loss("notice", key, f"delivered at {first} and again at {second}")
    book = {row["key"] for row in case.outcome.book}
    for key in book ^ lines.keys():
        yield Loss("notice", key, "delivered, and not remembered" if key in lines else "remembered, not delivered")
    notices = [e for entries in case.entries.values() for e in entries if e["kind"] == "notice"]
    posted = Counter(e["data"]["key"] for e in notices if "key" in e["data"])
    for key in posted.keys() | lines.keys():
        unarchived = posted[key] == 0 and key.rsplit("/", 2)[0] in case.lost
        if (posted[key] != 1 and not unarchived) or key not in lines:
            yield Loss("notice", key, f"{len(lines.get(key, []))} times delivered, {posted[key]} times in the archive")
    for entry in notices:
        if entry["data"].get("failed"):
            yield Loss("notice", entry["rollout"], entry["text"])


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


CHECKS: tuple[Callable[[Case], Iterable[Loss]], ...] = (
    effects_landed_once,
    the_database_agrees,
    values_follow,
    commits_follow,
    undone_is_as_before,
    lost_ones_are_taken_over,
    everything_ended,
    promises_are_kept,
    a_lie_moves_nothing,
    commands_are_kept,
    archives_end_where_they_were_cut,
    archive_is_whole,
    archive_tells_all,
    no_workflow_task_failed,
    notices_came_once,
)


if __name__ == "__main__":
    found = lost(Outcome.load(Path(sys.argv[1])))
    print(*found, f"lost: {len(found)}", sep="\n")
    sys.exit(bool(found))
