"""Takes fleet files into the ledger and writes one out of it; removes and renames clusters.

A large file comes in parts and is read outside of the write transaction, so that others can go on writing meanwhile.
An import is archived in the chain of each cluster that it touches, in a second transaction: a rollout that archives
takes the chain's head first and then the cluster, an import the clusters first.

Parts may hold contacts' secrets: they are removed with the first answer, which a repeated call gets again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError
from sqlmodel import Session, col, select

from activities.adapters.ledger.audit_archive import append_all, never_dropped
from activities.adapters.ledger.bulk import store
from activities.adapters.ledger.database import Database, LedgerPart, one_at_a_time
from activities.adapters.ledger.fleet_diff_reader import barred_reasons, fleet_policy, present_clusters, teams_by_name
from activities.adapters.ledger.fleet_rows_writer import write_fleet
from activities.adapters.ledger.health_and_usage import latest_health
from activities.adapters.ledger.removal_and_renaming import history_of, refuse_taken, remove_rows, rename_rows
from models.access.access_versions import COUNTERSIGNED_WITHIN
from models.audit_chain import AuditEntry, AuditKind, Signature
from models.base import in_one_sentence
from models.cluster.contact_secrets import in_clear, teams_in_clear
from models.cluster.fleet_export import FleetPage, cluster_document, cut_floors
from models.cluster.fleet_file import Fleet
from models.cluster.import_outcome import (
    NOTHING_STAGED,
    WRITES,
    Departure,
    FleetOutcome,
    ImportTerms,
    Line,
    Verb,
    policies_brought,
)
from models.errors import BadInput, Barred, NoSuchCluster, Refusal
from models.hashes import canonical_json, hash_of
from models.ledger_tables import AuditRow, ClusterRow, ImportAnswerRow, ImportPartRow, ImportRow
from models.texts import count_text, some_of

MAX_DOCUMENT_BYTES = 512 * 2**20
FORGOTTEN_AFTER = COUNTERSIGNED_WITHIN + timedelta(hours=1)
"""Uncommitted parts are removed after this time, which leaves a second admin time to countersign."""
FLEET_CHAIN = "(fleet)"
"""The archive chain of an import's changes to the fleet as a whole: its policy and its teams."""
_LINES_KEPT = 50
_LINES_SHOWN = 200


class LedgerFleetFile(LedgerPart):
    """The part of FleetPort that takes files in, writes one, and takes clusters out."""

    tokens_in_clear: Callable[[], bool] = staticmethod(lambda: True)
    """Return whether a contact may hold a token in clear; false once access is configured."""
    policy_takes_two: Callable[[], bool] = staticmethod(lambda: False)
    """Return whether a change of policy needs a second admin."""

    def stage_import(self, import_id: str, part: int, payload: bytes) -> None:
        now = self._database.now()
        row = {"import_id": import_id, "part": part, "payload": payload, "staged_at": now}
        with self._database.begin() as session:
            store(session, ImportPartRow, [row])
            session.execute(sa.delete(ImportPartRow).where(col(ImportPartRow.staged_at) < now - FORGOTTEN_AFTER))
            old = col(ImportAnswerRow.at) < now - FORGOTTEN_AFTER
            session.execute(sa.delete(ImportAnswerRow).where(old | (col(ImportAnswerRow.import_id) == import_id)))

    def commit_import(self, import_id: str, parts: int, actor: str, now: datetime) -> dict[str, int]:
        return self.take_import(import_id, parts, ImportTerms(whole=True), actor, now).counts

    def take_import(
        self, import_id: str, parts: int, terms: ImportTerms, actor: str, now: datetime, given_by: str = ""
    ) -> FleetOutcome:
        with self._database.reading() as session:
            stored, answer = stored_import(session, import_id), session.get(ImportAnswerRow, import_id)
            staged = [] if stored else _staged_parts(session, import_id)
        if stored is not None:
            return self._archive_stored(stored)
        if answer is not None:
            return _repeat_answer(json.loads(answer.answer))
        try:
            fleet = _fleet_of(staged, parts)
            sentence = "" if self.tokens_in_clear() else in_clear({team.name: team.contacts for team in fleet.teams})
            if sentence:
                raise Refusal(sentence)
            if terms.dry_run:
                return self._try_out(import_id, fleet, terms, actor, now)
            return self._take(import_id, fleet, terms, Signature(actor, now, import_id), given_by)
        except _AwaitsSecond as waits:
            return waits.outcome
        except Barred:
            raise  # it may be taken once a person has granted the right
        except (BadInput, Refusal) as error:
            self._forget_parts(import_id, {"refused": error.message, "bad_input": isinstance(error, BadInput)})
            raise

    def _take(self, import_id: str, fleet: Fleet, terms: ImportTerms, by: Signature, given_by: str) -> FleetOutcome:
        with self._database.begin() as session:
            one_at_a_time(session, "imports")
            stored = stored_import(session, import_id)
            if stored is None:
                outcome, gone = write_fleet(session, fleet, terms, by.actor, by.at)
                if outcome.policy and not terms.policy and self.policy_takes_two():
                    raise _AwaitsSecond(outcome)
                _forget(session, import_id)
                stored = store_import(session, by, outcome, _entries(outcome.lines, gone, terms, by, given_by))
        return self._archive_stored(stored)

    def would_change(self, import_id: str, parts: int, terms: ImportTerms) -> tuple[str, ...]:
        tried = terms.but(dry_run=True)
        with self._database.reading() as session:
            fleet = _fleet_of(_staged_parts(session, import_id), parts)
            outcome, _ = write_fleet(session, fleet, tried, "", self._database.now())
        changes = [line for line in outcome.lines if line.verb in _TOLD and line.kind != "health"]
        ranked = sorted(changes, key=lambda line: line.kind != "policy")
        brought = [
            f"{name} comes with a policy of its own: {canonical_json(policy)}"
            for name, policy in policies_brought(fleet, changes).items()
        ]
        sentences = [*brought, *(f"{line.verb} {line.sentence}" for line in ranked)]
        rest = (
            [f"and {count_text(len(sentences) - _LINES_SHOWN, 'line')} more"] if len(sentences) > _LINES_SHOWN else []
        )
        other = (
            ""
            if outcome.policy == terms.policy
            else "the import would now change policies differently from when the command was given"
        )
        return (*([other] if other else []), *sentences[:_LINES_SHOWN], *rest)

    def _try_out(self, import_id: str, fleet: Fleet, terms: ImportTerms, actor: str, now: datetime) -> FleetOutcome:
        with self._database.reading() as session:
            outcome, _ = write_fleet(session, fleet, terms, actor, now)
        self._forget_parts(import_id, {"outcome": outcome.model_dump(mode="json")})
        return outcome

    def _forget_parts(self, import_id: str, answer: Mapping[str, Any]) -> None:
        """Remove the parts of an import that wrote nothing, and keep its answer for a repeated call."""
        row = {"import_id": import_id, "at": self._database.now(), "answer": canonical_json(answer)}
        with self._database.begin() as session:
            _forget(session, import_id)
            store(session, ImportAnswerRow, [row])

    def _archive_stored(self, stored: Mapping[str, Any]) -> FleetOutcome:
        archive_import(self._database, stored)
        return FleetOutcome.model_validate(stored["outcome"])

    def teams_in_clear(self) -> tuple[str, ...]:
        if self.tokens_in_clear():
            return ()
        with self._database.reading() as session:
            return tuple(teams_in_clear({name: team.contacts for name, team in teams_by_name(session).items()}))

    def fleet_page(self, after: str, limit: int) -> FleetPage:
        with self._database.reading() as session:
            names = session.scalars(
                select(ClusterRow.name).where(ClusterRow.name > after).order_by(col(ClusterRow.name)).limit(limit)
            ).all()
            present = present_clusters(session, names)
            health = latest_health(session, names, self._database.now())
            documents: list[dict[str, Any]] = []
            wrong: dict[str, str] = {}
            cut: dict[str, tuple[str, ...]] = {}
            for name in names:
                now = present[name]
                if isinstance(now, str):
                    wrong[name] = now
                    continue
                documents.append(
                    cluster_document(now, {i.name: i for i in health[name].islands} if name in health else {})
                )
                cut |= {name: tuple(cut_floors(now))} if cut_floors(now) else {}
            teams = tuple(teams_by_name(session).values()) if not after else ()
            policy = fleet_policy(session) if not after else {}
        last = names[-1] if names else ""
        return FleetPage(clusters=tuple(documents), wrong=wrong, cut_floors=cut, policy=policy, teams=teams, last=last)

    def remove_cluster(self, cluster: str, by: Signature, *, dry_run: bool) -> Departure:
        with self._database.reading() if dry_run else self._database.begin() as session:
            if not dry_run and (before := _earlier_answer(session, by.key)) is not None:
                return before
            answer, was = _describe_departure(session, cluster, self._database.now())
            if dry_run:
                return answer
            data = {"command": "remove_cluster", "cluster": was}
            _sign(session, by, answer, {cluster: f"removed: {answer.summary}"}, data)
            remove_rows(session, cluster)
            return answer.but(done=True)

    def rename_cluster(self, cluster: str, name: str, by: Signature, *, dry_run: bool) -> Departure:
        with self._database.reading() if dry_run else self._database.begin() as session:
            if not dry_run and (before := _earlier_answer(session, by.key)) is not None:
                return before
            answer, _ = _describe_departure(session, cluster, self._database.now(), renamed=True)
            refuse_taken(session, name)
            if dry_run:
                return answer
            sentences = {
                cluster: f"renamed to {name}: later entries are under that name",
                name: f"renamed from {cluster}: earlier entries are under that name",
            }
            _sign(session, by, answer, sentences, {"command": "rename_cluster", "from": cluster, "to": name})
            rename_rows(session, cluster, name)
            return answer.but(done=True)


def _describe_departure(
    session: Session, cluster: str, now: datetime, *, renamed: bool = False
) -> tuple[Departure, dict[str, Any]]:
    """Return the facts about the cluster, and the cluster as a fleet file has it. Errors: Refusal."""
    present = present_clusters(session, [cluster]).get(cluster)
    if present is None:
        raise NoSuchCluster(cluster)
    history = history_of(session, cluster, in_file=renamed or isinstance(present, str))
    why = barred_reasons(session, [cluster]).get(cluster, "")
    if isinstance(present, str):  # nobody can read it, and it can be taken out all the same
        return Departure(cluster=cluster, summary=present, history=history, barred=why), {"name": cluster}
    health = latest_health(session, [cluster], now)
    islands = {island.name: island for island in health[cluster].islands} if cluster in health else {}
    answer = Departure(cluster=cluster, summary=present.summary, history=history, barred=why)
    return answer, cluster_document(present, islands)


def _sign(
    session: Session, by: Signature, answer: Departure, sentence_of: Mapping[str, str], data: Mapping[str, Any]
) -> None:
    """Archive before the cluster's row is locked, in the order of a rollout that archives."""
    data = {**data, "answer": answer.model_dump(mode="json")}
    entries = [
        by.entry(cluster, text, data, f"/{number}" if number else "")
        for number, (cluster, text) in enumerate(sentence_of.items())
    ]
    append_all(session, entries)


def _earlier_answer(session: Session, key: str) -> Departure | None:
    """Return the answer to the same request, if it was carried out already and its answer was lost."""
    text = session.scalar(select(AuditRow.entry).where(AuditRow.key == key))
    if text is None:
        return None
    answer = AuditEntry.model_validate_json(text).data["answer"]
    return Departure.model_validate({**answer, "done": True})


class _AwaitsSecond(Exception):
    """Undoes what was written; the parts stay for the second person."""

    def __init__(self, outcome: FleetOutcome) -> None:
        super().__init__()
        self.outcome = outcome.but(done=False, awaits_second=True)


# --- a staged file ----------------------------------------------------------------------------------------


def stored_import(session: Session, import_id: str) -> dict[str, Any] | None:
    """Return what `store_import` kept of an import; None if it was not carried out yet."""
    row = session.get(ImportRow, import_id)
    if row is None:
        return None
    result: dict[str, Any] = json.loads(row.result)
    if "outcome" in result:
        return result
    counts = FleetOutcome(lines=(), totals={}, untouched={}, counts=result, done=True)  # of an earlier build
    return {"outcome": counts.model_dump(mode="json"), "entries": []}


def store_import(
    session: Session, by: Signature, outcome: FleetOutcome, entries: Sequence[AuditEntry], **more: Any
) -> dict[str, Any]:
    """Keep an import's receipt, its answer and its entries, which are archived later. `by.key`: the import."""
    kept = {"entries": [entry.model_dump(mode="json") for entry in entries], **more}
    stored = {"outcome": outcome.model_dump(mode="json"), **kept}
    session.add(ImportRow(import_id=by.key, actor=by.actor, at=by.at, result=canonical_json(stored)))
    return stored


def archive_import(database: Database, stored: Mapping[str, Any]) -> None:
    entries = [AuditEntry.model_validate(entry) for entry in stored["entries"]]
    if entries:
        with never_dropped(), database.begin() as session:
            append_all(session, entries)


def _repeat_answer(answer: Mapping[str, Any]) -> FleetOutcome:
    """Return the first answer again. Errors: Refusal, BadInput."""
    if "refused" in answer:
        raise (BadInput if answer["bad_input"] else Refusal)(answer["refused"])
    return FleetOutcome.model_validate(answer["outcome"])


def _staged_parts(session: Session, import_id: str) -> list[tuple[int, bytes]]:
    parts = select(ImportPartRow.part, ImportPartRow.payload).where(ImportPartRow.import_id == import_id)
    return list(session.exec(parts.order_by(col(ImportPartRow.part))).all())


def _forget(session: Session, import_id: str) -> None:
    session.execute(sa.delete(ImportPartRow).where(col(ImportPartRow.import_id) == import_id))


def _fleet_of(staged: Sequence[tuple[int, bytes]], parts: int) -> Fleet:
    """The staged parts as one checked fleet. Errors: BadInput."""
    if not staged:
        raise BadInput(NOTHING_STAGED)
    numbers = [number for number, _ in staged]
    if len(numbers) != parts or parts < 1 or numbers[-1] - numbers[0] != parts - 1:
        raise BadInput(
            f"the upload is incomplete: it should have {count_text(parts, 'part')}, and the ledger has parts "
            f"{some_of([str(number) for number in numbers])}: import again"
        )
    try:
        unpacker = zlib.decompressobj()
        document = unpacker.decompress(b"".join(payload for _, payload in staged), MAX_DOCUMENT_BYTES)
    except zlib.error:
        raise BadInput("the upload was damaged and cannot be decompressed: import again") from None
    if not unpacker.eof:
        raise BadInput(f"the uploaded document is cut short, or larger than {MAX_DOCUMENT_BYTES // 2**20} MiB")
    try:
        fleet = Fleet.model_validate_json(document)
    except ValidationError as error:
        raise BadInput(f"the fleet is refused: {in_one_sentence(error)}") from None
    _check_what_the_ledger_asks(fleet)
    return fleet


def _check_what_the_ledger_asks(fleet: Fleet) -> None:
    for cluster in fleet.clusters:
        try:
            fleet.policy_of(cluster)
        except ValidationError as error:
            raise BadInput(
                f"the fleet is refused: policy of cluster {cluster.name}: {in_one_sentence(error)}"
            ) from None


# --- what is archived ----------------------------------------------------------------------------------------


def import_key(import_id: str, chain: str) -> str:
    """Return the key of an import's entry in one chain."""
    return f"import/{hash_of(import_id)}/{hash_of(chain)}"


def _entries(
    lines: Sequence[Line], gone: Mapping[str, Mapping[str, Any]], terms: ImportTerms, by: Signature, given_by: str
) -> list[AuditEntry]:
    """Make an entry for each cluster that the import touches, and one for the fleet. `by.key`: the import."""
    changes = [line for line in lines if line.verb in _TOLD and line.kind != "health"]
    chains = sorted({line.cluster or FLEET_CHAIN for line in changes})
    by_chain: dict[str, list[Line]] = {chain: [] for chain in chains}
    for line in changes:
        by_chain[line.cluster or FLEET_CHAIN].append(line)
    of_file = f" of {terms.file}" if terms.file else ""
    of_file += f", given by {given_by} and countersigned by {by.actor}" if given_by else ""
    entries = []
    for chain, theirs in by_chain.items():
        refused = all(line.verb is Verb.REFUSED for line in theirs)
        texts = [f"{line.verb} {line.sentence}" for line in theirs]
        data: dict[str, Any] = {
            "command": "import_fleet",
            "pruned": terms.prune,
            "lines": [
                line.model_dump(mode="json", exclude={"path"}, exclude_defaults=True) for line in theirs[:_LINES_KEPT]
            ],
            "more_lines": max(0, len(theirs) - _LINES_KEPT),
        }
        data |= {"given_by": given_by} if given_by else {}
        data |= {"cluster": gone[chain]} if chain in gone else {}
        entries.append(
            AuditEntry(
                key=import_key(by.key, chain),
                cluster=chain,
                at=by.at,
                kind=AuditKind.COMMAND,
                actor=by.actor,
                text=f"{'import refused' if refused else 'import'}{of_file}: {some_of(texts, 5, by='; ')}",
                refused=refused,
                data=data,
            )
        )
    return entries


_TOLD = WRITES | {Verb.REFUSED}
