"""Access in the made-up fleet: who may do what, commands that wait for a second person, who acted alone, and seals.

The access file, the import that waits and the emergency are made up; the ledger keeps them as it keeps real ones.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from activities.adapters.ledger.facade import Ledger
from models.access.access_file import AccessFile
from models.access.access_versions import HowImported
from models.access.decision import Target
from models.access.principals import Principal, Proof
from models.access.rights import Case
from models.access.second_persons import KeptCommand, deed_of
from models.audit_chain import Signature
from models.cluster.import_outcome import ImportTerms
from models.import_questions import TakeFleet
from models.questions import DeskRequest
from models.seals import Seal, SealedSeal, leaf_hash, leaf_of, signed_note

_KEY = Ed25519PrivateKey.from_private_bytes(b"made up for pictures and figures")
_NAMES = ("root", "tpm", "hw-lead", "sre", "capacity")
FILE = AccessFile.model_validate(
    {
        "people": [{"name": name, "machine": [name]} for name in _NAMES],
        "grants": [
            {"to": ["user:root", "user:tpm"], "roles": ["admin", "operator"]},
            {"to": ["user:hw-lead", "user:capacity"], "roles": ["approver"]},
            {"to": ["user:sre"], "roles": ["operator"]},
        ],
    }
)


def sealed(ledger: Ledger, at: datetime) -> None:
    """Seal every chain up to its end."""
    before = ledger.seals.all()
    hashes = [leaf_hash(one.leaf) for one in before]
    sealed_to = {head.cluster: head.length for one in before for head in one.seal.heads}
    heads = tuple(head for head in ledger.seals.heads() if head.length > sealed_to.get(head.cluster, 0))
    previous = hashes[-1].hex() if hashes else ""
    leaf = leaf_of(Seal(number=len(before) + 1, at=at, previous=previous, heads=heads))
    assert ledger.seals.add(SealedSeal(leaf=leaf, note=signed_note([*hashes, leaf_hash(leaf)], _KEY)))


def with_access(ledger: Ledger, document: Mapping[str, Any], now: datetime) -> None:
    """Put the access file in force, let a policy change of this cluster wait, and record an emergency act."""
    by = Signature(actor="user:tpm", at=now - timedelta(hours=20), key="access/1", reason="the first file")
    ledger.access.put_in_force(FILE, 0, by, HowImported.FIRST)
    (cluster,) = document["clusters"]
    changed = {"clusters": [{**cluster, "policy": {"buffer": "0.1"}}]}
    terms = ImportTerms(file="buffers.yaml")
    for name in ("buffers tried", "buffers"):
        ledger.fleet.stage_import(name, 0, zlib.compress(json.dumps(changed).encode()))
    tried = ledger.fleet.take_import("buffers tried", 1, terms.but(dry_run=True), "user:tpm", now)
    question = TakeFleet(import_id="buffers", parts=1, terms=terms.but(policy=tried.policy))
    request = DeskRequest(kind=question.kind, actor="user:tpm", arguments=question.model_dump(mode="json"))
    kept = KeptCommand(
        command="desk.take_fleet",
        target=Target(cases=frozenset({Case.POLICY})),
        message=request.model_dump(mode="json"),
        principal=Principal(name="user:tpm", human="user:tpm", proof=Proof.PEER, how="this machine"),
        reason="health has been steady for a quarter",
        at=now - timedelta(hours=2),
    )
    ledger.second_persons.keep(kept, Signature("user:tpm", kept.at, "waits/1", kept.reason))
    alone = Signature("user:capacity", now - timedelta(hours=5), "alone/1", "the incident could not wait")
    command, target = "rollout.promote", Target(cluster=cluster["name"])
    ledger.second_persons.record_emergency(command, deed_of(command, target), target.cluster, alone)
