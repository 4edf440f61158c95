"""Pushes of health at the desk: the watch is asked to look. The push's own word is logged, and does not count."""

from __future__ import annotations

import logging

from activities.ports.ports import PushPort
from models.health_pushes import HealthPushed, PushHealth
from models.questions import DeskRequest
from models.texts import some_of

logger = logging.getLogger("backstop.pushes")
_WORD_LOGGED = 200


def looked_for(pushes: PushPort, question: PushHealth, request: DeskRequest) -> HealthPushed:
    """Have the watch look at those that exist."""
    names = tuple(dict.fromkeys(question.clusters))
    clusters = pushes.push(names)
    logger.info("%s asks the watch to look at %s: %r", request.actor, some_of(clusters), question.word[:_WORD_LOGGED])
    return HealthPushed(looking_at=clusters, unknown=tuple(name for name in names if name not in {*clusters}))
