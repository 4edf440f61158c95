"""The result of a run, as plain data: rows, histories, and what the script itself did and saw.

Nothing in here knows the product: rows come by SQL, histories as Temporal's own JSON.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import Payload

Row = dict[str, Any]

TABLES = {
    "clusters": "name",
    "quotas": "cluster, team",
    "rollouts": "id",
    "receipts": "rollout, counter",
    "reserve_limits": "cluster, islands",
    "audit": "cluster, seq",
    "audit_heads": "cluster",
    "chaos_writes": "seq",
}
"""What is read of the ledger, by table: its order."""

WITNESS = """
CREATE TABLE chaos_writes (
    seq bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tx bigint NOT NULL DEFAULT txid_current(), what text NOT NULL, before jsonb, after jsonb);
CREATE FUNCTION chaos_witness() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'INSERT' THEN INSERT INTO chaos_writes (what, after) VALUES (TG_TABLE_NAME, to_jsonb(NEW));
    ELSIF TG_OP = 'DELETE' THEN INSERT INTO chaos_writes (what, before) VALUES (TG_TABLE_NAME, to_jsonb(OLD));
    ELSIF to_jsonb(OLD) <> to_jsonb(NEW) THEN
        INSERT INTO chaos_writes (what, before, after) VALUES (TG_TABLE_NAME, to_jsonb(OLD), to_jsonb(NEW));
    END IF; RETURN NULL; END $$;
CREATE TRIGGER chaos_quotas AFTER INSERT OR UPDATE OR DELETE ON quotas
    FOR EACH ROW EXECUTE FUNCTION chaos_witness();
CREATE TRIGGER chaos_clusters AFTER INSERT OR UPDATE OR DELETE ON clusters
    FOR EACH ROW EXECUTE FUNCTION chaos_witness();
CREATE TRIGGER chaos_receipts AFTER INSERT OR UPDATE OR DELETE ON receipts
    FOR EACH ROW EXECUTE FUNCTION chaos_witness();
"""
"""The database's own record of every write and its transaction: a receipt cannot vouch for itself."""


@dataclass
class Outcome:
    """Times are ISO texts in UTC; durations are seconds."""

    seed: int = 0
    tables: dict[str, list[Row]] = field(default_factory=dict)
    runs: list[Row] = field(default_factory=list)
    """{workflow, run, type, status, events, before}: `events` as Temporal prints histories.

    `before`: of the server whose database was deleted; one that is RUNNING there was lost with it.
    """
    deleted: dict[str, str] = field(default_factory=dict)
    """{at, until}: when Temporal's database was deleted, and when an empty server answered. Empty: it never was."""
    replays: dict[str, str] = field(default_factory=dict)
    """Why a run does not replay, by run."""
    said: list[Row] = field(default_factory=list)
    """{token, cluster, command, answer: taken | refused | unknown, at, until}: what people asked for, and when."""
    foreign: list[Row] = field(default_factory=list)
    """{cluster, team, before, after, tx, at}: what the script wrote past Backstop."""
    health: list[Row] = field(default_factory=list)
    """{cluster, at, healthy_gpus}."""
    rest: list[Row] = field(default_factory=list)
    """{cluster, at, stage, values, archived}: rollouts that rest, before the script ends them."""
    restless: dict[str, str] = field(default_factory=dict)
    """Where a rollout was that did not come to rest, by cluster."""
    notices: list[Row] = field(default_factory=list)
    """The lines of notices.jsonl, without their text."""
    book: list[Row] = field(default_factory=list)
    """{key, address}: the notifier's own memory."""
    killed: list[str] = field(default_factory=list)
    """When a worker was killed."""
    faults: list[Row] = field(default_factory=list)
    """{at, until, kind, what}."""
    logs: list[str] = field(default_factory=list)
    """Lines of the workers' logs that speak of nondeterminism."""
    attacked: dict[str, str] = field(default_factory=dict)
    """Their health source, of clusters that an attacker had: what it says of them is not so."""
    thrown: dict[str, int] = field(default_factory=dict)
    """What attackers did, by kind."""
    clocks: dict[str, float] = field(default_factory=dict)
    """`breach_after` by cluster."""
    commits: list[Row] = field(default_factory=list)
    """Where Git holds the quotas: {commit, cluster, rollout, counter, kind, before, after}, as git tells them; the
    last two are values by cluster and team.
    """

    def save(self, path: Path) -> None:
        with gzip.open(path, "wt") as file:
            json.dump(asdict(self), file, default=str)

    @classmethod
    def load(cls, path: Path) -> Outcome:
        with gzip.open(path, "rt") as file:
            return cls(**json.load(file))


@dataclass
class Attempted:
    """One effect as history tells it."""

    rollout: str
    counter: int
    change: Row
    shadow: bool
    at: str
    receipt: Row | None = None
    failure: str = ""
    """The error's type, where it failed for good."""


class Told:
    """One run's history, read."""

    def __init__(self, run: Row) -> None:
        self.workflow: str = run["workflow"]
        self.run: str = run["run"]
        self.status: str = run["status"]
        self.type: str = run["type"]
        self.events: list[Row] = run["events"]
        self.before: bool = run.get("before", False)

    @property
    def lost(self) -> bool:
        """Return whether it ran when its server's database was deleted."""
        return self.before and self.status == "RUNNING"

    @property
    def cluster(self) -> str:
        return self.workflow.removeprefix("rollout/")

    @cached_property
    def start(self) -> Row:
        found: Row = _payload(self.events[0]["workflowExecutionStartedEventAttributes"]["input"])
        return found

    @property
    def rollout(self) -> str:
        return str(self.start["launch"]["rollout"])

    @property
    def is_first(self) -> bool:
        return not self.start.get("state")

    def attributes(self, kind: str) -> Iterator[tuple[Row, Row]]:
        """(event, its attributes) of every event of this kind."""
        name = kind[0].lower() + kind[1:] + "EventAttributes"
        for event in self.events:
            if name in event:
                yield event, event[name]

    def updates(self) -> Iterator[tuple[str, Row]]:
        """(command, request) of each accepted update."""
        for _, attributes in self.attributes("WorkflowExecutionUpdateAccepted"):
            asked = attributes["acceptedRequest"]["input"]
            yield asked["name"], _payload(asked["args"]) if "args" in asked else {}

    def recorded(self) -> Iterator[Row]:
        """Yield each entry that the ledger has acknowledged."""
        asked: dict[str, list[Row]] = {}
        for event, attributes in self.attributes("ActivityTaskScheduled"):
            if attributes["activityType"]["name"] == "record":
                asked[event["eventId"]] = _payload(attributes["input"])["entries"]
        for _, attributes in self.attributes("ActivityTaskCompleted"):
            yield from asked.get(attributes["scheduledEventId"], [])

    def effects(self) -> list[Attempted]:
        """Every apply_effect, in order."""
        found: dict[str, Attempted] = {}
        for event, attributes in self.attributes("ActivityTaskScheduled"):
            if attributes["activityType"]["name"] != "apply_effect":
                continue
            request = _payload(attributes["input"])
            fence = request["change"]["fence"]
            found[event["eventId"]] = Attempted(
                fence["rollout"], fence["counter"], request["change"], request["shadow"], event["eventTime"]
            )
        for _, attributes in self.attributes("ActivityTaskCompleted"):
            if attributes["scheduledEventId"] in found:
                found[attributes["scheduledEventId"]].receipt = _payload(attributes["result"])
        for kind, name in (("Failed", ""), ("TimedOut", "Timeout"), ("Canceled", "Canceled")):
            for _, attributes in self.attributes(f"ActivityTask{kind}"):
                if attributes["scheduledEventId"] in found:
                    found[attributes["scheduledEventId"]].failure = name or _failure_type(attributes)
        return list(found.values())


def _failure_type(attributes: Row) -> str:
    failure = attributes.get("failure", {})
    return str(failure.get("applicationFailureInfo", {}).get("type") or failure.get("message", "unknown"))


def _payload(payloads: Row) -> Any:
    """The first of some payloads, decoded."""
    first = payloads["payloads"][0]
    data = base64.b64decode(first["data"])
    if base64.b64decode(first.get("metadata", {}).get("encoding", "")) == b"binary/zlib":
        data = Payload.FromString(zlib.decompress(data)).data
    return json.loads(data)
