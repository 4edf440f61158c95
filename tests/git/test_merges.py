"""Effects that people merge: what they, other workers and other people do to a branch meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from activities.adapters.git.quotas import GitQuotas
from activities.adapters.git.repository import Repository
from activities.adapters.ledger.facade import Ledger
from models.errors import AwaitsMerge, Conflict, Drift, Refusal, Unavailable
from models.rollout.effects import EffectKind, Receipt
from tests.git.world import CLUSTER, PATH, QUOTAS, Forge, ProposeSystem, ask_for_more, git, spec, take, worker
from tests.integration.ledger.test_observations import counted_queries
from tests.integration.ledger.world import ForeignTool

SOFT, RESTORE, FOLLOW = EffectKind.SET_SOFT, EffectKind.RESTORE, EffectKind.FOLLOW


@pytest.fixture
def site(forge: Forge, ledger: Ledger, tmp_path: Path) -> ProposeSystem:
    system = ProposeSystem(forge, ledger, tmp_path / "worker")
    system.open()
    return system


def unmerged(site: ProposeSystem) -> str:
    """The branch that the rollout's next look reads."""
    return site.port.look(CLUSTER).unmerged


def test_an_effect_waits_on_a_branch_with_its_trailers(site: ProposeSystem) -> None:
    said = site.propose(SOFT, 1, ("a", 24, 16), ("b", 16, 8))
    assert site.forge.branches() == ["backstop/h100/r-1-1"]
    assert said.startswith("branch backstop/h100/r-1-1 has waited since 20")
    assert said.endswith(f"to merge it into main of {site.forge.url}: a 24 -> 16, b 16 -> 8")
    assert site.there() == (24, 16)
    assert site.port.read(CLUSTER).values == {"a": 24, "b": 16}
    message = site.forge.message("backstop/h100/r-1-1")
    assert git(site.forge.bare, "interpret-trailers", "--parse", stdin=message).splitlines() == [
        "Backstop-Rollout: r-1",
        "Backstop-Fence: 1",
        "Backstop-Effect: set_soft",
        "Backstop-Cluster: h100",
        "Backstop-Actor: tpm",
    ]
    assert site.propose(SOFT, 2, ("a", 24, 16), ("b", 16, 8)) == said, "a later delivery waits on the same branch"
    assert site.forge.branches() == ["backstop/h100/r-1-1"]


@pytest.mark.parametrize("how", ["merge", "squash", "rebase", "by hand"])
@pytest.mark.parametrize("delete", [False, True], ids=["branch kept", "branch deleted"])
def test_merged_is_what_the_tracked_branch_has(site: ProposeSystem, how: str, delete: bool) -> None:
    read = site.generation()
    site.propose(SOFT, 1, ("a", 24, 16), expected_generation=read)
    assert unmerged(site) == "backstop/h100/r-1-1"
    if how == "by hand":
        site.somebody_sets("a", 16)
        if delete:
            git(site.forge.bare, "branch", "-D", "backstop/h100/r-1-1")
    else:
        site.forge.merge(how, delete=delete)
    assert unmerged(site) == ""
    assert site.port.read(CLUSTER).values["a"] == 24, "the ledger has it once the effect is delivered again"
    receipt = site.apply(SOFT, 2, ("a", 24, 16), expected_generation=read)
    assert (receipt.before, receipt.after) == ({"a": 24}, {"a": 16})
    assert (site.there(), site.generation()) == ((16, 16), read)
    assert site.forge.branches() == [], "a merged branch is deleted"
    assert site.port.changes(CLUSTER, read) == ()


def test_what_was_merged_is_kept_although_others_have_pushed_another_number_since(site: ProposeSystem) -> None:
    """Drift would say that nothing was written, and no undo would be owed."""
    read = site.generation()
    site.propose(SOFT, 1, ("a", 24, 16), expected_generation=read)
    site.forge.merge("merge", delete=True)
    site.somebody_sets("b", 12)
    receipt = site.apply(SOFT, 2, ("a", 24, 16), expected_generation=read)
    assert (receipt.before, receipt.after, receipt.generation) == ({"a": 24}, {"a": 16}, read + 1)
    assert site.port.read(CLUSTER).values == {"a": 16, "b": 12}
    (theirs,) = site.port.changes(CLUSTER, read)
    assert theirs.team == "b"


def test_a_change_elsewhere_leaves_the_branch_as_it_is(site: ProposeSystem) -> None:
    site.propose(SOFT, 1, ("a", 24, 16))
    proposed = git(site.forge.bare, "rev-parse", "backstop/h100/r-1-1")
    site.forge.write({"README.md": "Quotas of the fleet\n"}, "Say what this is")
    site.forge.edit('contact: "b@', 'contact: "bb@')
    assert unmerged(site) == "backstop/h100/r-1-1"
    assert git(site.forge.bare, "rev-parse", "backstop/h100/r-1-1") == proposed
    assert site.apply(SOFT, 2, ("a", 24, 16)).after == {"a": 16}
    assert site.forge.text() == QUOTAS.replace("gpus: 24", "gpus: 16").replace("b@", "bb@")


def test_a_branch_that_cannot_be_merged_any_more_is_made_anew(site: ProposeSystem) -> None:
    site.propose(SOFT, 1, ("a", 24, 16))
    site.forge.edit("# until the next order", "# by order of finance@")
    assert unmerged(site) == "", "git would have a conflict in the line"
    site.propose(SOFT, 2, ("a", 24, 16))
    assert site.forge.branches() == ["backstop/h100/r-1-2"]
    assert "gpus: 16   # by order of finance@" in site.forge.text(commit="backstop/h100/r-1-2")
    assert site.apply(SOFT, 3, ("a", 24, 16)).after == {"a": 16}


def test_another_value_in_the_same_line_is_drift(site: ProposeSystem) -> None:
    read = site.generation()
    site.propose(SOFT, 1, ("a", 24, 16), expected_generation=read)
    site.somebody_sets("a", 20)
    assert unmerged(site) == ""
    with pytest.raises(Drift):
        site.port.apply(site.change(SOFT, 2, ("a", 24, 16), expected_generation=read))
    (theirs,) = site.port.changes(CLUSTER, read)
    assert theirs.by.startswith("Ada, commit ")
    site.propose(SOFT, 3, ("a", 20, 16), expected_generation=read + 1)
    assert site.forge.branches() == ["backstop/h100/r-1-3"]


def test_what_people_change_in_the_branch_before_they_merge_it_is_drift(site: ProposeSystem) -> None:
    read = site.generation()
    site.propose(SOFT, 1, ("a", 24, 16), ("b", 16, 8), expected_generation=read)
    git(site.forge.clone, "fetch", "--quiet", "origin")
    git(site.forge.clone, "checkout", "--quiet", "-B", "fix", "origin/backstop/h100/r-1-1")
    path = site.forge.clone / PATH
    path.write_text(path.read_text().replace("gpus: 8,", "gpus: 10,"))
    git(site.forge.clone, "commit", "--quiet", "-a", "-m", "Leave b a little more")
    git(site.forge.clone, "push", "--quiet", "origin", "HEAD:backstop/h100/r-1-1")
    site.forge.merge()
    with pytest.raises(Drift):
        site.port.apply(site.change(SOFT, 2, ("a", 24, 16), ("b", 16, 8), expected_generation=read))
    (theirs,) = site.port.changes(CLUSTER, read)
    assert (theirs.team, theirs.by.partition(",")[0]) == ("b", "Ada")
    receipt = site.apply(RESTORE, 3, ("a", 16, 24), ("b", 8, 16))
    assert [(c.team, c.found_gpus) for c in receipt.conflicts] == [("b", 10)]
    assert site.there() == (24, 10), "the undo brings back what was merged as it was meant"


def test_a_branch_that_people_delete_is_declined_once(site: ProposeSystem) -> None:
    site.propose(SOFT, 1, ("a", 24, 16))
    git(site.forge.bare, "branch", "-D", "backstop/h100/r-1-1")
    assert unmerged(site) == ""
    with pytest.raises(
        Refusal,
        match=r"^branch backstop/h100/r-1-1 was deleted without being merged into main, so Backstop treats its "
        "change as declined: a 24 -> 16",
    ):
        site.port.apply(site.change(SOFT, 2, ("a", 24, 16)))
    site.propose(SOFT, 3, ("a", 24, 16))
    assert site.forge.branches() == ["backstop/h100/r-1-3"], "whoever asks again gets a branch again"


def test_an_undo_withdraws_a_branch_that_nobody_has_merged(site: ProposeSystem) -> None:
    site.propose(SOFT, 1, ("a", 24, 16))
    receipt = site.port.apply(site.change(RESTORE, 2, ("a", 16, 24)))
    assert receipt.conflicts == ()
    assert (site.forge.branches(), site.there()) == ([], (24, 16))
    assert site.forge.commits() == ["Begin"]
    with pytest.raises(Conflict):
        site.port.apply(site.change(SOFT, 1, ("a", 24, 16)))
    assert site.forge.branches() == []


@pytest.mark.parametrize("moment", ["before the undo", "while it withdraws the branch"])
def test_an_undo_of_what_was_merged_meanwhile_waits_for_a_merge_of_its_own(
    site: ProposeSystem, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = site.generation()
    site.propose(SOFT, 1, ("a", 24, 16))
    if moment == "before the undo":
        site.forge.merge("squash", delete=True)
    else:
        withdraw = Repository.withdraw

        def merged_first(repository: Repository, branch: str, commit: str) -> bool:
            monkeypatch.setattr(Repository, "withdraw", withdraw)
            site.forge.merge("squash")
            return withdraw(repository, branch, commit)

        monkeypatch.setattr(Repository, "withdraw", merged_first)
    said = site.propose(RESTORE, 2, ("a", 16, 24))
    assert said.endswith("a 16 -> 24")
    assert site.forge.branches() == ["backstop/h100/r-1-2"]
    assert (site.there(), site.generation()) == ((16, 16), read), "nobody else has changed anything"
    assert site.apply(RESTORE, 3, ("a", 16, 24)).conflicts == ()
    assert (site.forge.branches(), site.there(), site.generation()) == ([], (24, 16), read)


def test_a_branch_that_is_pushed_too_late_is_deleted_at_the_next_look(
    site: ProposeSystem, tmp_path: Path, sqlite_ledger_url: str, before_propose: Callable[[Callable[[], object]], None]
) -> None:
    """The worker stands still before its push; its lease ends, and the effect is undone meanwhile."""
    another = worker(site.ledger, tmp_path / "another")

    def undone_meanwhile() -> None:
        ForeignTool(sqlite_ledger_url).run("DELETE FROM scheduler_locks")
        another.apply(site.change(RESTORE, 2, ("a", 16, 24)))

    before_propose(undone_meanwhile)
    with pytest.raises(Unavailable, match="another write to the scheduler of h100 began during this one"):
        site.port.apply(site.change(SOFT, 1, ("a", 24, 16)))
    assert site.forge.branches() == ["backstop/h100/r-1-1"]
    assert another.look(CLUSTER).unmerged == ""
    assert site.forge.branches() == []
    with pytest.raises(Conflict):
        site.port.apply(site.change(SOFT, 1, ("a", 24, 16)))
    assert (site.forge.branches(), site.there()) == ([], (24, 16))


@pytest.fixture
def before_propose(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Lets somebody act after the next commit is made and before its branch is pushed."""
    propose = Repository.propose

    def once(act: Callable[[], object]) -> None:
        def acts(repository: Repository, commit: str, branch: str) -> bool:
            monkeypatch.setattr(Repository, "propose", propose)
            act()
            return propose(repository, commit, branch)

        monkeypatch.setattr(Repository, "propose", acts)

    return once


def test_a_push_that_failed_is_tried_again_and_declined_by_nobody(
    site: ProposeSystem, before_propose: Callable[[Callable[[], object]], None]
) -> None:
    def dies() -> None:
        raise Unavailable("the worker has died")

    before_propose(dies)
    with pytest.raises(Unavailable):
        site.port.apply(site.change(SOFT, 1, ("a", 24, 16)))
    assert site.forge.branches() == []
    site.propose(SOFT, 1, ("a", 24, 16))
    assert site.forge.branches() == ["backstop/h100/r-1-1"]


def test_a_worker_that_dies_after_its_push_has_pushed_once(site: ProposeSystem, tmp_path: Path) -> None:
    site.propose(SOFT, 1, ("a", 24, 16))
    site.ledger.merges.keep(CLUSTER, site.ledger.merges.of_cluster(CLUSTER).but(pushed=False))  # type: ignore[union-attr]
    pushed = git(site.forge.bare, "rev-parse", "backstop/h100/r-1-1")
    with pytest.raises(AwaitsMerge):
        worker(site.ledger, tmp_path / "another").apply(site.change(SOFT, 1, ("a", 24, 16)))
    assert site.forge.branches() == ["backstop/h100/r-1-1"]
    assert git(site.forge.bare, "rev-parse", "backstop/h100/r-1-1") == pushed


def test_an_effect_that_moves_no_quota_does_not_wait_for_the_one_that_does(site: ProposeSystem) -> None:
    site.propose(SOFT, 1, ("a", 24, 16))
    assert site.port.apply(site.change(FOLLOW, 2, flex_gpus=8)).flex_gpus == 8
    assert unmerged(site) == "backstop/h100/r-1-1"
    site.forge.merge("squash", delete=True)
    assert site.port.apply(site.change(FOLLOW, 3, flex_gpus=9)).flex_gpus == 9
    assert site.there() == (16, 16), "it undoes nothing of the other"
    assert site.apply(SOFT, 4, ("a", 24, 16)).after == {"a": 16}


def test_another_plan_takes_the_place_of_the_branch(site: ProposeSystem) -> None:
    site.propose(SOFT, 1, ("a", 24, 16))
    site.propose(SOFT, 2, ("a", 24, 12))
    assert site.forge.branches() == ["backstop/h100/r-1-2"]
    assert site.apply(SOFT, 3, ("a", 24, 12)).after == {"a": 12}


def test_a_request_that_is_over_leaves_no_branch(
    forge: Forge, ledger: Ledger, tmp_path: Path, sqlite_ledger_url: str
) -> None:
    site = ProposeSystem(forge, ledger, tmp_path / "worker")
    ask_for_more(sqlite_ledger_url)
    site.propose(EffectKind.GRANT, 1, ("a", 24, 30), rollout="request/q-1")
    assert forge.branches() == ["backstop/h100/request-q-1-1"]
    ForeignTool(sqlite_ledger_url).run("UPDATE requests SET ended = 1")
    assert (unmerged(site), forge.branches()) == ("", [])


def test_a_branch_of_another_backstop_is_left_alone(site: ProposeSystem) -> None:
    """Its ledger is not ours: nobody here knows whether anybody still wants it."""
    text = "Set 1 quota\n\nBackstop-Rollout: r-9\nBackstop-Fence: 7\nBackstop-Effect: harden\nBackstop-Cluster: h100"
    commit = git(site.forge.bare, "commit-tree", "-p", "main", "-m", text, "main^{tree}")
    git(site.forge.bare, "branch", "backstop/h100/r-9-7", commit)
    site.propose(SOFT, 1, ("a", 24, 16))
    assert site.forge.branches() == ["backstop/h100/r-1-1", "backstop/h100/r-9-7"]


def test_the_watch_learns_of_a_branch_and_of_its_merge(site: ProposeSystem) -> None:
    versions = [site.port.versions([CLUSTER])[CLUSTER]]
    site.propose(SOFT, 1, ("a", 24, 16))
    versions.append(site.port.versions([CLUSTER])[CLUSTER])
    site.forge.merge("squash", delete=True)
    versions.append(site.port.versions([CLUSTER])[CLUSTER])
    assert versions[1] == f"{versions[0]} before backstop/h100/r-1-1"
    assert versions[2] == f"{versions[0]} with backstop/h100/r-1-1"
    assert site.port.last_known(CLUSTER).merged


def test_a_worker_that_may_push_no_branch_is_barred(site: ProposeSystem) -> None:
    assert site.port.barred_reason(CLUSTER) == ""
    site.forge.hook("update", 'case "$1" in refs/heads/backstop/*) echo "no branches here" >&2; exit 1;; esac')
    with pytest.raises(Refusal, match=r"the repository refuses the push: .*no branches here"):
        site.port.apply(site.change(SOFT, 1, ("a", 24, 16)))
    assert site.forge.branches() == []


def test_detach_with_restore_is_refused_where_it_would_push(site: ProposeSystem, sqlite_ledger_url: str) -> None:
    site.apply(SOFT, 1, ("a", 24, 20))
    ForeignTool(sqlite_ledger_url).run("UPDATE clusters SET open_rollout = NULL")
    with pytest.raises(
        Refusal, match=r"Backstop may only propose changes to h100 \(mode: propose\), so --restore cannot push 1 quota"
    ):
        site.git.detach(CLUSTER, restore=True)
    assert site.git.detach(CLUSTER, restore=False) == {}
    assert site.there() == (20, 16)


def goes_to(mode: str, site: ProposeSystem, number: str) -> None:
    """The fleet file changes `mode` while the rollout is open."""
    outcome = take(site.ledger, spec(site.forge, mode=mode), number=number)
    assert [(line.name, line.verb) for line in outcome.lines] == [("git", "changed")]


def waits_in_ledger(url: str) -> int:
    return int(ForeignTool(url).one("SELECT count(*) FROM awaited_merges"))


@pytest.mark.parametrize(
    ("kind", "merged"),
    [
        (SOFT, "unmerged"),
        (SOFT, "merged while it is withdrawn"),
        (RESTORE, "unmerged"),
        (RESTORE, "merged before"),
    ],
)
def test_a_branch_that_waits_while_the_mode_goes_to_push_is_withdrawn_and_the_effect_pushed(
    site: ProposeSystem, sqlite_ledger_url: str, kind: EffectKind, merged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = site.generation()
    site.propose(SOFT, 1, ("a", 24, 16), expected_generation=read)
    if merged == "merged before":
        site.forge.merge("squash")
    withdraw = Repository.withdraw

    def merged_first(repository: Repository, branch: str, commit: str) -> bool:
        monkeypatch.setattr(Repository, "withdraw", withdraw)
        if merged == "merged while it is withdrawn":
            site.forge.merge("squash")
        return withdraw(repository, branch, commit)

    monkeypatch.setattr(Repository, "withdraw", merged_first)
    goes_to("push", site, "2")
    assert unmerged(site) == "", "it waits for nobody, so that the rollout delivers it again"
    assert site.generation() == read, "what people merged is nobody's change"
    change = ("a", 24, 16) if kind is SOFT else ("a", 16, 24)
    receipt = site.port.apply(site.change(kind, 2, change, expected_generation=read if kind is SOFT else None))
    assert receipt.conflicts == ()
    assert (site.forge.branches(), site.there()) == ([], (16 if kind is SOFT else 24, 16))
    assert (site.generation(), site.port.changes(CLUSTER, read)) == (read, ())
    assert waits_in_ledger(sqlite_ledger_url) == 0
    site.somebody_sets("b", 12)
    assert (site.port.read(CLUSTER).values["b"], site.generation()) == (12, read + 1)


def test_an_effect_that_moves_no_quota_leaves_in_push_mode_what_people_merged(site: ProposeSystem) -> None:
    site.propose(SOFT, 1, ("a", 24, 16))
    site.forge.merge("squash")
    goes_to("push", site, "2")
    site.port.apply(site.change(FOLLOW, 2, flex_gpus=8))
    assert site.there() == (16, 16)
    assert site.port.apply(site.change(SOFT, 3, ("a", 24, 16))).after == {"a": 16}
    assert site.forge.commits() == ["Begin", "Change quotas as agreed"]


def test_an_effect_that_was_pushed_before_the_mode_goes_to_propose_is_kept_and_not_proposed(
    forge: Forge, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies between its push and the ledger."""
    site = ProposeSystem(forge, ledger, tmp_path / "worker")
    goes_to("push", site, "2")
    site.open()
    read = site.generation()
    keep = GitQuotas._keep_effect

    def dies(*_: object) -> Receipt:
        monkeypatch.setattr(GitQuotas, "_keep_effect", keep)
        raise Unavailable("the worker has died")

    monkeypatch.setattr(GitQuotas, "_keep_effect", dies)
    with pytest.raises(Unavailable):
        site.port.apply(site.change(SOFT, 1, ("a", 24, 16), expected_generation=read))
    assert site.there() == (16, 16)
    goes_to("propose", site, "3")
    assert (site.port.look(CLUSTER).generation, site.port.changes(CLUSTER, read)) == (read, ())
    receipt = site.port.apply(site.change(SOFT, 1, ("a", 24, 16), expected_generation=read))
    assert (receipt.after, site.forge.branches(), site.generation()) == ({"a": 16}, [], read)
    assert site.propose(RESTORE, 2, ("a", 16, 24)).endswith("a 16 -> 24")


def test_the_merges_of_all_clusters_are_read_in_one_query(forge: Forge, ledger: Ledger, tmp_path: Path) -> None:
    names = [f"h{number}" for number in range(6)]
    take(ledger, *(spec(forge, name, mode="propose") for name in names))
    git_quotas = worker(ledger, tmp_path / "worker", every=timedelta(hours=1))
    git_quotas.versions(names)
    with counted_queries() as queries:
        git_quotas.versions(names)
    assert len([text for text in queries if "awaited_merges" in text]) == 1
