"""The judge sees every kind of loss: a good outcome, made by hand, is spoilt in one way at a time."""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.check import late, lost
from tests.chaos.outcome import TABLES, Outcome, Row

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIRST, SECOND = "c/1", "c/2"


class Scribe:
    """Writes an outcome as a run would leave it: every deed into each of its books."""

    def __init__(self) -> None:
        self.o = Outcome(seed=1, tables={name: [] for name in TABLES}, clocks={"c": 1.0})
        self.quotas: dict[str, Row] = {}
        self.cluster: Row = {"name": "c", "open_rollout": None, "last_counter": 0, "reserve_limit": None}
        self.cluster |= {"reserved_by": None, "reserved_gpus": 0, "follows_health": False}
        self.events: list[Row] = []
        self.rollout, self.stage = "", "planned"
        self.counter = self.serial = 0
        self._clock = itertools.count()
        self._tx = itertools.count(100)

    def now(self) -> str:
        return (START + timedelta(seconds=next(self._clock))).isoformat()

    def imported(self, **gpus: int) -> None:
        for team, count in gpus.items():
            row: Row = {"cluster": "c", "team": team, "gpus": count, "mode": "hard", "parent": None, "written_by": None}
            self.quotas[team] = row
            self._witness("quotas", next(self._tx), None, row)
        self.healthy(sum(gpus.values()))

    def healthy(self, gpus: int) -> None:
        self.o.health.append({"cluster": "c", "at": self.now(), "healthy_gpus": gpus})

    def launched(self, rollout: str) -> None:
        self.rollout, self.stage, self.counter, self.serial = rollout, "planned", 0, 0
        token = f"{rollout}-launch"
        self.said("launch", token)
        launch = {"launch": {"cluster": "c", "rollout": rollout, "reason": token}, "state": None}
        self.events = []
        self._event("WorkflowExecutionStarted", {"input": _payloads(launch)})
        self._to_cluster(next(self._tx), open_rollout=rollout, last_counter=0)
        self.archived("command", "launched by tpm", token)

    def command(self, command: str) -> None:
        token = f"{self.rollout}-{command}"
        self.said(command, token)
        asked = {"name": command, "args": _payloads({"actor": "tpm", "reason": token})}
        self._event("WorkflowExecutionUpdateAccepted", {"acceptedRequest": {"input": asked}})
        self.archived("command", f"{command} by tpm", token)

    def said(self, command: str, token: str, answer: str = "taken") -> None:
        self.o.said.append({"token": token, "cluster": "c", "command": command, "answer": answer, "at": self.now()})

    def effect(self, kind: str, mode: str | None = None, failure: str = "", **values: int) -> None:
        self.counter += 1
        fence = {"rollout": self.rollout, "counter": self.counter}
        writes = [{"team": t, "expected_gpus": self.quotas[t]["gpus"], "gpus": g} for t, g in values.items()]
        change = {"cluster": "c", "kind": kind, "fence": fence, "writes": writes}
        scheduled = self._event(
            "ActivityTaskScheduled",
            {"activityType": {"name": "apply_effect"}, "input": _payloads({"change": change, "shadow": False})},
        )
        if failure:
            cause = {"applicationFailureInfo": {"type": failure}}
            self._event("ActivityTaskFailed", {"scheduledEventId": scheduled, "failure": cause})
            return
        tx = next(self._tx)
        before = {t: self.quotas[t]["gpus"] for t in values}
        for team, row in list(self.quotas.items()):
            if team in values or mode:
                new = {**row, "gpus": values.get(team, row["gpus"]), "mode": mode or row["mode"]}
                self.quotas[team] = new | {"written_by": f"{self.rollout}#{self.counter}"}
                self._witness("quotas", tx, row, self.quotas[team])
        self._to_cluster(tx, last_counter=self.counter)
        receipt = {"cluster": "c", "kind": kind, "fence": fence, "at": self.now(), "before": before, "after": values}
        row = {"rollout": self.rollout, "counter": self.counter, "cluster": "c", "kind": kind}
        self.o.tables["receipts"].append(row | {"receipt": json.dumps(receipt)})
        self._witness("receipts", tx, None, row)
        self._event("ActivityTaskCompleted", {"scheduledEventId": scheduled, "result": _payloads(receipt)})
        self.archived("effect", kind, effect=kind, fence=self.counter, receipt=receipt)

    def foreign(self, team: str, gpus: int) -> None:
        tx, row = next(self._tx), self.quotas[team]
        self.quotas[team] = {**row, "gpus": gpus}
        self._witness("quotas", tx, row, self.quotas[team])
        found = {"cluster": "c", "team": team, "before": row["gpus"], "after": gpus, "tx": tx, "at": self.now()}
        self.o.foreign.append(found)

    def reached(self, stage: str, why: str = "as planned") -> None:
        data = {"before": self.stage, "after": stage}
        self.archived("transition", f"{self.stage} -> {stage}: {why}", **data)
        self.stage = stage

    def told(self, kind: str) -> None:
        self.serial += 1
        key = f"{self.rollout}/{self.serial:06d}/{kind}"
        self.o.notices.append({"at": self.now(), "key": key, "notice": {}})
        self.o.book.append({"key": key, "address": "log"})
        self.archived("notice", f"Backstop notified a: {kind}", notice=kind, key=key)

    def rests(self) -> None:
        values = {team: row["gpus"] for team, row in self.quotas.items()}
        self.o.rest.append({"cluster": "c", "at": self.now(), "stage": self.stage, "values": values})

    def archived(self, kind: str, text: str, reason: str = "", **data: Any) -> None:
        self.serial += 1
        key = f"{self.rollout}/{self.serial:06d}"
        entry: Row = {"key": key, "cluster": "c", "rollout": self.rollout, "at": self.now()}
        entry |= {"kind": kind, "actor": "tpm", "text": text, "reason": reason, "refused": False, "data": data}
        rows = self.o.tables["audit"]
        previous = rows[-1]["hash"] if rows else "0" * 64
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256((previous + text).encode()).hexdigest()
        row = {"cluster": "c", "seq": len(rows) + 1, "key": entry["key"], "previous_hash": previous, "hash": digest}
        rows.append(row | {"entry": text})
        asked = {"activityType": {"name": "record"}, "input": _payloads({"entries": [entry]})}
        scheduled = self._event("ActivityTaskScheduled", asked)
        self._event("ActivityTaskCompleted", {"scheduledEventId": scheduled, "result": _payloads(None)})

    def ended(self, adopted_from: str | None = None) -> None:
        self._to_cluster(next(self._tx), open_rollout=None, last_counter=0)
        self._closed_book("COMPLETED", superseded_by=None, adopted_from=adopted_from)

    def lost(self, heir: str) -> None:
        """Temporal's database is deleted while the rollout runs, and another one takes it over."""
        at = self.now()
        self.o.deleted = {"at": at, "until": self.now()}
        self._closed_book("RUNNING", superseded_by=heir, adopted_from=None)
        self.o.runs[-1]["before"] = True

    def _closed_book(self, status: str, **links: str | None) -> None:
        row = {"id": self.rollout, "cluster": "c", "stage": self.stage, "ended_at": self.now()}
        self.o.tables["rollouts"].append(row | links)
        run = {"workflow": "rollout/c", "run": f"run-{self.rollout}", "type": "ClusterRollout", "status": status}
        self.o.runs.append(run | {"events": self.events})

    def outcome(self) -> Outcome:
        last = self.o.tables["audit"][-1]
        self.o.tables["clusters"] = [self.cluster]
        self.o.tables["quotas"] = list(self.quotas.values())
        self.o.tables["audit_heads"] = [{"cluster": "c", "length": last["seq"], "hash": last["hash"]}]
        return self.o

    def _event(self, kind: str, attributes: Row) -> str:
        name = kind[0].lower() + kind[1:] + "EventAttributes"
        number = str(len(self.events) + 1)
        self.events.append({"eventId": number, "eventTime": self.now(), name: attributes})
        return number

    def _to_cluster(self, tx: int, **changes: Any) -> None:
        before, self.cluster = self.cluster, {**self.cluster, **changes}
        self._witness("clusters", tx, before, self.cluster)

    def _witness(self, what: str, tx: int, before: Row | None, after: Row) -> None:
        rows = self.o.tables["chaos_writes"]
        row = {"seq": len(rows) + 1, "at": self.now(), "tx": tx, "what": what, "before": before, "after": after}
        rows.append(row)


def _payloads(value: Any) -> Row:
    return {"payloads": [{"data": base64.b64encode(json.dumps(value).encode()).decode()}]}


def good() -> Outcome:
    """One rollout that was monitored and closed; others' change; one that was undone and aborted."""
    scribe = Scribe()
    scribe.imported(a=100, b=50)
    scribe.launched(FIRST)
    scribe.command("approve")
    scribe.told("planned")
    scribe.effect("reserve")
    scribe.effect("set_soft", mode="soft", b=30)
    scribe.reached("buffered")
    scribe.effect("harden", mode="hard")
    scribe.reached("enforced")
    scribe.effect("follow")
    scribe.reached("monitored")
    scribe.healthy(140)
    scribe.rests()
    scribe.command("close")
    scribe.reached("closed")
    scribe.effect("close")
    scribe.ended()
    scribe.foreign("a", 98)
    scribe.launched(SECOND)
    scribe.effect("reserve", failure="Drift")
    scribe.effect("reserve")
    scribe.effect("set_soft", mode="soft", b=25)
    scribe.reached("buffered")
    scribe.foreign("a", 97)
    scribe.command("abort")
    scribe.reached("rolling_back", "undo: as asked")
    scribe.effect("restore", mode="hard", b=30)
    scribe.effect("release")
    scribe.reached("rolled_back", "undo")
    scribe.reached("aborted")
    scribe.ended()
    scribe.o.commits = [
        commit("0", {}, {"c": {"b": 50}}),
        commit("1", {"c": {"b": 50}}, {"c": {"b": 30}}, FIRST, 3, "harden"),
        commit("2", {"c": {"b": 30}}, {"c": {"b": 30}}),
        commit("3", {}, {}, SECOND, 4, "restore"),
    ]
    return scribe.outcome()


def commit(name: str, before: Row, after: Row, rollout: str = "", counter: int = 0, kind: str = "") -> Row:
    """Return a commit, as Git describes it; without a rollout it is a colleague's."""
    cluster = "c" if rollout else ""
    row = {"commit": name * 40, "cluster": cluster, "rollout": rollout, "counter": str(counter), "kind": kind}
    return row | {"before": {name: before.get(name, {}) for name in after}, "after": after}


def adopted() -> Outcome:
    """A rollout whose server's database was deleted; another one that took it over and was undone and aborted."""
    scribe = Scribe()
    scribe.imported(a=100, b=50)
    scribe.launched(FIRST)
    scribe.command("approve")
    scribe.effect("reserve")
    scribe.effect("set_soft", mode="soft", b=30)
    scribe.reached("buffered")
    scribe.effect("harden", mode="hard")
    scribe.reached("enforced")
    scribe.command("pause")
    scribe.lost(heir=SECOND)
    scribe.launched(SECOND)
    scribe.command("approve")
    scribe.effect("reserve")
    scribe.effect("set_soft", mode="soft", b=30)
    scribe.reached("buffered")
    scribe.command("abort")
    scribe.reached("rolling_back", "undo: as asked")
    scribe.effect("restore", mode="hard", b=50)
    scribe.effect("release")
    scribe.reached("rolled_back", "undo")
    scribe.reached("aborted")
    scribe.ended(adopted_from=FIRST)
    return scribe.outcome()


@pytest.mark.parametrize("outcome", [good, adopted], ids=["one server", "its database deleted"])
def test_a_good_outcome_has_lost_nothing(outcome: Callable[[], Outcome], tmp_path: Path) -> None:
    assert lost(outcome()) == []
    assert late(outcome()) == []
    good().save(tmp_path / "o.json.gz")
    assert lost(Outcome.load(tmp_path / "o.json.gz")) == []


# --- how to spoil it -------------------------------------------------------------------------


def drop(rows: list[Row], **key: Any) -> None:
    (found,) = [r for r in rows if all(r[k] == v for k, v in key.items())]
    rows.remove(found)


def receipt_of(o: Outcome, rollout: str, counter: int) -> Row:
    (found,) = [r for r in o.tables["receipts"] if (r["rollout"], r["counter"]) == (rollout, counter)]
    return found


def write_of(o: Outcome, mark: str, team: str) -> Row:
    return next(
        w
        for w in o.tables["chaos_writes"]
        if w["what"] == "quotas" and w["after"]["written_by"] == mark and w["after"]["team"] == team
    )


def altered(row: Row, column: str, **changes: Any) -> None:
    row[column] = json.dumps({**json.loads(row[column]), **changes})


def receipt_is_gone(o: Outcome) -> None:
    drop(o.tables["receipts"], rollout=FIRST, counter=2)


def receipt_was_never_asked_for(o: Outcome) -> None:
    row = copy.deepcopy(receipt_of(o, FIRST, 2)) | {"counter": 9}
    altered(row, "receipt", fence={"rollout": FIRST, "counter": 9})
    o.tables["receipts"].append(row)


def receipt_says_another_value(o: Outcome) -> None:
    altered(receipt_of(o, FIRST, 2), "receipt", after={"b": 31})


def receipt_was_rewritten(o: Outcome) -> None:
    row = receipt_of(o, FIRST, 2)
    o.tables["chaos_writes"].append(
        {"seq": 999, "at": START.isoformat(), "tx": 1, "what": "receipts", "before": row, "after": row}
    )


def refused_effect_has_a_receipt(o: Outcome) -> None:
    row = copy.deepcopy(receipt_of(o, SECOND, 2)) | {"counter": 1}
    altered(row, "receipt", fence={"rollout": SECOND, "counter": 1})
    o.tables["receipts"].append(row)


def effect_landed_twice(o: Outcome) -> None:
    (landed,) = [
        w
        for w in o.tables["chaos_writes"]
        if w["what"] == "clusters" and w["after"]["open_rollout"] == FIRST and w["after"]["last_counter"] == 2
    ]
    o.tables["chaos_writes"].append(copy.deepcopy(landed) | {"seq": 999, "tx": 7777})


def values_were_written_twice(o: Outcome) -> None:
    o.tables["chaos_writes"].append(copy.deepcopy(write_of(o, f"{FIRST}#2", "b")) | {"seq": 999, "tx": 7777})


def fence_is_skipped(o: Outcome) -> None:
    for run in o.runs:
        run["events"] = [e for e in run["events"] if "activityTaskFailedEventAttributes" not in e]
        for event in run["events"]:
            if _scheduled(event, SECOND, 1):
                run["events"].remove(event)
                break


def effect_has_no_end(o: Outcome) -> None:
    events = o.runs[0]["events"]
    last = next(e for e in reversed(events) if _schedules(e, "apply_effect"))
    events.remove(next(e for e in events if _answers(e, last)))


def _scheduled(event: Row, rollout: str, counter: int) -> bool:
    attributes = event.get("activityTaskScheduledEventAttributes")
    if attributes is None:
        return False
    if attributes["activityType"]["name"] != "apply_effect":
        return False
    request = json.loads(base64.b64decode(attributes["input"]["payloads"][0]["data"]))
    return bool(request["change"]["fence"] == {"rollout": rollout, "counter": counter})


def change_was_overwritten_unseen(o: Outcome) -> None:
    """Others had set b to 45; Backstop believed 50 and wrote."""
    write_of(o, f"{FIRST}#2", "b")["before"]["gpus"] = 45


def expected_was_something_else(o: Outcome) -> None:
    """The call expected 48, found 50 and wrote all the same."""
    for event in o.runs[0]["events"]:
        if _scheduled(event, FIRST, 2):
            attributes = event["activityTaskScheduledEventAttributes"]
            request = json.loads(base64.b64decode(attributes["input"]["payloads"][0]["data"]))
            request["change"]["writes"][0]["expected_gpus"] = 48
            attributes["input"] = _payloads(request)


def foreign_write_vanished(o: Outcome) -> None:
    o.tables["chaos_writes"] = [w for w in o.tables["chaos_writes"] if w["tx"] != o.foreign[0]["tx"]]


def somebody_unknown_wrote(o: Outcome) -> None:
    del o.foreign[1]


def present_value_is_another(o: Outcome) -> None:
    o.tables["quotas"][1] = o.tables["quotas"][1] | {"gpus": 29}


def undo_left_a_mode_behind(o: Outcome) -> None:
    write_of(o, f"{SECOND}#4", "b")["after"]["mode"] = "soft"


def undo_restored_another_value(o: Outcome) -> None:
    """All books agree on 29, and the baseline was 30."""
    for text in ("before", "after"):
        for w in o.tables["chaos_writes"]:
            if w["what"] == "quotas" and (w[text] or {}).get("written_by") == f"{SECOND}#4" and w[text]["team"] == "b":
                w[text]["gpus"] = 29
    altered(receipt_of(o, SECOND, 4), "receipt", after={"b": 29})
    o.tables["quotas"][1] = o.tables["quotas"][1] | {"gpus": 29}


def reservation_stays(o: Outcome) -> None:
    o.tables["clusters"][0]["reserve_limit"] = 130


def flex_still_follows(o: Outcome) -> None:
    o.tables["clusters"][0]["follows_health"] = True


def island_limit_stays(o: Outcome) -> None:
    o.tables["reserve_limits"].append({"cluster": "c", "islands": "x", "limit_gpus": 3})


def rollout_is_open(o: Outcome) -> None:
    o.tables["rollouts"][0]["ended_at"] = None


def rollout_has_no_workflow(o: Outcome) -> None:
    o.tables["rollouts"].append(o.tables["rollouts"][0] | {"id": "c/3"})


def rollout_never_rested(o: Outcome) -> None:
    o.restless["c"] = "rolled_back"


def promise_is_broken_at_rest(o: Outcome) -> None:
    o.rest[0]["values"]["b"] = 90


def promise_outlasted_its_hardware(o: Outcome) -> None:
    """H falls below the sum when it becomes monitored, and an hour passes."""
    monitored = _entry(o, "enforced -> monitored: as planned")
    o.health[-1] = {"cluster": "c", "at": monitored["at"], "healthy_gpus": 120}
    o.rest.clear()
    for text in ("closed", "rolling_back", "rolled_back", "aborted"):
        entry = next(e for e in _entries(o) if e["data"].get("after") == text)
        _rewrite(o, entry["key"], at=(datetime.fromisoformat(entry["at"]) + timedelta(hours=1)).isoformat())


def lie_of_a_source_was_believed(o: Outcome) -> None:
    o.attacked = {"c": "liar", "d": "liar"}
    _rewrite(o, _entry(o, "buffered -> rolling_back: undo: as asked")["key"], text="buffered -> rolling_back: breach")


def command_is_not_in_history(o: Outcome) -> None:
    events = o.runs[0]["events"]
    events.remove(next(e for e in events if "workflowExecutionUpdateAcceptedEventAttributes" in e))


def command_is_twice_in_history(o: Outcome) -> None:
    events = o.runs[0]["events"]
    events.append(next(e for e in events if "workflowExecutionUpdateAcceptedEventAttributes" in e))


def command_is_not_archived(o: Outcome) -> None:
    _rewrite(o, _entry(o, "close by tpm")["key"], reason="something else")


def refused_command_was_carried_out(o: Outcome) -> None:
    next(s for s in o.said if s["command"] == "close")["answer"] = "refused"


def command_of_nobody(o: Outcome) -> None:
    o.said.remove(next(s for s in o.said if s["command"] == "close"))


def archive_was_altered(o: Outcome) -> None:
    altered(o.tables["audit"][2], "entry", actor="mallory")


def archive_lost_a_row(o: Outcome) -> None:
    del o.tables["audit"][3]


def archive_lost_its_tail(o: Outcome) -> None:
    del o.tables["audit"][-1]


def archive_has_a_key_twice(o: Outcome) -> None:
    o.tables["audit"][3]["key"] = o.tables["audit"][2]["key"]


def archive_lacks_an_effect(o: Outcome) -> None:
    _rewrite(o, _entry(o, "harden")["key"], kind="guard")


def archive_lacks_an_entry(o: Outcome) -> None:
    """And whoever took it closed the chain again."""
    drop(o.tables["audit"], key=_entry(o, "planned -> buffered: as planned")["key"])
    for number, row in enumerate(o.tables["audit"], start=1):
        row["seq"] = number
    _rechain(o)


def transition_is_unlawful(o: Outcome) -> None:
    entry = _entry(o, "buffered -> enforced: as planned")
    _rewrite(o, entry["key"], data={"before": "buffered", "after": "monitored"})


def workflow_failed(o: Outcome) -> None:
    o.runs[0]["status"] = "FAILED"


def workflow_was_terminated(o: Outcome) -> None:
    o.runs[1]["status"] = "TERMINATED"


def watch_failed(o: Outcome) -> None:
    o.runs.append({"workflow": "watch", "run": "w", "type": "HealthWatch", "status": "FAILED", "events": []})


def workflow_task_was_nondeterministic(o: Outcome) -> None:
    cause = {"cause": "WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR"}
    o.runs[0]["events"].append(
        {"eventId": "99", "eventTime": START.isoformat(), "workflowTaskFailedEventAttributes": cause}
    )


def workflow_task_did_not_yield(o: Outcome) -> None:
    """And nobody had frozen its worker."""
    cause = {"cause": "WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE"}
    said = {
        "failure": {"message": "[TMPRL1101] Potential deadlock detected: workflow didn't yield within 2 second(s)."}
    }
    o.runs[0]["events"].append(
        {"eventId": "99", "eventTime": START.isoformat(), "workflowTaskFailedEventAttributes": cause | said}
    )


def history_does_not_replay(o: Outcome) -> None:
    o.replays["rollout/c"] = "NondeterminismError"


def log_speaks_of_nondeterminism(o: Outcome) -> None:
    o.logs.append("TMPRL1100")


def notice_came_twice(o: Outcome) -> None:
    o.notices.append(o.notices[0] | {"at": (START + timedelta(hours=1)).isoformat()})


def notice_never_came(o: Outcome) -> None:
    o.notices.clear()
    o.book.clear()


def notice_is_not_remembered(o: Outcome) -> None:
    o.book.clear()


def notice_was_not_archived(o: Outcome) -> None:
    o.notices.append(o.notices[0] | {"key": f"{FIRST}/000099/closed"})
    o.book.append({"key": f"{FIRST}/000099/closed", "address": "log"})


def _entries(o: Outcome) -> list[Row]:
    return [json.loads(row["entry"]) for row in o.tables["audit"]]


def _entry(o: Outcome, text: str) -> Row:
    return next(e for e in _entries(o) if e["text"] == text)


def _rewrite(o: Outcome, key: str, **changes: Any) -> None:
    """An entry says something else, in a chain that is whole."""
    (row,) = [r for r in o.tables["audit"] if r["key"] == key]
    altered(row, "entry", **changes)
    _rechain(o)


def _rechain(o: Outcome) -> None:
    previous = "0" * 64
    for row in o.tables["audit"]:
        text = json.dumps(json.loads(row["entry"]), sort_keys=True, separators=(",", ":"))
        row["previous_hash"] = previous
        previous = row["hash"] = hashlib.sha256((previous + text).encode()).hexdigest()
    o.tables["audit_heads"] = [{"cluster": "c", "length": len(o.tables["audit"]), "hash": previous}]


def commit_was_pushed_twice(o: Outcome) -> None:
    o.commits.append(copy.deepcopy(o.commits[1]) | {"before": {}, "after": {}})


def commit_came_after_its_undo(o: Outcome) -> None:
    o.commits.append(commit("4", {}, {}, SECOND, 3, "set_soft"))


def commit_has_no_receipt(o: Outcome) -> None:
    o.commits.append(commit("4", {}, {}, SECOND, 9, "harden"))


def colleague_moved_a_number_and_back(o: Outcome) -> None:
    there, back = {"c": {"b": 50}}, {"c": {"b": 30}}
    o.commits += [commit("4", back, there), commit("5", there, back)]


def commit_moved_another_number_and_back(o: Outcome) -> None:
    other, back = {"c": {"b": 31}}, {"c": {"b": 30}}
    o.commits += [commit("4", back, other, SECOND, 5, "release"), commit("5", other, back, SECOND, 5, "release")]


def git_ends_with_another_number(o: Outcome) -> None:
    o.commits[2]["after"] = {"c": {"b": 50}}
    o.commits[2]["before"] = {"c": {}}


SPOILT: dict[Callable[[Outcome], None], set[str]] = {
    receipt_is_gone: {"receipt"},
    receipt_was_never_asked_for: {"unexplained receipt"},
    receipt_says_another_value: {"receipt"},
    receipt_was_rewritten: {"receipt"},
    refused_effect_has_a_receipt: {"receipt"},
    effect_landed_twice: {"landed twice"},
    values_were_written_twice: {"write without a receipt"},
    fence_is_skipped: {"fences"},
    effect_has_no_end: {"effect without an end"},
    commit_was_pushed_twice: {"commit"},
    commit_came_after_its_undo: {"commit"},
    commit_has_no_receipt: {"commit"},
    colleague_moved_a_number_and_back: {"commit"},
    commit_moved_another_number_and_back: {"commit"},
    git_ends_with_another_number: {"commit"},
    change_was_overwritten_unseen: {"overwritten unseen"},
    expected_was_something_else: {"overwritten unseen"},
    foreign_write_vanished: {"foreign write"},
    somebody_unknown_wrote: {"write of nobody", "present value"},
    present_value_is_another: {"present value"},
    undo_left_a_mode_behind: {"undo"},
    undo_restored_another_value: {"undo"},
    reservation_stays: {"left open"},
    flex_still_follows: {"left open"},
    island_limit_stays: {"left open"},
    rollout_is_open: {"left open"},
    rollout_has_no_workflow: {"left open"},
    rollout_never_rested: {"no rest"},
    promise_is_broken_at_rest: {"promise"},
    promise_outlasted_its_hardware: {"promise"},
    lie_of_a_source_was_believed: {"a lie"},
    command_is_not_in_history: {"command"},
    command_is_twice_in_history: {"command"},
    command_is_not_archived: {"command"},
    refused_command_was_carried_out: {"command"},
    command_of_nobody: {"command"},
    archive_was_altered: {"archive"},
    archive_lost_a_row: {"archive"},
    archive_lost_its_tail: {"archive"},
    archive_has_a_key_twice: {"archive"},
    archive_lacks_an_effect: {"archive"},
    archive_lacks_an_entry: {"archive", "transition"},
    transition_is_unlawful: {"transition"},
    workflow_failed: {"workflow"},
    workflow_was_terminated: {"workflow"},
    watch_failed: {"workflow"},
    workflow_task_was_nondeterministic: {"workflow task"},
    workflow_task_did_not_yield: {"workflow task"},
    history_does_not_replay: {"replay"},
    log_speaks_of_nondeterminism: {"worker log"},
    notice_came_twice: {"notice"},
    notice_never_came: {"notice"},
    notice_is_not_remembered: {"notice"},
    notice_was_not_archived: {"notice"},
}


# --- Temporal's database deleted --------------------------------------------------------------


def its_last_words_were_not_archived(o: Outcome) -> None:
    """The pause: acknowledged by Temporal, and by nobody else."""
    _unarchived(o, _entry(o, "pause by tpm")["key"])


def its_last_effect_was_under_way(o: Outcome) -> None:
    """The effect is applied, and the caller that waited for the answer is gone."""
    _unarchived(o, *(_entry(o, text)["key"] for text in ("harden", "buffered -> enforced: as planned", "pause by tpm")))
    last = next(e for e in reversed(o.runs[0]["events"]) if _schedules(e, "apply_effect"))
    o.runs[0]["events"] = [e for e in o.runs[0]["events"] if not _answers(e, last)]


def its_notice_was_sent_and_not_archived(o: Outcome) -> None:
    o.notices.append({"at": o.deleted["at"], "key": f"{FIRST}/000099/changed", "notice": {}})
    o.book.append({"key": f"{FIRST}/000099/changed", "address": "log"})


def it_was_told_no_by_the_empty_server(o: Outcome) -> None:
    """The pause was taken, and the empty server answered."""
    said = next(s for s in o.said if s["token"] == f"{FIRST}-pause")
    said.update(answer="refused", until=o.deleted["until"])


def its_heir_was_asked_what_it_had_not_archived(o: Outcome) -> None:
    """Its last command was on its way as the server died, was given again by the same call, and the heir obeyed it."""
    _unarchived(o, _entry(o, "pause by tpm")["key"])
    again = f"{SECOND}-abort"
    given = next(s for s in o.said if s["token"] == again)
    given.update(at=o.deleted["at"], until=given["at"])
    asked = {"name": "abort", "args": _payloads({"actor": "tpm", "reason": again})}
    event = {"eventId": "900", "eventTime": o.deleted["at"]}
    o.runs[0]["events"].append(
        event | {"workflowExecutionUpdateAcceptedEventAttributes": {"acceptedRequest": {"input": asked}}}
    )


def its_hardware_failed_while_nobody_ran_it(o: Outcome) -> None:
    """Half an hour after the deletion, and an hour before it was taken over."""
    gone = datetime.fromisoformat(o.deleted["at"])
    o.health.append({"cluster": "c", "at": (gone + timedelta(minutes=30)).isoformat(), "healthy_gpus": 90})


ALLOWED = (
    its_last_words_were_not_archived,
    its_last_effect_was_under_way,
    its_notice_was_sent_and_not_archived,
    it_was_told_no_by_the_empty_server,
    its_heir_was_asked_what_it_had_not_archived,
    its_hardware_failed_while_nobody_ran_it,
)


@pytest.mark.parametrize("change", ALLOWED, ids=lambda change: change.__name__)
def test_a_deleted_database_takes_with_it(change: Callable[[Outcome], None]) -> None:
    outcome = adopted()
    change(outcome)
    assert lost(outcome) == []
    assert late(outcome) == []


def an_acknowledged_entry_is_gone(o: Outcome) -> None:
    key = _entry(o, "pause by tpm")["key"]
    drop(o.tables["audit"], key=key)
    _renumbered(o)


def an_earlier_command_is_gone(o: Outcome) -> None:
    _unarchived(o, _entry(o, "approve by tpm")["key"])


def an_earlier_effect_has_no_end(o: Outcome) -> None:
    first = next(e for e in o.runs[0]["events"] if _schedules(e, "apply_effect"))
    o.runs[0]["events"] = [e for e in o.runs[0]["events"] if not _answers(e, first)]


def nobody_adopted_it(o: Outcome) -> None:
    o.tables["rollouts"][0] |= {"superseded_by": None, "ended_at": None}


def only_its_name_was_taken_over(o: Outcome) -> None:
    o.tables["rollouts"][1]["adopted_from"] = None


def it_was_taken_over_while_it_ran(o: Outcome) -> None:
    o.runs[0]["before"] = False
    o.runs[0]["status"] = "COMPLETED"


def taking_it_over_changed_a_quota(o: Outcome) -> None:
    opened = next(w for w in o.tables["chaos_writes"] if (w["after"] or {}).get("open_rollout") == SECOND)
    row = write_of(o, f"{FIRST}#2", "b")["after"]
    o.tables["chaos_writes"].append(opened | {"seq": 999, "what": "quotas", "before": row, "after": row | {"gpus": 25}})


def a_dead_fence_wrote(o: Outcome) -> None:
    row = next(w for w in o.tables["chaos_writes"] if w["what"] == "receipts")
    o.tables["chaos_writes"].append(copy.deepcopy(row) | {"seq": 999})


def it_was_cut_from_what_was_cut(o: Outcome) -> None:
    """15 % of 30, not of 50, as all books have it."""
    for text in ("before", "after"):
        for w in o.tables["chaos_writes"]:
            if w["what"] == "quotas" and (w[text] or {}).get("written_by") == f"{SECOND}#2":
                w[text]["gpus"] = 25 if w[text]["team"] == "b" else w[text]["gpus"]
    altered(receipt_of(o, SECOND, 2), "receipt", after={"b": 25})
    altered(receipt_of(o, SECOND, 3), "receipt", before={"b": 25})


def its_undo_restored_what_was_cut(o: Outcome) -> None:
    """The adopter's own first values instead of the first rollout's baseline."""
    for w in o.tables["chaos_writes"]:
        for text in ("before", "after"):
            if w["what"] == "quotas" and (w[text] or {}).get("written_by") == f"{SECOND}#3" and w[text]["team"] == "b":
                w[text]["gpus"] = 30
    altered(receipt_of(o, SECOND, 3), "receipt", after={"b": 30})
    o.tables["quotas"][1] = o.tables["quotas"][1] | {"gpus": 30}


def its_promise_outlasted_its_hardware_before(o: Outcome) -> None:
    """H falls at its `enforced`, and the database is deleted an hour later."""
    enforced = datetime.fromisoformat(_entry(o, "buffered -> enforced: as planned")["at"])
    o.health.append({"cluster": "c", "at": enforced.isoformat(), "healthy_gpus": 90})
    o.deleted["at"] = (enforced + timedelta(hours=1)).isoformat()


FORBIDDEN: dict[Callable[[Outcome], None], str] = {
    an_acknowledged_entry_is_gone: "archive",
    an_earlier_command_is_gone: "archive",
    an_earlier_effect_has_no_end: "effect without an end",
    nobody_adopted_it: "left open",
    only_its_name_was_taken_over: "taken over",
    it_was_taken_over_while_it_ran: "taken over",
    taking_it_over_changed_a_quota: "taken over",
    a_dead_fence_wrote: "taken over",
    it_was_cut_from_what_was_cut: "cut twice",
    its_undo_restored_what_was_cut: "undo",
    its_promise_outlasted_its_hardware_before: "promise",
}


@pytest.mark.parametrize("spoil", FORBIDDEN, ids=lambda spoil: spoil.__name__)
def test_a_deleted_database_excuses_nothing_else(spoil: Callable[[Outcome], None]) -> None:
    outcome = adopted()
    spoil(outcome)
    assert FORBIDDEN[spoil] in {loss.kind for loss in lost(outcome)}


def _unarchived(o: Outcome, *keys: str) -> None:
    """The ledger was never given these entries, nor was it asked to."""
    for key in keys:
        drop(o.tables["audit"], key=key)
    for run in o.runs:
        asked = [
            e for e in run["events"] if _schedules(e, "record") and json.loads(_data(e))["entries"][0]["key"] in keys
        ]
        run["events"] = [e for e in run["events"] if e not in asked and not any(_answers(e, one) for one in asked)]
    _renumbered(o)


def _renumbered(o: Outcome) -> None:
    for number, row in enumerate(o.tables["audit"], start=1):
        row["seq"] = number
    _rechain(o)


def _schedules(event: Row, activity: str) -> bool:
    attributes = event.get("activityTaskScheduledEventAttributes")
    return attributes is not None and attributes["activityType"]["name"] == activity


def _answers(event: Row, scheduled: Row) -> bool:
    attributes = event.get("activityTaskCompletedEventAttributes", {})
    return bool(attributes.get("scheduledEventId") == scheduled["eventId"])


def _data(event: Row) -> bytes:
    return base64.b64decode(event["activityTaskScheduledEventAttributes"]["input"]["payloads"][0]["data"])


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_the_judge_sees(spoil: Callable[[Outcome], None]) -> None:
    outcome = copy.deepcopy(good())
    spoil(outcome)
    found = lost(outcome)
    assert SPOILT[spoil] <= {loss.kind for loss in found}, found


def test_twenty_seconds_beyond_breach_after_are_late_and_not_yet_lost() -> None:
    spoilt = copy.deepcopy(good())
    monitored = _entry(spoilt, "enforced -> monitored: as planned")
    spoilt.health[-1] = {"cluster": "c", "at": monitored["at"], "healthy_gpus": 120}
    spoilt.rest.clear()
    closed = _entry(spoilt, "monitored -> closed: as planned")
    ends = datetime.fromisoformat(monitored["at"]) + timedelta(seconds=20)
    _rewrite(spoilt, closed["key"], at=ends.isoformat())
    assert [loss.kind for loss in late(spoilt)] == ["promise"]
    assert not any(loss.kind == "promise" for loss in lost(spoilt))
    spoilt.attacked = {"c": "of c"}
    assert late(spoilt) == []


def test_a_frozen_worker_had_no_time_for_its_step() -> None:
    outcome = good()
    workflow_task_did_not_yield(outcome)
    frozen = (START - timedelta(seconds=6)).isoformat(), (START - timedelta(seconds=1)).isoformat()
    outcome.faults.append({"kind": "worker_frozen", "at": frozen[0], "until": frozen[1]})
    assert lost(outcome) == []
    outcome.runs[0]["events"][-1]["workflowTaskFailedEventAttributes"]["failure"] = {"message": "KeyError: 'x'"}
    assert [loss.kind for loss in lost(outcome)] == ["workflow task"]


def test_a_second_delivery_is_excused_by_a_death_between_sending_and_remembering() -> None:
    outcome = good()
    at = datetime.fromisoformat(outcome.notices[0]["at"])
    outcome.notices.append(outcome.notices[0] | {"at": (at + timedelta(seconds=20)).isoformat()})
    outcome.killed = [(at + timedelta(milliseconds=5)).isoformat()]
    assert lost(outcome) == []
    outcome.killed = [(at + timedelta(hours=1)).isoformat()]
    assert [loss.kind for loss in lost(outcome)] == ["notice"]


def test_an_unanswered_command_may_have_been_taken_or_not_but_not_twice() -> None:
    outcome = good()
    for said in outcome.said:
        said["answer"] = "unknown"
    outcome.said.append({**outcome.said[-1], "token": "never arrived"})
    assert lost(outcome) == []
    command_is_twice_in_history(outcome)
    assert {loss.kind for loss in lost(outcome)} == {"command"}
