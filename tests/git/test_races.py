"""Several push to one branch at once: nobody's change is lost, and no effect lands twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from activities.adapters.git.command_line import GitTerms
from activities.adapters.git.quotas import GitQuotas
from activities.adapters.git.repository import Repository
from activities.adapters.slurm.quotas import SlurmQuotas
from activities.adapters.slurm.slurm import Slurms
from models.errors import Conflict, Drift, Refusal, Unavailable
from models.rollout.effects import Change, EffectKind, Receipt
from tests.git.world import CLUSTER, PATH, QUOTAS, GitSystem, ask_for_more, git, spec, take, worker
from tests.integration.ledger.world import ForeignTool

SOFT, RESTORE = EffectKind.SET_SOFT, EffectKind.RESTORE


BeforePush = Callable[[Callable[[], object]], None]


@pytest.fixture
def before_push(monkeypatch: pytest.MonkeyPatch) -> BeforePush:
    """Lets somebody act after the next commit is made and before it is pushed."""
    push = Repository.push

    def once(act: Callable[[], object]) -> None:
        def acts(branch: Repository, commit: str) -> bool:
            monkeypatch.setattr(Repository, "push", push)
            act()
            return push(branch, commit)

        monkeypatch.setattr(Repository, "push", acts)

    return once


def test_somebodys_other_file_and_other_line_are_kept_and_the_effect_lands(
    site: GitSystem, before_push: BeforePush
) -> None:
    site.open()
    read = site.generation()
    before_push(lambda: site.forge.edit("ask capacity@ first", "ask capacity@ and finance@ first"))
    site.apply(SOFT, 1, ("a", 24, 20), expected_generation=read)
    before_push(lambda: site.forge.write({"README.md": "Quotas of the fleet\n"}, "Say what this is"))
    site.apply(SOFT, 2, ("a", 20, 16), expected_generation=read)
    assert site.forge.text() == QUOTAS.replace("gpus: 24", "gpus: 16").replace(
        "capacity@ f", "capacity@ and finance@ f"
    )
    assert site.forge.text("README.md") == "Quotas of the fleet\n"
    ours = "Set 1 quota of h100 (set soft)"
    assert site.forge.commits() == ["Begin", "Change quotas", ours, "Say what this is", ours]
    assert site.generation() == read, "its own writes and what is no quota move nothing"


@pytest.mark.parametrize("by_server", [False, True], ids=["before the push", "within the push"])
def test_a_value_that_a_person_changes_meanwhile_refuses_the_effect_whole(
    site: GitSystem, by_server: bool, before_push: BeforePush
) -> None:
    site.open()
    read = site.generation()
    if by_server:  # both pushes are at the server at the same time, and theirs lands first
        commit = site.forge.edit("{gpus: 16,", "{gpus: 12,")
        git(site.forge.bare, "update-ref", "refs/heads/main", f"{commit}^")
        git(site.forge.bare, "update-ref", "refs/heads/theirs", commit)
        site.forge.hook(
            "pre-receive",
            "unset GIT_QUARANTINE_PATH; git update-ref refs/heads/main refs/heads/theirs; rm hooks/pre-receive",
        )
    else:
        before_push(lambda: site.forge.edit("{gpus: 16,", "{gpus: 12,"))
    with pytest.raises(Drift, match="somebody else changed its quotas"):
        site.apply(SOFT, 1, ("a", 24, 16), ("b", 16, 8), expected_generation=read)
    assert site.there() == (24, 12)
    assert site.forge.commits()[-1] == "Change quotas"
    (theirs,) = site.port.changes(CLUSTER, read)
    assert (theirs.team, theirs.by) == ("b", f"Ada, commit {git(site.forge.bare, 'rev-parse', 'main')[:8]}")


def test_an_inverse_leaves_the_line_that_a_person_changes_meanwhile_and_restores_the_rest(
    site: GitSystem, before_push: BeforePush
) -> None:
    site.open()
    site.apply(SOFT, 1, ("a", 24, 16), ("b", 16, 8))
    before_push(lambda: site.forge.edit("gpus: 16   #", "gpus: 13   #"))
    receipt = site.apply(RESTORE, 2, ("a", 16, 24), ("b", 8, 16))
    assert [(c.team, c.found_gpus) for c in receipt.conflicts] == [("a", 13)]
    assert site.there() == (13, 16)


def test_a_worker_that_dies_after_its_push_has_pushed_once(site: GitSystem, tmp_path: Path) -> None:
    site.open()
    read = site.generation()
    with pytest.raises(Unavailable):
        dying(site, tmp_path).apply(site.change(SOFT, 1, ("a", 24, 16), expected_generation=read))
    assert site.there() == (16, 16)
    another = worker(site.ledger, tmp_path / "another")
    reading = another.read(CLUSTER)
    assert (reading.generation, reading.values["a"]) == (read, 24), "nobody has changed anything"
    receipt = another.apply(site.change(SOFT, 1, ("a", 24, 16), expected_generation=read))
    assert (receipt.before, receipt.after) == ({"a": 24}, {"a": 16})
    assert site.forge.commits() == ["Begin", "Set 1 quota of h100 (set soft)"]
    assert another.read(CLUSTER).values == {"a": 16, "b": 16}
    assert another.changes(CLUSTER, read) == ()


def test_a_commit_of_a_dead_worker_is_kept_although_others_have_pushed_another_number_since(
    site: GitSystem, tmp_path: Path
) -> None:
    """The branch took it under the generation of its plan. Drift would say that nothing was written."""
    site.open()
    read = site.generation()
    with pytest.raises(Unavailable):
        dying(site, tmp_path).apply(site.change(SOFT, 1, ("a", 24, 16), expected_generation=read))
    site.forge.edit("{gpus: 16,", "{gpus: 12,")
    receipt = site.apply(SOFT, 1, ("a", 24, 16), expected_generation=read)
    assert (receipt.before, receipt.after, receipt.generation) == ({"a": 24}, {"a": 16}, read + 1)
    assert site.there() == (16, 12)
    assert site.port.read(CLUSTER).values == {"a": 16, "b": 12}


def test_a_commit_of_a_dead_worker_whose_number_a_person_has_changed_is_refused_so_that_it_is_undone(
    site: GitSystem, tmp_path: Path
) -> None:
    site.open()
    read = site.generation()
    with pytest.raises(Unavailable):
        dying(site, tmp_path).apply(site.change(SOFT, 1, ("a", 24, 16), ("b", 16, 8), expected_generation=read))
    site.forge.edit("{gpus: 8,", "{gpus: 12,")
    with pytest.raises(Refusal, match="after the effect had begun"):
        site.apply(SOFT, 1, ("a", 24, 16), ("b", 16, 8), expected_generation=read)
    receipt = site.apply(RESTORE, 2, ("a", 16, 24), ("b", 8, 16))
    assert [(c.team, c.found_gpus) for c in receipt.conflicts] == [("b", 12)]
    assert site.there() == (24, 12)


def test_what_a_dead_worker_pushed_is_taken_back_by_an_undo(site: GitSystem, tmp_path: Path) -> None:
    site.open()
    read = site.generation()
    with pytest.raises(Unavailable):
        dying(site, tmp_path).apply(site.change(SOFT, 1, ("a", 24, 16), ("b", 16, 8)))
    site.forge.edit("{gpus: 8,", "{gpus: 9,")
    receipt = site.apply(RESTORE, 2, ("a", 16, 24), ("b", 8, 16))
    assert site.there() == (24, 9), "what a person set since stays"
    assert [(c.team, c.found_gpus) for c in receipt.conflicts] == [("b", 9)]
    assert site.generation() == read + 1


def test_a_push_that_was_delayed_past_the_undo_is_refused(
    site: GitSystem, tmp_path: Path, sqlite_ledger_url: str, before_push: BeforePush
) -> None:
    """The worker stands still between its commit and its push; its lease ends, and the effect is undone meanwhile."""
    site.open()
    another = worker(site.ledger, tmp_path / "another")

    def undone_meanwhile() -> None:
        ForeignTool(sqlite_ledger_url).run("DELETE FROM scheduler_locks")
        another.apply(site.change(RESTORE, 2, ("a", 16, 24)))

    before_push(undone_meanwhile)
    with pytest.raises(
        Conflict, match="came too late and was not written: the branch already has a later one, effect 2"
    ):
        site.apply(SOFT, 1, ("a", 24, 16))
    assert site.there() == (24, 16)
    assert site.forge.commits() == ["Begin", "Keep the quotas of h100 (restore)"]
    assert git(site.forge.bare, "diff", "main^", "main") == "", "the undo had nothing to change, and says so"


def test_two_clusters_of_one_repository_get_a_commit_each(
    site: GitSystem, tmp_path: Path, before_push: BeforePush
) -> None:
    """Two workers push to one branch for two clusters; the slower one tries again on top of the other's commit."""
    text = "teams:\n  c: {gpus: 8}\n"
    site.forge.write({"clusters/b200/quotas.yaml": text}, "Add b200")
    quotas = [{"team": "c", "gpus": 8}]
    take(site.ledger, spec(site.forge, "b200", quotas, path="clusters/b200/quotas.yaml"), number="2")
    another = worker(site.ledger, tmp_path / "another")
    grant = site.change(EffectKind.GRANT, 1, ("c", 8, 4), rollout="request/q-2", cluster="b200")
    before_push(lambda: another.apply(grant))
    site.apply(EffectKind.GRANT, 1, ("a", 24, 16), rollout="request/q-1")
    assert site.there() == (16, 16)
    assert site.forge.text("clusters/b200/quotas.yaml") == text.replace("8", "4")
    assert site.forge.commits()[2:] == ["Set 1 quota of b200 (grant)", "Set 1 quota of h100 (grant)"]


def test_a_rewritten_branch_is_a_change_by_others(site: GitSystem) -> None:
    site.open()
    read = site.generation()
    site.apply(SOFT, 1, ("a", 24, 16), expected_generation=read)
    git(site.forge.bare, "update-ref", "refs/heads/main", "main^")  # their force-push drops our commit
    assert site.generation() == read + 1
    assert site.port.read(CLUSTER).values["a"] == 24
    with pytest.raises(Drift):
        site.apply(SOFT, 2, ("b", 16, 8), expected_generation=read)
    assert site.forge.text() == QUOTAS


def test_what_a_dead_worker_granted_is_nobodys_change_while_the_request_is_open(
    site: GitSystem, tmp_path: Path, sqlite_ledger_url: str
) -> None:
    ask_for_more(sqlite_ledger_url)
    grant = site.change(EffectKind.GRANT, 1, ("a", 24, 30), rollout="request/q-1")
    read = site.generation()
    with pytest.raises(Unavailable):
        dying(site, tmp_path).apply(grant)
    assert (site.port.read(CLUSTER).values["a"], site.generation()) == (24, read)
    assert site.port.apply(grant).after == {"a": 30}
    assert site.forge.commits() == ["Begin", "Set 1 quota of h100 (grant)"]


def test_a_commit_of_another_backstop_is_a_change_by_others(site: GitSystem, tmp_path: Path) -> None:
    """Its ledger is not ours: nobody here will ever deliver that effect again."""
    site.open()
    read = site.generation()
    text = "Set 1 quota\n\nBackstop-Rollout: r-9\nBackstop-Fence: 7\nBackstop-Effect: harden\nBackstop-Cluster: h100"
    site.forge.write({PATH: QUOTAS.replace("gpus: 24", "gpus: 20")}, text)
    assert (site.port.read(CLUSTER).values["a"], site.generation()) == (20, read + 1)


class _Dying(SlurmQuotas):
    def apply(self, change: Change) -> Receipt:
        raise Unavailable("the worker has died")


def dying(site: GitSystem, folder: Path) -> GitQuotas:
    """A worker that pushes and dies before the ledger keeps that."""
    slurms = Slurms(site.ledger, site.ledger.schedulers)
    return GitQuotas(site.ledger, _Dying(slurms), slurms, folder / "dying")


def test_clusters_that_look_at_one_branch_at_once_share_a_fetch(
    site: GitSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = Repository(str(site.forge.bare), "main", tmp_path / "shared", GitTerms())
    run, calls, ask, asked = branch._git.run, list[str](), branch._lock_folder, threading.Semaphore(0)

    def counted(*arguments: str, stdin: bytes = b"") -> str:
        calls.append(arguments[0])
        return run(*arguments, stdin=stdin)

    def entered() -> AbstractContextManager[None]:
        asked.release()
        return ask()

    monkeypatch.setattr(branch._git, "run", counted)
    monkeypatch.setattr(branch, "_lock_folder", entered)
    with ThreadPoolExecutor(3) as clusters:
        with branch._fetching:
            looks = [clusters.submit(branch.fetch) for _ in range(3)]
            for _ in looks:
                asked.acquire()
        tip = git(site.forge.bare, "rev-parse", "main")
        assert [look.result() for look in looks] == [tip] * 3
    assert calls.count("fetch") == 1
    site.forge.edit("ask capacity@ first", "ask finance@ first")
    assert branch.fetch() == git(site.forge.bare, "rev-parse", "main") != tip, "who asks later sees what came later"
    site.forge.bare.rename(tmp_path / "gone")
    with pytest.raises(Unavailable, match="git fetch failed"):
        branch.fetch()
