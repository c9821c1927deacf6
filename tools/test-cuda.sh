#!/bin/bash
# test-cuda.sh BUILD-DIR: what can be known of device code without a device, and the whole path on the simulated one.
#
#   1. every device kernel of the conformance set compiles to cubins for sm_80, sm_90 and sm_100 by the machine's own NVRTC, without spills
#   2. so does every kernel of the measured cases (bench/gpu_facts.c), whose accesses are counted in PTX, and every tile of the products' and attention's kernels
#      (tests/cuda_facts.c): registers and shared memory are within bounds
#   3. the conformance set on the simulated device, which runs the PTX that NVRTC emitted, warps and blocks in two orders
#   4. MiniLM there, with its real weights where they can be had (tools/minilm.sh): within 1e-4 of the CPU and of PyTorch
# Where there is no NVRTC it says so and ends with 0: nothing was checked then.
set -euo pipefail

build=$1
export KN_BACKEND_DIR=${KN_BACKEND_DIR:-$PWD/$build}
run() { "$build/tests/conformance" "$@"; }

out=$(run --sources 80,90,100) || { echo "$out"; exit 1; }
if grep -q '^skipped: ' <<<"$out"; then
    echo "test-cuda: SKIPPED: ${out#skipped: }"
    exit 0
fi
grep -E '^(spills|device code|[0-9]+ passed)' <<<"$out"
for arch in 80 90 100; do
    out=$("$build/bench/gpu_facts" --arch $arch) || { echo "$out"; exit 1; }
    grep -E '^(spills|widths|bench set)' <<<"$out"
done
"$build/tests/cuda_facts"
export KN_CUDA_DRIVER=$PWD/$build/tests/libsimcuda.so
for seed in 0 1; do
    SIMCUDA_SEED=$seed run --device cuda:0 --verbose | grep -vE '^ok '
done
unset KN_CUDA_DRIVER
tools/minilm.sh "$build" sim
