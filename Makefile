# `make help` lists the goals. Each goal installs what it needs (cmake/setup.sh), so a fresh clone needs no other step.
# CMakePresets.json has the same builds without make.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:

# Parallel processes: DISTILE_JOBS, or one per processor.
JOBS := $(or $(DISTILE_JOBS),$(shell nproc))
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
CMAKE := .venv/bin/cmake
CTEST := .venv/bin/ctest

FILTER ?= .*
OUT ?= build/bench.json
export FILTER OUT

# Sanitizers of older compilers fail at random if the kernel randomizes addresses widely, so run their programs without
# address randomization if the system allows it.
FIXED_ADDRESSES = $$(setarch -R true 2>/dev/null && echo setarch -R || true)

.PHONY: help
help:  ## list the goals
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r goal text; do \
		printf 'make %-14s %s\n' "$$goal" "$$text"; done

.PHONY: demo
demo: build/release/build.ninja  ## build and run the demonstration
	@$(CMAKE) --build --preset release --target distile_demo
	@build/release/apps/distile_demo

# With sanitizers all tests, or with SANITIZED=applications those of what runs in applications and of what reads files,
# with fewer calls, or with SANITIZED=none no test.
SANITIZED_TESTS = $(filter applications,$(SANITIZED))
WITH_SANITIZERS = $(filter-out none,$(or $(SANITIZED),all))
.PHONY: test
test: build/release/build.ninja $(if $(WITH_SANITIZERS),build/asan-ubsan/build.ninja)  ## build and run all tests, plain and under ASan and UBSan; SANITIZED=applications, some of these, or none
	@$(CMAKE) --build --preset release
	@$(CTEST) --preset release -j $(JOBS)
	@grep -h '\[SKIP\]' build/release/Testing/Temporary/LastTest.log || true
	@$(if $(WITH_SANITIZERS),$(FIXED_ADDRESSES) $(CMAKE) --build --preset asan-ubsan $(if $(SANITIZED_TESTS),--target distile_application_tests))
	@$(if $(WITH_SANITIZERS),$(if $(SANITIZED_TESTS),DISTILE_TESTS=short) $(FIXED_ADDRESSES) $(CTEST) --preset asan-ubsan -j $(JOBS) $(if $(SANITIZED_TESTS),-L 'runtime|threads|opencl|fuzz'))

.PHONY: tsan
tsan: build/tsan/build.ninja  ## build and run the threading tests under ThreadSanitizer
	@$(FIXED_ADDRESSES) $(CMAKE) --build --preset tsan
	@$(FIXED_ADDRESSES) $(CTEST) --preset tsan -j $(JOBS)

# All tests for CPUs, or with ARM_TESTS=short those that build within a few minutes, with fewer calls.
.PHONY: test-arm
test-arm: build/release/build.ninja  ## cross-compile for AArch64 and run the tests for CPUs in qemu; ARM_TESTS=short, some
	@cmake/setup.sh arm
	@$(CMAKE) --preset arm
	@$(CMAKE) --build --preset arm $(if $(filter short,$(ARM_TESTS)),--target distile_short_tests)
	@$(if $(filter short,$(ARM_TESTS)),DISTILE_TESTS=short) $(CTEST) --preset arm -j $(JOBS) $(if $(filter short,$(ARM_TESTS)),-L short)

FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz:  ## feed hostile input to every fuzz target for FUZZ_SECONDS each, with clang's libFuzzer
	@cmake/setup.sh fuzz
	@$(CMAKE) --preset fuzz
	@$(CMAKE) --build --preset fuzz --target distile_fuzzers
	@tests/fuzz/run.sh build/fuzz "$(FUZZ_SECONDS)"

# Configures each time, because only configuring finds newly installed peers. The PolyKernels that nothing else needs are
# built here alone, so DISTILE_BENCH_ALL_OPERATORS ends off, whatever happens.
.PHONY: bench
bench:  ## run the benchmarks; FILTER=<regex> selects rows, OUT=<file.json> gets the numbers, RESUME=1 keeps those in it
	@cmake/setup.sh bench
	@$(CMAKE) --preset release -DDISTILE_BENCH_ALL_OPERATORS=$(if $(filter shipped,$(OPERATORS)),OFF,ON)
	@trap '$(CMAKE) --preset release -DDISTILE_BENCH_ALL_OPERATORS=OFF >/dev/null' EXIT; \
		$(CMAKE) --build --preset release --target distile_bench
	@LD_LIBRARY_PATH="$(CURDIR)/.venv/lib$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}" \
		OCL_ICD_FILENAMES="$(CURDIR)/.venv/lib/libintelocl.so" \
		build/release/bench/distile_bench --filter "$$FILTER" --out "$$OUT" $(if $(RESUME),--resume)

# Where PyTorch's environment is (make python); what it lacks of the peers is left out.
.PHONY: bench-convolutions
DTYPE ?= float32
bench-convolutions: build/release/build.ninja  ## measure convolutions in DTYPE beside PyTorch, ONNX Runtime, OpenVINO and Halide; FILTER, OUT=<folder>, PLAN_FOLDERS=<folders>
	@$(CMAKE) --build --preset release --target distile_command distile_shared
	@FILTER='$(filter-out .*,$(FILTER))' PLANS="$(or $(PLAN_FOLDERS),data/plans)" bench/python/run_convolutions.sh \
		build/release/autoscheduler/distile build/release/runtime/libdistile.so \
		"$(if $(filter build/bench.json,$(OUT)),build/bench-convolutions,$(OUT))" "$(DTYPE)" --source "$$(git rev-parse --short HEAD)"

.PHONY: bench-tables
bench-tables: build/release/build.ninja  ## write the documents' tables and figures from bench/results, and build/pages, its rows
	@$(CMAKE) --build --preset release --target distile_bench
	@bench/tables.sh build/release/bench/distile_bench build/pages

# A summary for such THREADS says what is measured, so an interrupted run continues with the others.
ONLY ?= _avx
THREADS ?= $(shell for n in 1 2 4 8 16; do ((n > $$(nproc))) || echo $$n; done)
comma := ,
threads_list := $(subst $(eval) ,$(comma),$(strip $(THREADS)))
.PHONY: times
times: build/release/build.ninja  ## measure time tables into the plans for CPUs for THREADS, on an idle machine; ONLY=<regex>, some
	@$(CMAKE) --build --preset release --target distile_command
	@build/release/autoscheduler/distile profile --all data/plans --only '$(ONLY)' --into-plan --threads $(threads_list) \
		--summary build/times/$(threads_list).json

# Packs the benchmark of NVIDIA GPUs into a self-contained folder: a machine with a GPU needs no compiler and no Halide.
# The PolyKernels that nothing else needs are built here alone, so DISTILE_BENCH_GPU ends off, whatever happens.
GPU_FOLDER ?= build/gpu
.PHONY: bench-gpu-pack
bench-gpu-pack:  ## pack the GPU benchmark into GPU_FOLDER, which runs on any machine with a GPU
	@cmake/setup.sh bench-gpu
	@$(CMAKE) --preset release -DDISTILE_BENCH_GPU=ON
	@trap '$(CMAKE) --preset release -DDISTILE_BENCH_GPU=OFF' EXIT; \
		$(CMAKE) --build --preset release --target distile_command distile_cuda_bench distile_attention_side; \
		bench/gpu/pack.sh build/release/autoscheduler/distile build/release/bench/distile_cuda_bench "$(GPU_FOLDER)"
	@strip "$(GPU_FOLDER)/distile" "$(GPU_FOLDER)/distile_cuda_bench"

.PHONY: bench-gpu
bench-gpu: bench-gpu-pack  ## profile and benchmark this machine's GPU; GPU_OUT=<folder> gets the numbers
	@PATH="$(CURDIR)/.venv/bin:$$PATH" "$(GPU_FOLDER)/measure_gpu.sh" "$(or $(GPU_OUT),build/gpu-results)" gpu

.PHONY: onnx
onnx: build/release/build.ninja  ## build and test the operators for ONNX Runtime, which it installs
	@cmake/setup.sh onnx
	@$(CMAKE) --build --preset release --target distile_onnxruntime distile_builder
	@$(CTEST) --preset release -R '^onnx$$'

# A Python environment of its own, because PyTorch takes 5 GB. Not a part of continuous integration for the same reason.
# The wheel runs on systems with glibc 2.35 and the C++ library of GCC 12, or later, and has the part for NVIDIA GPUs where
# their compiler is.
PYTHON_CUDA ?= $(if $(shell PATH="$$PATH:/usr/local/cuda/bin" command -v nvcc),ON,OFF)
.PHONY: python python-wheel
python: python-wheel  ## build and test the Python package, with a PyTorch of 5 GB
	@cd python/tests && DISTILE_COMPILER="$(CURDIR)/build/release/autoscheduler" ../../.venv-torch/bin/python -m pytest -q

python-wheel: build/release/build.ninja .venv-torch/distile.stamp  ## build and install the wheel of the Python package
	@$(CMAKE) --build --preset release --target distile_builder
	@rm -rf build/wheel
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv-torch/bin/pip wheel ./python --no-deps --no-build-isolation -w build/wheel \
		--config-settings build-dir="$(CURDIR)/build/python-wheel" \
		--config-settings cmake.define.DISTILE_POLYKERNELS_FROM="$(CURDIR)/build/release" \
		--config-settings cmake.define.CMAKE_PREFIX_PATH="$(CURDIR)/.venv" \
		--config-settings cmake.define.DISTILE_PYTHON_CUDA=$(PYTHON_CUDA)
	@.venv-torch/bin/python -m wheel tags --remove --platform-tag manylinux_2_35_x86_64 build/wheel/*.whl
	@.venv-torch/bin/pip install --force-reinstall --no-deps build/wheel/*.whl

# What a release uploads, of the commit that is checked out.
.PHONY: dist
dist: python-wheel  ## pack what a release uploads into build/dist, and try each file
	@$(CMAKE) --preset release
	@$(CMAKE) --build --preset release --target distile_installed
	@cmake/dist.sh .venv/bin build/release build/wheel .venv-torch build/dist

.venv-torch/distile.stamp: requirements/python.txt
	@[[ ! -L .venv-torch ]] || { echo "distile: error: .venv-torch is a link, whose folder this would clear" >&2; exit 1; }
	@/usr/bin/python3 -m venv --clear .venv-torch
	@.venv-torch/bin/pip install -r requirements/python.txt
	@touch $@

# Goes on where an interrupted run stopped: results are lines of ZOO_OUT, which a new run of everything needs removed.
# The table of a committed run is in python/zoo/results.
ZOO_OUT ?= build/zoo.jsonl
ZOO_TABLES ?= build/zoo.json
.PHONY: zoo
zoo: python-wheel .venv-torch/zoo.stamp  ## compare other people's models, converted, with themselves; ZOO="vit_* resnet18", some
	@.venv-torch/bin/python python/zoo $(patsubst %,'%',$(ZOO)) --out "$(ZOO_OUT)" --tables "$(ZOO_TABLES)" --jobs $(JOBS)

.venv-torch/zoo.stamp: .venv-torch/distile.stamp requirements/zoo.txt requirements/zoo-models.txt
	@.venv-torch/bin/pip install -r requirements/zoo.txt
	@.venv-torch/bin/pip install --no-deps -r requirements/zoo-models.txt
	@touch $@

# Build before running clang-tidy, because sources include generated headers.
.PHONY: lint lint-all
lint:  ## check the English, and the sources with clang-format and clang-tidy
lint-all:  ## the same with clang's full static analysis, which takes twice as long
lint lint-all:
	@cmake/setup.sh lint
	@$(CMAKE) --preset release
	@$(CMAKE) --build --preset release
	@.venv/bin/python cmake/lint.py $(JOBS) $(if $(filter lint-all,$@),deep)

.PHONY: clean
clean:  ## remove all builds
	rm -rf build

.PHONY: distclean
distclean: clean  ## remove all builds and what was installed into this folder
	rm -rf .venv .venv-torch

# Configures a preset once, and again when the presets or the Python environment change; Ninja does the rest. The
# sanitizer presets take the PolyKernels of the release build.
build/asan-ubsan/build.ninja build/tsan/build.ninja: | build/release/build.ninja
build/%/build.ninja: CMakePresets.json .venv/distile.stamp
	@$(CMAKE) --preset $*

.PHONY: setup
setup:  ## install what the build needs, and build nothing
	@cmake/setup.sh

# The script runs each time, but changes the stamp only if it installed something.
.venv/distile.stamp: setup ;
