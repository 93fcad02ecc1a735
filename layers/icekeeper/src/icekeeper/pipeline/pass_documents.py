"""The documents of one table's pass in the control bucket: its plan, and what each of its steps leaves.

Functions and jobs that carry out one step each find each other's documents there.  A call that carries out a whole pass
keeps most of them in memory (``kept_pass``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from icekeeper.errors import OperationRefused
from icekeeper.pipeline.control_bucket import ControlBucket, digest_of, table_folder
from icekeeper.pipeline.events import Item, PlanReference
from icekeeper.pipeline.plan_document import PlanDocument, read_plan
from icekeeper.pipeline.step_documents import AnyObject, BegunStep, EndedStep, PassPlan

__all__ = ["PLAN", "PassDocuments", "StoredDocuments"]

PLAN = "plan.json"
"""The name of a pass's first plan; plans that are made again have names of their own."""


class PassDocuments(Protocol):
    """Each method raises StorageError when the control bucket does not answer, or the document was changed."""

    def first_plan(self) -> Mapping[str, Any]:
        """The first plan of the pass as JSON, empty when there is none."""
        ...

    def carried_out(self, first: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """The outcomes, by step, that plans hold because the call which planned carried the steps out.

        ``first`` is the first plan.
        """
        ...

    def write_plan(self, document: PlanDocument) -> PlanReference: ...

    def plan(self, reference: PlanReference) -> PlanDocument:
        """The plan that a reference means.

        Raises:
            OperationRefused: it is not the one that was made.
            PlanStale: another version of Icekeeper wrote it, and this one cannot read it.
        """
        ...

    def outcome(self, step: str) -> Mapping[str, Any] | None:
        """What a step that ended has left."""
        ...

    def write_outcome(self, step: str, document: Mapping[str, Any]) -> None: ...

    def begun(self, step: str) -> Mapping[str, Any] | None:
        """What the first attempt at a step noted before it began."""
        ...

    def write_begun(self, step: str, document: Mapping[str, Any]) -> None: ...


class StoredDocuments:
    """:class:`PassDocuments` of which each is an object of the control bucket."""

    def __init__(self, control: ControlBucket, run_id: str, item: Item) -> None:
        self._control, self._after_wave = control, item.after_wave
        self._folder = table_folder(run_id, item.identity.spelling)

    def first_plan(self) -> Mapping[str, Any]:
        return self._found(PLAN, PassPlan) or {}

    def carried_out(self, first: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        plans = [first, *([self._found(_after_wave(PLAN), PassPlan) or {}] if self._after_wave else [])]
        return {step: outcome for plan in plans for step, outcome in plan.get("done", {}).items()}

    def write_plan(self, document: PlanDocument) -> PlanReference:
        reference = self.reference(document)
        self._control.write(reference.key, document.model_dump(mode="json"))
        return reference

    def reference(self, document: PlanDocument) -> PlanReference:
        """What says where a plan is once it is written."""
        # Each attempt has a document of its own: if this answer is lost, the plan that the state machine knows remains.
        name = PLAN if document.attempt == 1 else f"plan-{document.attempt}.json"
        return PlanReference(
            bucket=self._control.name,
            key=f"{self._folder}/{_after_wave(name) if self._after_wave else name}",
            digest=digest_of(document.model_dump(mode="json")),
            attempt=document.attempt,
            routes=dict(document.routes),
            outgrown=document.outgrown,
        )

    def plan(self, reference: PlanReference) -> PlanDocument:
        if reference.key.rpartition("/")[0] != self._folder:
            raise OperationRefused(f"{reference.key!r} is no document of this pass, whose folder is {self._folder}")
        return read_plan(self._control.read(reference.key, reference.digest))

    def outcome(self, step: str) -> Mapping[str, Any] | None:
        return self._found(f"{step}.json", EndedStep)

    def write_outcome(self, step: str, document: Mapping[str, Any]) -> None:
        self._control.write(f"{self._folder}/{step}.json", document)

    def begun(self, step: str) -> Mapping[str, Any] | None:
        return self._found(f"{step}.begun.json", BegunStep)

    def write_begun(self, step: str, document: Mapping[str, Any]) -> None:
        self._control.write(f"{self._folder}/{step}.begun.json", document)

    def _found(self, name: str, shape: type[AnyObject]) -> Mapping[str, Any] | None:
        return self._control.find_object(f"{self._folder}/{name}", shape)


def _after_wave(name: str) -> str:
    return f"after-wave-{name}"
