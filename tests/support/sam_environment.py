"""The environment and the file system that SAM CLI gives a function."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from artifacts.locks import LAYER_PYTHON
from local_stack.stack import ROOT, LocalStack
from local_stack.template import REGION, TEMPLATE
from support.lambda_functions import sample
from support.rights_fleet import PARAMETERS
from support.stack_template import FUNCTIONS

# The environment that SAM CLI gives a function of a local stack, and SAM CLI's runtime emulator.


def sam_cli() -> Path:
    """The command of SAM CLI, which ``make`` passes on."""
    return Path(os.environ["SAM_CLI"])


def emulators() -> Path:
    """The folder of SAM CLI's emulators, one for each processor."""
    (found,) = sam_cli().resolve().parent.parent.glob("lib/python*/site-packages/samcli/local/rapid")
    return found


def variables_of(stack: LocalStack, catalogs: str) -> dict[str, dict[str, str]]:
    """The input of ``--env-vars`` as in events/README.md, with the names of the stack."""
    bucket, state = stack.template.name("ControlBucket"), stack.template.name("StateTable")
    samples = sample("environment")["Parameters"]
    named = {name: text.replace("my-control-bucket", bucket) for name, text in samples.items()}
    more = {"ICEKEEPER_STATE": f"dynamodb://{state}?region={REGION}", "ICEKEEPER_CATALOGS": catalogs}
    return {"Parameters": {**named, **more, "ICEKEEPER_TABLE_BUCKETS": ""}}


def as_sam_resolves(stack: LocalStack, catalogs: str, folder: Path) -> Mapping[str, Mapping[str, str]]:
    """By role: the variables of each function, the keys of its role, and the endpoint of the emulated AWS."""
    resolved = seen_by_sam(variables_of(stack, catalogs), PARAMETERS, folder)["environments"]
    return {role: {**resolved[logical_id], **_of_aws(stack, role)} for role, (logical_id, _) in FUNCTIONS.items()}


def seen_by_sam(variables: Mapping[str, Any], parameters: Mapping[str, str], folder: Path) -> Any:
    """The environments and roles that SAM CLI resolves from the template (``tests/sam/as_sam_sees_it.py``).

    Raises:
        AssertionError: SAM CLI cannot read the template.
    """
    given = folder / "environment.json"
    given.write_text(json.dumps(variables))
    script = ROOT / "tests" / "sam" / "as_sam_sees_it.py"
    command = [str(sam_cli().parent / "python"), str(script), str(TEMPLATE), str(given), json.dumps(parameters)]
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": REGION}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def keys_of(stack: LocalStack, role: str) -> dict[str, str]:
    """The keys of a function's role, as Lambda puts them into its environment."""
    reported = stack.keys.answer(role)
    names = {
        "AWS_ACCESS_KEY_ID": "AccessKeyId",
        "AWS_SECRET_ACCESS_KEY": "SecretAccessKey",
        "AWS_SESSION_TOKEN": "Token",
    }
    return {variable: reported[name] for variable, name in names.items()}


def _of_aws(stack: LocalStack, role: str) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": stack.moto.endpoint, **keys_of(stack, role)}


# The file system that a function of Lambda's Python sees, made of files of this machine, without fetching an image.
#
# The interpreter and glibc are this machine's; ``awslambdaric``, AWS's client of the runtime, comes from PyPI (``make``
# installs it), the emulator of the runtime from SAM CLI.  As in Lambda, there is no home folder and no ``/dev/shm``,
# and the only system programs are those that SAM CLI needs to make an image.

USER, GROUP = 993, 990
"""``sbx_user1051``, the user that runs the code of a function."""
EMULATOR = "/var/rapid/aws-lambda-rie"
VARIABLES = {
    "LANG": "en_US.UTF-8",
    "TZ": ":/etc/localtime",
    "PATH": "/var/lang/bin:/usr/local/bin:/usr/bin/:/bin:/opt/bin",
    "LD_LIBRARY_PATH": "/var/lang/lib:/lib64:/usr/lib64:/var/runtime:/var/runtime/lib:/var/task:/var/task/lib:/opt/lib",
    "LAMBDA_TASK_ROOT": "/var/task",
    "LAMBDA_RUNTIME_DIR": "/var/runtime",
}
"""AWS Lambda developer guide, "Using Lambda environment variables", with the PATH of the image."""

# Libraries of glibc and GCC that a wheel may expect (PEP 600); the system of Lambda's Python 3.12 has them.
_OF_THE_SYSTEM = ("libc", "libm", "librt", "libdl", "libpthread", "libresolv", "libgcc_s", "libstdc++")
# SAM's lines of an image: RUN mv ..., chmod ...
_TOOLS = ("/bin/sh", "/bin/mv", "/bin/chmod")
_FOLDERS = ("tmp", "opt", "var/task", "var/rapid", "proc", "dev", "etc", "bin", "home")
_NEVER_USED = ("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "config-*")
_BOOTSTRAP = f"""#!/bin/sh
export AWS_EXECUTION_ENV=AWS_Lambda_python{LAYER_PYTHON}
exec /var/lang/bin/python{LAYER_PYTHON} /var/runtime/bootstrap.py
"""
# The order of modules: AWS Lambda developer guide, "Dependency search path and runtime-included libraries".  A
# container engine starts the process as root, with a home and shared memory; Lambda does not.
_START = f"""\
import os, sys
if os.getuid() == 0:
    if os.path.isdir("/dev/shm"):
        os.chmod("/dev/shm", 0o700)
    os.setgroups([])
    os.setgid({GROUP})
    os.setuid({USER})
os.environ.pop("HOME", None)
sys.path[:1] = ["/var/task", "/opt/python/lib/python{LAYER_PYTHON}/site-packages", "/opt/python", "/var/runtime"]
from awslambdaric.__main__ import main
main(["bootstrap.py", os.environ["_HANDLER"]])
"""


def build_root(folder: Path, interpreter: str, runtime: Path, emulators: Path) -> None:
    """Fill a folder with the packages of ``runtime``, and with SAM CLI's emulator for this processor."""
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    (folder / "etc/passwd").write_text(f"sbx_user1051:x:{USER}:{GROUP}::/home/sbx_user1051:/sbin/nologin\n")
    (folder / "etc/group").write_text(f"sbx_user1051:x:{GROUP}:\n")
    _copy_python(_prefix_of(interpreter), folder / "var/lang")
    processor = "arm64" if platform.machine() == "aarch64" else "x86_64"
    shutil.copytree(runtime, folder / "var/runtime")
    (folder / "var/runtime/bootstrap").write_text(_BOOTSTRAP)
    (folder / "var/runtime/bootstrap").chmod(0o755)
    (folder / "var/runtime/bootstrap.py").write_text(_START)
    shutil.copy(emulators / f"aws-lambda-rie-{processor}", folder / EMULATOR[1:])
    (folder / EMULATOR[1:]).chmod(0o755)
    for tool in _TOOLS:
        shutil.copy(tool, folder / "bin" / Path(tool).name)
    _copy_libraries(folder)


def _prefix_of(interpreter: str) -> Path:
    command = [interpreter, "-c", "import sys; print(sys.base_prefix)"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def _copy_python(prefix: Path, target: Path) -> None:
    library = f"lib/python{LAYER_PYTHON}"
    (target / "bin").mkdir(parents=True)
    shutil.copy(prefix / "bin" / f"python{LAYER_PYTHON}", target / "bin")
    shutil.copytree(prefix / library, target / library, ignore=shutil.ignore_patterns("__pycache__", *_NEVER_USED))
    for path in (target / library / "lib-dynload").glob("_tkinter*"):
        path.unlink()
    for path in (prefix / "lib").glob(f"libpython{LAYER_PYTHON}.so*"):
        shutil.copy(path, target / "lib")


def _copy_libraries(root: Path) -> None:
    """Copy to /lib64 the libraries of all programs in the root, and the libraries that every wheel may expect."""
    programs = [*root.glob("bin/*"), *root.glob("var/lang/bin/*"), *root.glob("var/lang/lib/**/*.so*")]
    wanted = {path for program in programs for path in _libraries(program)} | set(_of_the_system())
    target = root / "lib64"
    target.mkdir()
    for path in wanted:
        if not path.name.startswith("libpython"):
            shutil.copy(path, target / path.name)
    # Each program names the loader by its absolute path.
    loader = next(path for path in wanted if path.name.startswith("ld-linux"))
    if loader.parent.name != "lib64":
        (root / "lib").mkdir(exist_ok=True)
        shutil.copy(loader, root / "lib" / loader.name)


def _libraries(program: Path) -> Iterator[Path]:
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    yield from (Path(found) for found in re.findall(r"(/\S+) \(0x", done))


def _of_the_system() -> Iterable[Path]:
    done = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^\s+(\S+) \([^)]*\) => (\S+)$", done, re.MULTILINE)
    known = {name.split(".so")[0]: Path(path) for name, path in found}
    return [known[name] for name in _OF_THE_SYSTEM if name in known]
