#!/bin/bash
# run-each.sh GLOB [ARGUMENT…]: runs every program build/tests/GLOB with those arguments. Ends with "N passed, N failed".
export KN_CACHE=${KN_CACHE:-0}
set -euo pipefail

glob=$1
shift
export KN_BACKEND_DIR=${KN_BACKEND_DIR:-$PWD/build}
passed=0
failed=0
for program in build/tests/$glob; do
    [ -x "$program" ] || continue
    echo "RUN   $(basename "$program") $*"
    if "$program" "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
