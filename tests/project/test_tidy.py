"""clang-tidy with the checks of the repository finds a planted defect, and does not report what they exclude."""

import shutil
import subprocess

import pytest
from paths import ROOT

DEFECT = (
    "#include <string>\n#include <utility>\nstd::size_t f(std::string s) { auto t = std::move(s); return s.size(); }\n"
)
EXCLUDED = "int shifted(int low, int high) { return high << 8 | low; }\n"


@pytest.mark.parametrize(("code", "found"), [(DEFECT, "bugprone-use-after-move"), (EXCLUDED, None)])
def test_a_planted_defect_is_found(code, found, tmp_path):
    tidy = shutil.which("clang-tidy")
    if tidy is None:
        pytest.skip("needs clang-tidy")
    path = tmp_path / "planted.cpp"
    path.write_text(code)
    command = [tidy, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", str(path), "--", "-std=c++20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode != 0) == (found is not None), done.stdout + done.stderr
    assert found is None or found in done.stdout
