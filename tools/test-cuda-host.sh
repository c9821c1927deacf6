#!/bin/bash
# test-cuda-host.sh BUILD-DIR: device code without NVRTC: the same CUDA C built by the host's C++ compiler, run on the simulated device's fibers under the address
# and undefined-behaviour sanitizers, threads in two orders. Needs no toolkit. A finding ends the run.
#
# FILTER=word: only the conformance cases whose name has it. Without g++ or its sanitizer it says so; without g++ it ends with 0: nothing was checked then.
set -euo pipefail

build=$1
if ! command -v "${SIMNVRTC_CXX:-g++}" > /dev/null; then
    echo "test-cuda-host: SKIPPED: no C++ compiler (${SIMNVRTC_CXX:-g++})"
    exit 0
fi
export KN_BACKEND_DIR=${KN_BACKEND_DIR:-$PWD/$build}
export KN_CUDA_DRIVER=$PWD/$build/tests/libsimcuda.so KN_NVRTC=$PWD/$build/tests/libsimnvrtc.so
# What is kept on disk names objects that may be gone
export KN_CACHE=0
asan=$(${CC:-gcc} -print-file-name=libasan.so)
if [ -e "$asan" ] && [[ $asan == */* ]]; then
    # Fibers are announced to it; its warning about makecontext says what it can't know
    export SIM_PRELOAD=$asan ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:halt_on_error=1
else
    echo "note: no libasan.so here: bounds are not checked"
    export SIM_PRELOAD=
fi
for seed in 0 1; do
    status=0
    out=$(SIMCUDA_SEED=$seed LD_PRELOAD=$SIM_PRELOAD "$build/tests/conformance" --device cuda:0 ${FILTER:+--filter "$FILTER"} 2>&1) || status=$?
    grep -vE '^ok |makecontext' <<< "$out" | tail -n 40
    [ "$status" = 0 ] || exit "$status"
done
