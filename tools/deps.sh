#!/bin/sh
# deps.sh build|test: makes sure that what building (or testing) needs is there.
#
# Each need is probed by what it provides, not by a package's name, so that any distribution that has it passes. What is missing is
# installed on Debian and its kin, by root or through a sudo that asks nothing; otherwise the one command to run is printed, and it fails.
# Does nothing, quickly, when nothing is missing. KILN_NO_INSTALL=1 only prints.
set -eu

missing=
need() { # need PACKAGE PROBE…
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
have() { command -v "$1"; }
any_file() { for f in "$@"; do [ -e "$f" ] && return 0; done; return 1; }

probe_build() {
    need gcc have gcc
    need libc6-dev any_file /usr/include/stdio.h
    need pkg-config have pkg-config
    need llvm-19-dev "${LLVM_CONFIG:-llvm-config-19}" --version
    need libffi-dev pkg-config --exists libffi
    need libjansson-dev pkg-config --exists jansson
}
probe_test() {
    need libcriterion-dev pkg-config --exists criterion
    need python3 have python3
    need g++ have g++
    need clang have clang
    need libopenblas-dev any_file /usr/include/*/cblas.h /usr/include/cblas.h /usr/include/openblas/cblas.h
}
probe() {
    missing=
    case $1 in
    build) probe_build ;;
    test) probe_test ;;
    *)
        echo "usage: deps.sh build|test" >&2
        exit 2
        ;;
    esac
}

probe "$1"
[ -z "$missing" ] && exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
    as_root=sudo
fi
line="apt-get install -y --no-install-recommends$missing"
if ! have apt-get >/dev/null || [ -n "${KILN_NO_INSTALL:-}" ] ||
    { [ -n "$as_root" ] && ! sudo -n true 2>/dev/null; }; then
    echo "Missing (by Debian's names):$missing. Install them, for example:" >&2
    echo "    ${as_root:+sudo }$line" >&2
    exit 1
fi

echo "DEPS $missing"
export DEBIAN_FRONTEND=noninteractive
apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q "$@"; }
if ! ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1; then
    apt update
fi
# Lists may be older than the archive: fetch them anew and try once more
# shellcheck disable=SC2086
apt install -y --no-install-recommends $missing || { apt update && apt install -y --no-install-recommends $missing; }

probe "$1"
if [ -n "$missing" ]; then
    echo "Installed, yet still not found:$missing" >&2
    exit 1
fi
