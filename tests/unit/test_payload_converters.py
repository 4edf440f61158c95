"""The worker's savings for each payload, and the assumptions behind them."""

from __future__ import annotations

from typing import Annotated, Any

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


def test_a_type_that_cannot_be_hashed_is_read() -> None:
    converter = PayloadConverter()
    hint: Any = Annotated[int, ["a list, which has no hash"]]
    assert converter.from_payloads(converter.to_payloads([3]), [hint]) == [3]
