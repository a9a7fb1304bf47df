"""Secrets that are kept elsewhere reach the entries that need them, when they need them, and nobody else."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import aws
from tests.config.conftest import Folder
from tidegate.config.connection_models import PostgreSQLSource
from tidegate.core import secrecy
from tidegate.core.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def unchanged_path() -> Iterator[None]:
    before, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if name.startswith("example_"):
            del sys.modules[name]


def with_password(folder: Folder, password: str, other: str = "x") -> Folder:
    return folder.connections(
        f"""
        connections:
          sources:
            shop: {{type: postgresql, host: h, database: d, username: u, password: "{password}"}}
            other: {{type: postgresql, host: h, database: d, username: u, password: "{other}"}}
          targets:
            warehouse: {{type: duckdb, path: warehouse.duckdb}}
        """
    )


def password(folder: Folder) -> str:
    source = folder.load().connections.source("shop")
    assert isinstance(source, PostgreSQLSource)
    assert source.password is not None
    return source.password.get_secret_value()


def refusal(folder: Folder) -> str:
    with pytest.raises(ConfigError) as refused:
        folder.load().connections.source("shop")
    return str(refused.value)


def installed(folder: Path, name: str, code: str) -> None:
    """A package with a provider, as an installer would leave it behind."""
    module = f"example_{name}"
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tidegate.secrets]\n{name} = {module}:secret\n")
    sys.path.insert(0, str(folder))


def test_a_file_holds_a_secret(folder: Folder) -> None:
    secret = folder.write("run/password", "hunter2 of the file\n")
    assert password(with_password(folder, f"${{file:{secret}}}")) == "hunter2 of the file"
    assert password(with_password(folder, "${file:run/password}")) == "hunter2 of the file"
    assert secrecy.hidden("it was hunter2 of the file!") == f"it was {secrecy.HIDDEN}!"


def test_part_of_a_value_can_be_a_secret(folder: Folder) -> None:
    folder.write("password", "p@ss")
    folder.connections(
        """
        connections:
          sources: {shop: {type: sqlite, path: shop.db}}
          targets: {w: {type: duckdb, path: w.db}}
        state: {marks: {type: sql, url: "postgresql://u:${file:password}@h/d"}}
        """
    )
    state = folder.load().connections.state("marks")
    assert state.url.get_secret_value() == "postgresql://u:p@ss@h/d"  # type: ignore[union-attr]


def test_only_whoever_needs_a_secret_is_told_that_it_is_missing(folder: Folder) -> None:
    with_password(folder, "${file:missing}", "plain")
    project = folder.load()
    assert project.connections.source("other").type == "postgresql"
    assert project.pipeline("shop").source_name == "shop"
    assert refusal(folder) == (
        "config/connections.yml:3:75: connections.sources.shop.password: "
        f"the file {folder.root}/missing cannot be read: No such file or directory"
    )
    with pytest.raises(ConfigError, match="cannot be read"):
        project.validate()


def test_a_provider_is_an_installed_package(folder: Folder, tmp_path: Path) -> None:
    code = """
asked = []

def secret(reference):
    asked.append(reference)
    return {"a/b": "s3cret"}[reference]
"""
    installed(tmp_path, "safe", code)
    with_password(folder, "${safe:a/b}", "${safe:a/b}")
    project = folder.load()
    import example_safe  # type: ignore[import-not-found]

    assert example_safe.asked == []  # loading asks nobody
    project.connections.source("shop")
    project.connections.source("other")
    assert example_safe.asked == ["a/b"]  # and nobody twice
    assert "s3cret" not in repr(project.connections.source("shop"))
    assert "`safe` has no secret `c`" in refusal(with_password(folder, "${safe:c}"))


def test_what_is_wrong_with_a_provider_is_said(folder: Folder, tmp_path: Path) -> None:
    installed(tmp_path, "broken", "def secret(reference):\n    raise RuntimeError('the safe is sealed')\n")
    assert "`broken` could not be asked for `x`: the safe is sealed" in refusal(
        with_password(folder, "${broken:x}")
    )
    assert "no provider of secrets is called `brocken`: did you mean `broken`?" in refusal(
        with_password(folder, "${brocken:x}")
    )


def test_primaries_and_kinds_are_known_while_secrets_are_not(
    folder: Folder,
) -> None:
    folder.connections(
        """
        connections:
          sources:
            shop: {type: postgresql, host: h, database: d, password: "${file:x}", ceiling: {primary: main}}
            main: {type: postgresql, host: h, database: d, password: "${file:x}"}
          targets:
            warehouse: {type: postgresql, host: h, database: d, password: "${file:x}"}
        """
    )
    pipeline = folder.open()
    assert pipeline.primary_name == "main"
    assert pipeline.name_rules.longest == 63


def test_aws_secrets_manager_is_asked_by_name_and_key(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "ACCESS_KEY_ID": "k",
        "SECRET_ACCESS_KEY": "s",
        "DEFAULT_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    kept = {"prod/shop": json.dumps({"user": "u", "password": "from aws"}), "plain": "just this"}
    with aws.secrets_manager(kept) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", server.url)
        assert password(with_password(folder, "${aws:prod/shop#password}")) == "from aws"
        assert password(with_password(folder, "${aws:plain}")) == "just this"
        assert "it has no part `pin`" in refusal(with_password(folder, "${aws:prod/shop#pin}"))
        assert "`aws` has no secret `nothing`" in refusal(with_password(folder, "${aws:nothing}"))
        assert secrecy.hidden(kept["prod/shop"]) == secrecy.HIDDEN  # nor its other parts


def test_the_example_of_the_documents_asks_vault(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/how-to/keep-secrets.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    installed(tmp_path, "vault", code)

    def vault(path: str, headers: dict[str, str], body: bytes) -> aws.Answer:
        del body
        if headers.get("x-vault-token") != "root" or path != "/v1/secret/data/shop":
            return 404, json.dumps({"errors": []})
        return 200, json.dumps({"data": {"data": {"password": "from vault"}}})

    with aws.http(vault) as server:
        monkeypatch.setenv("VAULT_ADDR", server.url)
        monkeypatch.setenv("VAULT_TOKEN", "root")
        assert password(with_password(folder, "${vault:secret/data/shop#password}")) == "from vault"
        assert "`vault` could not be asked" in refusal(with_password(folder, "${vault:secret/data/x#y}"))
