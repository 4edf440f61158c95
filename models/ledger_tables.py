"""The ledger's rows. Only activities/adapters imports this: everywhere else these are frozen models.

Columns are plain (whole numbers, texts, instants), so that a person or a foreign tool can read and write
them by SQL. Lists of islands are sorted and comma-joined ("X,Y"), blocks too ("352,8"). What only
Backstop reads (policies, baselines, receipts, audit entries) is JSON text.

A new ledger's tables are made from these rows by activities/adapters/ledger/migrations. The triggers that count
foreign changes and refuse grabs of freed capacity live there too, and the constraints of row_constraints: on sizes,
names, times and settings.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKeyConstraint, Index, LargeBinary, Text, text
from sqlmodel import Field, SQLModel

from models.columns import NameText, UtcTime, beyond_index


class FleetRow(SQLModel, table=True):
    """One row (id 1): the default policy of all clusters."""

    __tablename__ = "fleet"

    id: int = Field(primary_key=True)
    policy: str = Field(sa_type=Text)


class ClusterRow(SQLModel, table=True):
    """A cluster, and Backstop's work there.

    Only triggers count `generation`. `last_counter` belongs to `open_rollout`. A reservation exists where
    `reserve_limit` is set; `reserved_by` made it. `flex_gpus` is for schedulers: the healthy GPUs beyond all quotas,
    NULL where Backstop does not publish it; the pool is this and what quotas leave unused. `source`: the scheduler that
    holds the quotas, as JSON, NULL where the ledger does itself. `health_source`: the Prometheus or Kubernetes that
    reports health, NULL where the scheduler or people do.
    """

    __tablename__ = "clusters"

    name: str = Field(primary_key=True, sa_type=NameText)
    gpu_model: str | None = Field(default=None, sa_type=Text)
    gpus_per_node: int = 8
    policy: str = Field(default="{}", sa_type=Text)
    generation: int = Field(default=0, sa_type=BigInteger)
    completed_rollouts: int = 0
    open_rollout: str | None = Field(default=None, sa_type=NameText)
    last_counter: int = Field(default=0, sa_type=BigInteger)
    reserved_gpus: int = 0
    reserve_limit: int | None = None
    reserved_by: str | None = Field(default=None, sa_type=NameText)
    follows_health: bool = False
    flex_gpus: int | None = None
    flex_band_gpus: int = 0
    source: str | None = Field(default=None, sa_type=Text)
    health_source: str | None = Field(default=None, sa_type=Text)


class IslandRow(SQLModel, table=True):
    """A cluster's island and its installed GPUs; their health is in `health_samples`."""

    __tablename__ = "islands"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        CheckConstraint("total_gpus >= 0", name="islands_counts"),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    name: str = Field(primary_key=True, sa_type=NameText)
    total_gpus: int


class QuotaRow(SQLModel, table=True):
    """A promise to one team in one cluster.

    `written_by` is Backstop's mark ("rollout#counter"), renewed by each of its writes. A statement that changes a row
    and leaves the mark unchanged is foreign. `written_gpus` is the value that Backstop wrote last; `hand` counts how
    often it then overwrote a foreign value: grants from before that are no part of it any more. `namespaces`: the
    namespaces that may target it, comma-joined; NULL: all. `classes`: the classes of its jobs, the strongest first,
    comma-joined; NULL: the policy's. A change of these two changes no promise, and is no foreign change.
    """

    __tablename__ = "quotas"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        # Deferred: an import may take away and bring back a part of the tree in any order.
        ForeignKeyConstraint(
            ["cluster", "parent"], ["quotas.cluster", "quotas.team"], deferrable=True, initially="DEFERRED"
        ),
        CheckConstraint("gpus >= 0 AND minimum >= 0", name="quotas_counts"),
        CheckConstraint("mode IN ('soft', 'hard')", name="quotas_mode"),
        CheckConstraint("parent <> team", name="quotas_parent"),
        Index("quotas_children", "cluster", "parent"),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    team: str = Field(primary_key=True, sa_type=NameText)
    gpus: int
    mode: str = Field(default="hard", sa_type=Text)
    islands: str | None = Field(default=None, sa_type=NameText)
    blocks: str = Field(default="", sa_type=Text)
    minimum: int = 0
    parent: str | None = Field(default=None, sa_type=NameText)
    written_by: str | None = Field(default=None, sa_type=NameText)
    written_gpus: int | None = None
    hand: int = 0
    namespaces: str | None = Field(default=None, sa_type=NameText)
    classes: str | None = Field(default=None, sa_type=NameText)


class QuotaChangeRow(SQLModel, table=True):
    """The last change of a quota past Backstop while a rollout was open there; the quota itself may be gone.

    Triggers write it. `generation`: the cluster's after it. `changed_by`: the database's user, and the application if
    it gives its name; the importer of a file; SQLite has no users, and the column says so.
    """

    __tablename__ = "quota_changes"
    __table_args__ = (ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),)

    cluster: str = Field(primary_key=True, sa_type=NameText)
    team: str = Field(primary_key=True, sa_type=NameText)
    generation: int = Field(sa_type=BigInteger)
    at: datetime = Field(sa_type=UtcTime)
    changed_by: str = Field(sa_type=Text)


class ReserveLimitRow(SQLModel, table=True):
    """A reservation's limit for the leaves that are limited to exactly these islands."""

    __tablename__ = "reserve_limits"
    __table_args__ = (ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),)

    cluster: str = Field(primary_key=True, sa_type=NameText)
    islands: str = Field(primary_key=True, sa_type=NameText)
    limit_gpus: int


class HealthRow(SQLModel, table=True):
    """The health of one island at one time, as one source (`source`) reported it."""

    __tablename__ = "health_samples"
    __table_args__ = (
        ForeignKeyConstraint(["cluster", "island"], ["islands.cluster", "islands.name"], ondelete="CASCADE"),
        CheckConstraint("healthy_gpus BETWEEN 0 AND total_gpus", name="health_samples_healthy"),
        CheckConstraint("block_gpus BETWEEN 0 AND healthy_gpus", name="health_samples_block"),
        beyond_index("health_samples_beyond", "total_gpus"),
        Index("health_samples_of_source", "source", "at", "cluster"),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    island: str = Field(primary_key=True, sa_type=NameText)
    at: datetime = Field(primary_key=True, sa_type=UtcTime)
    total_gpus: int
    healthy_gpus: int
    block_gpus: int | None = None
    source: str = Field(default="", sa_type=Text)


class UsageRow(SQLModel, table=True):
    """S and L of one team at one time, and the GPUs that its queued jobs asked for (NULL: unknown).

    It outlives the quota: a team that returns has its history.
    """

    __tablename__ = "usage_samples"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        CheckConstraint("idle_gpus BETWEEN 0 AND scheduled_gpus", name="usage_samples_idle"),
        CheckConstraint("pending_gpus >= 0", name="usage_samples_pending"),
        beyond_index("usage_samples_beyond", "scheduled_gpus"),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    team: str = Field(primary_key=True, sa_type=NameText)
    at: datetime = Field(primary_key=True, sa_type=UtcTime)
    scheduled_gpus: int
    idle_gpus: int = 0
    pending_gpus: int | None = None


class JobRow(SQLModel, table=True):
    """A job that runs (`ended` NULL) or has run; one that is preempted and starts again is another row."""

    __tablename__ = "jobs"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        CheckConstraint("gpus > 0 AND idle_gpus BETWEEN 0 AND gpus", name="jobs_counts"),
        CheckConstraint("runs_on IN ('quota', 'flex')", name="jobs_runs_on"),
        CheckConstraint("ended >= started", name="jobs_forward"),
        Index("jobs_by_end", "cluster", "ended"),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    job: str = Field(primary_key=True, sa_type=NameText)
    started: datetime = Field(primary_key=True, sa_type=UtcTime)
    team: str = Field(sa_type=NameText)
    gpus: int
    idle_gpus: int = 0
    runs_on: str = Field(default="quota", sa_type=Text)
    island: str | None = Field(default=None, sa_type=NameText)
    ended: datetime | None = Field(default=None, sa_type=UtcTime)
    preempted: bool = False
    job_class: str | None = Field(default=None, sa_type=NameText)


class SchedulerLimitRow(SQLModel, table=True):
    """A limit in the scheduler that holds a cluster's quotas, as it was last seen or written there. NULL: none.

    `name`: an account, or another limited thing (with the prefix `pool:` or `qos:`). `first_gpus` is the limit before
    Backstop wrote there (`ours`), which detaching restores.
    """

    __tablename__ = "scheduler_limits"
    __table_args__ = (ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),)

    cluster: str = Field(primary_key=True, sa_type=NameText)
    name: str = Field(primary_key=True, sa_type=NameText)
    gpus: int | None = None
    first_gpus: int | None = None
    ours: bool = False


class SchedulerLockRow(SQLModel, table=True):
    """The present writer to a cluster's scheduler, and until when nobody else may write."""

    __tablename__ = "scheduler_locks"

    cluster: str = Field(primary_key=True, sa_type=NameText)
    holder: str = Field(sa_type=Text)
    until: datetime = Field(sa_type=UtcTime)


class AwaitedMergeRow(SQLModel, table=True):
    """An effect on a branch that people have not merged yet. `document`: an AwaitedMerge of the ledger's adapter."""

    __tablename__ = "awaited_merges"
    __table_args__ = (ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),)

    cluster: str = Field(primary_key=True, sa_type=NameText)
    document: str = Field(sa_type=Text)


class WindowRow(SQLModel, table=True):
    """A declared window of a cluster. `islands` NULL: all of them. `gpus` NULL: all of theirs.

    `source` is empty for those of fleet files.
    """

    __tablename__ = "windows"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        CheckConstraint("kind IN ('maintenance', 'sev', 'freeze')", name="windows_kind"),
        CheckConstraint("ends > starts", name="windows_forward"),
        Index("windows_of_cluster", "cluster"),
    )

    id: int | None = Field(default=None, primary_key=True)
    cluster: str = Field(sa_type=NameText)
    kind: str = Field(sa_type=Text)
    starts: datetime = Field(sa_type=UtcTime)
    ends: datetime = Field(sa_type=UtcTime)
    reason: str = Field(sa_type=Text)
    islands: str | None = Field(default=None, sa_type=NameText)
    gpus: int | None = None
    source: str = Field(default="", sa_type=Text)
    declared_by: str = Field(default="", sa_type=Text)


class TallyRow(SQLModel, table=True):
    """One cluster's figures in the slot that begins at `at`, as read at `seen_at`. NULL: unknown.

    `phantom` is assigned_gpus - backed_gpus, surplus healthy_gpus - backed_gpus. `pending_gpus` wait inside their
    quotas, `lacking_gpus` of them for lack of healthy hardware, as far as `known_quotas` of `quotas` leaves report it.
    """

    __tablename__ = "tallies"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        CheckConstraint("backed_gpus BETWEEN 0 AND assigned_gpus AND backed_gpus <= healthy_gpus", name="tallies_sums"),
        CheckConstraint("lacking_gpus BETWEEN 0 AND pending_gpus", name="tallies_lacking"),
        Index("tallies_by_time", "at", "cluster"),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    at: datetime = Field(primary_key=True, sa_type=UtcTime)
    seen_at: datetime = Field(sa_type=UtcTime)
    total_gpus: int | None = None
    healthy_gpus: int | None = None
    health_at: datetime | None = Field(default=None, sa_type=UtcTime)
    assigned_gpus: int | None = None
    backed_gpus: int | None = None
    flex_gpus: int | None = None
    pending_gpus: int | None = None
    lacking_gpus: int | None = None
    known_quotas: int = 0
    quotas: int = 0
    stage: str | None = Field(default=None, sa_type=Text)
    shadow: bool = False


class MilestoneRow(SQLModel, table=True):
    """A milestone of the plan. `started_from` is the count when it `began`; NULL: unknown."""

    __tablename__ = "milestones"

    name: str = Field(primary_key=True, sa_type=NameText)
    position: int
    measure: str = Field(sa_type=Text)
    target: int
    due: str = Field(sa_type=Text)
    began: datetime = Field(sa_type=UtcTime)
    started_from: int | None = None


class MilestoneNoteRow(SQLModel, table=True):
    """A note of a milestone's progress: the total reached. It outlives the milestone."""

    __tablename__ = "milestone_notes"
    __table_args__ = (Index("milestone_notes_of", "milestone", "at"),)

    key: str = Field(primary_key=True, sa_type=NameText)
    milestone: str = Field(sa_type=NameText)
    at: datetime = Field(sa_type=UtcTime)
    number: int
    actor: str = Field(sa_type=Text)
    reason: str = Field(sa_type=Text)


class TeamRow(SQLModel, table=True):
    """A team. `notify`: the notices that it chooses; NULL: as the policy of each cluster says."""

    __tablename__ = "teams"

    name: str = Field(primary_key=True, sa_type=NameText)
    notify: str | None = Field(default=None, sa_type=Text)


class ContactRow(SQLModel, table=True):
    """A team's channel addresses in their order."""

    __tablename__ = "contacts"
    __table_args__ = (ForeignKeyConstraint(["team"], ["teams.name"], ondelete="CASCADE"),)

    team: str = Field(primary_key=True, sa_type=NameText)
    position: int = Field(primary_key=True)
    address: str = Field(sa_type=Text)


class RolloutRow(SQLModel, table=True):
    """A rollout in the registry. `superseded_by` set: its fences are dead."""

    __tablename__ = "rollouts"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"]),
        Index("rollouts_of_cluster", "cluster"),
        Index("rollouts_of_fleet", "fleet"),
    )

    id: str = Field(primary_key=True, sa_type=NameText)
    cluster: str = Field(sa_type=NameText)
    owner: str = Field(sa_type=Text)
    opened_at: datetime = Field(sa_type=UtcTime)
    ended_at: datetime | None = Field(default=None, sa_type=UtcTime)
    stage: str = Field(sa_type=Text)
    shadow: bool = False
    completed: bool = False
    baseline: str = Field(sa_type=Text)
    modes: str = Field(default="{}", sa_type=Text)
    needs: str = Field(default="", sa_type=Text)
    rollbacks: int = 0
    fleet: str = Field(default="", sa_type=NameText)
    adopted_from: str | None = Field(default=None, sa_type=NameText)
    superseded_by: str | None = Field(default=None, sa_type=NameText)
    held: str | None = Field(default=None, sa_type=Text)
    """The rollout's holds as JSON, as it last recorded them; None: never recorded, or an earlier build serves it."""
    note: str | None = Field(default=None, sa_type=Text)
    """The rollout's other data for reports, as JSON; None: as for `held`."""


class FleetPlanRow(SQLModel, table=True):
    """The part of a fleet rollout's plan that is approved for one cluster, as JSON."""

    __tablename__ = "fleet_plans"
    __table_args__ = (ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),)

    fleet: str = Field(primary_key=True, sa_type=NameText)
    cluster: str = Field(primary_key=True, sa_type=NameText)
    envelope: str = Field(sa_type=Text)


class _Receipt(SQLModel):
    rollout: str = Field(primary_key=True, sa_type=NameText)
    counter: int = Field(primary_key=True, sa_type=BigInteger)
    cluster: str = Field(sa_type=NameText)
    kind: str = Field(sa_type=Text)
    at: datetime = Field(sa_type=UtcTime)
    receipt: str = Field(sa_type=Text)


class ReceiptRow(_Receipt, table=True):
    __tablename__ = "receipts"
    __table_args__ = (ForeignKeyConstraint(["rollout"], ["rollouts.id"]),)


class GrantReceiptRow(_Receipt, table=True):
    """The receipt of a request's write without an open rollout. `rollout`: the fence's name, request/ and its id."""

    __tablename__ = "grant_receipts"


class RequestRow(SQLModel, table=True):
    """A request for more quota as it was last noted; `state` is all of it, as JSON."""

    __tablename__ = "requests"
    __table_args__ = (Index("requests_of_cluster", "cluster", "ended"),)

    id: str = Field(primary_key=True, sa_type=NameText)
    cluster: str = Field(sa_type=NameText)
    team: str = Field(sa_type=NameText)
    stage: str = Field(sa_type=Text)
    ended: bool = False
    asked_at: datetime = Field(sa_type=UtcTime)
    state: str = Field(sa_type=Text)


class MoveRow(SQLModel, table=True):
    """GPUs booked against the blast radius before a fence's write."""

    __tablename__ = "moves"
    __table_args__ = (Index("moves_by_time", "at"),)

    rollout: str = Field(primary_key=True, sa_type=NameText)
    counter: int = Field(primary_key=True, sa_type=BigInteger)
    cluster: str = Field(sa_type=NameText)
    at: datetime = Field(sa_type=UtcTime)
    gpus: int = Field(sa_type=BigInteger)


class AuditRow(SQLModel, table=True):
    """A link of a cluster's chain. All its content is inside the hashed `entry`.

    No foreign key: a refused command may name a cluster that the ledger does not have.
    """

    __tablename__ = "audit"

    cluster: str = Field(primary_key=True, sa_type=NameText)
    seq: int = Field(primary_key=True, sa_type=BigInteger)
    key: str = Field(unique=True, sa_type=NameText)
    previous_hash: str = Field(sa_type=Text)
    hash: str = Field(sa_type=Text)
    entry: str = Field(sa_type=Text)


class AuditHeadRow(SQLModel, table=True):
    __tablename__ = "audit_heads"

    cluster: str = Field(primary_key=True, sa_type=NameText)
    length: int = Field(sa_type=BigInteger)
    hash: str = Field(sa_type=Text)


class ImportRow(SQLModel, table=True):
    """A committed import; `result` answers a repeated commit."""

    __tablename__ = "imports"

    import_id: str = Field(primary_key=True, sa_type=NameText)
    actor: str = Field(sa_type=Text)
    at: datetime = Field(sa_type=UtcTime)
    result: str = Field(sa_type=Text)


class ImportAnswerRow(SQLModel, table=True):
    """An import that wrote nothing: a dry run's outcome, or the reason of a refusal. Kept as long as parts are."""

    __tablename__ = "import_answers"

    import_id: str = Field(primary_key=True, sa_type=NameText)
    at: datetime = Field(sa_type=UtcTime)
    answer: str = Field(sa_type=Text)


class ImportPartRow(SQLModel, table=True):
    __tablename__ = "import_parts"

    import_id: str = Field(primary_key=True, sa_type=NameText)
    part: int = Field(primary_key=True)
    payload: bytes = Field(sa_type=LargeBinary)
    staged_at: datetime = Field(sa_type=UtcTime)


# --- the guard ------------------------------------------------------------------------------------


class SourceDoubtRow(SQLModel, table=True):
    """A health source that is in doubt (`since`), or was. `judgement`: JSON of implausible_falls.Judgement.

    Its clusters' health before `confirmed_at` is no measure for their health after it.
    """

    __tablename__ = "source_doubts"

    source: str = Field(primary_key=True, sa_type=NameText)
    since: datetime | None = Field(default=None, sa_type=UtcTime)
    judgement: str = Field(default="", sa_type=Text)
    confirmed_at: datetime | None = Field(default=None, sa_type=UtcTime)
    confirmed_by: str = Field(default="", sa_type=Text)


class BreachRow(SQLModel, table=True):
    """A cluster whose breach rollback was last booked at `at`, before it was aimed."""

    __tablename__ = "breaches"
    __table_args__ = (ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),)

    cluster: str = Field(primary_key=True, sa_type=NameText)
    at: datetime = Field(sa_type=UtcTime)


class HealthPushRow(SQLModel, table=True):
    """A request, made at `at`, to look at this cluster; the watch removes the row and looks."""

    __tablename__ = "health_pushes"
    __table_args__ = (ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),)

    cluster: str = Field(primary_key=True, sa_type=NameText)
    at: datetime = Field(sa_type=UtcTime)


# --- notices --------------------------------------------------------------------------------------


class MessageRow(SQLModel, table=True):
    """Notices to one audience that are sent together, or were.

    Its content was decided at `formed_at` and stays, so that a repeated sending is the same. `key`: its key in the
    delivery book. It is over where `sent_at` is set, or `refused`, as no contact could be used. `try_at`: the time of
    the next try, and `trouble`: its reason. `deliveries`: channel, address and time of each, as JSON.
    """

    __tablename__ = "messages"
    __table_args__ = (Index("messages_of", "audience", "formed_at"), Index("messages_open", "over", "try_at"))

    key: str = Field(primary_key=True, sa_type=NameText)
    audience: str = Field(sa_type=NameText)
    formed_at: datetime = Field(sa_type=UtcTime)
    over: bool = False
    sent_at: datetime | None = Field(default=None, sa_type=UtcTime)
    refused: str = Field(default="", sa_type=Text)
    tries: int = 0
    try_at: datetime = Field(sa_type=UtcTime)
    trouble: str = Field(default="", sa_type=Text)
    deliveries: str = Field(default="[]", sa_type=Text)


class NoticeRow(SQLModel, table=True):
    """A notice to send, or sent: `message` NULL: it waits. `notice`: all of it but contacts, as JSON."""

    __tablename__ = "notices"
    __table_args__ = (
        ForeignKeyConstraint(["message"], ["messages.key"]),
        Index("notices_of_message", "message", "audience"),
    )

    key: str = Field(primary_key=True, sa_type=NameText)
    audience: str = Field(sa_type=NameText)
    cluster: str = Field(sa_type=NameText)
    kind: str = Field(sa_type=Text)
    lane: str = Field(sa_type=Text)
    posted_at: datetime = Field(sa_type=UtcTime)
    notice: str = Field(sa_type=Text)
    message: str | None = Field(default=None, sa_type=NameText)


# --- bring-ups ------------------------------------------------------------------------------------


_OPEN = text("ended_at IS NULL")


class BringupBookRow(SQLModel, table=True):
    """A bring-up as it was last noted; `board` is everything that is shown of it, as JSON.

    No foreign key: its cluster is in the fleet only later, and no more once it is retired. `opening`: identifies a
    repeated start; `opened_at`: the time of the newest call that opened it. `orders`: the number of grants of owed GPUs
    that have been noted; the next one's fence is one higher.
    """

    __tablename__ = "bringups"
    __table_args__ = (
        CheckConstraint("number >= 1 AND orders >= 0", name="bringups_counts"),
        CheckConstraint("ended_at >= opened_at", name="bringups_forward"),
        # One at once.
        Index("bringups_open", "cluster", unique=True, postgresql_where=_OPEN, sqlite_where=_OPEN),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    number: int = Field(primary_key=True)
    opening: str = Field(sa_type=Text)
    opened_at: datetime = Field(sa_type=UtcTime)
    ended_at: datetime | None = Field(default=None, sa_type=UtcTime)
    stage: str = Field(sa_type=Text)
    stage_at: datetime = Field(sa_type=UtcTime)
    orders: int = Field(default=0, sa_type=BigInteger)
    board: str = Field(sa_type=Text)


class OwedRow(SQLModel, table=True):
    """The GPUs that the entry wanted for a team, and those that were granted. NULL `until`: the rest is not owed."""

    __tablename__ = "owed"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        CheckConstraint("wanted_gpus >= 0 AND granted_gpus >= 0", name="owed_counts"),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    team: str = Field(primary_key=True, sa_type=NameText)
    wanted_gpus: int
    granted_gpus: int
    until: datetime | None = Field(default=None, sa_type=UtcTime)


# --- sums of tallies ------------------------------------------------------------------------------


class TallyDayRow(SQLModel, table=True):
    """A cluster's tallies of the slots that begin in the UTC day at `at`, summed up: `monitored` ones, and the others.

    `lacking_gpus` is a sum over the `lacking_known` tallies that know it, `phantom_gpus` over `phantom_known`.
    """

    __tablename__ = "tally_days"
    __table_args__ = (
        ForeignKeyConstraint(["cluster"], ["clusters.name"], ondelete="CASCADE"),
        Index("tally_days_by_time", "at"),
    )

    cluster: str = Field(primary_key=True, sa_type=NameText)
    at: datetime = Field(primary_key=True, sa_type=UtcTime)
    monitored: bool = Field(primary_key=True)
    tallies: int
    first_at: datetime = Field(sa_type=UtcTime)
    last_at: datetime = Field(sa_type=UtcTime)
    lacking_known: int
    lacking_gpus: int = Field(sa_type=BigInteger)
    phantom_known: int
    phantom_gpus: int = Field(sa_type=BigInteger)
