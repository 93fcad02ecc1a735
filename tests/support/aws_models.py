"""What botocore knows of AWS' services, read once for a whole test run.

Each session of boto3 reads and parses the models of its services anew, a tenth of a second of CPU for each client.
Clients of one session share them already, so sharing them between sessions changes nothing that a client does.
"""

from __future__ import annotations

import functools

import botocore.loaders
import botocore.session

__all__ = ["share_aws_models"]


def share_aws_models() -> None:
    """Give all sessions of this process one loader."""
    botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
