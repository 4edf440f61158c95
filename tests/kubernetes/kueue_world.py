"""ClusterQueues at an API server, somebody with kubectl, and a ledger. What is there is read by kubectl alone."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.adapters.kubernetes.api import KubernetesConnection
from activities.adapters.kubernetes.kubernetes import Kuberneteses
from activities.adapters.kubernetes.kueue_quotas import KueueQuotas
from activities.adapters.ledger.facade import Ledger
from tests.git.world import CLUSTER, take
from tests.kubernetes.emulator import QUEUES, Cluster, kubectl_command, queue
from tests.quota_contract import System

_VALUE = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"


class Kubectl:
    """Somebody with kubectl."""

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig = kubeconfig

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = kubectl_command(self.kubeconfig, *arguments)
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def queue(self, name: str, *options: str) -> dict[str, Any]:
        raw: dict[str, Any] = json.loads(self("get", "clusterqueue", name, "-o", "json", *options))
        return raw

    def gpus(self, name: str) -> int:
        ((flavor,),) = (group["flavors"] for group in self.queue(name)["spec"]["resourceGroups"])
        (resource,) = flavor["resources"]
        return int(resource["nominalQuota"])

    def set_gpus(self, name: str, gpus: int) -> None:
        patch = json.dumps([{"op": "replace", "path": _VALUE, "value": gpus}])
        self("patch", "clusterqueue", name, "--type=json", "-p", patch, "--field-manager=kubectl-edit")

    def notes(self, name: str) -> dict[str, str]:
        """Backstop's annotations of a queue."""
        annotations = self.queue(name)["metadata"].get("annotations", {})
        return {key.partition("/")[2]: value for key, value in annotations.items() if key.startswith("backstop/")}

    def hand_over(self, name: str) -> None:
        """Remove the manager of the queue's quotas; their values stay, as docs/kubernetes.md says."""
        page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
        (program,) = re.findall(r"jq '(del\(.*\))' \| kubectl replace -f -", page)
        raw = self("get", "clusterqueue", name, "-o", "json", "--show-managed-fields")
        without = subprocess.run(["jq", program], input=raw, capture_output=True, text=True, check=True).stdout
        self("replace", "--validate=false", "-f", "-", stdin=without)

    def managers(self, name: str) -> list[tuple[str, str]]:
        """Return the managers of the queue's quotas, each with its operation."""
        entries = self.queue(name, "--show-managed-fields")["metadata"].get("managedFields", [])
        return sorted(
            (e["manager"], e["operation"]) for e in entries if "f:resourceGroups" in e["fieldsV1"].get("f:spec", {})
        )


def kubectl_for(server: Cluster, folder: Path) -> Kubectl:
    path = folder / "kubeconfig"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(server.kubeconfig()))
    return Kubectl(str(path))


def spec(name: str = CLUSTER, quotas: Sequence[dict[str, Any]] = (), **source: Any) -> dict[str, Any]:
    """Return a cluster of a fleet file, whose quotas Kueue holds."""
    return {
        "name": name,
        "islands": [{"name": "main", "total_gpus": 48, "healthy_gpus": 48}],
        "quotas": list(quotas) or [{"team": "a", "gpus": 24}, {"team": "b", "gpus": 16}],
        "kueue": {"connection": "east", **source},
    }


def worker(ledger: Ledger, kubeconfig: str | dict[str, str], timeout: timedelta = timedelta(seconds=20)) -> KueueQuotas:
    """Return the quotas as a worker process reads them. `kubeconfig`: of the connection east, or by connection."""
    paths = {"east": kubeconfig} if isinstance(kubeconfig, str) else kubeconfig
    connections = {name: KubernetesConnection(kubeconfig=path, timeout=timeout) for name, path in paths.items()}
    kuberneteses = Kuberneteses(ledger, connections)
    quotas, schedulers = ledger.quotas, NoSchedulers()
    return KueueQuotas(ledger, quotas, schedulers, kuberneteses, timedelta(0))


class NoSchedulers:
    """No other scheduler."""

    def describe(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def quotas_at(self, *_: Any) -> Any:
        raise NotImplementedError

    def check(self) -> dict[str, Any]:
        return {}

    def detach(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


class KueueSystem(System):
    """A ClusterQueue for each team, in an emulator or in a cluster of somebody's."""

    def __init__(self, kubectl: Kubectl, ledger: Ledger, names: tuple[str, str] = ("a", "b"), **source: Any) -> None:
        self.kubectl, self.names = kubectl, dict(zip("ab", names, strict=True))
        self.kueue = worker(ledger, kubectl.kubeconfig)
        quotas = [{"team": name, "gpus": gpus} for name, gpus in zip(names, (24, 16), strict=True)]
        take(ledger, spec(quotas=quotas, **source))
        super().__init__(ledger, self.kueue, CLUSTER)

    def team(self, letter: str) -> str:
        return self.names[letter]

    def there(self) -> tuple[int, int]:
        return self.kubectl.gpus(self.names["a"]), self.kubectl.gpus(self.names["b"])

    def somebody_sets(self, letter: str, gpus: int) -> None:
        self.kubectl.set_gpus(self.names[letter], gpus)


def with_queues(server: Cluster) -> Cluster:
    """The server has the queues a and b, which nobody manages."""
    server.put(QUEUES, queue("a", 24))
    server.put(QUEUES, queue("b", 16))
    return server
