#!/bin/bash
# run-tests.sh BUILD-DIR [PATTERN]: runs what `make tests` built in that folder: the plain programs, then the Criterion tests.
#
# Tests that need what the machine lacks are named as skipped. With a pattern only the Criterion tests whose suite/name it matches run (a plain word matches anywhere
# in the name).
# Under a sanitizer every report fails the run, also one that the process survived or that a forking test framework swallowed: reports go
# to files, and any file is a failure. Leaks are judged in the plain programs; Criterion's forked children cannot tell.
# The last line is Criterion's synthesis, or "N passed, N failed" where only plain programs ran.
set -euo pipefail

dir=$1
pattern=${2:-}
reports=$dir/reports
rm -rf "$reports"
mkdir -p "$reports"
export KN_BACKEND_DIR=${KN_BACKEND_DIR:-$PWD/$dir}
limit=${TEST_TIMEOUT:-1200}
# Programs that tests start leave the user's object cache alone too
export KN_CACHE=${KN_CACHE:-0}

common=halt_on_error=1:abort_on_error=1:log_path=$PWD/$reports/report
export UBSAN_OPTIONS=print_stacktrace=1:$common
export TSAN_OPTIONS=$common
# Not intercept_tls_get_addr: the leak checker reads the thread-local blocks of libraries opened later (LLVM's) in other threads through records that may be stale, and
# faults ("Tracer caught signal 11").
# Not detect_stack_use_after_return: gcc 12 puts frames with 64-byte vectors at odd addresses under it, and they fault
asan=intercept_tls_get_addr=0:detect_stack_use_after_return=0:allocator_may_return_null=1:$common

# The thread sanitizer of older compilers cannot live with much address randomisation
launch=()
if [ "$(basename "$dir")" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then
    launch=(setarch "$(uname -m)" -R)
fi

passed=0
failed=0
if [ -z "$pattern" ]; then
    for program in "$dir"/tests/*; do
        name=$(basename "$program")
        # A program whose source is gone is a leftover
        [ -f "$program" ] && [ -x "$program" ] && [ -e "tests/$name.c" ] || continue
        case $name in fuzz_*) continue ;; esac
        start=$SECONDS
        status=0
        ASAN_OPTIONS=detect_leaks=1:$asan timeout "$limit" "${launch[@]}" "$program" > "$reports/.$name" 2>&1 || status=$?
        if [ "$status" = 0 ]; then
            passed=$((passed + 1))
            echo "ok    $name ($((SECONDS - start)) s)"
        else
            failed=$((failed + 1))
            tail -n 100 "$reports/.$name"
            echo "FAIL  $name (exit status $status)"
        fi
    done
fi

synthesis=
skipped=0
if [ -x "$dir/tests/kiln-tests" ]; then
    arguments=()
    if [ -n "$pattern" ]; then
        case $pattern in
        *[*?[]*) arguments+=(--filter "$pattern") ;;
        *) arguments+=(--filter "*$pattern*") ;;
        esac
    fi
    status=0
    # Told are failures, and by name what this machine can't run; not what ran, nor what the pattern leaves out
    ASAN_OPTIONS=detect_leaks=0:$asan timeout "$limit" "$dir/tests/kiln-tests" --timeout "${CASE_TIMEOUT:-120}" --verbose "${arguments[@]}" \
        2>&1 | sed -u -e 's/\x1b\[[0-9;]*m//g' -e '/^\[RUN \]/d' -e '/^\[PASS\]/d' -e '/Test is disabled/d' | tee "$reports/.criterion" || status=$?
    synthesis=$(grep -a 'Synthesis: Tested:' "$reports/.criterion" | tail -n 1) || true
    skipped=$(grep -ac '^\[SKIP\] ' "$reports/.criterion") || true
    case $synthesis in
    '') echo "FAIL  kiln-tests ended without a synthesis (exit status $status)" && failed=$((failed + 1)) ;;
    *'Tested: 0 '*) [ "$skipped" != 0 ] || { echo "FAIL  no test matches '$pattern'" && failed=$((failed + 1)); } ;;
    *) [ "$status" = 0 ] || failed=$((failed + 1)) ;;
    esac
fi

count=0
for report in "$reports"/report*; do
    # A refused huge allocation is written there too, as a warning, and is what a test asked for
    grep -qsE 'ERROR: |SUMMARY: |runtime error: |WARNING: ThreadSanitizer' "$report" || continue
    count=$((count + 1))
    echo "---- sanitizer report $report"
    head -n 60 "$report"
done
if [ "$count" != 0 ]; then
    echo "FAIL  $count sanitizer reports"
    failed=$((failed + 1))
fi

# The names of what failed come near the end, where a long run's reader looks
if [ "$failed" != 0 ] && [ -s "$reports/.criterion" ]; then
    sed 's/\x1b\[[0-9;]*m//g' "$reports/.criterion" | grep -aE '^\[(FAIL|CRASH|TIMEOUT)\]|Assertion failed|Unexpected signal|Timed out' | head -n 40 || true
fi

# What the count lines say is true of the whole run, so they come last, whatever was printed in between
if [ -z "$synthesis" ]; then
    [ $((passed + failed)) != 0 ] || echo "note: there is nothing to run in $dir/tests"
    echo "$passed passed, $failed failed"
elif [ $((passed + failed + skipped)) != 0 ]; then
    [ "$skipped" = 0 ] || echo "$skipped tests skipped, named above"
    echo "plain programs and reports: $passed passed, $failed failed"
    echo "$synthesis"
fi
[ "$failed" = 0 ]
