#!/bin/bash
# lint.sh: the rules that a compiler doesn't check. Prints each violation as file:line: text; ends with "N passed, N failed" checks.
set -uo pipefail
cd "$(dirname "$0")/.."
# Variables given to the calling make still hold below; its job slots don't reach here
MAKEFLAGS=$(sed -E 's/(^| )(-j[0-9]*|--jobserver-auth=[^ ]*)//g' <<<"${MAKEFLAGS:-}")
export MAKEFLAGS

passed=0
failed=0
verdict() { # verdict NAME STATUS
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
    fi
}

# Tracked files and new ones that git doesn't ignore; without git, everything but build/
listing() {
    git ls-files -co --exclude-standard 2>/dev/null || find . -type f -not -path './build/*' -not -path './.git/*' | sed 's|^\./||'
}
mapfile -t every < <(listing | while read -r f; do [ -f "$f" ] && echo "$f"; done)
mapfile -t code < <(printf '%s\n' "${every[@]}" | grep -E '\.[ch]$')
mapfile -t inside < <(printf '%s\n' "${code[@]}" | grep -E '^(base|ir|runtime|codegen|tracer)/')

layers() { awk -f tools/lint_layers.awk "${code[@]}"; }

# A table's row or a declaration with its contract beside it may be wide; prose and code should stay within 140
text() {
    awk '
    FNR == 1 { if (name) size(); name = FILENAME }
    /\t/ { printf "%s:%d: a tab\n", FILENAME, FNR; bad = 1 }
    /[ \t\r]$/ { printf "%s:%d: trailing blanks\n", FILENAME, FNR; bad = 1 }
    { shown = $0; gsub(/[\200-\277]/, "", shown) }
    length(shown) > 140 { wide++ }
    length(shown) > 180 { printf "%s:%d: %d columns, 180 at most\n", FILENAME, FNR, length(shown); bad = 1 }
    { lines = FNR }
    function size() {
        if (lines > 1200) { printf "%s: %d lines: split it\n", name, lines; bad = 1 }
        else if (lines > 800) printf "note: %s: %d lines: look whether it should be two\n", name, lines
    }
    END { if (name) size(); if (wide) printf "note: %d lines are wider than 140 columns\n", wide; exit bad }' "${code[@]}"
}

# Marks of unfinished work. The words are put together here so that this file isn't found.
marks() {
    local words
    words="TO""DO|FIX""ME|XX""X"
    ! grep -nwIE "$words" "${every[@]}"
}

# What the library's own folders may not call: other allocators than base/alloc, other programs, the end of the process. Giving back what
# another library allocated is the exception, said on the line: /* malloc'd by … */
calls() {
    [ ${#inside[@]} = 0 ] || awk '
    FNR == 1 { comment = 0 }
    {
        line = $0
        gsub(/\\./, "", line)
        gsub(/"[^"]*"/, "\"\"", line)
        if (comment) { if (!match(line, /\*\//)) next; line = substr(line, RSTART + 2); comment = 0 }
        gsub(/\/\*([^*]|\*[^\/])*\*\//, "", line)
        sub(/\/\/.*/, "", line)
        if (match(line, /\/\*/)) { line = substr(line, 1, RSTART - 1); comment = 1 }
        line = " " line
        if (FILENAME != "base/alloc.c" && $0 !~ /malloc.d by / && line ~ /[^A-Za-z0-9_.>](malloc|calloc|realloc|free|strdup|strndup|aligned_alloc|posix_memalign)\(/)
            say("memory comes from base/alloc.h")
        if (line ~ /[^A-Za-z0-9_.>](system|popen|execl|execlp|execle|execv|execvp|execve|posix_spawn|fork)\(/)
            say("the library starts no programs")
        if (line ~ /[^A-Za-z0-9_.>](exit|_exit|quick_exit)\(/) say("the library never ends the process")
    }
    function say(what) { printf "%s:%d: %s\n", FILENAME, FNR, what; bad = 1 }
    END { exit bad }' "${inside[@]}"
}

exported() { nm -D --defined-only "$1" | awk '$2 ~ /[A-Z]/ { print $NF }'; }
library_symbols() {
    local strays
    strays=$(exported build/libkiln.so | grep -v '^kn_') && { echo "build/libkiln.so exports, beside kn_ names:" $strays; return 1; }
    [ -n "$(exported build/libkiln.so)" ] || { echo "build/libkiln.so exports nothing"; return 1; }
}
backend_symbols() { # backend_symbols FILE
    local names
    names=$(exported "$1")
    [ "$(wc -w <<<"$names")" = 1 ] || { echo "$1 should export its one entry, and exports:" $names; return 1; }
    ! readelf -d "$1" | grep -E 'NEEDED.*(libkiln|libcuda|libnvrtc)' || { echo "$1 links what it may not"; return 1; }
}

# Each source by its class's flags, warnings as errors
compile() { # compile COMPILER EXTRA…
    local compiler=$1 class source
    shift
    declare -A flags
    while read -r class rest; do flags[$class]=$rest; done < <(make -s -f mk/build.mk print-flags)
    # Older clangs lack _Float16 on x86
    local half=yes
    echo '_Float16 half;' | $compiler -fsyntax-only -x c - 2>/dev/null || half=
    make -s -f mk/build.mk list-sources | while read -r class source; do
        [ -z "$half" ] && grep -qs _Float16 "$source" && { echo "note: $compiler has no _Float16, $source is left out" >&2; continue; }
        # Kernels and measurements use builtins and attributes that gcc alone has
        case $compiler-$class in clang-isa | clang-bench) continue ;; esac
        [ -n "$source" ] && echo "$compiler ${flags[$class]} -fsyntax-only -Werror $* $source"
    done | xargs -r -P "$(nproc)" -I '{}' sh -c '{}'
}

layers; verdict "includes keep to the layers" $?
text; verdict "tabs, trailing blanks, line and file lengths" $?
marks; verdict "no marks of unfinished work" $?
calls; verdict "no foreign allocation, processes or exits in the library" $?
tools/rules-check.sh --places; verdict "rows of tests/rules/rules.txt name lines that are there" $?
[ ! -e build/libkiln.so ] || { library_symbols; verdict "libkiln.so exports kn_ names only" $?; }
for plugin in kiln-llvm.so kiln-nvrtc.so; do
    [ ! -e build/$plugin ] || { backend_symbols build/$plugin; verdict "$plugin exports one entry and stands alone" $?; }
done
compile gcc; verdict "gcc: warnings are errors" $?
if command -v clang >/dev/null; then
    compile clang -Wno-unknown-warning-option -Wno-sign-compare; verdict "clang: warnings are errors" $?
else
    echo "note: clang isn't here; its pass is left out"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
