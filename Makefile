# One word each: make demo | test | bench | lint | format | sanitize | cuda | docs | clean
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)

NATIVE := CMakeLists.txt pyproject.toml $(shell find cmake include src python -type f -not -path '*/__pycache__/*')
CXX_FILES := $(shell find include src python/bindings tests/cpp examples/cpp -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
PYTHON_DIRS := python tests benchmarks examples docs

.PHONY: demo test test-cpp test-python bench lint format sanitize cuda docs clean wheel
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# One word each: //p' Makefile

$(VENV)/.ready: tools/setup.sh tools/requirements.txt
	@tools/setup.sh $(VENV) tools/requirements.txt

# The wheel, installed: everything below runs what a user would install, never the source tree.
build/.wheel: $(VENV)/.ready $(NATIVE)
	@echo "building the wheel"
	@rm -rf dist && mkdir -p build
	@$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps -w dist . 2>&1 | { grep -v 'WARNING: Location' || true; }
	@$(BIN)/python -m pip install --quiet --force-reinstall --no-deps --no-index dist/robocache-*.whl
	@touch $@

wheel: build/.wheel

demo: build/.wheel
	@$(BIN)/python examples/demo.py --out build/demo.png

test: test-cpp test-python

test-cpp: $(VENV)/.ready
	cmake --preset cpu --log-level=WARNING && cmake --build --preset cpu && ctest --preset cpu -j 2

test-python: build/.wheel
	$(BIN)/python -m pytest -q

bench: build/.wheel
	$(BIN)/python benchmarks/bench_align.py --out build/bench_align.json

lint: $(VENV)/.ready
	clang-format --dry-run -Werror $(CXX_FILES)
	ruff check $(PYTHON_DIRS)
	ruff format --check $(PYTHON_DIRS)
	mypy

format: $(VENV)/.ready
	clang-format -i $(CXX_FILES)
	ruff check --fix $(PYTHON_DIRS)
	ruff format $(PYTHON_DIRS)

sanitize: $(VENV)/.ready
	for preset in asan tsan; do \
	    cmake --preset $$preset --log-level=WARNING && cmake --build --preset $$preset && ctest --preset $$preset -j 2 || exit 1; \
	done

# Compiles everything for CUDA; running it needs a GPU.
cuda: $(VENV)/.ready
	cmake --preset cuda --log-level=WARNING && cmake --build --preset cuda

docs: build/.wheel
	$(BIN)/python docs/make_pictures.py
	$(BIN)/python benchmarks/tables.py
	if [ -f benchmarks/results/align_cuda.json ]; then $(BIN)/python benchmarks/plots.py; fi

clean:
	rm -rf build dist $(VENV)
