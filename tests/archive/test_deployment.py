"""The deployment files: linted by the tools of their makers, and their commands run."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.archive.conftest import Site
from tidegate.archive.config import read_config

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/archive"
DOCKERFILE = (EXAMPLES / "Dockerfile").read_text()
MANIFESTS = sorted(EXAMPLES.glob("kubernetes-*.yaml"))
UNITS = sorted([*EXAMPLES.glob("*.service"), *EXAMPLES.glob("*.timer")])
ENTRY = ["tidegate", "archive"]


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


# --- Linted -------------------------------------------------------------------------------------------


def _demand_sound(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_is_sound() -> None:
    _demand_sound(_tool("hadolint"), EXAMPLES / "Dockerfile")


def test_the_image_is_made_of_what_there_is() -> None:
    lines = re.findall(r"^COPY (.*) /src\S*$", DOCKERFILE, re.MULTILINE)
    copied = [word for words in lines for word in words.split()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(copied) == {"pyproject.toml", "src", project["readme"], *project["license-files"]}
    assert all((ROOT / path).exists() for path in copied)
    [extras] = re.findall(r'"/src\[(.*)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_knows_every_field(path: Path) -> None:
    for resource in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(resource, "1.30", strict=True)


def test_the_compose_file_follows_the_specification() -> None:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    _demand_sound(_tool("check-jsonschema"), *schema, EXAMPLES / "compose.yaml")


def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for unit in UNITS:  # with a program and a user that are there
        text = unit.read_text().replace("/usr/local/bin/tidegate", "/bin/true")
        (tmp_path / unit.name).write_text(text.replace("User=des", "User=root"))
    _demand_sound("systemd-analyze", "verify", "--man=no", *sorted(tmp_path.iterdir()))


def test_the_configuration_loads() -> None:
    config = read_config(EXAMPLES / "watermark-config.yaml", {"ARCHIVE_DB_PASSWORD": "p@ss"})
    assert (config.packer.output_dir, config.metrics.port) == ("/mnt/des/output", 9108)


# --- Run ----------------------------------------------------------------------------------------------


def _dockerfile() -> list[str]:
    lines = [line.partition(" ") for line in DOCKERFILE.splitlines()]
    told = {word: rest for word, _, rest in lines}
    return [*json.loads(told["ENTRYPOINT"]), *json.loads(told["CMD"])]


def _demand_healthy(port: str) -> None:
    """As Docker would ask."""
    [told] = re.findall(r"HEALTHCHECK .*\\\n +CMD (.*)", DOCKERFILE)
    _, *words = json.loads(told.replace(":9108/", f":{port}/"))
    _demand_sound(sys.executable, *words)


def _containers(resource: Any) -> list[Any]:
    if isinstance(resource, dict):
        found = resource.get("containers", [])
        return [*found, *(item for value in resource.values() for item in _containers(value))]
    return []


def _commands() -> dict[str, list[str]]:
    found = {"Dockerfile": _dockerfile()}
    services = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"]
    found |= {f"compose {name}": [*ENTRY, *service["command"]] for name, service in services.items()}
    for path in MANIFESTS:
        [container] = _containers(yaml.safe_load(path.read_text()))
        found[path.name] = [*ENTRY, *(word.replace("$(WORKER_ID)", "3") for word in container["args"])]
    for path in EXAMPLES.glob("*.service"):
        [start] = [line for line in path.read_text().splitlines() if line.startswith("ExecStart=")]
        found[path.name] = shlex.split(start.partition("=")[2])
    return found


def _once_each() -> dict[str, list[str]]:
    """What several files have in common is run once, under all their names."""
    same: dict[tuple[str, ...], list[str]] = {}
    for name, command in sorted(_commands().items()):
        at = command.index("--config") + 1
        same.setdefault((*command[1:at], "CONFIG", *command[at + 1 :]), []).append(name)
    return {", ".join(names): list(words) for words, names in same.items()}


COMMANDS = _once_each()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_the_commands_inside_archive_and_end_well(site: Site, command: list[str]) -> None:
    site.add(5)
    words = [str(site.config_file) if word == "CONFIG" else word for word in command]
    if "continuous" in words:
        words += ["--metrics-port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli", *words], stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        told = ""
        try:
            for line in process.stdout:
                told += line
                if line.startswith("next cycle"):
                    [port] = re.findall(r"health at .*:(\d+)/healthz", told)
                    _demand_healthy(port)
                    process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, told
        finally:
            process.kill()
    if "run" in words:
        site.demand_complete()
