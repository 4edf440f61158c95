"""Seals: signed statements of where every chain of the archive ends, stored out of reach of the ledger's owner.

The seals form a log of their own. Each is a leaf of a Merkle tree (RFC 6962) that only grows: it names the seal before
it, and the chains that have moved since. The signed text is a checkpoint of that tree (C2SP tlog-checkpoint) as a
signed note (C2SP signed-note), so that tools for transparency logs read it. The caller brings the key and the time.
Source: docs/seals.md; docs/adr/0059.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, ValidationError

from models.audit_chain import ChainedEntry, ChainHead
from models.base import Count, Model, Time
from models.errors import BadInput
from models.hashes import canonical_json

ORIGIN = "backstop/audit"
"""The name of the log, and of the key in the note."""
_EM_DASH = "\N{EM DASH}"
_ED25519 = b"\x01"
"""The byte that marks an Ed25519 signature in a signed note."""
_LEAF, _NODE = b"\x00", b"\x01"


class Seal(Model):
    """A leaf. `number`: from 1 on; `previous`: the `leaf_hash` of the seal before, empty for the first.

    `heads`: the heads of chains that have moved since, by cluster.
    """

    number: Count = Field(ge=1)
    at: Time
    previous: str = ""
    heads: tuple[ChainHead, ...] = ()


class SealedSeal(Model):
    """A seal with its checkpoint: `leaf` is the seal's text as it was hashed, `note` the signed note."""

    leaf: str
    note: str

    @property
    def seal(self) -> Seal:
        """The seal in `leaf`. Errors: ValueError."""
        return Seal.model_validate_json(self.leaf)


def seals_in(content: bytes, place: str) -> list[SealedSeal]:
    """Read the seals of a file, one JSON document a line, without an incomplete last line. Errors: BadInput."""
    seals = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            seals.append(SealedSeal.model_validate_json(line))
        except ValidationError:
            raise BadInput(f"{place}: line {number} is not a seal") from None
    return seals


def leaf_of(seal: Seal) -> str:
    return canonical_json(seal.model_dump(mode="json"))


def leaf_hash(leaf: str) -> bytes:
    return hashlib.sha256(_LEAF + leaf.encode()).digest()


def root_of(hashes: Sequence[bytes]) -> bytes:
    """Return the Merkle tree's root. Source: RFC 6962, 2.1."""
    if not hashes:
        return hashlib.sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    half = 1 << (len(hashes) - 1).bit_length() - 1
    return hashlib.sha256(_NODE + root_of(hashes[:half]) + root_of(hashes[half:])).digest()


def signed_note(hashes: Sequence[bytes], key: Ed25519PrivateKey) -> str:
    """Return the checkpoint of these leaves, signed."""
    text = _checkpoint(hashes)
    signature = _key_id(key.public_key()) + key.sign(text.encode())
    return f"{text}\n{_EM_DASH} {ORIGIN} {base64.b64encode(signature).decode()}\n"


def _checkpoint(hashes: Sequence[bytes]) -> str:
    return f"{ORIGIN}\n{len(hashes)}\n{base64.b64encode(root_of(hashes)).decode()}\n"


def _key_id(key: Ed25519PublicKey) -> bytes:
    return hashlib.sha256(ORIGIN.encode() + b"\n" + _ED25519 + key.public_bytes_raw()).digest()[:4]


def verifier_key(key: Ed25519PublicKey) -> str:
    """Return the public key in the text form of signed notes: name+id+key."""
    return f"{ORIGIN}+{_key_id(key).hex()}+{base64.b64encode(_ED25519 + key.public_bytes_raw()).decode()}"


def verifier_of(text: str) -> Ed25519PublicKey:
    """Parse a public key from that text form. Errors: BadInput."""
    name, _, rest = text.strip().partition("+")
    digits, _, packed = rest.partition("+")
    try:
        raw = base64.b64decode(packed, validate=True)
        key = Ed25519PublicKey.from_public_bytes(raw[1:])
        if name != ORIGIN or raw[:1] != _ED25519 or digits != _key_id(key).hex():
            raise ValueError
    except (binascii.Error, ValueError):
        raise BadInput(f"a seal's public key is one line such as {ORIGIN}+1a2b3c4d+AT...") from None
    return key


def note_is_of(note: str, hashes: Sequence[bytes], keys: Sequence[Ed25519PublicKey]) -> bool:
    """Return whether one of these keys signed exactly this checkpoint."""
    text = _checkpoint(hashes)
    signatures = note.removeprefix(f"{text}\n") if note.startswith(f"{text}\n") else ""
    for line in signatures.splitlines():
        mark, _, rest = line.partition(" ")
        name, _, packed = rest.partition(" ")
        if mark != _EM_DASH or name != ORIGIN:
            continue
        try:
            signature = base64.b64decode(packed, validate=True)
        except (binascii.Error, ValueError):
            continue
        for key in keys:
            if signature[:4] != _key_id(key):
                continue
            try:
                key.verify(signature[4:], text.encode())
            except InvalidSignature:
                return False  # a known key's signature that does not verify spoils the note
            return True
    return False


def checked_seals(sealed_seals: Sequence[SealedSeal], keys: Sequence[Ed25519PublicKey]) -> list[Seal]:
    """Verify the seals and return them in order. Errors: BadInput naming the first one that no key signed as it is.

    Each note covers the tree up to its seal, so the last one would suffice; checking every one shows which seal is
    wrong.
    """
    seals: list[Seal] = []
    hashes: list[bytes] = []
    for number, one in enumerate(sealed_seals, start=1):
        try:
            seal = one.seal
        except ValueError:
            raise BadInput(f"seal {number} cannot be read") from None
        previous = hashes[-1].hex() if hashes else ""
        hashes.append(leaf_hash(one.leaf))
        if seal.number != number or seal.previous != previous:
            raise BadInput(f"seal {number} does not follow the seal before it: some seals are missing, or out of order")
        if not note_is_of(one.note, hashes, keys):
            raise BadInput(f"seal {number} is not signed by the seals' key, or was changed")
        seals.append(seal)
    return seals


def sealed_heads(seals: Sequence[Seal]) -> dict[str, ChainHead]:
    """Return where each chain ended at the last seal."""
    return {head.cluster: head for seal in seals for head in seal.heads}


def next_seal(seals: Sequence[SealedSeal], heads: Sequence[ChainHead], at: Time, key: Ed25519PrivateKey) -> SealedSeal:
    """Make the seal of these heads, after `seals`. `heads`: those of chains that have moved."""
    hashes = [leaf_hash(one.leaf) for one in seals]
    previous = hashes[-1].hex() if hashes else ""
    leaf = leaf_of(
        Seal(number=len(seals) + 1, at=at, previous=previous, heads=tuple(sorted(heads, key=lambda head: head.cluster)))
    )
    return SealedSeal(leaf=leaf, note=signed_note([*hashes, leaf_hash(leaf)], key))


class SealedState(Model):
    """The seals' verdict on one chain. `differs`: a sentence; empty: it is whole up to `number`."""

    cluster: str
    number: int = 0
    """The last seal that names the chain; 0: none does."""
    at: Time | None = None
    rows: int = 0
    """How many of the chain's first rows that seal covers. Later rows could still be rewritten unseen."""
    differs: str = ""


def against_seals(cluster: str, rows: Sequence[ChainedEntry], seals: Sequence[Seal]) -> SealedState:
    """Return whether the chain, whose links were checked, is still the one that was sealed."""
    good, state = 0, SealedState(cluster=cluster)
    own_heads = ((seal, head) for seal in seals for head in seal.heads if head.cluster == cluster)
    for seal, head in own_heads:
        state = SealedState(cluster=cluster, number=seal.number, at=seal.at)
        sealed_part = f"SEAL {seal.number} of {seal.at:%Y-%m-%d %H:%M:%SZ}"
        if len(rows) < head.length:
            text = f"ends at row {len(rows)}, and {sealed_part} covers rows up to {head.length}"
            return state.but(differs=text)
        if head.length and rows[head.length - 1].hash != head.hash:
            one = f"row {head.length}" if head.length == good + 1 else f"a row from {good + 1} to {head.length}"
            return state.but(differs=f"{one} differs from {sealed_part}")
        good = head.length or good
        state = state.but(rows=good)
    return state


class SealedTo(Model):
    """A seal that names a chain, and up to which row, by the ledger; it is verified elsewhere."""

    number: Count
    at: Time
    length: Count


class Sealing(Model):
    """The state of sealing, by the ledger. `since`: when it was first tried."""

    number: Count
    at: Time | None
    every_seconds: int
    since: Time
    trouble: str = ""
