"""Telling teams: rendered from templates, delivered once per key."""

from __future__ import annotations

from temporalio import activity

from activities.failures import translated
from activities.ports import ClustersPort, NotifyPort
from activities.rendering import render
from models.errors import BackstopError, Unavailable
from models.notices import Delivery
from models.wire import TellAnswer, TellRequest


class NoticeActivities:
    def __init__(self, notify: NotifyPort, clusters: ClustersPort) -> None:
        self._notify = notify
        self._clusters = clusters

    @activity.defn(name="tell", no_thread_cancel_exception=True)
    def tell(self, request: TellRequest) -> TellAnswer:
        """Every notice is tried; what failed is named, so that the rest is not sent again."""
        delivered: dict[str, tuple[Delivery, ...]] = {}
        failed: dict[str, str] = {}
        refused: dict[str, str] = {}
        with translated():
            contacts = self._clusters.contacts(request.cluster)
        for notice in request.notices:
            # A rehearsal is written to the log and troubles nobody else (ADR 0002).
            to = () if notice.shadow else contacts.get(notice.audience, ())
            addressed = notice.model_copy(update={"contacts": to})
            try:
                subject, body = render(addressed)
                delivered[notice.key] = self._notify.deliver(addressed, subject, body)
            except Unavailable as error:
                failed[notice.key] = error.message
            except BackstopError as error:
                refused[notice.key] = error.message
        return TellAnswer(delivered=delivered, failed=failed, refused=refused)
