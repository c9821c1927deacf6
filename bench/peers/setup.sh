#!/bin/bash
# setup.sh FOLDER: the peers from PyPI, newest that install, into a virtual environment of their own. One that can't be had is named; the rest goes on.
set -uo pipefail
folder=$1
packages=(numpy matplotlib safetensors torch torchvision onnx onnxscript onnxruntime openvino jax)
[ -e "$folder/done" ] && exit 0
mkdir -p "$folder"
python3 -m venv "$folder/venv" || { echo "peers: python3 -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }
complete=1
for p in "${packages[@]}"; do
    echo "peers: installing $p"
    "$folder/venv/bin/pip" install -q --disable-pip-version-check "$p" || { echo "peers: $p can't be had here: its rows are left out" >&2; complete=0; }
done
"$folder/venv/bin/pip" list --format=freeze --disable-pip-version-check | grep -iE '^(numpy|torch|torchvision|onnx|onnxruntime|openvino|jax|jaxlib)==' | tee "$folder/versions.txt"
[ $complete = 0 ] || touch "$folder/done"       # else the next run tries the missing ones again
