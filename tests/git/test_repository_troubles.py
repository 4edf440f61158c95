"""Repositories that refuse, hang, are full or make no sense; and what a commit looks like."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from activities.adapters.ledger.facade import Ledger
from models.base import in_one_sentence
from models.cluster.sources import GitSource
from models.errors import BackstopError, BadInput, Refusal, Unavailable
from models.rollout.effects import Change, EffectKind, Fence, ValueWrite
from tests.git.world import CLUSTER, PATH, QUEUE, QUOTAS, Forge, GitSystem, git, spec, take, worker
from tests.integration.ledger.world import ForeignTool
from tests.waiting import wait_until
from workers.settings import load_settings

SOFT = EffectKind.SET_SOFT


def test_a_commit_says_what_moves_and_by_whose_order(site: GitSystem, sqlite_ledger_url: str) -> None:
    site.open()
    site.apply(SOFT, 1, ("a", 24, 20), ("b", 16, 8))
    subject, _, *body = site.forge.message().splitlines()
    assert subject == "Set 2 quotas of h100 (set soft)"
    assert body[:2] == ["a: 24 -> 20", "b: 16 -> 8"]
    trailers = git(site.forge.bare, "interpret-trailers", "--parse", stdin=site.forge.message())
    assert trailers.splitlines() == [
        "Backstop-Rollout: r-1",
        "Backstop-Fence: 1",
        "Backstop-Effect: set_soft",
        "Backstop-Cluster: h100",
        "Backstop-Actor: tpm",
    ]
    assert git(site.forge.bare, "log", "-1", "--format=%an %ae %cn") == "Fleet bot bot@example.org Fleet bot"


def test_only_the_digits_change(site: GitSystem) -> None:
    site.open()
    site.apply(SOFT, 1, ("a", 24, 8), ("b", 16, 8))
    assert site.forge.text() == QUOTAS.replace("gpus: 24", "gpus: 8").replace("{gpus: 16,", "{gpus: 8,")


def test_a_files_mode_stays(site: GitSystem) -> None:
    git(site.forge.clone, "update-index", "--chmod=+x", PATH)
    git(site.forge.clone, "commit", "--quiet", "-m", "Let it run")
    git(site.forge.clone, "push", "--quiet", "origin", "HEAD:main")
    site.open()
    site.apply(SOFT, 1, ("a", 24, 8))
    assert git(site.forge.bare, "ls-tree", "main", PATH).split()[0] == "100755"
    assert site.forge.text() == QUOTAS.replace("gpus: 24", "gpus: 8")


def test_an_effect_that_moves_no_quota_makes_no_commit(site: GitSystem) -> None:
    site.open()
    read = site.generation()
    site.apply(EffectKind.FOLLOW, 1, flex_gpus=8, expected_generation=read)
    site.apply(EffectKind.CLOSE, 2)
    assert site.forge.commits() == ["Begin"]


def test_a_team_may_have_any_name_that_people_can_read(site: GitSystem) -> None:
    site.forge.write({PATH: 'teams:\n  "a: é/b~#": {gpus: 24}\n'})
    site.apply(EffectKind.GRANT, 1, rollout="request/q-0")
    name = "a: é/b~#"
    write = ValueWrite(team=name, expected_gpus=24, gpus=20)
    fence = Fence(rollout="request/q-1", counter=1)
    site.port.apply(Change(cluster=CLUSTER, kind=EffectKind.GRANT, fence=fence, writes=(write,)))
    assert site.forge.gpus() == {name: 20}
    assert site.forge.message().splitlines()[2] == f"{name}: 24 -> 20"


def test_a_branch_with_more_commits_than_are_fetched_first(site: GitSystem) -> None:
    """The worker's copy is shallow, fetched on, and pushed from."""
    many = "".join(
        f"commit refs/heads/main\ncommitter Ada <a@example.org> {n} +0000\ndata 1\nx\n"
        + ("from refs/heads/main^0\n" if not n else "")
        + f"M 644 inline f{n % 7}\ndata 4\n{n:04}\n"
        for n in range(300)
    )
    git(site.forge.bare, "fast-import", "--quiet", stdin=many)
    site.open()
    site.apply(SOFT, 1, ("a", 24, 20))
    site.forge.write({"notes.txt": "x\n"})
    site.apply(SOFT, 2, ("b", 16, 12))
    assert site.there() == (20, 12)
    assert len(site.forge.commits()) == 304
    (own,) = (site.forge.bare.parents[1] / "worker").iterdir()
    assert int(git(own, "rev-list", "--count", "refs/backstop/tip")) < 210


@pytest.mark.slow
def test_one_file_of_two_thousand_changes(site: GitSystem) -> None:
    site.forge.write({f"apps/{n}/values.yaml": f"replicas: {n}\n" for n in range(2_000)}, "Add apps")
    site.open()
    site.apply(SOFT, 1, ("a", 24, 20))
    assert git(site.forge.bare, "diff", "--numstat", "main^", "main") == f"1\t1\t{PATH}"
    assert len(git(site.forge.bare, "ls-tree", "-r", "--name-only", "main").splitlines()) == 2_001


@pytest.mark.slow
def test_two_hundred_queues_among_two_thousand_files_move_in_one_commit(
    forge: Forge, ledger: Ledger, tmp_path: Path
) -> None:
    teams = [f"t{n}" for n in range(200)]
    files = {f"apps/{n}/values.yaml": f"replicas: {n}\n" for n in range(1_800)}
    files |= {f"apps/queues/{team}.yaml": QUEUE.format(name=team, gpus=24) for team in teams}
    forge.write(files, "Add queues")
    quotas = [{"team": team, "gpus": 24} for team in teams]
    take(ledger, spec(forge, quotas=quotas, path="apps", dialect="kueue", pointer=None))
    port = worker(ledger, tmp_path / "worker")
    writes = tuple(ValueWrite(team=team, expected_gpus=24, gpus=16) for team in teams[:150])
    fence = Fence(rollout="request/q-1", counter=1)
    receipt = port.apply(Change(cluster=CLUSTER, kind=EffectKind.GRANT, fence=fence, writes=writes))
    assert len(receipt.after) == 150
    changed = git(forge.bare, "diff", "--numstat", "main^", "main").splitlines()
    assert sorted(changed) == sorted(f"1\t1\tapps/queues/{team}.yaml" for team in teams[:150])
    assert forge.text("apps/queues/t0.yaml") == QUEUE.format(name="t0", gpus=16)


@pytest.mark.parametrize(
    ("script", "error", "sentence"),
    [
        ("echo 'quotas need a review' >&2; exit 1", Refusal, "quotas need a review"),
        ("echo 'fatal: write error: No space left on device' >&2; exit 1", Unavailable, "No space left on device"),
    ],
    ids=["a rule", "a full disk"],
)
def test_a_hook_refuses_the_push(site: GitSystem, script: str, error: type[BackstopError], sentence: str) -> None:
    site.open()
    site.forge.hook("pre-receive", script)
    with pytest.raises(error, match=sentence):
        site.apply(SOFT, 1, ("a", 24, 20))
    assert site.there() == (24, 16)
    assert site.port.read(CLUSTER).values == {"a": 24, "b": 16}
    (site.forge.bare / "hooks" / "pre-receive").unlink()
    site.apply(SOFT, 1, ("a", 24, 20))
    assert site.there() == (20, 16)


def test_a_remote_that_never_answers_is_left_and_its_ssh_is_gone(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho $$ >> {pids}\nexec tail -f /dev/null\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    source = {"repository": "git@forge.example.org:fleet/quotas.git", "path": PATH, "pointer": "/teams/{team}/gpus"}
    take(ledger, {**spec(Forge(tmp_path / "forge")), "git": source})
    port = worker(ledger, tmp_path / "worker", timedelta(seconds=1))
    with pytest.raises(Unavailable, match="git fetch did not end within 1 s"):
        port.read(CLUSTER)
    reading = port.look(CLUSTER)
    assert reading.values == {"a": 24, "b": 16}, "what was last known"
    assert "git fetch did not end" in reading.unread
    numbers = pids.read_text().split()
    assert numbers
    wait_until(lambda: not any(_is_alive(number) for number in numbers), "every ssh is gone")


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("teams: {a: {gpus: 24}, b: {gpus: 8k}}", f"{PATH}, line 1: a quota must be a whole number of GPUs, not '8k'"),
        ("teams:\n  a: {gpus: 24}\n  a: {gpus: 8}", f"{PATH}, line 3: the quota of a is given twice"),
        ("teams:\n  a: [\nb: 2\n", f"{PATH}, line 4: it is not valid YAML"),
        ("teams: {}\n<<<<<<< HEAD\nx: 1\n=======\n", f"{PATH}, line 3: it is not valid YAML"),
    ],
)
def test_a_file_that_makes_no_sense_is_named_with_its_line_and_nothing_is_lost(
    site: GitSystem, text: str, sentence: str
) -> None:
    site.open()
    site.forge.write({PATH: text})
    with pytest.raises(Unavailable) as refusal:
        site.port.read(CLUSTER)
    assert refusal.value.message.startswith(sentence)
    assert site.port.last_known(CLUSTER).values == {"a": 24, "b": 16}
    check = site.git.check()[CLUSTER]
    assert (check.system, check.wrong) == ("git", refusal.value.message)


def test_a_quota_that_is_gone_or_new_in_the_file_is_a_change_by_others(site: GitSystem) -> None:
    site.open()
    read = site.generation()
    site.forge.write({PATH: "teams:\n  a: {gpus: 24}\n  c: {gpus: 8}\n"})
    assert site.port.read(CLUSTER).values == {"a": 24, "c": 8}
    assert {(c.team, c.by.split(",")[0]) for c in site.port.changes(CLUSTER, read)} == {("b", "Ada"), ("c", "Ada")}


def test_doctor_names_what_is_not_there(site: GitSystem, ledger: Ledger) -> None:
    assert site.git.check()[CLUSTER].wrong == ""
    for field, value, sentence in (
        ("branch", "release", f"{site.forge.url} has no branch release"),
        ("path", "clusters/none.yaml", f"{site.forge.url} has no quota file at clusters/none.yaml on main"),
        ("repository", f"{site.forge.url}-none", "does not appear to be a git repository"),
    ):
        take(ledger, spec(site.forge, **dict[str, Any]({field: value})), number=field)
        assert sentence in site.git.check()[CLUSTER].wrong


def test_doctor_says_where_we_may_read_by_ssh_and_not_push(
    site: GitSystem, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(
        """#!/bin/sh
for last; do :; done
case "$last" in
  git-upload-pack*) exec sh -c "$last" ;;
  git-receive-pack*) echo 'backstop@forge: Permission denied (publickey).' >&2; exit 128 ;;
esac
"""
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    take(ledger, spec(site.forge, repository=f"backstop@forge:{site.forge.bare}"), number="2")
    check = site.git.check()[CLUSTER]
    assert (check.wrong, "Permission denied (publickey)" in check.barred) == ("", True)
    assert site.git.barred_reason(CLUSTER) == check.barred
    with pytest.raises(Refusal, match="git push is not allowed"):
        site.apply(EffectKind.GRANT, 1, ("a", 24, 20), rollout="request/q-1")


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("repository", "https://ada:s3cr3t@forge.example.org/q.git", "contains a password or token"),
        ("repository", "https://s3cr3t@forge.example.org/q.git", "contains a password or token"),
        ("repository", "ssh://ada:s3cr3t@forge.example.org/q.git", "contains a password or token"),
        ("repository", "ext::sh -c s3cr3t", "must be an absolute path"),
        ("repository", "--upload-pack=s3cr3t", "must be an absolute path"),
        ("repository", "quotas.git", "must be an absolute path"),
        ("branch", "--force", "must be the name of a branch"),
        ("branch", "a:b", "must be the name of a branch"),
        ("path", "../quotas.yaml", "must be a path inside the repository"),
        ("path", "/quotas.yaml", "must be a path inside the repository"),
        ("pointer", "/teams/gpus", "must have {team} once"),
        ("pointer", None, "is missing"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused_without_its_secret(
    field: str, value: str | None, sentence: str
) -> None:
    fields = {"repository": "/srv/q.git", "path": PATH, "pointer": "/teams/{team}/gpus", field: value}
    with pytest.raises(ValidationError) as refusal:
        GitSource.model_validate(fields)
    assert sentence in in_one_sentence(refusal.value)
    assert "s3cr3t" not in in_one_sentence(refusal.value)


@pytest.mark.parametrize(
    "repository",
    [
        "/srv/q.git",
        "https://forge.example.org/q.git",
        "ssh://git@forge.example.org:2222/q.git",
        "git@forge:fleet/q.git",
    ],
)
def test_what_git_reaches_without_a_secret_is_taken(repository: str) -> None:
    GitSource(repository=repository, path=PATH, pointer="/teams/{team}/gpus")


def test_variables_of_another_repository_lead_nowhere(
    site: GitSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Forge(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.bare))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    site.apply(EffectKind.GRANT, 1, ("a", 24, 20), rollout="request/q-1")
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert site.there() == (20, 16)
    assert other.text() == QUOTAS


def test_detach_leaves_the_file_or_restores_it(site: GitSystem, sqlite_ledger_url: str) -> None:
    site.open()
    site.apply(SOFT, 1, ("a", 24, 20), ("b", 16, 8))
    with pytest.raises(Refusal, match="r-1 is open"):
        site.git.detach(CLUSTER, restore=True)
    tool = ForeignTool(sqlite_ledger_url)
    tool.run("UPDATE clusters SET open_rollout = NULL")
    site.forge.edit("gpus: 20   #", "gpus: 21   #")
    assert site.git.detach(CLUSTER, restore=True, look=True) == {"b": (8, 16)}
    assert site.there() == (21, 8)
    assert site.git.detach(CLUSTER, restore=True) == {"b": (8, 16)}
    assert site.there() == (21, 16)
    assert site.forge.commits()[-1] == "Restore 1 quota of h100 to the state before Backstop"
    assert tool.one("SELECT source FROM clusters") is None


def test_no_file_moves_a_value_that_git_holds(site: GitSystem, ledger: Ledger) -> None:
    quotas = [{"team": "a", "gpus": 30, "minimum_gpus": 8}, {"team": "b", "gpus": 16}, {"team": "c", "gpus": 1}]
    outcome = take(ledger, spec(site.forge, quotas=quotas), number="2")
    why = {(line.name, line.field): line.why for line in outcome.lines if line.why}
    assert why == {
        ("a", "gpus"): "Git holds this value, so a file cannot set it: change it in Git",
        ("c", ""): "the repository had no quota of this name when Backstop last read it: add it there",
    }
    assert site.there() == (24, 16)
    assert yaml.safe_load(site.forge.text())["teams"]["a"]["gpus"] == 24
    without = spec(site.forge)
    del without["git"]
    (line,) = take(ledger, without, number="3").lines
    assert line.why == "Git holds its quotas: add git: to the file, or detach the cluster first"


def test_a_workers_settings_of_git_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().git == (timedelta(seconds=20), "Backstop <backstop@localhost>")
    monkeypatch.setenv("BACKSTOP_GIT_TIMEOUT", "45s")
    monkeypatch.setenv("BACKSTOP_GIT_COMMITTER", "Fleet bot <bot@example.org>")
    assert load_settings().git == (timedelta(seconds=45), "Fleet bot <bot@example.org>")
    for name, value, sentence in (
        ("BACKSTOP_GIT_TIMEOUT", "2m", "must be a duration from 1s to 50s such as 20s, not '2m'"),
        ("BACKSTOP_GIT_COMMITTER", "bot@example.org", "must be a name and an address such as"),
        ("BACKSTOP_GIT_COMMITTER", "x <a@b>\nfrom HEAD", "must be a name and an address such as"),
    ):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            with pytest.raises(BadInput) as refusal:
                load_settings()
        assert refusal.value.message.startswith(f"{name} {sentence}")


def test_a_cluster_whose_fleet_file_names_no_quota_has_those_of_the_repository(
    forge: Forge, ledger: Ledger, tmp_path: Path
) -> None:
    """The numbers are then in one place; floors and blocks come later, by the names that the ledger has then."""
    bare = {**spec(forge), "quotas": []}
    assert take(ledger, bare).counts["clusters"] == 1
    git_quotas = worker(ledger, tmp_path / "worker")
    assert git_quotas.read(CLUSTER).values == forge.gpus() == {"a": 24, "b": 16}
    for number, terms in enumerate(({}, {"prune": True}), 2):
        take(ledger, bare, number=str(number), **terms)
        assert git_quotas.read(CLUSTER).values == {"a": 24, "b": 16}, "neither does a later import take them away"
    bare["quotas"] = [{"team": "a", "gpus": 24, "protected_blocks": [16]}]
    take(ledger, bare, number="4")
    blocks = {quota.team: quota.protected_blocks for quota in git_quotas.read(CLUSTER).quotas}
    assert blocks == {"a": (16,), "b": ()}
