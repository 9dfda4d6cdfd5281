"""examples/kubernetes: valid by the schemas of Kubernetes, and confined as docs/guides/kubernetes.md says."""

import os
import re
import subprocess
import sys

import pytest
from paths import ROOT

yaml = pytest.importorskip("yaml")
FOLDER = ROOT / "examples/kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS = [m for name in KUSTOMIZATION["resources"] for m in yaml.safe_load_all((FOLDER / name).read_text())]
JOBS = {manifest["metadata"]["name"]: manifest for manifest in MANIFESTS if manifest["kind"] == "Job"}
CONTAINERS = [c for job in JOBS.values() for c in job["spec"]["template"]["spec"]["containers"]]
TRAINING = JOBS["robocache-training"]["spec"]
INITS = TRAINING["template"]["spec"].get("initContainers", [])


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
    assert {container["image"] for container in [*CONTAINERS, *INITS]} == {"robocache"}


@pytest.mark.parametrize("name", JOBS)
def test_pods_run_without_root_and_without_a_token(name):
    pod = JOBS[name]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("container", [*CONTAINERS, *INITS], ids=lambda c: c["name"])
def test_a_container_is_confined_probed_and_has_limits(container):
    confined = container["securityContext"]
    assert confined["readOnlyRootFilesystem"] is True
    assert confined["allowPrivilegeEscalation"] is False
    assert confined["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys() & container["resources"]["limits"].keys()
    if container in CONTAINERS:  # one that ends before the others start has no probes
        assert container["startupProbe"]["exec"]["command"] == ["robocache", "self-test"]


def test_all_volumes_are_mounted_and_defined():
    for job in JOBS.values():
        pod = job["spec"]["template"]["spec"]
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
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


def start_wait(cache, hours):
    """The init container of the training, for a cache in this folder, and with short pauses."""
    (container,) = INITS
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert env["CACHE"] == JOBS["robocache-ingest"]["spec"]["template"]["spec"]["containers"][0]["command"][3]
    assert 0 < float(env["WAIT_HOURS"]) < 100
    program, *words = container["command"]
    assert program == "python"
    env = {**os.environ, **env, "CACHE": str(cache), "WAIT_HOURS": str(hours), "PAUSE_SECONDS": "0.02"}
    return subprocess.Popen(
        [sys.executable, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_training_waits_until_the_manifest_of_the_cache_is_there(tmp_path):
    cache = tmp_path / "runs.cache"
    with start_wait(cache, 1) as waiting:
        assert waiting.stdout.readline() == f"wait-for-cache: waiting for {cache}/manifest.json, at most 1 hours\n"
        cache.mkdir()
        (cache / "manifest.json.next").touch()  # of an ingest that runs
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.3)
        (cache / "manifest.json").touch()
        assert waiting.wait(60) == 0, waiting.stderr.read()
    with start_wait(cache, 1) as done:
        assert done.wait(60) == 0


def test_a_training_whose_cache_never_comes_fails_at_once_and_says_why(tmp_path):
    with start_wait(tmp_path / "runs.cache", 0) as waiting:
        code, message = waiting.wait(60), waiting.stderr.read()
    assert f"{tmp_path}/runs.cache/manifest.json must exist within 0 hours, and does not" in message
    assert "kubectl logs -n robocache job/robocache-ingest" in message
    (rule,) = TRAINING["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"  # else the job would wait again, backoffLimit times
    assert rule["onExitCodes"] == {"containerName": INITS[0]["name"], "operator": "In", "values": [code]}
    assert TRAINING["template"]["spec"]["restartPolicy"] == "Never"  # which a podFailurePolicy needs
