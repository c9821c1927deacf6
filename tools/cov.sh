#!/bin/bash
# cov.sh BUILD-DIR: line coverage after a test run there, by file and by folder, for the library's own sources. Full listings: BUILD-DIR/gcov/.
set -euo pipefail

dir=$1
out=$PWD/$dir/gcov
rm -rf "$out"
mkdir -p "$out"
# Notes (.gcno) rather than counters, so that a source which no test even links shows as 0
find "$PWD/$dir/obj" -name '*.gcno' -not -path '*/tests/*' | sort > "$out/list"
[ -n "$(find "$dir/obj" -name '*.gcda' -print -quit)" ] || { echo "no counters in $dir: no test ran to its end" >&2; exit 1; }

# One kernel source is compiled several times, and headers are seen from many objects: a line counts as run when any object ran it
xargs -a "$out/list" -n 32 gcov --json-format --stdout 2>/dev/null |
    python3 -c '
import json, os, sys
ran, root = {}, os.getcwd()
text, at, decoder = sys.stdin.read(), 0, json.JSONDecoder()
while at < len(text):
    if text[at].isspace():
        at += 1
        continue
    unit, at = decoder.raw_decode(text, at)
    for file in unit["files"]:
        path = os.path.relpath(os.path.join(root, file["file"]), root)
        if path.startswith((".", "/", "tests/", "build/")):
            continue
        lines = ran.setdefault(path, {})
        for line in file["lines"]:
            number = line["line_number"]
            lines[number] = lines.get(number, 0) + line["count"]
folders = {}
def show(name, hit, all):
    print(f"{100 * hit / all:6.1f}%  {hit:6} of {all:6}  {name}")
for path in sorted(ran):
    hit, all = sum(1 for n in ran[path].values() if n), len(ran[path])
    if all:
        missed = [str(n) for n, count in sorted(ran[path].items()) if not count]
        with open(os.path.join(sys.argv[1], path.replace("/", "#")), "w") as out:
            out.write("\n".join(f"{path}:{n}" for n in missed) + "\n")
        show(path, hit, all)
        for folder in (os.path.dirname(path) + "/", "in all"):
            sums = folders.setdefault(folder, [0, 0])
            sums[0] += hit
            sums[1] += all
print()
for folder in sorted(folders):
    show(folder, *folders[folder])
' "$out"
echo "lines that no test ran: $dir/gcov/"
