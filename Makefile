# One word each: make demo | picture | test | test-jax | release | container | test-gpu | bench | soak | lint | tidy | format | sanitize | sanitize-python | fuzz | fuzz-adapters | sanitize-gpu | cuda | docs | site | lock | clean
SHELL := /bin/bash
VENV ?= .venv
# VENV= or PYTHON=python3 uses the installed Python without changes, for machines without package installation.
ifeq ($(origin PYTHON),command line)
override VENV :=
endif
ifeq ($(VENV),)
PYTHON := python3
READY :=
BUILD_READY :=
DEMO_READY :=
else
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
BUILD_READY := $(VENV)/.ready-build
DEMO_READY := $(VENV)/.ready-demo
export PATH := $(abspath $(VENV)/bin):$(PATH)
endif

# CUDA code is compiled if the machine has a GPU and nvcc. CUDA=1: always; CUDA=0: never.
ifeq ($(CUDA),1)
CUDA_CODE := ON
else ifeq ($(CUDA),0)
CUDA_CODE := OFF
else
CUDA_CODE := $(if $(shell { ls /dev/nvidia[0-9]* || nvidia-smi -L; } 2>/dev/null),AUTO,OFF)
endif

# Without a GPU, CUDA=1 checks that the CUDA code compiles, for one architecture. `make release` compiles for all of them.
ARCHITECTURES := -C cmake.define.ROBOCACHE_ARCHITECTURES_WITHOUT_GPU=90

NATIVE := CMakeLists.txt pyproject.toml $(shell find cmake include src python -type f -not -path '*/__pycache__/*')
CXX_FILES := $(shell find include src python/bindings tests/cpp tests/fuzz examples/cpp -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
PYTHON_DIRS := python tests benchmarks examples docs tools

.PHONY: demo test test-cpp test-python test-jax test-gpu test-gpu-cpp test-gpu-python bench soak lint tidy format sanitize sanitize-python fuzz fuzz-adapters
.PHONY: sanitize-gpu cuda docs site clean wheel lock release container picture FORCE
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# One word each: //p' Makefile

ifneq ($(READY),)
$(READY): tools/setup.sh tools/requirements.txt tools/site/requirements.txt tools/requirements.lock tools/requirements-torch.txt
	@tools/setup.sh $(VENV) tests

# Without a compiler: a prebuilt wheel needs none.
$(DEMO_READY): tools/setup.sh tools/requirements-demo.txt
	@[ -e $(READY) ] || tools/setup.sh $(VENV) demo
	@touch $@

$(BUILD_READY): tools/setup.sh tools/requirements-build.txt
	@[ -e $(READY) ] || tools/setup.sh $(VENV) build
	@touch $@
endif

# JAX=oldest: the handlers for jax.jit are compiled with the headers of the oldest JAX, as in a release, so that they run on all.
OLDEST_JAX := build/jax_oldest
ifeq ($(JAX),oldest)
JAX_READY := $(OLDEST_JAX)/.complete
JAX_HEADERS := -C "cmake.define.ROBOCACHE_JAX_INCLUDE_DIR=$(abspath $(OLDEST_JAX))/jaxlib/include"
endif

$(OLDEST_JAX)/.complete: tools/release/locks/jax_oldest.lock $(READY)
	@rm -rf $(OLDEST_JAX)
	@$(PYTHON) -m pip install --quiet --no-deps --require-hashes --target $(OLDEST_JAX) -r $<
	@touch $@

# Records whether the wheel has CUDA code, and its headers of JAX; a different choice rebuilds the wheel.
build/.choices: FORCE
	@mkdir -p build && { echo $(CUDA_CODE) $(JAX) | cmp -s - $@ || echo $(CUDA_CODE) $(JAX) >$@; }
FORCE:

# Builds the wheel. WHEEL_OPTIONS are passed to pip; CI passes the build folder of the C++ tests, to compile once. dist/ is of
# the user: nothing here deletes a wheel there. The time of .built is that of the start: a file that changes meanwhile is built again.
build/dist/.built: $(if $(filter demo picture,$(MAKECMDGOALS)),$(BUILD_READY),$(READY)) $(NATIVE) $(JAX_READY) build/.choices
	@rm -f build/dist/*.whl && mkdir -p build/dist && touch build/dist/.started
	@$(PYTHON) tools/build_progress.py build/wheel.log $(PYTHON) -m pip wheel -v --no-build-isolation --no-deps \
	    --no-index -C cmake.define.ROBOCACHE_CUDA=$(CUDA_CODE) $(ARCHITECTURES) $(JAX_HEADERS) $(WHEEL_OPTIONS) -w build/dist .
	@mv build/dist/.started $@

# Installs that wheel, unless it is what is installed: all targets below run the installed package, never the source tree.
wheel: build/dist/.built
	@$(PYTHON) tools/release/prebuilt.py --is-installed build/dist/robocache-*.whl || \
	    $(PYTHON) -m pip install --quiet --force-reinstall --no-deps --no-index build/dist/robocache-*.whl

# The wheel for the demo: one of `make release` in dist/ that fits this Python and version, else one built from this checkout.
# WHEEL=index installs this version from the package index of pip instead.
picture: $(DEMO_READY)
	@if [ "$(WHEEL)" = index ]; then \
	    $(PYTHON) -m pip install --quiet --only-binary=robocache "$$($(PYTHON) tools/release/prebuilt.py --version)"; \
	elif wheel=$$($(PYTHON) tools/release/prebuilt.py dist); then \
	    echo "installing $$wheel" && $(PYTHON) -m pip install --quiet --force-reinstall --no-deps --no-index "$$wheel"; \
	else $(MAKE) --no-print-directory wheel MAKECMDGOALS=picture; fi
	@$(PYTHON) examples/demo.py --out build/demo.png

# The first image needs few packages; the packages of the policy are installed afterwards.
demo: picture
	@rm -rf build/demo_policy && echo
	$(if $(READY),@[ -e $(READY) ] || tools/setup.sh $(VENV) policy)
	@$(PYTHON) examples/train_policy/run.py --demo --out build/demo_policy

test: test-cpp test-python

test-cpp: $(READY)
	cmake --preset cpu --log-level=WARNING && cmake --build --preset cpu && ctest --preset cpu -j 2

# SHARDS=2: runs two processes in parallel; each prints its failures at the end.
test-python: wheel
	$(if $(SHARDS),ROBOCACHE_SHARDS=$(SHARDS) tools/test_shards.sh $(PYTHON),$(PYTHON) -m pytest -q)

# The calls that JAX traces, with the oldest JAX; the other tests have the newest one.
test-jax: $(OLDEST_JAX)/.complete
	@$(MAKE) --no-print-directory wheel JAX=oldest
	PYTHONPATH=$(OLDEST_JAX) $(PYTHON) -m pytest -q tests/ops/jax

# On a machine with a GPU: the same tests, but CUDA tests fail instead of being skipped. A file that cannot be imported
# (a package is missing) also fails, after the other files have run.
test-gpu: test-gpu-python test-gpu-cpp
test-gpu test-gpu-python sanitize-gpu: CUDA_CODE := ON

# Runs parallel shards; then, one at a time, tests that measure the memory of the whole GPU or need most of it. Only the
# layers that use a GPU, without the calls of other backends: `make test` runs these and everything else.
test-gpu-python: wheel
	ROBOCACHE_REQUIRE_CUDA=1 ROBOCACHE_ONLY_CUDA=1 tools/test_shards.sh $(PYTHON) tests/core tests/ops tests/loader tests/benchmarks

test-gpu-cpp: $(READY)
	cmake --preset cuda --log-level=WARNING && cmake --build --preset cuda --target cuda_smoke
	ROBOCACHE_REQUIRE_CUDA=1 ctest --preset cuda -R cuda_smoke --no-tests=error

bench: wheel
	$(PYTHON) benchmarks/bench_align.py --out build/bench_align.json
	$(PYTHON) benchmarks/bench_voxelize.py --out build/bench_voxelize.json
	$(PYTHON) benchmarks/bench_pixels.py --out build/bench_pixels.json
	$(PYTHON) benchmarks/bench_video.py --out build/bench_video.json
	$(PYTHON) benchmarks/bench_ingest.py --out build/bench_ingest.json
	$(PYTHON) benchmarks/bench_loader.py --out build/bench_loader.json
	$(PYTHON) benchmarks/bench_training.py --out build/bench_training.json

# Loads, decodes and ingests for HOURS, comparing bits and watching memory, descriptors and threads. Ends with an error at the
# first wrong bit, or if something grew. On a GPU: benchmarks/pipeline/soak/run.py --device cuda.
HOURS ?= 0.05
soak: wheel
	$(PYTHON) benchmarks/pipeline/soak/run.py --hours $(HOURS) --json build/soak.json

lint: tidy
	clang-format --dry-run -Werror $(CXX_FILES)
	ruff check $(PYTHON_DIRS)
	ruff format --check $(PYTHON_DIRS)
	mypy
	$(PYTHON) tools/lint/check_layers.py
	$(PYTHON) -m check_jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	zizmor --offline --quiet --config .github/zizmor.yml .github/workflows

# clang-tidy on the C++ files of the library and the bindings (.clang-tidy). Files that have passed are read again only after a
# change of them or of a header.
tidy: $(READY)
	@cmake --preset cpu -B build/tidy -DROBOCACHE_TESTS=OFF -DROBOCACHE_PYTHON=ON \
	    -DPython_EXECUTABLE="$$($(PYTHON) -c 'import sys; print(sys.executable)')" --log-level=WARNING >/dev/null
	$(PYTHON) tools/lint/tidy.py build/tidy

format: $(READY)
	clang-format -i $(CXX_FILES)
	ruff check --fix $(PYTHON_DIRS)
	ruff format $(PYTHON_DIRS)

sanitize: $(READY)
	for preset in asan tsan; do \
	    cmake --preset $$preset --log-level=WARNING && cmake --build --preset $$preset && ctest --preset $$preset -j 2 || exit 1; \
	done

# Runs the call tests against a module built with the address and undefined-behavior sanitizers. Excluded: unaligned rows,
# which x86 allows and the sanitizer rejects, and a test that starts a program without this module.
SANITIZED := build/asan_python
sanitize-python: $(READY)
	$(PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps --no-index -C build-dir=$(SANITIZED)/build \
	    -C cmake.define.ROBOCACHE_CUDA=OFF -C "cmake.define.ROBOCACHE_SANITIZE=address;undefined" \
	    -C cmake.build-type=RelWithDebInfo -C install.strip=false -w $(SANITIZED)/dist .
	$(PYTHON) -m pip install --quiet --no-deps --no-index --upgrade --target $(SANITIZED)/site $(SANITIZED)/dist/*.whl
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	    PYTHONPATH="$(abspath $(SANITIZED)/site)" $(PYTHON) -m pytest -q -s -p no:cacheprovider -k "not odd and not 64_bits" tests/ops/align/test_fuse.py \
	    tests/ops/boundary/test_arrays*.py tests/ops/align/test_bad_*.py tests/ops/align/test_gradients.py tests/ops/voxelize/test_voxel_[!t]*.py tests/loader tests/cache/test_cache.py

# Runs each target for FUZZ_SECONDS, in parallel. Failing inputs stay in build/fuzz.
FUZZ_SECONDS ?= 60
fuzz: $(READY)
	tools/fuzz/run.sh $(FUZZ_SECONDS)

# Coverage-guided: each adapter for FUZZ_SECONDS, as many at a time as there are cores. Failing inputs stay in
# build/fuzz_adapters.
fuzz-adapters: wheel
	$(PYTHON) tests/fuzz/adapters/guided.py --seconds $(FUZZ_SECONDS) --jobs $$(nproc)

# Runs the four tools in parallel on the tests marked sanitize, restricted to RoboCache kernels. initcheck tracks all
# kernels, because it would otherwise report data that PyTorch kernels wrote as uninitialized. It misses writes of bulk
# copies after the first 32 bytes, so copies to the host are not checked. synccheck needs the number of barriers per
# block, because it counts the barriers of a loop once. PyTorch's allocator cache is off and allocations are padded, so
# that overruns are detected. API errors that PyTorch handles are ignored. First, two tools must detect a planted fault.
COMPUTE_SANITIZER := PYTORCH_NO_CUDA_MEMORY_CACHING=1 ROBOCACHE_REQUIRE_CUDA=1 compute-sanitizer --error-exitcode 1 \
    --target-processes all
OURS := --kernel-name kernel_substring=robocache
sanitize-gpu: wheel
	@for fault in "memcheck Invalid" "initcheck Uninitialized"; do \
	    set -- $$fault; echo "sanitize-gpu: $$1 must detect a planted fault"; \
	    $(COMPUTE_SANITIZER) --tool $$1 $(PYTHON) tests/ops/cuda/planted_faults.py $$1 >build/planted_fault.log 2>&1; \
	    grep "$$2 __global__" build/planted_fault.log | head -1 | grep . || { cat build/planted_fault.log; exit 1; }; \
	done
	@$(MAKE) --no-print-directory --jobs 4 --output-sync=target $(addprefix sanitize-gpu-,memcheck initcheck racecheck synccheck)

sanitize-gpu-memcheck: OPTIONS := --padding 4096 --report-api-errors no $(OURS)
sanitize-gpu-initcheck: OPTIONS := --check-api-memory-access no
sanitize-gpu-racecheck: OPTIONS := $(OURS)
sanitize-gpu-synccheck: OPTIONS := --num-cuda-barriers 128 $(OURS)
sanitize-gpu-%:
	$(COMPUTE_SANITIZER) --tool $* $(OPTIONS) $(PYTHON) -m pytest -q -p no:cacheprovider -m sanitize tests/ops/cuda tests/loader

# Compiles everything with CUDA and runs the C++ tests; without a GPU, tests that need one are skipped.
cuda: $(READY)
	cmake --preset cuda --log-level=WARNING && cmake --build --preset cuda && ctest --preset cuda -j 2

docs: wheel
	$(PYTHON) docs/draw/make_pictures.py
	$(PYTHON) benchmarks/tables.py
	if [ -f benchmarks/results/ops/align_cuda.json ]; then $(PYTHON) benchmarks/plots.py; fi

# The pages of docs/ and the API as a site that works when opened from disk: build/site/index.html. Dead links, dead
# anchors and missing references are errors (with --quiet they would not be: it drops the warnings that --strict counts). The
# variable turns off an announcement of the theme.
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build -f tools/site/mkdocs.yml --strict

# Wheels for all supported Pythons and GPUs, source distribution, signatures: dist/release (docs/guides/release.md). CUDA=0: without
# CUDA code, dist/release-cpu. ARCH=arm64: cross-compiled for aarch64, dist/release-arm64 and dist/release-cpu-arm64.
VARIANT := $(if $(filter 0,$(CUDA)),cpu,cuda)$(if $(ARCH),-$(ARCH))
RELEASE := dist/release$(if $(filter 0,$(CUDA)),-cpu)
release:
	nice -n 10 tools/release/release.sh $(VARIANT) $(RELEASE)$(if $(ARCH),-$(ARCH)) $(PYTHONS)

# The container image of a wheel that `make release` has made: dist/container (docs/guides/container.md). CUDA=0: without CUDA code.
container:
	nice -n 10 tools/release/container/image.sh $(VARIANT) $(RELEASE) dist/container

# Updates tools/requirements.lock from tools/requirements.txt: the newest versions, with the hashes of their files.
lock: $(READY)
	$(PYTHON) tools/lock.py

clean:
	rm -rf build dist $(VENV)
