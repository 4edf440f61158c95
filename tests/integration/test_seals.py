"""Seals on real ledgers and real keepers: what they prove, and that sealing gets in nobody's way."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from activities.adapters.ledger.facade import Ledger
from activities.adapters.seals.keepers import FileKeeper, GitKeeper, keepers_of
from cli.main import run
from client.doctor import seals_check
from client.inputs.seals import read_seals
from models.audit_chain import GENESIS, AuditEntry, AuditKind, broken_links, chain_hash
from models.errors import BadInput
from models.hashes import canonical_json
from models.seals import Seal, against_seals, checked_seals, leaf_hash, next_seal, root_of, signed_note, verifier_key
from tests.hostile import Rubbish, table, threw
from tests.servers import new_ledger
from tests.unit.cli_fakes import FakeBackstop, answering
from tests.waiting import eventually
from workers.sealer import Sealer, seal_key, sealing

HOUR = timedelta(hours=1)
CLUSTERS = ("alpha", "beta")


class Clock:
    def __init__(self) -> None:
        self.at = datetime(2026, 11, 23, 9, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at


class Site:
    """A ledger with a clock of ours, and one machine's keepers."""

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.home, self.clock = url, home, Clock()
        self.ledger = Ledger(url, now=self.clock)
        self.file, self.git, self.key = home / "seals" / "seals.txt", home / "audit", home / "keys" / "seal.pem"

    def sealer(self, *places: Path, key: Path | None = None) -> Sealer:
        return Sealer(self.ledger, keepers_of(places or (self.file, self.git)), key or self.key, HOUR)

    def happens(self, count: int = 1, clusters: tuple[str, ...] = CLUSTERS) -> None:
        for cluster in clusters:
            done = len(self.ledger.registry.entries_after(cluster, 0, 10_000))
            self.ledger.registry.archive(
                [
                    AuditEntry(
                        key=f"{cluster}/{done + n}",
                        cluster=cluster,
                        at=self.clock(),
                        kind=AuditKind.COMMAND,
                        actor="tpm",
                        text=f"deed {done + n}",
                    )
                    for n in range(count)
                ]
            )

    def passes(self, span: timedelta = HOUR) -> None:
        self.clock.at += span

    @property
    def public(self) -> str:
        return str(self.key.with_suffix(".pub"))

    def seals(self) -> list[Seal]:
        return read_seals(str(self.file), [self.public])

    def rewrite(self, cluster: str, seq: int, text: str) -> None:
        """Rewrite the row, all after it and the head, as somebody with the ledger's password and our source could."""
        engine = sa.create_engine(self.url)
        with engine.begin() as sql:
            rows = sql.execute(
                sa.text("SELECT seq, entry FROM audit WHERE cluster = :c ORDER BY seq"), {"c": cluster}
            ).all()
            previous = GENESIS
            for number, stored in rows:
                entry = json.loads(stored)
                if number == seq:
                    entry["text"] = text
                stored = canonical_json(entry)
                digest = chain_hash(previous, AuditEntry.model_validate_json(stored))
                sql.execute(
                    sa.text(
                        "UPDATE audit SET entry = :e, previous_hash = :p, hash = :h WHERE cluster = :c AND seq = :s"
                    ),
                    {"e": stored, "p": previous, "h": digest, "c": cluster, "s": number},
                )
                previous = digest
            sql.execute(sa.text("UPDATE audit_heads SET hash = :h WHERE cluster = :c"), {"h": previous, "c": cluster})
        engine.dispose()

    def run(self, sql: str) -> None:
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            connection.execute(sa.text(sql))
        engine.dispose()

    def differs(self, cluster: str) -> str:
        return against_seals(cluster, self.ledger.registry.entries_after(cluster, 0, 10_000), self.seals()).differs

    def chain_alone(self, cluster: str) -> list[str]:
        registry = self.ledger.registry
        return broken_links(registry.entries_after(cluster, 0, 10_000), registry.chain_head(cluster))


@pytest.fixture
def site(ledger_url: str, tmp_path: Path) -> Site:
    return Site(ledger_url, tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Site:
    return Site(new_ledger(tmp_path / "ledger.db"), tmp_path)


def test_who_rewrites_the_ledger_fools_its_chain_and_not_its_seals(site: Site) -> None:
    site.happens(3)
    assert site.sealer().look() == ""
    site.happens(4)
    site.passes()
    assert site.sealer().look() == ""
    assert [site.differs(cluster) for cluster in CLUSTERS] == ["", ""]
    site.rewrite("alpha", 5, "nothing of note")
    assert site.chain_alone("alpha") == [], "the chain alone is fooled"
    assert site.differs("alpha") == "a row from 4 to 7 differs from SEAL 2 of 2026-11-23 10:00:00Z"
    assert site.differs("beta") == ""
    site.happens(1)
    site.passes()
    assert "alpha: row 7 differs from the row that was sealed" in site.sealer().look()
    assert "alpha" not in {head.cluster for head in site.seals()[-1].heads}, "it is not sealed as it is now"
    assert "beta" in {head.cluster for head in site.seals()[-1].heads}, "and the others are"


def test_who_verifies_reads_how_many_rows_no_seal_covers_yet(small: Site, capsys: pytest.CaptureFixture[str]) -> None:
    small.happens(3)
    small.sealer().look()
    verify = ["audit", "alpha", "--verify", "--seals", str(small.file), "--seal-key", small.public]
    for more in (0, 2):
        small.happens(more)
        door, registry = FakeBackstop(), small.ledger.registry
        door.archive = [*registry.entries_after("alpha", 0, 10_000)], registry.chain_head("alpha")
        with answering(door):
            assert run(verify) == 0
            told = capsys.readouterr().out
            assert run([*verify, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["rows"], answer["sealed_rows"], answer["seal"]) == (3 + more, 3, 1)
        assert ("No seal covers the last 2 rows yet: until the next seal, a rewrite there goes unnoticed." in told) is (
            more == 2
        )


def test_which_seals_name_a_chain_is_told_the_newest_first(small: Site) -> None:
    assert small.ledger.seals.read_last_seals("alpha") == ()
    small.happens(3)
    small.sealer().look()
    small.passes()
    small.happens(4, ("alpha",))
    small.sealer().look()
    told = {
        name: [(s.number, s.length) for s in small.ledger.seals.read_last_seals(name)]
        for name in (*CLUSTERS, "alph", "%")
    }
    assert told == {"alpha": [(2, 7), (1, 3)], "beta": [(1, 3)], "alph": [], "%": []}


def test_a_chain_that_is_cut_off_or_gone_shows(site: Site) -> None:
    site.happens(4)
    site.sealer().look()
    site.run("DELETE FROM audit WHERE cluster = 'alpha' AND seq > 2")
    site.run("UPDATE audit_heads SET length = 2 WHERE cluster = 'alpha'")
    site.run("DELETE FROM audit WHERE cluster = 'beta'")
    site.run("DELETE FROM audit_heads WHERE cluster = 'beta'")
    assert "ends at row 2, and SEAL 1 of " in site.differs("alpha")
    assert "ends at row 0" in site.differs("beta")
    said = site.sealer().look()
    assert "alpha: ends at row 2, but a seal covers it up to row 4" in said
    assert "beta: has no rows any more, but a seal covers it" in said


def test_what_was_written_since_the_last_seal_can_still_be_rewritten(small: Site) -> None:
    """As docs/security.md warns, rows that are not sealed yet can be rewritten."""
    small.happens(2)
    small.sealer().look()
    small.happens(2)
    small.rewrite("alpha", 4, "nothing of note")
    assert small.differs("alpha") == ""
    small.passes()
    assert small.sealer().look() == ""


def test_two_workers_make_one_seal_each_hour(site: Site, tmp_path: Path) -> None:
    """Two machines have a keeper, a key and all seals each."""
    site.happens()
    there = tmp_path / "there"
    one = site.sealer()
    other = site.sealer(there / "seals.txt", key=there / "seal.pem")
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            assert [*pool.map(lambda sealer: sealer.look(), (one, other, one, other))] == [""] * 4
        site.happens()
        site.passes()
    one.look(), other.look()
    assert site.ledger.seals.sealing_state().number == 4  # type: ignore[union-attr]
    assert FileKeeper(there / "seals.txt").kept_seals() == FileKeeper(site.file).kept_seals()
    keys = [site.public, str(there / "seal.pub")]
    assert [seal.number for seal in read_seals(str(site.file), keys)] == [1, 2, 3, 4]


async def test_a_worker_seals_when_it_starts_and_when_it_stops(small: Site) -> None:
    small.happens()
    async with sealing(small.ledger, keepers_of((small.file,)), small.key, HOUR):
        await eventually(small.file.exists, "it has sealed")
        small.happens(2)
    assert [len(seal.heads) for seal in small.seals()] == [2, 2]
    async with sealing(small.ledger, keepers_of((small.file,)), small.key, HOUR):
        pass
    assert len(small.seals()) == 2, "nothing has moved since"


def test_git_keeps_a_commit_for_each_seal_and_its_file_verifies_alone(small: Site) -> None:
    small.happens()
    for _ in range(3):
        assert small.sealer().look() == ""
        small.happens()
        small.passes()
    log = subprocess.run(
        ["git", "-C", str(small.git), "log", "--format=%s"], capture_output=True, text=True, check=True
    )
    assert log.stdout.split("\n")[:3] == ["seal 3", "seal 2", "seal 1"]
    clone = small.home / "clone"
    subprocess.run(["git", "clone", "--quiet", str(small.git), str(clone)], check=True, capture_output=True)
    assert len(read_seals(str(clone), [Path(small.public).read_text()])) == 3


def test_a_keeper_that_was_away_gets_what_it_missed(small: Site) -> None:
    small.happens()
    small.home.joinpath("audit").write_text("in the way")
    assert "audit" in small.sealer().look()
    assert len(small.seals()) == 1, "the other keeper has it"
    small.passes()
    small.happens()
    assert small.sealer().look() != ""
    small.home.joinpath("audit").unlink()
    assert small.sealer().look() == ""
    assert len(GitKeeper(small.git).kept_seals()) == 2


def test_a_ledger_that_is_older_than_its_seals_is_said(small: Site) -> None:
    small.happens()
    small.sealer().look()
    shutil.copy(small.home / "ledger.db", small.home / "old.db")
    small.passes()
    small.happens()
    small.sealer().look()
    small.run("DELETE FROM seals WHERE number = 2")
    assert "the ledger was restored from a backup, or somebody has rewritten it" in small.sealer().look()
    (check,) = seals_check(small.ledger.seals.sealing_state(), small.clock())
    assert (check.name, check.ok) == ("seals", False)


def test_late_seals_show_in_doctor(small: Site) -> None:
    assert seals_check(small.ledger.seals.sealing_state(), small.clock()) == [], "nobody seals here"
    small.happens()
    small.sealer().look()
    (well,) = seals_check(small.ledger.seals.sealing_state(), small.clock() + HOUR)
    assert (well.ok, well.text) == (True, "SEAL 1 of 2026-11-23 09:00:00Z, every 1h")
    (late,) = seals_check(small.ledger.seals.sealing_state(), small.clock() + 3 * HOUR)
    assert (late.ok, late.text.startswith("late: SEAL 1 of 2026-11-23 09:00:00Z")) == (False, True)


def test_files_are_their_user_s_alone(small: Site) -> None:
    old = os.umask(0o022)
    try:
        small.happens()
        small.sealer().look()
    finally:
        os.umask(old)
    assert [oct(path.stat().st_mode & 0o777) for path in (small.file, small.key)] == ["0o600", "0o600"]
    assert [oct(p.parent.stat().st_mode & 0o777) for p in (small.file, small.key)] == ["0o700", "0o700"]


# --- the format --------------------------------------------------------------------------------------------


def slow_root(leaves: list[bytes]) -> bytes:
    """RFC 6962, 2.1, by its own words."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + slow_root(leaves[:k]) + slow_root(leaves[k:])).digest()


def test_the_root_is_that_of_rfc_6962() -> None:
    leaves = [str(number).encode() for number in range(40)]
    for size in range(1, 41):
        assert root_of([leaf_hash(leaf.decode()) for leaf in leaves[:size]]) == slow_root(leaves[:size])
    assert root_of([]).hex() == hashlib.sha256().hexdigest()


def test_a_note_is_a_signed_note_with_a_checkpoint() -> None:
    """The format is that of C2SP's signed-note and tlog-checkpoint, checked without our code."""
    import base64

    key = Ed25519PrivateKey.generate()
    note = signed_note([leaf_hash("a"), leaf_hash("b")], key)
    text, _, signatures = note.rpartition("\n\n")
    origin, size, root = text.split("\n")
    assert (origin, size, base64.b64decode(root)) == ("backstop/audit", "2", slow_root([b"a", b"b"]))
    mark, name, packed = signatures.rstrip("\n").split(" ")
    raw = key.public_key().public_bytes_raw()
    signature = base64.b64decode(packed)
    assert (mark, name) == ("\N{EM DASH}", origin)
    assert signature[:4] == hashlib.sha256(b"backstop/audit\n\x01" + raw).digest()[:4]
    key.public_key().verify(signature[4:], (text + "\n").encode())
    assert verifier_key(key.public_key()).split("+")[:2] == [name, signature[:4].hex()]


# --- rubbish -----------------------------------------------------------------------------------------------


def _cut(content: bytes) -> bytes:
    return content[:-20]


FILES = [
    Rubbish("bytes", b"\x00\xff\n"),
    Rubbish("no JSON", b"{\n"),
    Rubbish("another document", b"{}\n"),
    Rubbish("an empty line", b"\n"),
    Rubbish("deep", b"[" * 100_000 + b"\n"),
    Rubbish("a number", b"1\n"),
    Rubbish("an empty leaf", b'{"leaf": "", "note": ""}\n'),
    Rubbish("a long line", b'{"leaf": "' + b"x" * 5_000_000 + b'", "note": ""}\n'),
]


@table(FILES)
def test_a_file_that_is_none_of_seals_is_one_sentence_and_sealing_goes_on(rubbish: Rubbish, small: Site) -> None:
    small.happens()
    small.sealer(small.git).look()
    small.file.parent.mkdir()
    small.file.write_bytes(rubbish.value)
    with pytest.raises(BadInput, match=str(small.file)):
        read_seals(str(small.file), [small.public])
    assert small.sealer().look() != ""
    assert small.file.read_bytes() == rubbish.value, "what is there is left to a person"
    threw("files of seals")


def test_a_seal_that_was_cut_off_is_written_again(small: Site) -> None:
    small.happens()
    small.sealer().look()
    content = small.file.read_bytes()
    small.passes()
    small.happens()
    small.sealer().look()
    whole = small.file.read_bytes()
    for cut in (len(content) + 1, len(content) + 100, len(whole) - 1, 10, 0):
        small.file.write_bytes(whole[:cut])
        small.sealer(small.file).look()
        assert small.file.read_bytes() == whole


def test_each_change_of_a_seal_is_found(small: Site) -> None:
    for _ in range(3):
        small.happens()
        small.sealer().look()
        small.passes()
    kept, key = FileKeeper(small.file).kept_seals(), seal_key(small.key)
    public = key.public_key()
    assert len(checked_seals(kept, [public])) == 3
    other = next_seal(kept[:1], [], small.clock(), Ed25519PrivateKey.generate())
    forged = [
        [*kept[:1], *kept[2:]],
        [kept[1], kept[0], kept[2]],
        kept[1:],
        [kept[0].but(leaf=kept[0].leaf.replace('"length":1', '"length":2')), *kept[1:]],
        [kept[0].but(note=kept[1].note), *kept[1:]],
        [kept[0].but(note=""), *kept[1:]],
        [kept[0], other],
    ]
    for seals in forged:
        with pytest.raises(BadInput, match=r"^seal \d "):
            checked_seals(seals, [public])
    with pytest.raises(BadInput, match="seal 1 is not signed by the seals' key"):
        checked_seals(kept, [Ed25519PrivateKey.generate().public_key()])


@table(
    [
        Rubbish("nothing", b""),
        Rubbish("text", b"no key"),
        Rubbish("a certificate", b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"),
        Rubbish("half a key", b"-----BEGIN PRIVATE KEY-----\nMC4CAQ"),
        Rubbish("bytes", b"\x00\xff" * 100),
    ]
)
def test_a_key_file_that_is_none_costs_a_warning(rubbish: Rubbish, small: Site) -> None:
    small.key.parent.mkdir()
    small.key.write_bytes(rubbish.value)
    small.happens()
    assert "does not have a private key for seals" in small.sealer().look()
    with pytest.raises(BadInput, match="public key is one line"):
        read_seals(str(small.file), ["backstop/audit+1+AA"]) if not small.file.exists() else None
    threw("keys of seals")


def test_a_full_disk_costs_a_warning(small: Site) -> None:
    small.happens()
    small.file.parent.mkdir()
    small.file.symlink_to("/dev/full")
    assert "seals" in small.sealer(small.file).look()
