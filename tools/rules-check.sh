#!/bin/bash
# rules-check.sh [PATTERN | --places]: whether each rule of the capture contract has a test that fails when the rule is disabled.
#
# tests/rules/rules.txt has a block a rule: a line of the code that upholds it, what that line becomes without the rule, and the test that must notice. For each the
# edit is made in a copy of the tree, what depends on it is built again, that one test is run, and the edit is undone; the tree itself is never touched. With a
# pattern (a regular expression) only the blocks whose rule, file or test it matches. A crash and a timeout count as caught, and are told.
# The last line is "N rules, N caught, N missed". --places only looks whether each row's line still stands in its file, once (make lint does).
set -euo pipefail
export KN_CACHE=${KN_CACHE:-0}
MAKEFLAGS=$(sed -E 's/(^| )--jobserver-auth=[^ ]*//g' <<<"${MAKEFLAGS:-}")
export MAKEFLAGS

table=tests/rules/rules.txt
pattern=${1:-}
places=
[ "$pattern" != --places ] || { places=1; pattern=; }
limit=${CASE_TIMEOUT:-30}                       # seconds a test
jobs=-j$(nproc)
case " $MAKEFLAGS " in *' -j'*) jobs= ;; esac

# ---- the table: blocks of "keyword value" lines, parted by empty ones -----------------------------------------------------------------
rules=() files=() froms=() tos=() tests=()
rule= file= from= to= test=
block() {
    [ -n "$rule$file$from$test" ] || return 0
    [ -n "$rule" ] && [ -n "$file" ] && [ -n "$from" ] && [ -n "$test" ] || { echo "$table: a block lacks a line: '$rule' '$file' '$from' '$test'"; exit 2; }
    if [[ -z $pattern || "$rule $file $test" =~ $pattern ]]; then
        rules+=("$rule") files+=("$file") froms+=("$from") tos+=("$to") tests+=("$test")
    fi
    rule= file= from= to= test=
}
while IFS= read -r line || [ -n "$line" ]; do
    word=${line%% *}
    value=${line#"$word"}
    value=${value#"${value%%[! ]*}"}
    case $word in
    '') block ;;
    '#'*) ;;
    rule) rule=$value ;;
    file) file=$value ;;
    from) from=${value//'\n'/$'\n'} ;;            # \n: the text goes on in the next line
    to) to=${value//'\n'/$'\n'} ;;
    test) test=$value ;;
    *) echo "$table: '$word' is no keyword"; exit 2 ;;
    esac
done < "$table"
block
[ ${#rules[@]} != 0 ] || { echo "no rule matches '$pattern'"; exit 2; }

if [ "$places" ]; then
    lost=0
    for i in "${!rules[@]}"; do
        FROM=${froms[i]} awk 'BEGIN { RS = "\001" } { for (t = $0; at = index(t, ENVIRON["FROM"]); n++) t = substr(t, at + 1) } END { exit n != 1 }' "${files[i]}" && continue
        echo "$table: rule ${rules[i]}: its line doesn't stand in ${files[i]} exactly once: ${froms[i]}"
        lost=1
    done
    exit $lost
fi

# ---- a copy, with what is built already ------------------------------------------------------------------------------------------------
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z -co --exclude-standard | while IFS= read -r -d '' f; do [ ! -f "$f" ] || printf '%s\0' "$f"; done | xargs -0 cp -p --parents -t "$copy"
for built in obj gen include gen_ops gen_ops.d kiln-llvm.so kiln-nvrtc.so libkiln.a tests; do
    [ ! -e "build/$built" ] || cp -a --parents "build/$built" "$copy"
done
cd "$copy"
export KN_BACKEND_DIR=$copy/build
mapfile -t programs < <(printf '%s\n' "${tests[@]}" | grep -v / | sort -u | sed '/./s|^|build/tests/|')

build() { make $jobs -f mk/build.mk backend build/tests/kiln-tests "${programs[@]}" > build.log 2>&1; }

# What a test did: passes, fails, crashes, runs too long, is skipped (the machine lacks what it needs), is missing
outcome() {
    local status=0 names
    if [[ $1 != */* ]]; then
        timeout $((8 * limit)) "build/tests/$1" > test.log 2>&1 || status=$?
        if [ $status = 0 ]; then echo passes; elif [ $status = 124 ]; then echo "runs too long"; elif [ $status -ge 128 ]; then echo crashes; else echo fails; fi
        return
    fi
    timeout $((4 * limit)) build/tests/kiln-tests --timeout "$limit" --verbose --filter "$1" > test.log 2>&1 || status=$?
    sed -i -e 's/\x1b\[[0-9;]*m//g' -e '/Test is disabled/d' test.log
    if [ $status = 124 ]; then echo "runs too long"
    elif grep -aq '^\[SKIP\]' test.log; then echo "is skipped"
    elif grep -aq 'Synthesis: Tested: 0 ' test.log; then echo missing
    elif grep -aqE '\[FAIL\] .*Timed out' test.log; then echo "runs too long"
    elif grep -aq 'CRASH!' test.log; then echo crashes
    elif grep -aq '^\[FAIL\]' test.log; then echo fails
    elif grep -aq 'Synthesis: Tested: .*Failing: 0 | Crashing: 0' test.log; then echo passes
    else echo crashes
    fi
    [[ $1 != *[*@]* ]] || { names=$(sed -nE 's/^\[FAIL\] ([a-z_0-9:]*): .*/\1/p' test.log | sed 's|::|/|' | head -n 4 | paste -sd ' '); echo "  $names" >&2; }
}

build || { tail -n 20 build.log; echo "the tree doesn't build as it is"; exit 1; }
mapfile -t distinct < <(printf '%s\n' "${tests[@]}" | sort -u)
mapfile -t named < <(printf '%s\n' "${distinct[@]}" | grep /)
in_one_run() { # whether these pass, a process for all of them
    local filter
    filter=$(IFS='|'; echo "$*")
    timeout 900 build/tests/kiln-tests --timeout 120 --filter "@($filter)" > test.log 2>&1 && grep -aq "Synthesis: Tested: $# " test.log
}
good=()
for ((i = 0; i < ${#named[@]}; i += 20)); do
    in_one_run "${named[@]:i:20}" && good+=("${named[@]:i:20}")
done
mapfile -t distinct < <(printf '%s\n' "${distinct[@]}" | grep -vxFf <(printf '%s\n' "${good[@]}") || true)
bad=0
for name in "${distinct[@]}"; do            # one by one, to say which
    is=$(outcome "$name")
    [ "$is" = passes ] || [ "$is" = "is skipped" ] || { echo "FAIL    $name: with all rules it $is"; bad=1; }
done
[ $bad = 0 ] || { echo "where a test doesn't pass as it is, nothing can be told by it"; exit 1; }

# ---- one rule after the other --------------------------------------------------------------------------------------------------------------
# Replaces the one place where $2 stands in file $1 by $3
edit() {
    local text head rest
    text=$(cat "$1"; echo .)
    text=${text%.}
    head=${text%%"$2"*}
    [ "$head" != "$text" ] || { echo "isn't found"; return 1; }
    rest=${text#"$head$2"}
    [ "${rest%%"$2"*}" = "$rest" ] || { echo "is found more than once"; return 1; }
    printf '%s' "$head$3$rest" > "$1"
}

caught=0
missed=0
stale=0
skipped=0
for i in "${!rules[@]}"; do
    file=${files[i]}
    cp -p "$file" saved
    if ! why=$(edit "$file" "${froms[i]}" "${tos[i]}"); then
        echo "STALE   ${rules[i]}: in $file this $why: ${froms[i]}"
        stale=$((stale + 1))
        continue
    fi
    if ! build; then
        echo "STALE   ${rules[i]}: $file doesn't build when edited"
        grep -m 3 -a 'error' build.log || true
        stale=$((stale + 1))
    else
        is=$(outcome "${tests[i]}")
        if [ "$is" = "is skipped" ]; then
            skipped=$((skipped + 1))
            echo "skipped ${rules[i]}: ${tests[i]} needs what this machine lacks"
        elif [ "$is" = passes ] || [ "$is" = missing ]; then
            missed=$((missed + 1))
            echo "MISSED  ${rules[i]}: ${tests[i]} $is"
        else
            caught=$((caught + 1))
            echo "caught  ${rules[i]}: ${tests[i]} $is"
        fi
    fi
    cp saved "$file"                            # younger than what was built from the edited one
done

[ $stale = 0 ] || echo "$stale blocks of $table don't fit the code any longer"
[ $skipped = 0 ] || echo "$skipped rules are skipped on this machine"
echo "${#rules[@]} rules, $caught caught, $missed missed"
[ $((missed + stale)) = 0 ]
