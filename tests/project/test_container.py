"""The recipe of the container image fits examples/kubernetes and pyproject.toml; the bill of materials of a root."""

import json
import re
import shlex
import subprocess
import sys

import pytest
from paths import ROOT

yaml = pytest.importorskip("yaml")
FOLDER = ROOT / "tools/release/container"
RECIPE = (FOLDER / "Containerfile").read_text().replace("\\\n", " ")
LINES = [line.split(" ", 1) for line in RECIPE.splitlines() if line and not line.startswith("#")]
KUBERNETES = ROOT / "examples/kubernetes"
JOBS = [
    manifest
    for name in ("ingest.yaml", "training.yaml")
    for manifest in yaml.safe_load_all((KUBERNETES / name).read_text())
    if manifest["kind"] == "Job"
]


def said(word):
    """The arguments of an instruction, stage by stage."""
    return [rest for first, rest in LINES if first == word]


def pod(job):
    return job["spec"]["template"]["spec"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["metadata"]["name"])
def test_the_image_runs_as_the_user_of_the_pods(job):
    context = pod(job)["securityContext"]
    assert said("USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["metadata"]["name"])
def test_the_health_check_is_the_startup_probe(job):
    (check,) = said("HEALTHCHECK")
    command = json.loads(check.split("CMD ", 1)[1])
    assert [container["startupProbe"]["exec"]["command"] for container in pod(job)["containers"]] == [command]


def test_what_is_written_is_where_the_pods_can_write():
    containers = [pod(job)["containers"] for job in JOBS]
    mounted = [{mount["mountPath"] for one in each for mount in one["volumeMounts"]} for each in containers]
    environment = dict(word.split("=", 1) for word in shlex.split(said("ENV")[0]))
    for folder in (environment["HOME"], environment["ROBOCACHE_HOME"], said("WORKDIR")[0]):
        assert all("/" + folder.split("/")[1] in mounts for mounts in mounted), folder
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"


def test_the_commands_of_the_pods_are_on_the_path():
    (path,) = re.findall(r"PATH=(\S+)", RECIPE)
    assert path.split(":")[0] == "/opt/robocache/bin"  # has robocache and python
    commands = {container["command"][0] for job in JOBS for container in pod(job)["containers"]}
    assert commands == {"robocache", "python"}


def test_the_image_has_the_name_and_the_version_of_the_manifests():
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    (image,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["images"]
    script = (FOLDER / "image.sh").read_text()
    assert image == {"name": "robocache", "newTag": version}
    assert '--tag "robocache:$tag"' in script
    assert 'tag=$version$([ "$variant" = cpu ]' in script  # the CPU image has the version alone as its tag
    assert 'org.opencontainers.image.version="$VERSION"' in RECIPE
    assert f"robocache:{version}" in (ROOT / "docs/guides/container.md").read_text()


def test_nothing_is_pulled_and_no_host_is_named():
    assert [first.split()[0] for first in said("FROM")] == ["scratch", "cpu"]
    assert said("ADD") == ["root.tar /"]
    files = [*FOLDER.iterdir(), *KUBERNETES.iterdir(), ROOT / "tools/release/try/container.sh"]
    for path in files:
        for line in path.read_text().splitlines():
            assert "://" not in line or "cyclonedx.org/schema" in line, (path.name, line)
            assert not re.search(r"image: *\S+/|docker\.|\bghcr\b|\bnvcr\b|\bquay\b", line), (path.name, line)


def test_only_the_cuda_image_asks_for_a_gpu():
    cpu, cuda = RECIPE.split("FROM cpu AS cuda")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video" in cuda
    assert "NVIDIA" not in re.sub(r"#.*", "", cpu)


def test_the_image_has_what_the_extra_formats_needs():
    text = (ROOT / "pyproject.toml").read_text()
    extras = {name: re.findall(r'"([^"]+)"', items) for name, items in re.findall(r"^(\w+) = \[(.*)\]$", text, re.M)}
    (names,) = (re.fullmatch(r"robocache\[(.*)\]", item)[1] for item in extras["formats"])
    needed = {item for name in names.split(",") for item in extras[name]}
    listed = set((ROOT / "tools/release/locks/container.txt").read_text().split("\n"))
    assert needed <= listed
    locked = (ROOT / "tools/release/locks/container.lock").read_text()
    for item in needed | {"numpy", "pip"}:
        assert re.search(rf"^{re.split('[>=]', item)[0]}==", locked, re.M), item


STATUS = """\
Package: libx
Status: install ok installed
Architecture: amd64
Version: 1.2+b1

Package: python3
Status: install ok installed
Architecture: amd64
Version: 3.13.5-1

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def test_the_bill_lists_packages_with_licenses_and_the_parts_of_wheels(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def metadata(name, license_line):
        return f"Name: {name}\nVersion: 0.1.0\n{license_line}\n"

    site = "opt/robocache/lib/python3.13/site-packages"
    write("etc/os-release", "NAME=Debian\nVERSION_CODENAME=trixie\n")
    write("var/lib/dpkg/status", STATUS)
    write("usr/share/doc/libx/copyright", "Format: x\n\nFiles: *\nLicense: Expat\n text\n\nFiles: y\nLicense: GPL-2+\n")
    write("usr/share/doc/python3/copyright", "Python is free software.\n")
    write(
        f"{site}/robocache-0.1.0.dist-info/METADATA",
        "Name: robocache\nVersion: 0.1.0\nLicense-Expression: Apache-2.0\n",
    )
    part = {"type": "library", "bom-ref": "1", "name": "nanobind", "version": "3.1.0"}
    write(f"{site}/robocache-0.1.0.dist-info/sboms/robocache.cdx.json", json.dumps({"components": [part]}))
    write(
        f"{site}/old-1.dist-info/METADATA",
        "Name: old\nVersion: 1\nClassifier: License :: OSI Approved :: BSD License\n",
    )
    command = [sys.executable, FOLDER / "bill.py", tmp_path, "0.1.0", "1700000000"]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    listed = {component["name"]: component for component in made["components"]}
    assert listed.keys() == {"libx", "python3", "robocache", "old"}
    assert listed["libx"]["purl"] == "pkg:deb/debian/libx@1.2%2Bb1?arch=amd64&distro=trixie"
    assert listed["libx"]["licenses"] == [{"license": {"name": "Expat"}}, {"license": {"name": "GPL-2+"}}]
    assert listed["python3"]["licenses"] == [{"license": {"name": "in /usr/share/doc/python3/copyright"}}]
    assert listed["robocache"]["licenses"] == [{"expression": "Apache-2.0"}]
    assert [inner["name"] for inner in listed["robocache"]["components"]] == ["nanobind"]
    assert listed["old"]["licenses"] == [{"license": {"name": "BSD License"}}]
