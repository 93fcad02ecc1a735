"""A proxy in front of moto that refuses requests without a signature or with expired keys, as AWS does.

moto accepts every request.  AWS answers a request without a signature with 403 AccessDenied, and a request with expired
keys with 400 ExpiredToken or ExpiredTokenException.  The proxy does not check signatures themselves.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

import pytest

from local_stack.credential_server import KEY_VARIABLES, CredentialServer, running_credential_server
from local_stack.loopback_proxy import serving
from local_stack.moto_server import REGION, MotoServer
from support.proxies import CountingProxy, Forwarder

_CREDENTIAL = re.compile(r"Credential=(?P<key>[^/]+)/[^/]+/(?P<region>[^/]+)/(?P<service>[^/]+)/")
# Less than ten minutes, so that boto3 refreshes the keys before every request.
_LIFE_S = 540


class LetIn(NamedTuple):
    """A request that was accepted."""

    service: str
    region: str
    """Service and region are those of the signature."""
    role: str
    by_arrow: bool
    """Whether PyArrow sent it, and not boto3."""


@dataclass
class GuardedAws:
    """The proxy's address, the credential server, and the requests."""

    moto: MotoServer
    keys: CredentialServer
    endpoint: str = ""
    let_in: list[LetIn] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """The keys of refused requests; "" for a request without keys."""
    on_entry: Callable[[LetIn, str], None] = lambda entry, address: None
    """Called with an accepted request (``METHOD /path``) before it is answered."""
    own_keys: dict[str, str] = field(default_factory=dict)
    """Roles by access keys that do not come from the server and never expire."""

    def environment(self, role: str = "machine") -> dict[str, str]:
        """The variables by which a process gets access in this role."""
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": REGION, **self.keys.environment(role)}

    def surround(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make this the AWS of this process, with only the machine's keys and those of two profiles.

        ``person`` has a credential process; ``assumes`` assumes the role ``writer`` with ``person``'s keys.
        """
        process = folder / "person.json"
        self.keys.written["person"] = process
        self.keys.write()
        (folder / "config").write_text(
            f"[profile person]\ncredential_process = cat {process}\n"
            "[profile assumes]\nrole_arn = arn:aws:iam::123456789012:role/writer\nsource_profile = person\n"
        )
        for name in KEY_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        more = {"AWS_CONFIG_FILE": str(folder / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none")}
        for name, value in {**self.environment(), **more}.items():
            monkeypatch.setenv(name, value)

    def new_bucket(self) -> str:
        """Create a bucket and return its address."""
        name = f"guarded-{uuid.uuid4()}"
        self.moto.client("s3").create_bucket(Bucket=name)
        return f"s3://{name}"

    def roles(self, service: str, *, by_arrow: bool | None = None) -> set[str]:
        """The roles of accepted requests to a service."""
        return {
            let_in.role for let_in in self.let_in if let_in.service == service and by_arrow in (None, let_in.by_arrow)
        }

    def forget(self) -> None:
        """Forget all requests so far."""
        self.let_in.clear()
        self.refused.clear()


@contextmanager
def guarded(moto: MotoServer) -> Iterator[GuardedAws]:
    """The proxy, which runs during the block."""
    with running_credential_server(_LIFE_S) as keys:
        aws = GuardedAws(moto, keys)

        class Handler(_GuardedForwarder):
            upstream = moto.endpoint.removeprefix("http://")
            counted = CountingProxy("")
            door = aws

        with serving(Handler) as aws.endpoint:
            yield aws


class _GuardedForwarder(Forwarder):
    door: GuardedAws

    def serve(self) -> None:
        body = self.body()
        signed = _CREDENTIAL.search(self.headers.get("Authorization", ""))
        key = signed["key"] if signed else ""
        role = self.door.keys.roles.get(key) or self.door.own_keys.get(key)
        if signed is None or role is None:
            self.door.refused.append(key)
            self._refuse(key, signed["service"] if signed else "s3")
            return
        by_arrow = "oto" not in self.headers.get("User-Agent", "")  # Boto3 and Botocore name themselves
        entry = LetIn(signed["service"], signed["region"], role, by_arrow)
        self.door.let_in.append(entry)
        self.door.on_entry(entry, f"{self.command} {self.path}")
        if signed["service"] == "sts":
            self._say(200, self._assumed(parse_qs(body.decode())["RoleArn"][0]))
        else:
            self.forward(body)

    def _assumed(self, arn: str) -> str:
        """The answer of AssumeRole (AWS STS API reference), with keys of the credential server."""
        reported = self.door.keys.answer(arn.rpartition("/")[2])
        return (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>'
            f"<Credentials><AccessKeyId>{reported['AccessKeyId']}</AccessKeyId>"
            f"<SecretAccessKey>{reported['SecretAccessKey']}</SecretAccessKey><SessionToken>{reported['Token']}</SessionToken>"
            f"<Expiration>{reported['Expiration']}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )

    def _refuse(self, key: str, service: str) -> None:
        if service == "s3":
            code = "ExpiredToken" if key else "AccessDenied"
            self._say(400 if key else 403, f"<Error><Code>{code}</Code><Message>no {key}</Message></Error>")
        else:
            self._say(400, json.dumps({"__type": "ExpiredTokenException", "message": f"no {key}"}))

    def _say(self, status: int, text: str) -> None:
        body = text.encode()
        self.answer(status, (), body, str(len(body)))
