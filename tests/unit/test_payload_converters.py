"""What the worker spares itself for each payload, and what that takes for granted."""

from __future__ import annotations

from temporalio.converter import ActivitySerializationContext, WorkflowSerializationContext

from client.converter import PayloadConverter, data_converter


def test_nothing_takes_a_context_where_payloads_are_not_encrypted() -> None:
    workflow = WorkflowSerializationContext(namespace="n", workflow_id="w")
    activity = ActivitySerializationContext(
        namespace="n",
        workflow_id="w",
        workflow_type="t",
        activity_type="a",
        activity_id="1",
        activity_task_queue="q",
        is_local=False,
    )
    assert data_converter.with_context(workflow) is data_converter
    assert data_converter.with_context(activity) is data_converter


def test_all_converters_share_what_they_have_learnt_of_types() -> None:
    assert PayloadConverter().converters[b"json/plain"] is PayloadConverter().converters[b"json/plain"]
