"""Kueue and the ledger do what every quota system must do. With BACKSTOP_KUBECONFIG: in a cluster of yours.

There it makes two ClusterQueues and a ResourceFlavor of its own, which admit nothing, and deletes them.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.adapters.ledger.facade import Ledger
from tests.git.world import ask_for_more
from tests.kubernetes.emulator import queue, running
from tests.kubernetes.kueue_world import Kubectl, KueueSystem, kubectl_for, with_queues
from tests.quota_contract import *  # noqa: F403 - its tests are asked here
from tests.quota_contract import System

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@pytest.fixture
def system(ledger: Ledger, tmp_path: Path) -> Iterator[System]:
    ask_for_more(f"sqlite:///{tmp_path / 'ledger.db'}")
    if given := os.environ.get("BACKSTOP_KUBECONFIG"):
        yield from _real(Kubectl(given), ledger)
        return
    with running() as server:
        yield KueueSystem(kubectl_for(with_queues(server), tmp_path), ledger)


def _real(kubectl: Kubectl, ledger: Ledger) -> Iterator[System]:
    mark = f"backstop-tries-{uuid.uuid4().hex[:8]}"
    names = f"{mark}-a", f"{mark}-b"
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ResourceFlavor", "metadata": {"name": mark}}
    queues = [queue(name, gpus, labels={"backstop-tries": mark}) for name, gpus in zip(names, (24, 16), strict=True)]
    for one in queues:
        one["spec"] |= {"cohort": mark, "stopPolicy": "Hold"}
        one["spec"]["resourceGroups"][0]["flavors"][0]["name"] = mark
    try:
        for raw in (flavor, *queues):
            kubectl("create", "-f", "-", stdin=json.dumps(raw))
        for name in names:
            kubectl.hand_over(name)
        yield KueueSystem(kubectl, ledger, names, queues=f"backstop-tries={mark}")
    finally:
        kubectl.run("delete", "--ignore-not-found", "clusterqueue", *names)
        kubectl.run("delete", "--ignore-not-found", "resourceflavor", mark)
