"""Which parts of the policies calls have needed: what can be taken away without a call noticing is too much."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from local_stack.rights.evaluate import Grant, Role, Statement

Part = tuple[str, str]
"""Where, and what could be taken away: an action or a resource of a statement, or a policy of a role."""


def surprises(
    roles: Collection[Role], calls: Iterable[frozenset[Grant]], excused: Mapping[str, Collection[str]]
) -> list[str]:
    """What no call needed, and what is excused although it is needed or not there; each as a sentence.

    ``calls`` are those that were allowed, each with all that allows it: a call that is allowed twice needs neither.
    ``excused`` names actions by policy.  A resource is excused with all the actions of its statement, a role's policy
    with all its statements.
    """
    needed = {part for grants in calls for part in frozenset.intersection(*(_parts(grant) for grant in grants))}
    found = {
        f"{where}: {what} is allowed, and no call needs it"
        for role in roles
        for statement in role.statements
        if statement.effect == "Allow"
        for where, what in _unexcused(role, statement, excused)
        if (where, what) not in needed
    }
    return sorted({*found, *_stale(roles, needed, excused)})


def _unexcused(role: Role, statement: Statement, excused: Mapping[str, Collection[str]]) -> Iterator[Part]:
    reasons = excused.get(statement.policy, ())
    yield from ((_place(statement.policy, statement.number), one) for one in statement.actions if one not in reasons)
    if not set(statement.actions) <= set(reasons):
        yield from ((_place(statement.policy, statement.number), one) for one in statement.resources)
    of_policy = {one for each in role.statements if each.policy == statement.policy for one in each.actions}
    if not of_policy <= set(reasons):
        yield role.name, statement.policy


def _stale(roles: Collection[Role], needed: Collection[Part], excused: Mapping[str, Collection[str]]) -> Iterator[str]:
    statements = {(one.policy, one.number): one for role in roles for one in role.statements}.values()
    for policy, actions in excused.items():
        for action in actions:
            places = [
                _place(one.policy, one.number) for one in statements if one.policy == policy and action in one.actions
            ]
            if not places:
                yield f"{policy} does not allow {action}, which is excused"
            elif all((place, action) in needed for place in places):
                yield f"{policy}: {action} is needed, and excused"


def _parts(grant: Grant) -> frozenset[Part]:
    place = _place(grant.policy, grant.statement)
    return frozenset({(place, grant.action), (place, grant.resource), (grant.role, grant.policy)})


def _place(policy: str, statement: int) -> str:
    return f"{policy}[{statement}]"
