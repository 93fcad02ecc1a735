"""What one call keeps in memory of a pass that it carries out as a whole (rule 158).

Each document in the control bucket costs eight times as much as an item of the state table, and a step that found
nothing to do leaves nothing that a repetition could not find again.  So the control bucket gets the first plan, with
all outcomes so far, once a step has done something, and when somebody may look for it: whoever asked for the pass, and
the states that follow where the call leaves steps to them.  What a call had committed when it was killed, the snapshots
tell by run and operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icekeeper.pipeline.events import PlanReference
from icekeeper.pipeline.pass_documents import StoredDocuments
from icekeeper.pipeline.plan_document import PlanDocument
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.held_lease import HeldLease
from icekeeper.state.leases import Lease

__all__ = ["KeptDocuments", "KeptPass"]


class KeptDocuments:
    """:class:`PassDocuments` of one call; what must outlive it is in the control bucket as well."""

    def __init__(self, stored: StoredDocuments) -> None:
        self._stored = stored
        self._before: Mapping[str, Any] | None = None
        """The first plan that an earlier call or round of the pass left."""
        self._record: PlanDocument | None = None
        """The first plan of this call, by whose name the control bucket has what this call has done."""
        self._plans: dict[str, PlanDocument] = {}
        self._outcomes: dict[str, Mapping[str, Any]] = {}
        self._begun: dict[str, Mapping[str, Any]] = {}

    def first_plan(self) -> Mapping[str, Any]:
        if self._before is None:
            self._before = self._stored.first_plan()
        if self._before or self._record is None:
            return self._before
        return self._record.model_dump(mode="json")

    def carried_out(self, first: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {**(self._stored.carried_out(first) if self._before else {}), **self._outcomes}

    def write_plan(self, document: PlanDocument) -> PlanReference:
        if document.requested_ms is not None or document.item.forced:
            self._stored.write_plan(document)
        reference = self._stored.reference(document)
        self._plans[reference.digest] = document
        if document.attempt == 1:
            self._record = document
        return reference

    def plan(self, reference: PlanReference) -> PlanDocument:
        kept = self._plans.get(reference.digest)
        return self._stored.plan(reference) if kept is None else kept

    def outcome(self, step: str) -> Mapping[str, Any] | None:
        if step in self._outcomes or not self._before:
            return self._outcomes.get(step)
        return self._stored.outcome(step)

    def write_outcome(self, step: str, document: Mapping[str, Any]) -> None:
        outcomes = {**self._outcomes, step: document}
        if document["status"] != Status.SKIPPED.value and self._record is not None:
            self._stored.write_plan(_with(self._record, outcomes))
        self._outcomes = outcomes

    def begun(self, step: str) -> Mapping[str, Any] | None:
        if step in self._begun or not self._before:
            return self._begun.get(step)
        return self._stored.begun(step)

    def write_begun(self, step: str, document: Mapping[str, Any]) -> None:
        if step == Operation.COMPACT.value:
            # It grows with the data: a call that is killed has left behind that it was at it (rule 162).
            self._stored.write_begun(step, document)
        self._begun[step] = document

    def handed_over(self, reference: PlanReference) -> PlanReference:
        """The plan with what this call has done, in the control bucket for the states that do the rest."""
        plan = self.plan(reference)
        return self._stored.write_plan(_with(plan.model_copy(update={"routes": reference.routes}), self._outcomes))


def _with(plan: PlanDocument, outcomes: Mapping[str, Mapping[str, Any]]) -> PlanDocument:
    return plan.model_copy(update={"done": {**plan.done, **outcomes}})


@dataclass(slots=True)
class KeptPass:
    """What a call has of its pass."""

    documents: KeptDocuments
    lease: HeldLease | None = None
    """The table's, which this call has taken and prolongs before whatever must not be done without it (rule 70)."""
    slot: Lease | None = None
    """The slot of the fleet that it has taken."""
