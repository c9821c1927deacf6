#!/bin/bash
# gpu-check.sh BUILD-DIR: what only a real GPU shows, in less than four minutes: conformance of the operators and the complaint tests on the device, then
# measurements beside PyTorch. Prints a table; BUILD-DIR/gpu-check.json has everything.
#
# Without a driver or a device it says so and ends with 0. Whatever else is missing (packages to build with, LLVM, NVRTC, PyTorch) is named, and the rest runs. It
# installs nothing. Where building isn't possible, programs that are there already serve.
#
#   GPU_CHECK_SIM=1      a part of it on the simulated device, at tiny sizes: proves that it runs; times are the simulation's
#   GPU_CHECK_SECONDS    the whole run's limit (230; simulated 1800); what doesn't fit is named
#   GPU_CHECK_BUILD=0    nothing is built
#   GPU_CHECK_PACK=1     builds, puts the libraries that the programs need into BUILD-DIR/gpu/lib, and names what to bring to a machine that can't build
#   GPU_CHECK_TORCH      the Python that has PyTorch (python3)
set -uo pipefail

build=$1
sim=${GPU_CHECK_SIM:-}
[ "$sim" = 0 ] && sim=
limit=${GPU_CHECK_SECONDS:-$([ -z "$sim" ] && echo 230 || echo 1800)}
python=${GPU_CHECK_TORCH:-python3}
work=$build/gpu
failed=0
notes=()
export KN_BACKEND_DIR=${KN_BACKEND_DIR:-$PWD/$build}

say() { echo "gpu-check: $*"; }
missing() { say "missing: $*"; notes+=(--note "missing_$((${#notes[@]} / 2))=$*"); }
left() { echo $((limit - SECONDS > 1 ? limit - SECONDS : 1)); }
# step NAME SECONDS-AT-MOST COMMAND…: runs it, keeps its output in $out, remembers how it ended
step() {
    local name=$1 most=$2 begin=$SECONDS status=0 how=passed
    shift 2
    [ -z "$sim" ] || most=900                   # an interpreter's time is no measure
    [ "$most" -lt "$(left)" ] || most=$(left)
    out=$(timeout "$most" "$@" 2>&1) || status=$?
    [ "$status" = 0 ] || { how="failed ($status)"; failed=1; }
    [ "$status" != 124 ] || how="not finished in $most s"
    say "$name: $how, $((SECONDS - begin)) s"
    notes+=(--note "step_$name=$how, $((SECONDS - begin)) s")
    return "$status"
}

has_driver() {
    [ -n "${KN_CUDA_DRIVER:-}" ] && [ -e "$KN_CUDA_DRIVER" ] && return 0
    ldconfig -p 2> /dev/null | grep -q 'libcuda\.so\.1' && return 0
    local IFS=: dir
    for dir in ${LD_LIBRARY_PATH:-} /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib/wsl/lib; do
        [ -e "$dir/libcuda.so.1" ] && return 0
    done
    return 1
}
if [ -z "$sim${GPU_CHECK_PACK:-}" ] && ! has_driver; then
    say "SKIPPED: no NVIDIA driver here (libcuda.so.1)"
    exit 0
fi

# ---- build -----------------------------------------------------------------------------------------------------------------------
programs=("$build/tests/conformance" "$build/bench/gpu_bench" "$build/gpu/complaints" "$build/kiln-nvrtc.so")
needs=
for tool in make "${CC:-gcc}" "${PKG_CONFIG:-pkg-config}"; do
    command -v "$tool" > /dev/null || needs="$needs $tool"
done
for package in libffi jansson; do
    "${PKG_CONFIG:-pkg-config}" --exists "$package" 2> /dev/null || needs="$needs $package"
done
targets=(gpu-check)
if "${LLVM_CONFIG:-llvm-config-19}" --version > /dev/null 2>&1; then
    targets+=("$build/kiln-llvm.so")
elif [ -e "$build/kiln-llvm.so" ]; then
    missing "LLVM to build with (llvm-19-dev): the kiln-llvm.so that is here serves"
else
    missing "LLVM (llvm-19-dev): modules on the CPU run eagerly"
fi
[ -z "$sim" ] || targets+=(sim-test)
mkdir -p "$work"
if [ "${GPU_CHECK_BUILD:-1}" = 0 ] || [ -n "$needs" ]; then
    [ -z "$needs" ] || missing "to build with:$needs"
    for p in "${programs[@]}"; do
        [ -e "$p" ] || { say "FAILED: $p isn't there, and nothing can be built"; exit 1; }
    done
else
    step build 200 make -j"$(nproc)" -f mk/build.mk "${targets[@]}" || { tail -n 20 <<< "$out"; exit 1; }
fi

# Libraries brought along serve where the machine has none
[ ! -d "$work/lib" ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$PWD/$work/lib
if [ -n "${GPU_CHECK_PACK:-}" ]; then
    mkdir -p "$work/lib"
    ldd "${programs[@]:0:3}" | awk '/libffi|libjansson/ { print $3 }' | sort -u | xargs -I{} cp -L {} "$work/lib/"
    say "bring along: ${programs[*]} $work/lib, and the tree without the rest of $build; then GPU_CHECK_BUILD=0 make gpu-check"
    du -ch "${programs[@]}" "$work/lib" | tail -n 1
    exit 0
fi
absent=$(ldd "${programs[@]:0:3}" 2> /dev/null | awk '/not found/ { print $1 }' | sort -u | tr '\n' ' ')
if [ -n "$absent" ]; then
    say "FAILED: the programs need libraries that aren't here: $absent"
    exit 1
fi

# ---- the device -------------------------------------------------------------------------------------------------------------------
shards=$(($(nproc) > 8 ? 8 : $(nproc)))
parts=$shards
size=()
if [ -n "$sim" ]; then
    export KN_CUDA_DRIVER=$PWD/$build/tests/libsimcuda.so
    say "SIMULATED device: times below say nothing about any GPU"
    notes+=(--note "simulated=yes: times say nothing")
    parts=$((shards * 10))
    size=(--tiny)
fi
status=0
device=$("$build/bench/gpu_bench" --probe) || status=$?
if [ "$status" = 77 ]; then
    say "SKIPPED: $device"
    exit 0
elif [ "$status" != 0 ]; then
    say "FAILED: $device"
    exit 1
fi
say "$device"
notes+=(--note "probe=$device")
case $device in *'no device code:'*) missing "NVRTC: every operator runs on the host" ;; esac

# ---- conformance: processes share the file; each part prints its own count -------------------------------------------------------------
conform() {
    local i pids=() bad=0
    for ((i = 1; i <= shards; i++)); do
        "$build/tests/conformance" --device cuda:0 --verbose --part "$i/$parts" > "$work/conformance.$i" 2>&1 &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || bad=1; done
    cat "$work"/conformance.* | awk '/^(FAIL|failed:|not supported:)/ { print }
        /passed,.*failed,/ { p += $1; f += $3 }
        /^ran on the host: / { host[$5] += substr($6, 2) }
        END { for (h in host) printf "ran on the host: %s (%d times)\n", h, host[h]; printf "%d cases passed, %d failed\n", p, f }'
    return $bad
}
export build work shards parts
export -f conform
rm -f "$work"/conformance.*
step conformance 100 bash -c conform
echo "$out"
notes+=(--note "conformance=$(tail -n 1 <<< "$out")")
complain() {
    local all
    all=$("$build/gpu/complaints" --list | wc -l)
    "$build/gpu/complaints" --list | xargs -P "$shards" -n 4 "$build/gpu/complaints" --device cuda:0 2>&1 | awk -v all="$all" '
        /passed, .* failed, .* not run/ { p += $1; f += $3; s += $5; next } { print }
        END { printf "%d passed, %d failed, %d not run\n", p, f, s; if (p + f + s < all) { print "FAIL  some of " all " never ended"; f++ } exit f > 0 }'
}
export -f complain
step complaints 90 bash -c complain
echo "$out"
notes+=(--note "complaints=$(tail -n 1 <<< "$out")")

# ---- measurements: PyTorch has half of what is left, so that Kiln's are never cut ----------------------------------------------------------
rm -f "$work/torch.json"
if [ -n "$sim" ]; then
    missing "PyTorch's times: it knows no simulated device"
elif ! command -v "$python" > /dev/null; then
    missing "PyTorch: there is no $python"
else
    most=$(($(left) / 2))
    status=0
    told=$("$build/bench/gpu_bench" --list | timeout $((most + 5)) "$python" bench/gpu/torch_gpu.py "$work/torch.json" "$most" 2> "$work/torch.log") || status=$?
    [ -z "$told" ] || echo "$told"
    if [ "$status" = 77 ]; then
        missing "$told"
    elif [ "$status" != 0 ]; then
        missing "some of PyTorch's times (status $status; $work/torch.log)"
    fi
fi
step measure 110 "$build/bench/gpu_bench" "${size[@]}" --json "$build/gpu-check.json" --peer "$work/torch.json" "${notes[@]}"
echo "$out"
say "$([ "$failed" = 0 ] && echo passed || echo FAILED) in $SECONDS s; $build/gpu-check.json"
exit "$failed"
