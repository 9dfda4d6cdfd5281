"""deploy/kubernetes: valid by the schemas of Kubernetes, and confined as docs/guides/kubernetes.md says."""

import re
import subprocess
import sys

import pytest
from paths import ROOT

yaml = pytest.importorskip("yaml")
FOLDER = ROOT / "deploy/kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS = [m for name in KUSTOMIZATION["resources"] for m in yaml.safe_load_all((FOLDER / name).read_text())]
JOBS = {manifest["metadata"]["name"]: manifest for manifest in MANIFESTS if manifest["kind"] == "Job"}
CONTAINERS = [c for job in JOBS.values() for c in job["spec"]["template"]["spec"]["containers"]]


def validate(manifest):
    pytest.importorskip("kubernetes_validate").validate(manifest, "1.30", strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")
def test_a_manifest_is_valid_by_the_schema_of_its_kind(manifest):
    validate(manifest)


def test_a_misspelled_field_is_refused():
    job = yaml.safe_load((FOLDER / "ingest.yaml").read_text())
    job["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(Exception, match="volumeMount"):
        validate(job)


def test_every_file_is_used():
    assert {path.name for path in FOLDER.iterdir()} == {*KUSTOMIZATION["resources"], "kustomization.yaml"}
    assert JOBS.keys() == {"robocache-ingest", "robocache-training"}


def test_the_image_has_the_version_of_the_package():
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert KUSTOMIZATION["images"] == [{"name": "robocache", "newTag": version}]
    assert {container["image"] for container in CONTAINERS} == {"robocache"}


@pytest.mark.parametrize("name", JOBS)
def test_pods_run_without_root_and_without_a_token(name):
    pod = JOBS[name]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c["name"])
def test_a_container_is_confined_probed_and_has_limits(container):
    confined = container["securityContext"]
    assert confined["readOnlyRootFilesystem"] is True
    assert confined["allowPrivilegeEscalation"] is False
    assert confined["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys() & container["resources"]["limits"].keys()
    assert container["startupProbe"]["exec"]["command"] == ["robocache", "self-test"]


def test_all_volumes_are_mounted_and_defined():
    for job in JOBS.values():
        pod = job["spec"]["template"]["spec"]
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_world_size_is_the_number_of_pods():
    spec = JOBS["robocache-training"]["spec"]
    env = {entry["name"]: entry.get("value") for entry in spec["template"]["spec"]["containers"][0]["env"]}
    assert spec["completions"] == spec["parallelism"] == int(env["WORLD_SIZE"])
    host, _, service = env["MASTER_ADDR"].partition(".")
    assert host == "robocache-training-0"
    assert spec["template"]["spec"]["subdomain"] == service


def test_the_ingest_command_is_one_that_the_command_line_accepts(tmp_path):
    command = JOBS["robocache-ingest"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[0] == "robocache"
    words = [str(tmp_path / word[1:]) if word.startswith("/") else word for word in command[1:]]
    done = subprocess.run([sys.executable, "-m", "robocache", *words], capture_output=True, text=True, timeout=100)
    assert str(tmp_path / "logs") in done.stderr  # that there are no logs, and nothing about the options
    assert "usage" not in done.stderr
