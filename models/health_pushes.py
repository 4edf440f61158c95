"""Pushes: an exporter, a node agent or an Alertmanager asks for a look at clusters in which something has happened.

Backstop does not believe a push. It makes the shared watch read the clusters' health at once, and only that reading
counts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from models.base import Model, Name, Text, Words
from models.errors import BadInput
from models.question_base import Question
from models.texts import brief

MOST_CLUSTERS = 1000
"""The most clusters in one push."""
MOST_ALERTS = 10_000
CLUSTER_LABEL = "cluster"


class HealthPush(Model):
    """Clusters to look at now. `word`: what the sender has seen; it is logged, and has no effect."""

    clusters: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MOST_CLUSTERS)]
    word: Words = ""


class HealthPushed(Model):
    """The answer to a push. `unknown`: names that no cluster of the ledger has."""

    looking_at: tuple[Name, ...]
    unknown: tuple[Name, ...] = ()


class PushHealth(HealthPush, Question[HealthPushed], kind="push_health"):
    """Make the watch look at these clusters at once; it believes nothing that the push says about health."""


class _Foreign(Model):
    """A document of another system: fields that we do not know are ignored."""

    model_config = ConfigDict(extra="ignore")


class Alert(_Foreign):
    """One alert, of which only the labels are read."""

    labels: Annotated[dict[str, str], Field(max_length=200)] = Field(default_factory=dict)


class AlertmanagerPush(_Foreign):
    """The body of Alertmanager's webhook, version 4. `label`: the label that names an alert's cluster.

    Source: Alertmanager's documentation, "webhook_config".
    """

    version: Literal["4"]
    alerts: Annotated[tuple[Alert, ...], Field(min_length=1, max_length=MOST_ALERTS)]
    label: Annotated[Text, Field(min_length=1, max_length=200)] = CLUSTER_LABEL

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that the alerts name, each once."""
        return tuple(dict.fromkeys(name for one in self.alerts if (name := one.labels.get(self.label, ""))))

    def to_question(self) -> PushHealth:
        """Return the question. Errors: BadInput if no alert names a cluster, or a name is invalid."""
        if not self.clusters:
            raise BadInput(f"no alert has the label {brief(self.label)}, which must name the cluster to look at")
        return PushHealth(clusters=self.clusters, word="Alertmanager")
