"""`backstop demo`: a buffer from history; one cluster to monitored, a failure, the rollback, the retry, the audit."""

from __future__ import annotations

import time
from pathlib import Path

import yaml

from models.buffers.health_generator import Recipe, simulate_health
from models.rollout.stages import Stage
from workers.demo_harness import Story, on_stage, say
from workers.main import run_and_exit

CLUSTER = "h100-worked"
STEADY = "h200-open"
CLOCKS = {
    "notice": "3s",
    "soak_buffered": "4s",
    "soak_enforced": "4s",
    "breach_after": "3s",
    "clear_after": "3s",
    "recover_after": "4s",
    "safety_poll": "30s",
}
_FLEET = Path(__file__).resolve().parents[1] / "examples" / "fleet.yaml"


def compress_days(path: Path, to: Path) -> None:
    """Write the same fleet with days turned into seconds, for all of its clusters."""
    fleet = yaml.safe_load(path.read_text())
    fleet["policy"] = {**fleet.get("policy", {}), **CLOCKS}
    for cluster in fleet["clusters"]:
        if "policy" in cluster:
            cluster["policy"] = {**cluster["policy"], **CLOCKS}
    to.write_text(yaml.safe_dump(fleet, sort_keys=False))


async def tell(story: Story) -> None:
    fleet = story.home / "fleet.yaml"
    compress_days(_FLEET, fleet)
    island = next(cluster for cluster in yaml.safe_load(fleet.read_text())["clusters"] if cluster["name"] == CLUSTER)[
        "islands"
    ][0]["name"]

    say("\n--- 1. A fleet: quotas, healthy GPUs, usage. Days are compressed to seconds by the policy.")
    story.run("fleet", "import", str(fleet))
    say("\n--- 2. What would be cut, cluster by cluster, the painless ones first?")
    story.run("plan", "--file", str(fleet))
    say(f"\n--- 3. One of them: {CLUSTER} promises 345 GPUs and has 319 healthy ones.")
    story.run("plan", "--file", str(fleet), "--cluster", CLUSTER)

    say(f"\n--- 4. How large a buffer is honest? Half a year of made-up health of {STEADY}, hour by hour.")
    history = simulate_health(Recipe(nodes=64, weeks=26), seed=2)
    await story.live_hours(STEADY, "main", history, gpus_per_node=8)
    story.run("buffer", STEADY)
    story.run("plan", STEADY, "--buffer", "health")

    say("\n--- 5. The TPM launches it and approves the plan by its hash. The team is notified, then limits follow.")
    story.run("launch", CLUSTER, "--owner", "gpu-tpm", "--reason", "pilot")
    plan = (await story.backstop.status(CLUSTER)).plan_hash or ""
    story.run("approve", CLUSTER, "--plan", plan)
    await story.until(CLUSTER, lambda status: status.stage is Stage.MONITORED, 60, "monitored")
    story.run("status", CLUSTER)

    say("\n--- 6. Hardware fails: 319 -> 300 healthy GPUs. The quota of 306 promises more than there is.")
    await story.healthy(CLUSTER, island, 361, 300)
    await story.until(CLUSTER, lambda status: status.stage is Stage.ROLLED_BACK, 30, "rolled_back")
    say("          Backstop has rolled back by itself, to what 300 GPUs can back; limits are soft again.")
    story.run("status", CLUSTER)

    say("\n--- 7. The nodes come back. Once health has been good for long enough, it tries again by itself.")
    await story.healthy(CLUSTER, island, 361, 319)
    await story.until(
        CLUSTER, lambda status: status.stage is Stage.MONITORED and status.attempt == 2, 60, "monitored again"
    )

    say("\n--- 8. What happened? The audit, from the workflow's history.")
    story.run("audit", CLUSTER)
    say("\n--- 9. And the archive in the ledger: does its hash chain hold?")
    story.run("audit", CLUSTER, "--verify")


async def _main() -> None:
    began = time.monotonic()
    say("Backstop demo: a quota should be a promise that hardware keeps.")
    async with on_stage("gpu-tpm") as story:
        await tell(story)
    say(f'\nDone in {time.monotonic() - began:.0f} s. Next: `backstop up`, then README.md, "Your own fleet".')


if __name__ == "__main__":
    run_and_exit(_main)
