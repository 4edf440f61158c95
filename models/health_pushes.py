"""What an exporter, a node agent or an Alertmanager says when something has happened: look at these clusters now.

Nothing of it is believed. It makes the shared watch read a cluster's health at once, and what counts is what that says.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from models.base import Model, Name, Text, Words, brief
from models.errors import BadInput
from models.question_base import Question

MOST_CLUSTERS = 1000
"""In one push."""
MOST_ALERTS = 10_000
CLUSTER_LABEL = "cluster"

_Names = Annotated[tuple[Name, ...], Field(min_length=1, max_length=MOST_CLUSTERS)]


class HealthPush(Model):
    """Clusters to look at now. `word`: what whoever pushes has seen; it is logged, and counts for nothing."""

    clusters: _Names
    word: Words = ""


class HealthPushed(Model):
    """What became of a push. `unknown`: names that no cluster of the ledger has."""

    looking_at: tuple[Name, ...]
    unknown: tuple[Name, ...] = ()


class PushHealth(Question[HealthPushed], kind="push_health"):
    """The watch looks at these clusters at once; nothing that is said of their health is believed."""

    clusters: _Names
    word: Words = ""


class _Foreign(Model):
    """A document of somebody else's: fields that we do not know are theirs."""

    model_config = ConfigDict(extra="ignore")


class Alert(_Foreign):
    """One alert, of which only the labels are read."""

    labels: Annotated[dict[str, str], Field(max_length=200)] = Field(default_factory=dict)


class AlertmanagerPush(_Foreign):
    """What Alertmanager sends to a webhook receiver, version 4. `label`: the one that names an alert's cluster.

    Source: Alertmanager's documentation, "webhook_config".
    """

    version: Literal["4"]
    alerts: Annotated[tuple[Alert, ...], Field(min_length=1, max_length=MOST_ALERTS)]
    label: Annotated[Text, Field(min_length=1, max_length=200)] = CLUSTER_LABEL

    @property
    def clusters(self) -> tuple[str, ...]:
        """As the alerts name them, each once."""
        return tuple(dict.fromkeys(name for one in self.alerts if (name := one.labels.get(self.label, ""))))

    def to_question(self) -> PushHealth:
        """Errors: BadInput where no alert names a cluster, or one by what is no name."""
        if not self.clusters:
            raise BadInput(f"no alert has the label {brief(self.label)}, which must name the cluster to look at")
        return PushHealth(clusters=self.clusters, word="Alertmanager")
