"""Whole rollouts whose quotas are in Kueue, read by kubectl alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from activities.adapters.kubernetes.api import KubernetesConnection
from models.questions import CheckLedger
from models.rollout.stages import Command, Stage
from tests.e2e.world import World, cluster, fresh, team, world_of
from tests.kubernetes.emulator import QUEUES, Cluster, queue, running
from tests.kubernetes.kueue_world import Kubectl, kubectl_for

pytestmark = pytest.mark.skipif(not all(map(shutil.which, ("kubectl", "jq"))), reason="kubectl or jq is not installed")


@pytest.fixture
def server() -> Iterator[Cluster]:
    with running() as server:
        server.put(QUEUES, queue("vision", 200))
        server.put(QUEUES, queue("speech", "161"))
        yield server


@pytest.fixture
def kubectl(server: Cluster, tmp_path: Path) -> Kubectl:
    return kubectl_for(server, tmp_path / "kube")


@pytest_asyncio.fixture(loop_scope="function")
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path, kubectl: Kubectl) -> AsyncIterator[World]:
    """Its worker has Kueue before its ledger, as every worker has it."""
    async with world_of(
        temporal,
        sqlite_ledger_url,
        tmp_path,
        wrapped=lambda _: None,
        kubernetes={"east": KubernetesConnection(kubeconfig=kubectl.kubeconfig, timeout=timedelta(seconds=50))},
    ) as story:
        yield story


def there(kubectl: Kubectl) -> tuple[int, int]:
    return kubectl.gpus("vision"), kubectl.gpus("speech")


async def buffered(world: World, **policy: object) -> str:
    """A rollout that is buffered: speech is to give 37 GPUs."""
    name = fresh("kueue")
    quotas = [team("vision", 200), team("speech", 161, busy=100)]
    own = cluster(
        name, {"main": (361, 361)}, quotas, buffer=0.1, spare_gpus=0, soak_buffered="1h", soak_enforced="1h", **policy
    )
    await world.fleet({**own, "kueue": {"connection": "east"}})
    await world.start(name)
    await world.until(name, Stage.BUFFERED)
    return name


async def test_a_rollout_goes_through_kueue_and_back(world: World, kubectl: Kubectl) -> None:
    name = await buffered(world)
    assert world.sql.gpus(name) == {"vision": 200, "speech": 124}
    assert there(kubectl) == (200, 161), "while it is buffered what was admitted still is"
    assert kubectl.notes("speech") == {}

    check = (await world.tpm.ask(CheckLedger())).schedulers[name]
    assert (check.system, check.wrong, check.barred) == ("kueue", "", "")
    await world.say(name, Command.PROMOTE)
    await world.until(name, Stage.ENFORCED)
    assert there(kubectl) == (200, 124)
    assert kubectl.notes("speech") == {
        "rollout": f"{name}/1",
        "fence": "3",
        "effect": "harden",
        "cluster": name,
        "gpus": '{"speech": 124}',
        "gpus-before": '{"speech": 161}',
        "plan": (await world.status(name)).plan_hash,
        "actor": "tpm",
        "reason": "as the story goes",
    }

    kubectl("patch", "clusterqueue", "speech", "--type=merge", "-p", '{"spec": {"stopPolicy": "Hold"}}')
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.ROLLED_BACK)
    assert there(kubectl) == (200, 161)
    assert kubectl.queue("speech")["spec"]["stopPolicy"] == "Hold"
    assert world.sql.gpus(name) == {"vision": 200, "speech": 161}
    notes = kubectl.notes("speech")
    assert (notes["effect"], notes["gpus"], notes["gpus-before"]) == ("soften", '{"speech": 161}', '{"speech": 124}')
    assert kubectl.notes("vision") == {}


async def test_a_person_who_changes_a_quota_with_kubectl_is_named_and_holds_the_rollout(
    world: World, kubectl: Kubectl
) -> None:
    name = await buffered(world, on_drift="hold")
    kubectl.set_gpus("vision", 190)
    await world.say(name, Command.PROMOTE)
    status = await world.until(name, lambda s: bool(s.holds) and s.stage is Stage.BUFFERED)
    assert "kubectl-edit, in Kubernetes" in str(status.model_dump(mode="json"))
    assert there(kubectl) == (190, 161)
    await world.say(name, Command.ABORT)
    await world.until(name, Stage.ABORTED)
    assert there(kubectl) == (190, 161), "what a person set stays"


async def test_a_queue_that_another_manager_has_by_then_rolls_the_rollout_back_and_is_named(
    world: World, kubectl: Kubectl
) -> None:
    """Somebody applies the very value that stands: nothing has drifted, and Backstop may not write it any more."""
    name = await buffered(world)
    groups = kubectl.queue("speech")["spec"]["resourceGroups"]
    theirs = queue("speech", 161) | {"spec": {"resourceGroups": groups}}
    kubectl("apply", "--server-side", "--validate=false", "--field-manager=argocd", "-f", "-", stdin=json.dumps(theirs))
    await world.say(name, Command.PROMOTE)
    status = await world.until(name, Stage.ROLLED_BACK)
    assert status.undoing is not None
    assert "argocd manages .spec.resourceGroups of ClusterQueue speech" in status.undoing.reason
    assert there(kubectl) == (200, 161)
    assert world.sql.gpus(name) == {"vision": 200, "speech": 161}


async def test_a_queue_that_a_person_has_taken_makes_the_undo_stuck_until_it_is_handed_over(
    world: World, kubectl: Kubectl
) -> None:
    name = await buffered(world)
    await world.say(name, Command.PROMOTE)
    await world.until(name, Stage.ENFORCED)
    kubectl.set_gpus("speech", 125)
    kubectl.set_gpus("speech", 124)
    await world.say(name, Command.ROLLBACK)
    status = await world.until(name, Stage.STUCK)
    assert "kubectl-edit manages .spec.resourceGroups of ClusterQueue speech" in status.model_dump_json()
    assert there(kubectl) == (200, 124)
    kubectl.hand_over("speech")
    await world.say(name, Command.RETRY)
    await world.until(name, Stage.ROLLED_BACK)
    assert there(kubectl) == (200, 161)
