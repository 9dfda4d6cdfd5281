"""The workflows of GitHub: valid by its schema, without findings of zizmor, calling existing make targets."""

import re
import shutil
import subprocess
import sys

import pytest
from paths import ROOT

yaml = pytest.importorskip("yaml")
pytest.importorskip("check_jsonschema")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [ROOT / f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "feature")]


def valid(schema, *paths):
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        f"vendor.github-{schema}",
        *map(str, paths),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_workflows_and_issue_forms_are_valid_by_the_schemas_of_github():
    for done in (valid("workflows", *WORKFLOWS), valid("issue-forms", *FORMS)):
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_misspelled_key_is_refused(tmp_path):
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    assert valid("workflows", wrong).returncode == 1


def test_zizmor_finds_nothing_and_does_find_a_planted_fault(tmp_path):
    zizmor = shutil.which("zizmor")
    if zizmor is None:
        pytest.skip("needs zizmor")
    command = [zizmor, "--offline", "--config", str(ROOT / ".github/zizmor.yml")]
    done = subprocess.run([*command, str(ROOT / ".github/workflows")], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yml"
    text = (ROOT / ".github/workflows/checks.yml").read_text()
    wrong.write_text(text.replace("make lint", "echo ${{ github.event.pull_request.title }}"))
    assert subprocess.run([*command, str(wrong)], capture_output=True, timeout=100).returncode != 0


def test_every_make_target_of_a_workflow_exists():
    known = set(re.findall(r"^([\w-]+(?: [\w-]+)*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {target for line in known for target in line.split()} | {"release"}
    used = {word for path in WORKFLOWS for word in re.findall(r"\bmake ([\w-]+)", path.read_text())}
    assert {"lint", "test", "site", "release", "test-gpu"} <= used
    assert used - known == set()


def test_the_matrix_has_every_supported_python():
    (checks,) = (yaml.safe_load(path.read_text()) for path in WORKFLOWS if path.stem == "checks")
    assert checks["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.10", "3.11", "3.12", "3.13"]
    assert "3.10 to 3.13" in (ROOT / "docs/guides/support.md").read_text()


def test_the_release_workflow_has_what_make_release_needs():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    builders = {name: job for name, job in jobs.items() if "make release" in str(job)}
    assert builders.keys() == {"cpu", "cuda"}
    for job in builders.values():
        hosted, commands = "self-hosted" not in job["runs-on"], [step.get("run", "") for step in job["steps"]]
        assert ("make release CUDA=0" in commands) == hosted  # runners of GitHub have no nvcc
        assert job.get("container") == ("debian:12" if hosted else None)  # its compiler, and a mirror of Debian for apt
    versions = re.search(r"versions=\(([\d. ]+)\)", (ROOT / "tools/release/release.sh").read_text())[1].split()
    (pyenv,) = [step["run"] for step in jobs["cpu"]["steps"] if "pyenv install" in step.get("run", "")]
    assert {*pyenv.split("install ")[1].split(), "3.11"} == {*versions}  # Debian 12 has 3.11


def test_the_files_of_a_release_are_attested(tmp_path):
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    for job in ("cpu", "cuda"):
        (upload,) = [step["with"] for step in jobs[job]["steps"] if "upload-artifact" in step.get("uses", "")]
        target = "release" if job == "cuda" else "release-cpu"
        assert (
            upload["path"] == f"dist/{target}"
        )  # where the Makefile puts them; the folder itself is not in the artifact
        for name in ("a.whl", "a.tar.gz", "debug/a.debug"):
            (tmp_path / "dist" / upload["name"] / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "dist" / upload["name"] / name).touch()
    steps = [step["with"] for step in jobs["provenance"]["steps"]]
    assert steps[0] == {"path": "dist"}  # without a name: one folder for each artifact
    found = [path.name for pattern in steps[1]["subject-path"].split() for path in tmp_path.glob(pattern)]
    assert sorted(found) == ["a.tar.gz", "a.tar.gz", "a.whl", "a.whl"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_a_job_says_why(path):
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for line in path.read_text().splitlines():
        if line.strip().endswith(": write") or ": write " in line:
            assert "#" in line or "attestations" in line, line
