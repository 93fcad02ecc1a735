"""Who calls: each role of a stack has an access key of its own, and what it used and was denied is remembered."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from local_stack.credential_server import CredentialServer
from local_stack.rights.evaluate import Decision, Grant, Need, Role, Statement, decide


@dataclass(frozen=True, slots=True)
class Denied:
    """One call that no policy allows."""

    role: str
    need: Need

    def __str__(self) -> str:
        return f"{self.role} may not {self.need}"


@dataclass(slots=True, eq=False)
class StackRights:
    """The roles of one stack, by ARN, and what they used of their policies."""

    roles: dict[str, Role]
    keys: CredentialServer
    """Gives out keys, to each process under its own name."""
    used: set[frozenset[Grant]] = field(default_factory=set)
    """Of each call that was allowed all that allows it."""
    _keys: dict[str, str] = field(default_factory=dict)
    _processes: dict[str, str] = field(default_factory=dict)
    """Role by the name of the process that has it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _decisions: dict[Hashable, tuple[Role, Decision]] = field(default_factory=dict)
    """What was decided, for the same is asked thousands of times; the role is kept, so that none gets its identity."""

    def key_of(self, role: str) -> str:
        """The access key of a role, by its ARN."""
        return self._keys[role]

    def credentials_of(self, role: str, process: str) -> Mapping[str, str]:
        """What a process of this role has in its environment: where to ask for keys."""
        self._processes[process] = role
        return self.keys.environment(process)

    def caller(self, key: str) -> Caller | None:
        """The role whose process got this key."""
        role = self._processes.get(self.keys.roles.get(key, ""))
        return None if role is None else Caller(self, role)

    def refused(self, role: str, needs: Iterable[Need]) -> Need | None:
        """The first of these rights that a role lacks; if it lacks none, all of them count as used."""
        used: list[frozenset[Grant]] = []
        for need in needs:
            decision = self._decide(self.roles[role], need)
            if not decision.is_allowed:
                with self._lock:
                    DENIED.append(Denied(self.roles[role].name, need))
                return need
            used.append(frozenset(decision.grants))
        if not self.used.issuperset(used):
            with self._lock:
                self.used.update(used)
        return None

    def _decide(self, role: Role, need: Need) -> Decision:
        key = id(role), need.action, need.resource, frozenset(need.context.items())
        found = self._decisions.get(key)
        if found is None:
            found = self._decisions[key] = role, decide(role, need)
        return found[1]

    @contextmanager
    def without(self, policy: str, action: str) -> Iterator[None]:
        """While it lasts, a policy does not name an action any more, in none of its statements."""
        before = dict(self.roles)
        for arn, role in before.items():
            self.roles[arn] = Role(role.name, tuple(_without(one, policy, action) for one in role.statements))
        assert self.roles != before, f"{policy} does not name {action}"
        try:
            yield
        finally:
            self.roles.update(before)

    @contextmanager
    def enforced(self) -> Iterator[StackRights]:
        """While it lasts, who signs with the keys of these roles is judged."""
        for role in self.roles:
            self._keys[role] = f"LOCAL{uuid.uuid4().hex[:15].upper()}"
            CALLERS[self._keys[role]] = CALLERS[role] = Caller(self, role)
        _STACKS.append(self)
        try:
            yield self
        finally:
            _STACKS.remove(self)
            for role in self.roles:
                del CALLERS[self._keys[role]], CALLERS[role]


@dataclass(frozen=True, slots=True)
class Caller:
    """A role of a stack; ``role`` is its ARN."""

    rights: StackRights
    role: str

    def refused(self, needs: Iterable[Need]) -> Need | None:
        """The first right that is missing."""
        return self.rights.refused(self.role, needs)


def _without(statement: Statement, policy: str, action: str) -> Statement:
    if statement.policy != policy:
        return statement
    return replace(statement, actions=tuple(one for one in statement.actions if one != action))


CALLERS: dict[str, Caller] = {}
"""By access key, and by the role's ARN.  Who is not in it, such as a test, is an operator, who may do everything."""


_STACKS: list[StackRights] = []
DENIED: list[Denied] = []
"""Every call of this process's stacks that was denied, in order."""


def caller_of(key: str) -> Caller | None:
    """Who signs with an access key, or has a role."""
    found = (stack.caller(key) for stack in _STACKS)
    return CALLERS.get(key) or next((caller for caller in found if caller is not None), None)
