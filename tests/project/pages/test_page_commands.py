"""The commands of every page: ``robocache`` ones run on small recordings, others name what the repository has."""

import argparse
import re
import shlex
from pathlib import Path

import page_recordings as recordings
import pytest
from page_blocks import PAGES, in_ticks, indented, prose
from page_recordings import vectors
from paths import ROOT
from robocache.cli import main

NOT_RUN = {
    "robocache view PATH --episodes 0,3": "opens the Rerun viewer",
    "robocache ingest logs cache --option clock=log_time --dtype float32": "tests/project/test_train_policy.py runs it",
    "kubectl wait --for=condition=complete job/robocache-ingest -n robocache --timeout=24h": "needs a cluster",
    "unzip -q build/jaxlib/jaxlib-0.5.0-*.whl 'jaxlib/include/*' -d build/jaxlib": "needs a download",
    "build/examples/control_loop": "tests/cpp/install_test.cmake runs it",
    "apt-get install buildah mmdebstrap": "changes the machine",
    "docker load --input dist/container/robocache-0.1.0-cpu.tar": "tools/release/try/container.sh loads it",
    'docker run --rm --read-only --tmpfs /tmp --volume "$PWD/cache:/cache" --volume "$PWD/logs:/logs:ro" '
    "robocache:0.1.0 ingest /logs /cache/runs.cache": "needs docker; tools/release/try/container.sh runs an ingest",
}
"""``{command: reason}``. Their options are still checked."""
PROGRAMS = {
    "apt",
    "apt-get",
    "bash",
    "cosign",
    "ctest",
    "curl",
    "docker",
    "export",
    "gh",
    "git",
    "kubectl",
    "ncu",
    "nsys",
}
PROGRAMS |= {"pip", "pip3", "python", "python3", "ray", "robocache", "sh", "sudo", "torchrun", "unzip", "wget", "cmake"}
PROGRAMS |= {"make", "mkdir", "pytest", "uv", "c++", "g++", "nvcc", "ruff", "mypy", "cd", "rm", "cp"}
FILES = re.compile(r"(?<![\w/.-])((?:tests|benchmarks|examples|tools|docs|src|python|include|cmake)/[\w/.*-]*\w)")


def split(line):
    """``a --x 1 && b   # comment``: the words of ``a`` and of ``b``. Two spaces begin an explanation."""
    return [shlex.split(command, comments=True) for command in re.split(r"\s{2,}", line)[0].split(" && ")]


def commands(page):
    """Commands in indented lines: a program, or a file of the repository or of a build, and its arguments."""
    for line in indented(page):
        first = line.split(" ")[0]
        if first in PROGRAMS or re.match(r"(\./|\.venv/|tools/|build/)", first):
            yield from split(line)


COMMANDS = [(page, words) for page in PAGES for words in commands(page)]
IN_TEXT = [
    (page, split(text))
    for page in PAGES
    for text in in_ticks(page)
    if re.match(r"(make|robocache|python|pip|ctest|cmake|kubectl|tools/\S+) [^|]+$", text)
]
ALL = [*COMMANDS, *((page, words) for page, found in IN_TEXT for words in found)]


# ---- what a command names must exist ---------------------------------------------------------------------------------
def check_make(words):
    makefile = (ROOT / "Makefile").read_text()
    targets = {t for line in re.findall(r"^([\w. -]+):(?!=)", makefile, re.MULTILINE) for t in line.split()}
    for word in words[1:]:
        name, is_variable, _ = word.partition("=")
        assert f"$({name}" in makefile or f"{name} ?=" in makefile if is_variable else name in targets, word


def parsers(parser):
    """``{command: its parser}``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def check_robocache(words):
    parser, options = main.make_parser(), set()
    for word in words[1:]:
        parser = parsers(parser).get(word, parser)
    assert words[1].startswith("-") or words[1] in parsers(main.make_parser()), words
    options |= set(parser.options())
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, words


def check_python(words):
    arguments = words[1:]
    if arguments[:1] == ["-c"] or arguments[0] in ("-m", "-V"):
        return
    path = ROOT / arguments[0] if "/" in arguments[0] else ROOT / "benchmarks" / arguments[0]
    assert path.is_file(), f"there is no {arguments[0]}"
    texts = "".join(file.read_text() for file in path.parent.rglob("*.py"))
    for option in arguments[1:]:
        assert not option.startswith("--") or f'"{option.partition("=")[0]}"' in texts, option


def check_pip(words):
    extras = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n\n")[0]
    extras = set(re.findall(r"^(\w+) = ", extras, re.MULTILINE))
    build = "".join(path.read_text() for path in (ROOT / "CMakeLists.txt", *ROOT.glob("cmake/*.cmake")))
    for word, after in zip(words, [*words[1:], ""], strict=True):
        for extra in re.findall(r"^robocache\[([\w,]+)\]", word):
            assert set(extra.split(",")) <= extras, word
        for option in re.findall(r"^cmake\.define\.(\w+)=", word):
            assert option in build, word
        assert word != "-r" or (ROOT / after).is_file(), after


def check_cmake(words):
    presets = (ROOT / "CMakePresets.json").read_text()
    for word, after in zip(words, [*words[1:], ""], strict=True):
        assert word != "--preset" or f'"name": "{after}"' in presets, after
        assert word != "-S" or (ROOT / after / "CMakeLists.txt").is_file(), after


def check_kubectl(words):
    for word, after in zip(words, [*words[1:], ""], strict=True):
        assert word != "-k" or (ROOT / after / "kustomization.yaml").is_file(), after


CHECKS = {"make": check_make, "robocache": check_robocache, "python": check_python, "pip": check_pip}
CHECKS |= {"cmake": check_cmake, "ctest": check_cmake, "kubectl": check_kubectl, ".venv/bin/python": check_python}


@pytest.mark.parametrize(("page", "words"), ALL, ids=lambda x: x if isinstance(x, str) else " ".join(x)[:60])
def test_what_a_command_names_exists(page, words):
    if words[0] in CHECKS:
        CHECKS[words[0]](words)
    elif words not in map(shlex.split, NOT_RUN):
        assert (ROOT / words[0]).is_file(), f"{page}: {words[0]} has no check here, and is not a file"


@pytest.mark.parametrize(
    "wrong",
    [
        "make tset", "make fuzz SECONDS_OF_FUZZ=3", "robocache ingst a b", "robocache check a --treshold 3",
        "python benchmarks/soak_loader.py", "python benchmarks/bench_loader.py --no-such-option",
        "pip install robocache[tensorflow]", "pip install . -C cmake.define.ROBOCACHE_ROCM=ON",
        "cmake --preset windows", "cmake -S examples/rust", "kubectl apply -k examples/helm",
    ],
)  # fmt: skip
def test_a_command_that_names_what_is_not_there_is_found(wrong):
    words = shlex.split(wrong)
    with pytest.raises(AssertionError):
        CHECKS[words[0]](words)


def test_every_file_that_a_page_names_exists():
    codes = {page: [*in_ticks(page), *indented(page)] for page in PAGES}
    named = [
        (page, name) for page in PAGES for code in codes[page] for name in FILES.findall(re.sub(r"<\w+>", "*", code))
    ]
    assert len(named) > 100
    missing = {
        pair for pair in named if not any(any((ROOT / place).glob(pair[1])) for place in ("", Path(pair[0]).parent))
    }
    assert missing == set()


def test_commands_that_are_not_run_are_still_there():
    assert set(NOT_RUN) <= {line for page in PAGES for line in (*map(strip, indented(page)), *in_ticks(page))}


def strip(line):
    return re.split(r"\s{2,}", line)[0]


def test_python_is_in_fenced_blocks_where_it_is_run():
    code = re.compile(r"(import \w+$|from \w+ import |\w+ = robocache\.|robocache\.\w+\(|for \w+(, \w+)* in .*:$)")
    found = [(page, line) for page in PAGES for line in indented(page) if code.match(line.strip())]
    assert [pair for pair in found if pair[0] != "ARCHITECTURE.md"] == []  # whose listing is a picture of calls
    assert not any("```" in prose(page) or "~~~" in prose(page) for page in PAGES)


# ---- and the commands of robocache run -------------------------------------------------------------------------------
RUN = sorted(
    {shlex.join(words) for _, words in COMMANDS if words[0] == "robocache" and shlex.join(words) not in NOT_RUN}
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """What the commands take: a LeRobot dataset with a camera, its cache, MCAP logs."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("mcap_ros2")
    import robocache

    folder = tmp_path_factory.mktemp("commands")
    specs = vectors(**{"observation.state": (7, 30), "action": (7, 30)})
    camera = robocache.StreamSpec("observation.images.wrist", "uint8", (48, 64, 3), "image", rate_hz=30)
    recordings.dataset(folder / "dataset", {**specs, camera.name: camera}, 2, 2)
    robocache.ingest(folder / "dataset", folder / "runs.cache")
    recordings.camera_logs(folder / "logs", 2, 2)
    return folder


@pytest.mark.parametrize("command", RUN)
def test_a_command_of_robocache_runs(command, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = {"/data/my_dataset": "dataset", "logs/": "logs", "CACHE": "runs.cache", "PATH": "runs.cache"}
    words = [str(data / given[word]) if word in given else word for word in shlex.split(command)[1:]]
    if "view" in words:
        pytest.importorskip("rerun")
    assert main.main(words) == 0, capsys.readouterr().err


def test_python_c_of_the_pages_runs(capsys):
    codes = {words[2] for _, words in ALL if words[:2] == ["python", "-c"]}
    assert codes
    for code in codes:
        exec(code, {})
    assert "'cpu': 'ok'" in capsys.readouterr().out
