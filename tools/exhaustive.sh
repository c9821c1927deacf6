#!/bin/bash
# exhaustive.sh [PROGRAM/NAME]: build/tests/*_sweep over all floats, one after the other; with an argument from that program's operator on, which is how a run
# that was broken off goes on. Each says on stderr how far it is and how long it took; so does this at the end.
set -euo pipefail

from=${1:-}
export KN_CACHE=${KN_CACHE:-0} KN_BACKEND_DIR=${KN_BACKEND_DIR:-$PWD/build}
passed=0
failed=0
begun=
[ -n "$from" ] || begun=1
for program in build/tests/*_sweep; do
    name=$(basename "$program")
    [ -x "$program" ] && [ -e "tests/$name.c" ] || continue
    which=all
    if [ -z "$begun" ]; then
        [ "$name" = "${from%%/*}" ] || continue
        begun=1
        [ "$from" = "${from#*/}" ] || which=from:${from#*/}
    fi
    echo "RUN   $name $which 1"
    if "$program" "$which" 1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, in $((SECONDS / 60)) minutes"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
