"""The tools of `make release`: same bytes from same input, faults that the checks find, and what the documents list."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import robocache
from paths import ROOT

RELEASE = ROOT / "tools" / "release"
LINUX = "robocache-0.1.0-cp312-abi3-linux_x86_64.whl"


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(str(RELEASE))
    monkeypatch.syspath_prepend(str(RELEASE / "check"))
    import finish_wheel
    import native
    import origin
    import parts
    import prebuilt
    import provenance

    for module in (parts, provenance):
        monkeypatch.setattr(module, "gcc_version", lambda: "12.2.0")
        monkeypatch.setattr(module, "toolkit_version", lambda: "13.0.88")

    class Tools:
        pass

    for module in (finish_wheel, native, origin, parts, prebuilt, provenance):
        setattr(Tools, module.__name__, module)
    return Tools


def raw_wheel(folder, order=1):
    """A wheel with the installed native module, its entries in this order."""
    (module,) = pathlib.Path(robocache.__file__).parent.glob("_core.*so")
    files = {
        "robocache/__init__.py": b"",
        "robocache/_core.abi3.so": module.read_bytes(),
        "robocache-0.1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: cp312-abi3-linux_x86_64\n",
        "robocache-0.1.0.dist-info/RECORD": b"",
    }
    folder.mkdir()
    with zipfile.ZipFile(folder / LINUX, "w") as archive:
        for name in list(files)[::order]:
            archive.writestr(name, files[name])
    return folder / LINUX


def finished(tools, folder, order=1):
    raw, out = raw_wheel(folder, order), folder / "dist"
    out.mkdir()
    return tools.finish_wheel.finish(raw, out, "manylinux_2_28_x86_64", True, 1_700_000_000)


def test_a_finished_wheel_has_the_same_bytes_from_the_same_files(tools, tmp_path):
    first, second = finished(tools, tmp_path / "a"), finished(tools, tmp_path / "b", order=-1)
    assert first.read_bytes() == second.read_bytes()


def test_a_finished_wheel_has_its_tag_a_right_record_and_a_bill_of_materials(tools, tmp_path):
    wheel = finished(tools, tmp_path / "a")
    assert wheel.name == "robocache-0.1.0-cp312-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert b"Tag: cp312-abi3-manylinux_2_28_x86_64\n" in archive.read("robocache-0.1.0.dist-info/WHEEL")
        record = archive.read("robocache-0.1.0.dist-info/RECORD").decode()
        for name in archive.namelist()[:-1]:
            assert tools.finish_wheel.record_line(name, archive.read(name)) in record
        bill = json.loads(archive.read("robocache-0.1.0.dist-info/sboms/robocache.cdx.json"))
        module = hashlib.sha256(archive.read("robocache/_core.abi3.so")).hexdigest()
    assert module in [part["hashes"][0]["content"] for part in bill["components"] if part["type"] == "file"]
    assert (wheel.parent / "debug" / f"{wheel.stem}.so.debug").stat().st_size > 0


def test_the_bill_of_materials_lists_every_part_of_the_notices_with_its_license(tools):
    listed = {part.name: part.license for part in tools.parts.parts(cuda=True)}
    notices = (ROOT / "THIRD_PARTY_NOTICES.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", notices, re.M)
    named = {
        re.split(r"[ ,(]*[(,]", name)[0].strip(): text.strip() for name, text in rows if name not in ("part", "---")
    }
    assert listed == named


def test_a_module_without_hardening_is_found(tools, tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not here")
    (tmp_path / "x.c").write_text("int foreign(void); int entry(void) { return foreign(); }\n")
    flags = ["-shared", "-fPIC", "-fno-stack-protector", "-fcf-protection=none", "-Wl,-z,norelro,-z,lazy,-z,execstack"]
    subprocess.run(["gcc", *flags, "-Wl,-rpath,/x", tmp_path / "x.c", "-lm", "-o", tmp_path / "x.so"], check=True)
    found = " ".join(tools.native.faults_of_module(tmp_path / "x.so"))
    links = ("search path", "symbol foreign", "exports entry")
    for fault in ("writable", "executable", "stack protector", "FORTIFY", *links):
        assert fault in found, (fault, found)


def test_provenance_names_the_commit_the_locks_and_its_level(tools):
    stated = tools.provenance.predicate("c" * 40, "cuda", 1_700_000_000)
    names = [dependency["name"] for dependency in stated["buildDefinition"]["resolvedDependencies"]]
    assert {*names} == {"robocache", *(f"tools/release/locks/{path.name}" for path in RELEASE.glob("locks/*.lock"))}
    assert stated["runDetails"]["builder"]["id"].endswith("self-signed:slsa-build-level-1")


def test_a_provenance_of_another_commit_or_with_other_locks_is_found(tools, monkeypatch):
    commit, text = "c" * 40, b"lock"
    right = hashlib.sha256(text).hexdigest()
    files = {"tools/release/locks/a.lock": text}

    def git(*words):
        if words[0] == "cat-file":
            return b"" if words[2] == commit else None
        return files.get(words[1].removeprefix(f"{commit}:"))

    monkeypatch.setattr(tools.origin, "git", git)

    def found(expected=None, source=commit, name="tools/release/locks/a.lock", digest=right):
        locks = [{"name": name, "digest": {"sha256": digest}}]
        named = {"resolvedDependencies": [{"digest": {"gitCommit": source}}, *locks]}
        return tools.origin.faults({"externalParameters": {"commit": commit}, **named}, expected)

    assert found() == found(expected=commit) == []
    assert found(expected="d" * 40) == [f"is of commit {commit}, expected {'d' * 40}"]
    assert "names two commits" in found(source="d" * 40)[0]
    assert found(name="tools/release/locks/b.lock") == [f"tools/release/locks/b.lock is not in commit {commit}"]
    assert found(digest="0") == [f"tools/release/locks/a.lock has other contents in commit {commit}"]


@pytest.mark.parametrize("name", ["build", "check", "container", "cuda_arm64", "jax_headers"])
def test_a_lock_of_a_release_has_a_hash_for_every_package(name):
    text = (RELEASE / "locks" / f"{name}.lock").read_text()
    entries = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert len(re.findall(r"^[a-z0-9-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.M)) == len(entries) > 0


def test_the_demo_takes_a_release_wheel_of_this_version_and_no_other(tools, tmp_path, monkeypatch):
    import sys

    abi = f"cp3{sys.version_info[1]}"
    for name in (
        f"robocache-0.0.1-{abi}-{abi}-manylinux_2_28_x86_64.whl",
        f"robocache-0.1.0-{abi}-{abi}-linux_x86_64.whl",
    ):
        (tmp_path / name).touch()
    monkeypatch.setattr(tools.prebuilt, "version", lambda: "0.1.0")
    assert tools.prebuilt.prebuilt(tmp_path) is None
    right = tmp_path / f"robocache-0.1.0-{abi}-{abi}-manylinux_2_17_x86_64.whl"
    right.touch()
    assert tools.prebuilt.prebuilt(tmp_path) == right


def test_the_source_of_a_release_has_the_files_of_the_commit_and_no_others(tmp_path):
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    (tmp_path / "bin").mkdir()
    for name in ("bash", "cat", "dirname", "env", "git", "mkdir", "rm", "tar"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    command = [RELEASE / "wheels.sh", tmp_path / "work", "cpu", "3.12"]
    done = subprocess.run(command, env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True, timeout=100)
    assert "g++-12 is missing" in done.stderr  # the step after the source
    source = tmp_path / "work/source"
    assert {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()} <= {*listed.stdout.split()}


def test_a_work_folder_with_a_space_is_refused_before_anything_is_made(tmp_path):
    command = [RELEASE / "wheels.sh", tmp_path / "a b", "cpu", "3.12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "must have no spaces" in done.stderr
    assert list((tmp_path / "a b").iterdir()) == []


@pytest.mark.parametrize(
    ("version", "expected"),
    [("3.12", "3.12.10/bin/python"), ("3.13", "3.13.1/bin/python"), ("3.13t", "3.13.0t/bin/python"), ("3.14t", None)],
)
def test_the_python_of_a_version_is_found_with_and_without_the_gil(version, expected, tmp_path):
    for name in ("3.12.9", "3.12.10", "3.12-dev", "3.13.1", "3.13.0t", "3.13.2rc1"):
        (tmp_path / "versions" / name / "bin").mkdir(parents=True)
        (tmp_path / "versions" / name / "bin/python").touch()
    for name in ("bash", "env", "grep", "sort", "tail"):
        (tmp_path / name).symlink_to(shutil.which(name))
    env = {"PYENV_ROOT": str(tmp_path), "PATH": str(tmp_path)}
    command = [RELEASE / "compiler/python.sh", version]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == bool(expected)
    assert done.stdout.strip() == (f"{tmp_path}/versions/{expected}" if expected else "")
    assert expected or f"Python {version} is missing" in done.stderr


@pytest.mark.parametrize(
    ("version", "tag"),
    [("3.10", "cp310-cp310"), ("3.11", "cp311-cp311"), ("3.13", "cp312-abi3"), ("3.13t", "cp313-cp313t")],
)
def test_the_trial_in_a_bare_root_takes_the_wheel_of_its_python(version, tag):
    lines = (RELEASE / "try/wheel.sh").read_text().splitlines()
    code = "\n".join(line for line in lines if line.startswith(("number=", "case $version")))
    done = subprocess.run(["bash", "-euc", f"version={version}\n{code}\necho $tag"], capture_output=True, text=True)
    assert done.stdout.strip() == tag, done.stderr


def test_a_source_distribution_has_the_same_bytes_in_every_folder(tmp_path):
    pytest.importorskip("scikit_build_core")
    settings = '[build-system]\nrequires = ["scikit-build-core"]\nbuild-backend = "scikit_build_core.build"\n'
    settings += '[project]\nname = "x"\nversion = "1"\n'
    files = {"pyproject.toml": settings, "CMakeLists.txt": "", "a/b.txt": "b", "z.sh": "#!/bin/sh\n", "c.txt": "c"}
    env = os.environ | {
        "SOURCE_DATE_EPOCH": "1700000000",
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    made = []
    for number, (folder, mask) in enumerate((("a", 0o022), ("a_longer_name", 0o077))):
        work, dist = tmp_path / folder, tmp_path / folder / "dist"
        dist.mkdir(parents=True)
        for name in sorted(files, reverse=bool(number)):
            path = work / "source" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[name])
            path.chmod((0o777 if name.endswith(".sh") else 0o666) & ~mask)
            os.utime(path, (1_600_000_000 + 1000 * number,) * 2)
        command = [RELEASE / "sdist.sh", work, dist]
        subprocess.run(command, env=env, umask=mask, check=True, capture_output=True, timeout=100)
        made.append((dist / "x-1.tar.gz").read_bytes())
    assert made[0] == made[1]


def found_cosign():
    """The program. Without it the test is skipped, or fails with ROBOCACHE_REQUIRE_COSIGN=1."""
    found = shutil.which("cosign") or next(iter(map(str, ROOT.glob("build/release/cosign/usr/bin/cosign"))), None)
    if found is None:
        end = pytest.fail if os.environ.get("ROBOCACHE_REQUIRE_COSIGN") == "1" else pytest.skip
        end("cosign is not here: tools/release/packages.sh cosign build/release/cosign")
    return found


@pytest.mark.parametrize(("required", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_cosign_is_a_failure_where_it_is_required(required, outcome, monkeypatch, tmp_path):
    monkeypatch.setenv("ROBOCACHE_REQUIRE_COSIGN", required)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    with pytest.raises(outcome, match="cosign is not here"):
        found_cosign()


@pytest.mark.parametrize(
    ("mirror", "message"), [("", "apt knows no mirror"), ("x://y/debian/", "x://y/debian/ lacks pool/main/c/cosign")]
)
def test_packages_that_cannot_be_fetched_are_named(mirror, message, tmp_path):
    for name, code in (("apt-get", f"echo {mirror}"), ("curl", "exit 22")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    env = {key: value for key, value in os.environ.items() if key != "DEBIAN_MIRROR"}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    done = subprocess.run(
        [RELEASE / "packages.sh", "cosign", tmp_path / "out"], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "out/.complete").exists()


def test_ci_fetches_cosign_before_the_tests_and_goes_on_without_it():
    lines = (ROOT / ".ci/run").read_text().splitlines()
    (fetch,) = [
        i
        for i, line in enumerate(lines)
        if line.startswith("tools/release/packages.sh cosign build/release/cosign || ")
    ]
    assert fetch < next(i for i, line in enumerate(lines) if line.startswith("make test-python"))


@pytest.mark.parametrize(
    "change",
    ["nothing", "wheel", "wheel and sums", "extra file", "extra link", "extra sums", "other key", "other commit"],
)
def test_a_release_that_was_changed_is_refused(tools, tmp_path, change):
    cosign = found_cosign()
    wheel = finished(tools, tmp_path / "a")
    dist, predicate = wheel.parent, tmp_path / "predicate.json"
    predicate.write_text(json.dumps(tools.provenance.predicate("c" * 40, "cpu", 1_700_000_000)))
    env = {key: value for key, value in os.environ.items() if key != "ROBOCACHE_RELEASE_KEY"}
    env |= {"COSIGN": cosign, "ROBOCACHE_VERIFY": "signatures", "COSIGN_PASSWORD": ""}
    subprocess.run([RELEASE / "sign.sh", dist, predicate, cosign], check=True, env=env, capture_output=True)
    assert {path.stat().st_mode & 0o777 for path in dist.rglob("*") if path.is_file()} == {0o644}
    if change.startswith("wheel"):
        data = bytearray(wheel.read_bytes())
        data[len(data) // 2] ^= 1
        wheel.write_bytes(data)
    if change == "wheel and sums":
        old = (dist / "SHA256SUMS").read_text()
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (dist / "SHA256SUMS").write_text(re.sub(rf"\w+(?=  {wheel.name}\n)", digest, old))
    if change == "extra file":
        (dist / "more.whl").touch()
    if change == "extra link":
        (dist / "debug/more.debug").symlink_to(wheel)
    if change == "extra sums":
        (dist / "debug/SHA256SUMS").touch()
    key = [dist / "release.pub"]
    if change == "other key":
        subprocess.run([cosign, "generate-key-pair"], cwd=tmp_path, check=True, env=env, capture_output=True)
        key = [tmp_path / "cosign.pub"]
    if change == "other commit":
        key.append("d" * 40)
    done = subprocess.run([ROOT / "tools" / "verify_release.sh", dist, *key], env=env, capture_output=True, text=True)
    expected = {
        "wheel": "a file differs",
        "wheel and sums": "the signature of SHA256SUMS is wrong",
        "extra file": "not in SHA256SUMS: more.whl",
        "extra link": "not in SHA256SUMS: debug/more.debug",
        "extra sums": "not in SHA256SUMS: debug/SHA256SUMS",
        "other key": "the signature of SHA256SUMS is wrong",
        "other commit": f"is of commit {'c' * 40}, expected {'d' * 40}",
    }
    assert (done.returncode == 0) == (change == "nothing"), done.stderr
    assert expected.get(change, "") in done.stderr


def test_the_trial_of_an_installed_wheel_passes_and_finds_a_wrong_align(tmp_path):
    program = ROOT / "tools/release/try/first_batch.py"
    right = subprocess.run([sys.executable, program, tmp_path / "right"], capture_output=True, text=True)
    assert right.returncode == 0, right.stderr
    assert "a batch of 59 aligned rows are right" in right.stdout
    assert "a batch of the loader (numpy) is right" in right.stdout
    planted = "import sys, runpy, robocache; align = robocache.align; "
    planted += (
        "robocache.align = lambda stream, times: align(stream, times - 1_000_000); runpy.run_path(sys.argv.pop(1))"
    )
    wrong = subprocess.run([sys.executable, "-c", planted, program, tmp_path / "wrong"], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert wrong.stderr.endswith("first_batch: the aligned batch differs from the mean of neighboring rows\n")


@pytest.mark.parametrize("same", [True, False])
def test_two_builds_are_compared_and_written_down_file_by_file(same, tmp_path):
    for name in ("wheels", "sdist"):
        (tmp_path / "tools/release").mkdir(parents=True, exist_ok=True)
        code = 'mkdir -p "$1/$2/raw"; for v in "${@:3}"; do echo $v >"$1/$2/raw/$v.whl"; done'
        code = code if name == "wheels" else f'echo {"x" if same else "$1"} >"$2/a.tar.gz"'
        (tmp_path / f"tools/release/{name}.sh").write_text(f"#!/bin/bash\n{code}\n")
        (tmp_path / f"tools/release/{name}.sh").chmod(0o755)
    (tmp_path / "tools/release/finish_wheel.py").write_text("import shutil, sys; shutil.copy(*sys.argv[1:3])")
    shutil.copy(RELEASE / "reproduce.sh", tmp_path / "tools/release")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True, capture_output=True)
    env = os.environ | {"ROBOCACHE_REPRODUCED": str(tmp_path / "made.json")}
    command = [tmp_path / "tools/release/reproduce.sh", "cpu"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == same, done.stderr
    made = json.loads((tmp_path / "made.json").read_text())
    assert made["command"] == "tools/release/reproduce.sh cpu 3.12 3.11 3.10"
    assert made["equal"] is same is (made["first"] == made["second"])
    assert made["first"].keys() == {"3.12.whl", "3.11.whl", "3.10.whl", "a.tar.gz"}
    assert made["first"]["3.12.whl"] == hashlib.sha256(b"3.12\n").hexdigest()
