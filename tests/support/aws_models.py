"""What botocore knows of AWS' services, read once for a whole test run.

Each session of boto3 reads and parses the models of its services anew, a tenth of a second of CPU for each client.
Clients of one session share them already, so sharing them between sessions changes nothing that a client does.  The
rules that tell a service's endpoint are made anew for each client even then; nothing changes them once they are made.
"""

from __future__ import annotations

import functools
from typing import Any

import botocore.endpoint_provider
import botocore.loaders
import botocore.session

__all__ = ["share_aws_models"]


@functools.cache
def share_aws_models() -> None:
    """Give all sessions of this process one loader, and all clients of a service the same rules."""
    botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
    original, made = botocore.endpoint_provider.RuleSet, {}

    def rule_set(*, partitions: Any, rules: Any, **more: Any) -> Any:
        """Rules by what they are made of, which is kept, so that nothing else has its identity."""
        key = (id(partitions), id(rules))
        if key not in made:
            made[key] = (original(partitions=partitions, rules=rules, **more), partitions, rules)
        return made[key][0]

    botocore.endpoint_provider.RuleSet = rule_set
