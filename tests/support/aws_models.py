"""What botocore knows of AWS' services, read once for a whole test run.

Each session of boto3 reads and parses the models of its services anew, a tenth of a second of CPU for each client.
Clients of one session share them already, so sharing them between sessions changes nothing that a client does.  The
rules that tell a service's endpoint, the methods of a client's class and the settings of TLS are made anew for each
client even then; nothing changes them once they are made.
"""

from __future__ import annotations

import functools
from typing import Any

import botocore.client
import botocore.endpoint_provider
import botocore.httpsession
import botocore.loaders
import botocore.session


@functools.cache
def share_aws_models() -> None:
    """Give all sessions of this process one loader, and all clients of a service the same rules and methods."""
    botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
    original, made = botocore.endpoint_provider.RuleSet, {}

    def rule_set(*, partitions: Any, rules: Any, **more: Any) -> Any:
        """Rules by what they are made of, which is kept, so that nothing else has its identity."""
        key = (id(partitions), id(rules))
        if key not in made:
            made[key] = (original(partitions=partitions, rules=rules, **more), partitions, rules)
        return made[key][0]

    botocore.endpoint_provider.RuleSet = rule_set
    _share_methods()
    # Nothing here speaks TLS but what says so, with certificates that each connection names itself.
    botocore.httpsession.create_urllib3_context = functools.cache(botocore.httpsession.create_urllib3_context)


def _share_methods() -> None:
    """They do nothing but name their operation; hooks add theirs to a dictionary of each client's own."""
    original, made = botocore.client.ClientCreator._create_methods, {}

    def create_methods(creator: Any, service_model: Any) -> dict[str, Any]:
        key = service_model.service_name, service_model.api_version
        if key not in made:
            made[key] = original(creator, service_model)
        return dict(made[key])

    botocore.client.ClientCreator._create_methods = create_methods
