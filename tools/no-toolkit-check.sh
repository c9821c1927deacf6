#!/bin/bash
# no-toolkit-check.sh BUILD-DIR: the tests of CUDA on a machine that has neither toolkit nor driver, or on one where they are hidden: every loader path, CUDA_HOME, and the
# settings that name the libraries. They must pass, those that need NVRTC being named as skipped; nothing may have found one after all.
#
# Tests that bring the stand-in compiler along (tests/cuda/host) run as ever: it is what there is without a toolkit.
set -euo pipefail

build=$1
env=(env -u CUDA_HOME -u CUDA_PATH -u LD_LIBRARY_PATH -u KN_CUDA_DRIVER PATH=/usr/bin:/bin KN_NVRTC=/nowhere/libnvrtc.so KN_CACHE=0 KN_BACKEND_DIR="$PWD/$build")
status=0
out=$("${env[@]}" "$build/tests/kiln-tests" --timeout 120 --verbose --filter '@(cuda*|sim*)/*' 2>&1) || status=$?
plain=$(sed 's/\x1b\[[0-9;]*m//g' <<< "$out")
skipped=$(grep -c '^\[SKIP\] ' <<< "$plain") || true
grep '^\[SKIP\] ' <<< "$plain" || true
grep -E '^\[FAIL\] ' <<< "$plain" || true
tail -n 1 <<< "$plain"
if [ "$status" != 0 ]; then
    echo "no-toolkit-check: FAILED"
    exit 1
elif [ "$skipped" = 0 ]; then
    echo "no-toolkit-check: FAILED: no test was skipped, so a toolkit was found"
    exit 1
fi
# The whole operator set with tensors on the simulated device and no compiler for it: everything on the host, with the CPU's results
"${env[@]}" KN_CUDA_DRIVER="$PWD/$build/tests/libsimcuda.so" "$build/tests/conformance" --device cuda:0 > "$build/no-toolkit.txt" || { grep -E "^(FAIL|failed)" "$build/no-toolkit.txt" || true; exit 1; }
tail -n 1 "$build/no-toolkit.txt"
echo "no-toolkit-check: passed, $skipped skipped by name"
