"""Names each Slurm setting that Backstop does not read, in one sentence, for an import and the doctor. Pure.

Otherwise a cluster whose limits are elsewhere would look like one without limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from activities.adapters.slurm.class_qos import OURS
from activities.adapters.slurm.parsing import Account, Node, SlurmJob, ancestors_of, quotas_of, storable_text, tres_of
from models.cluster.sources import SlurmSource
from models.texts import count_text, some_of

QOS_LIMITS = "format=GrpTRES,MaxTRESPA,MaxTRESPU,Description,Name"
_NAMED = 5
"""The most QOS, accounts or nodes that a sentence names."""


def limiting_qos_in(printed: str, source: SlurmSource, ours: Collection[str]) -> list[str]:
    """Parse `sacctmgr -n -P show qos` in this format into the QOS that limit GPUs, without `ours`."""
    names = []
    for line in filter(None, printed.split("\n")):
        *fields, name = line.split("|")
        limited = any(
            source.tres == tres or is_of_other_kind(tres, source) for field in fields for tres in tres_of(field)
        )
        if limited and name not in ours and not any(field.startswith(OURS) for field in fields):
            names.append(storable_text(name))
    return sorted(names)


def is_of_other_kind(tres: str, source: SlurmSource) -> bool:
    """Return whether a limit of it bounds such GPUs too: `gres/gpu:h100` beside `gres/gpu`, and the other way round."""
    return tres.startswith(f"{source.tres}:") or source.tres.startswith(f"{tres}:")


def unread_settings(
    source: SlurmSource,
    accounts: Mapping[str, Account],
    qos: Sequence[str],
    nodes: Sequence[Node],
    jobs: Sequence[SlurmJob],
) -> tuple[str, ...]:
    """List the settings in sentences. `qos`: those that limit GPUs."""
    sentences = []
    if not quotas_of(accounts, source):
        sentences.append(f"no account under {source.root} has a limit of {source.tres}: the cluster has no quotas")
    sentences += _sentences_on_kinds(source, accounts)
    if qos:
        sentences.append(
            f"QOS {some_of(qos, _NAMED)} {'limits' if len(qos) == 1 else 'limit'} {source.tres}, and Backstop reads "
            "only limits of accounts: the QOS may keep a job waiting although its quota has room"
        )
    return (*sentences, *_sentences_on_nodes(nodes), *_sentences_on_jobs(jobs))


def _sentences_on_kinds(source: SlurmSource, accounts: Mapping[str, Account]) -> Iterator[str]:
    by_kind: dict[str, list[str]] = {}
    for name, account in sorted(accounts.items()):
        chain = [name, *ancestors_of(accounts, name)]
        if source.root in chain and source.flex_root not in chain:
            for tres, limit in account.others.items():
                if is_of_other_kind(tres, source) and (account.gpus is None or limit < account.gpus):
                    by_kind.setdefault(tres, []).append(name)
    for tres, names in sorted(by_kind.items()):
        who = f"account {names[0]} has a limit" if len(names) == 1 else f"accounts {some_of(names, _NAMED)} have limits"
        yield (
            f"{who} of {tres}, and Backstop reads only limits of {source.tres} "
            f"(slurm: {{gres: '{tres.removeprefix('gres/')}'}} in the fleet file reads these instead)"
        )


def _sentences_on_nodes(nodes: Sequence[Node]) -> Iterator[str]:
    for placeable in (True, False):
        those = [node for node in nodes if node.unknown and node.has_base is placeable]
        if those:
            words = sorted({word for node in those for word in node.unknown})
            names = some_of([node.name for node in those], _NAMED)
            means = "Backstop ignores this" if placeable else "Backstop counts such a node as not healthy"
            yield (
                f"Slurm reports states that Backstop does not know for {count_text(len(those), 'node')} ({names}): "
                f"{', '.join(words)}; {means}"
            )


def _sentences_on_jobs(jobs: Sequence[SlurmJob]) -> Iterator[str]:
    if those := [job for job in jobs if job.unknown]:
        words = sorted({word for job in those for word in job.unknown})
        yield (
            f"Slurm reports states that Backstop does not know for {count_text(len(those), 'job')}: "
            f"{', '.join(words)}; Backstop counts such a job as holding the GPUs that are allocated to it"
        )
