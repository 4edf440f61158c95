"""Several write to ClusterQueues at once, and what an API server can do to a write. kubectl reads what is there."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.adapters.kubernetes.api import ApiServer
from activities.adapters.ledger.facade import Ledger
from models.cluster.readings import LimitMode
from models.errors import Conflict, Drift, Refusal, Unavailable
from models.rollout.effects import EffectKind, ValueWrite
from tests.git.world import CLUSTER, take
from tests.integration.ledger.world import ForeignTool
from tests.kubernetes.emulator import QUEUES, Cluster, Emulator, queue, running
from tests.kubernetes.kueue_world import KueueSystem, kubectl_for, spec, with_queues, worker
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(not all(map(shutil.which, ("kubectl", "jq"))), reason="kubectl or jq is not installed")
SOFT, RESTORE = EffectKind.SET_SOFT, EffectKind.RESTORE
BeforeApply = Callable[[Callable[[], object]], None]


class Site(KueueSystem):
    server: Cluster

    def emulator(self, do: Callable[[Emulator], Any]) -> Any:
        return self.server.on_loop(do)

    def writes(self) -> list[str]:
        """The queues that Backstop wrote, in order."""
        writes = self.emulator(lambda emulator: list(emulator.writes))
        return [name for _, name, params in writes if params.get("fieldManager") == "backstop"]

    def refuse(self, code: int) -> None:
        self.emulator(lambda emulator: emulator.refusals.update({"update clusterqueues": code}))


@pytest.fixture
def site(server: Cluster, ledger: Ledger, tmp_path: Path) -> Site:
    site = Site(kubectl_for(with_queues(server), tmp_path), ledger)
    site.server = server
    return site


@pytest.fixture
def another(site: Site) -> Any:
    """Another worker before the same ledger."""
    return worker(site.ledger, site.kubectl.kubeconfig)


@pytest.fixture
def before_apply(monkeypatch: pytest.MonkeyPatch) -> BeforeApply:
    """Lets somebody act once after the queues are read and before one is written."""
    apply = ApiServer.apply

    def once(act: Callable[[], object]) -> None:
        async def acts(server: ApiServer, *arguments: Any, **more: Any) -> Any:
            monkeypatch.setattr(ApiServer, "apply", apply)
            await asyncio.to_thread(act)
            return await apply(server, *arguments, **more)

        monkeypatch.setattr(ApiServer, "apply", acts)

    return once


def test_a_write_changes_its_quota_alone_and_names_its_order(site: Site) -> None:
    before = site.kubectl.queue("a")
    site.open()
    site.apply(SOFT, 1, ("a", 24, 16))
    after = site.kubectl.queue("a")
    assert site.kubectl.notes("a") == {
        "rollout": "r-1",
        "fence": "1",
        "effect": "set_soft",
        "cluster": CLUSTER,
        "gpus": '{"a": 16}',
        "gpus-before": '{"a": 24}',
        "actor": "tpm",
    }
    before["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = 16
    assert after["spec"] == before["spec"]
    assert site.kubectl.managers("a") == [("backstop", "Apply")]
    assert site.writes() == ["a"]
    assert site.kubectl.notes("b") == {}


def test_each_flavor_is_a_team_and_a_queue_is_written_once(site: Site) -> None:
    raw = queue("c", 40)
    (group,) = raw["spec"]["resourceGroups"]
    other = {"name": "cpu", "nominalQuota": "100"}
    group["coveredResources"].append("cpu")
    group["flavors"] = [
        {"name": name, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": gpus, "borrowingLimit": "8"}, other]}
        for name, gpus in (("island1", "40"), ("island2", 24))
    ]
    site.server.put(QUEUES, raw)
    assert site.port.read(CLUSTER).values == {"a": 24, "b": 16, "c/island1": 40, "c/island2": 24}
    site.open()
    writes = [("c/island1", 40, 32), ("c/island2", 24, 20)]
    values = [ValueWrite(team=t, expected_gpus=old, gpus=new, mode=LimitMode.HARD) for t, old, new in writes]
    site.port.apply(site.change(SOFT, 1).but(writes=tuple(values)))
    group["flavors"][0]["resources"][0]["nominalQuota"] = "32"
    group["flavors"][1]["resources"][0]["nominalQuota"] = 20
    assert site.kubectl.queue("c")["spec"]["resourceGroups"] == [group], "texts stay texts, and all else stays"
    assert site.writes() == ["c"]


def test_only_queues_with_the_label_belong_to_the_cluster(site: Site) -> None:
    site.server.put(QUEUES, queue("c", 8, labels={"model": "b200"}))
    take(site.ledger, spec("b200", [{"team": "c", "gpus": 8}], queues="model=b200"), number="2")
    assert site.port.read("b200").values == {"c": 8}


# --- field managers -----------------------------------------------------------------------------------------


def test_a_person_who_takes_a_queue_just_before_the_write_is_drift_and_is_named(
    site: Site, before_apply: BeforeApply
) -> None:
    site.open()
    read = site.generation()
    before_apply(lambda: site.somebody_sets("a", 20))
    with pytest.raises(Drift, match=r"^kubectl-edit manages \.spec\.resourceGroups of ClusterQueue a, "):
        site.apply(SOFT, 1, ("a", 24, 16), ("b", 16, 8), expected_generation=read)
    assert site.there() == (20, 16)
    assert site.writes() == []
    (change,) = site.port.changes(CLUSTER, read)
    assert (change.team, change.by) == ("a", "kubectl-edit, in Kubernetes")


def test_kubectl_is_refused_the_field_that_backstop_has_by_its_name(site: Site) -> None:
    """The emulator's own refusal, as another client reads it."""
    site.open()
    site.apply(SOFT, 1, ("a", 24, 16))
    refused = site.kubectl.run(
        "apply", "--server-side", "--validate=false", "-f", "-", stdin=json.dumps(queue("a", 20))
    )
    assert refused.returncode != 0
    assert 'conflict with "backstop" using kueue.x-k8s.io/v1beta1: .spec.resourceGroups' in refused.stderr
    assert site.there() == (16, 16)


def test_a_queue_of_another_manager_is_not_written_until_it_is_handed_over(site: Site) -> None:
    site.kubectl.set_gpus("b", 15)
    site.kubectl.set_gpus("b", 16)
    text = (
        "kubectl-edit manages .spec.resourceGroups of ClusterQueue b, and Backstop takes no field from another "
        "manager: hand the field over to Backstop (docs/kubernetes.md)"
    )
    assert site.port.barred_reason(CLUSTER) == text
    assert site.kueue.check()[CLUSTER].barred == text
    site.open()
    read = site.generation()
    with pytest.raises(Refusal) as refused:  # nothing has changed: to plan again would not help
        site.apply(SOFT, 1, ("a", 24, 16), ("b", 16, 8), expected_generation=read)
    assert refused.value.message == text
    assert site.there() == (24, 16), "the queue that it could have written is as it was"
    site.kubectl.hand_over("b")
    assert site.port.barred_reason(CLUSTER) == ""
    site.apply(SOFT, 1, ("a", 24, 16), ("b", 16, 8), expected_generation=read)
    assert site.there() == (16, 8)


def test_an_undo_writes_what_it_can_and_names_who_has_the_rest(site: Site) -> None:
    """The person sets the value that Backstop had written: to restore it would be right, and is not ours to do."""
    site.open()
    site.apply(SOFT, 1, ("a", 24, 16), ("b", 16, 8))
    site.somebody_sets("a", 17)
    site.somebody_sets("a", 16)
    with pytest.raises(Refusal, match=r"kubectl-edit manages .* of ClusterQueue a, "):
        site.apply(RESTORE, 2, ("a", 16, 24), ("b", 8, 16))
    assert site.there() == (16, 16)
    site.kubectl.hand_over("a")
    site.apply(RESTORE, 2, ("a", 16, 24), ("b", 8, 16))
    assert site.there() == (24, 16)


# --- versions -----------------------------------------------------------------------------------------------


def test_a_new_status_delays_no_write_and_is_kept(site: Site) -> None:
    site.open()
    statuses = iter(range(1, 4))

    def busy(emulator: Emulator) -> None:
        """The queue has a new status just before each of its first patches."""
        if (number := next(statuses, 0)) == 0:
            return
        raw = json.loads(json.dumps(emulator.objects[QUEUES, None, "a"].raw)) | {"status": {"pendingWorkloads": number}}
        emulator.note(QUEUES, "MODIFIED", raw)
        emulator.objects[QUEUES, None, "a"] = raw
        emulator.interrupts["a"] = lambda: busy(emulator)

    site.emulator(lambda emulator: emulator.interrupts.update({"a": lambda: busy(emulator)}))
    site.apply(SOFT, 1, ("a", 24, 16))
    raw = site.kubectl.queue("a")
    assert (raw["status"], site.there()) == ({"pendingWorkloads": 3}, (16, 16))
    assert site.writes() == ["a"]


def test_another_field_that_changes_just_before_the_write_is_kept(site: Site, before_apply: BeforeApply) -> None:
    site.open()
    patch = '{"spec": {"stopPolicy": "Hold"}}'
    before_apply(lambda: site.kubectl("patch", "clusterqueue", "a", "--type=merge", "-p", patch))
    site.apply(SOFT, 1, ("a", 24, 16))
    assert site.kubectl.queue("a")["spec"]["stopPolicy"] == "Hold"
    assert site.there() == (16, 16)


def test_a_write_that_was_delayed_past_the_undo_is_refused(
    site: Site, another: Any, before_apply: BeforeApply, tmp_path: Path
) -> None:
    """The worker stands still between its reading and its write; its lease ends, and the effect is undone meanwhile."""
    site.open()

    def undone_meanwhile() -> None:
        ForeignTool(f"sqlite:///{tmp_path / 'ledger.db'}").run("DELETE FROM scheduler_locks")
        another.apply(site.change(RESTORE, 2, ("a", 16, 24)))

    before_apply(undone_meanwhile)
    with pytest.raises(Conflict, match="came too late and was not written"):
        site.apply(SOFT, 1, ("a", 24, 16))
    assert site.there() == (24, 16)
    assert site.kubectl.notes("a")["effect"] == "restore", "the undo had nothing to change, and left its fence"
    assert site.writes() == ["a"]


# --- a worker that dies -------------------------------------------------------------------------------------


def died_between(site: Site, read: int) -> None:
    """A worker has written a and not b."""
    site.emulator(lambda emulator: emulator.interrupts.update({"b": lambda: 503}))
    with pytest.raises(Unavailable):
        site.apply(SOFT, 1, ("a", 24, 16), ("b", 16, 8), expected_generation=read)
    assert site.there() == (16, 16)


def test_a_worker_that_dies_between_two_queues_is_followed_by_one_that_writes_the_other(
    site: Site, another: Any
) -> None:
    site.open()
    read = site.generation()
    died_between(site, read)
    reading = another.read(CLUSTER)
    assert (reading.generation, reading.values) == (read, {"a": 24, "b": 16}), "nobody has changed anything"
    receipt = another.apply(site.change(SOFT, 1, ("a", 24, 16), ("b", 16, 8), expected_generation=read))
    assert (receipt.before, receipt.after) == ({"a": 24, "b": 16}, {"a": 16, "b": 8})
    assert site.there() == (16, 8)
    assert site.writes() == ["a", "b"]
    assert another.changes(CLUSTER, read) == ()


def test_what_a_dead_worker_wrote_is_taken_back_by_an_undo(site: Site, another: Any) -> None:
    site.open()
    read = site.generation()
    died_between(site, read)
    another.apply(site.change(RESTORE, 2, ("a", 16, 24), ("b", 8, 16)))
    assert site.there() == (24, 16)
    assert another.read(CLUSTER).generation == read
    assert [site.kubectl.notes(name)["fence"] for name in "ab"] == ["2", "2"]


def test_a_half_written_effect_that_meets_a_change_by_others_is_refused_so_that_it_is_undone(
    site: Site, another: Any
) -> None:
    """Drift would say that nothing was written."""
    site.open()
    read = site.generation()
    died_between(site, read)
    site.somebody_sets("b", 12)
    with pytest.raises(Refusal, match="after the effect had begun"):
        another.apply(site.change(SOFT, 1, ("a", 24, 16), ("b", 16, 8), expected_generation=read))
    receipt = another.apply(site.change(RESTORE, 2, ("a", 16, 24), ("b", 8, 16)))
    assert [(c.team, c.found_gpus) for c in receipt.conflicts] == [("b", 12)]
    assert site.there() == (24, 12)


def test_an_effect_that_all_queues_have_is_kept_although_others_have_changed_another_quota_since(
    site: Site, another: Any
) -> None:
    """The effect was written under its plan's generation; the worker died before the ledger had it."""
    site.open()
    read = site.generation()
    site.emulator(lambda emulator: emulator.lost.update({"a": 504}))
    with pytest.raises(Unavailable):
        site.apply(SOFT, 1, ("a", 24, 16), expected_generation=read)
    site.somebody_sets("b", 12)
    receipt = another.apply(site.change(SOFT, 1, ("a", 24, 16), expected_generation=read))
    assert (receipt.before, receipt.after, receipt.generation) == ({"a": 24}, {"a": 16}, read + 1)
    assert site.there() == (16, 12)
    assert site.writes() == ["a"]


def test_a_write_whose_answer_is_lost_is_made_once(site: Site) -> None:
    site.open()
    site.emulator(lambda emulator: emulator.lost.update({"a": 504}))
    with pytest.raises(Unavailable, match=r"could not change clusterqueues/a \(504\)"):
        site.apply(SOFT, 1, ("a", 24, 16))
    assert site.apply(SOFT, 1, ("a", 24, 16)).after == {"a": 16}
    assert site.writes() == ["a"]


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (403, Refusal, "Kubernetes does not let the worker change clusterqueues/a (403): clusterqueues: 403 (docs/"),
        (422, Refusal, "Kubernetes refused the change of clusterqueues/a (422): clusterqueues: 422"),
        (500, Unavailable, "it could not change clusterqueues/a (500)"),
        (429, Unavailable, "it could not change clusterqueues/a (429)"),
    ],
)
def test_a_refusal_is_for_good_and_a_failure_is_tried_again(
    site: Site, code: int, kind: type[Refusal | Unavailable], text: str
) -> None:
    site.open()
    read = site.generation()
    site.refuse(code)
    with pytest.raises(kind) as error:
        site.apply(SOFT, 1, ("a", 24, 16))
    assert error.value.message.startswith(text)
    assert (site.there(), site.generation()) == ((24, 16), read)
    if kind is Refusal:
        assert site.port.barred_reason(CLUSTER) == error.value.message, "a rehearsal of a write meets the same"


def test_a_quota_below_its_lending_limit_is_refused_before_it_is_sent(site: Site) -> None:
    site.server.put(QUEUES, queue("a", 24, lendingLimit=20))
    site.open()
    with pytest.raises(Refusal) as error:
        site.apply(SOFT, 1, ("a", 24, 16))
    text = "ClusterQueue a: the quota of a cannot go to 16, below its lendingLimit of 20: lower that first"
    assert error.value.message == text
    assert site.writes() == []


@pytest.mark.parametrize("value", ["1k", "1000"])
def test_a_thousand_is_read_as_kubernetes_writes_it(site: Site, value: str) -> None:
    site.server.put(QUEUES, queue("a", value))
    assert site.port.read(CLUSTER).values["a"] == 1000


def test_a_quota_that_is_no_number_of_gpus_is_named_and_the_last_one_stands(site: Site) -> None:
    site.server.put(QUEUES, queue("a", "500m"))
    with pytest.raises(Unavailable) as error:
        site.port.read(CLUSTER)
    text = "Kubernetes east: ClusterQueue a: a quota must be a whole number of GPUs, not '500m'"
    assert error.value.message == text
    assert site.port.last_known(CLUSTER).values["a"] == 24


def test_a_queue_that_somebody_deletes_is_a_change_by_others_and_is_not_made_again(
    site: Site, before_apply: BeforeApply
) -> None:
    site.open()
    read = site.generation()
    before_apply(lambda: site.kubectl("delete", "clusterqueue", "a"))
    with pytest.raises(Drift):
        site.apply(SOFT, 1, ("a", 24, 16), expected_generation=read)
    assert set(site.port.read(CLUSTER).values) == {"b"}
    assert site.kubectl("get", "clusterqueue", "-o", "name").split() == ["clusterqueue.kueue.x-k8s.io/b"]


def test_a_server_without_kueue_says_so(site: Site) -> None:
    site.emulator(lambda emulator: emulator.refusals.update({"list clusterqueues": 404}))
    with pytest.raises(Unavailable, match="Kubernetes east: it has no clusterqueues"):
        site.port.read(CLUSTER)


@pytest.fixture
def second_server() -> Iterator[Cluster]:
    with running() as server:
        yield server


@pytest.fixture
def wait_for_east(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how long a worker waits for the server east; for others it waits as long as ever."""
    waits = {"east": PATIENCE}
    monkeypatch.setattr(ApiServer, "seconds", property(lambda server: waits.get(server._name, PATIENCE)))

    def wait(seconds: float) -> None:
        waits["east"] = seconds

    return wait


def test_a_silent_server_holds_up_its_own_cluster_alone(
    site: Site, second_server: Cluster, tmp_path: Path, wait_for_east: Callable[[float], None]
) -> None:
    other = kubectl_for(with_queues(second_server), tmp_path / "other")
    take(site.ledger, spec("b200", connection="west"), number="2")
    port = worker(site.ledger, {"east": site.kubectl.kubeconfig, "west": other.kubeconfig})
    site.server.silence(True)
    wait_for_east(0.5)
    answers = port.readings([CLUSTER, "b200"])
    assert answers["b200"].values == {"a": 24, "b": 16}
    assert answers.senseless == {CLUSTER: "Kubernetes east: it sent no list of clusterqueues within 0.5 s"}
    site.server.silence(False)


def test_a_server_that_falls_silent_in_a_write_is_asked_again(
    site: Site, before_apply: BeforeApply, wait_for_east: Callable[[float], None]
) -> None:
    site.open()

    def fall_silent() -> None:
        site.server.silence(True)
        wait_for_east(0.5)

    before_apply(fall_silent)
    with pytest.raises(Unavailable, match=r"it did not answer about clusterqueues/a within 0\.5 s"):
        site.apply(SOFT, 1, ("a", 24, 16))
    assert site.ledger.quotas.read(CLUSTER).values["a"] == 24
    wait_for_east(PATIENCE)
    site.server.silence(False)  # and the late write may come now
    assert site.apply(SOFT, 1, ("a", 24, 16)).after == {"a": 16}
    assert (site.there(), site.writes()) == ((16, 16), ["a"])


def test_detach_restores_the_first_values_and_leaves_those_of_others(site: Site) -> None:
    grant = {"rollout": "request/q-1"}
    site.apply(EffectKind.GRANT, 1, ("a", 24, 30), **grant)
    site.apply(EffectKind.GRANT, 2, ("b", 16, 8), **grant)
    site.somebody_sets("b", 12)
    site.port.read(CLUSTER)
    assert site.kueue.detach(CLUSTER, restore=True, look=True) == {"a": (30, 24)}
    assert site.there() == (30, 12)
    assert site.kueue.detach(CLUSTER, restore=True) == {"a": (30, 24)}
    assert site.there() == (24, 12)
