#!/bin/bash
# fresh-check.sh [TARGET…]: does each of these make targets work as the very first command after a clone, on a minimal Debian 12 that has
# make and git and nothing else of what Kiln needs? Default: run, test. Ends with "N passed, N failed".
#
# Needs root, mmdebstrap, git and a network. Packages come from where this machine's own apt gets Debian from, or else mmdebstrap's default.
# What is checked is the last commit, not the working tree. KEEP=folder keeps the bare system's archive there for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."

targets=("$@")
[ ${#targets[@]} != 0 ] || targets=(run test)
suite=bookworm
work=$(mktemp -d "${TMPDIR:-/tmp}/kiln-fresh.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
archive=${KEEP:-$work}/kiln-fresh-$suite.tar

sources() { # this machine's Debian archives as one-line entries
    apt-get indextargets --format '$(CREATED_BY) $(ORIGIN) $(CODENAME) $(REPO_URI) $(RELEASE) $(COMPONENT)' 2>/dev/null |
        awk -v suite="$suite" '$1 == "Packages" && $2 == "Debian" && index($3, suite) == 1 { print "deb", $4, $5, $6 }' | sort -u
}
if [ ! -e "$archive" ]; then
    sources > "$work/sources"
    if [ -s "$work/sources" ]; then
        mmdebstrap --variant=minbase --include=make,git,ca-certificates "$suite" "$archive" - < "$work/sources"
    else
        mmdebstrap --variant=minbase --include=make,git,ca-certificates "$suite" "$archive"
    fi
fi

passed=0
failed=0
for target in "${targets[@]}"; do
    root=$work/root
    rm -rf --one-file-system "$root"
    mkdir "$root"
    tar -xf "$archive" -C "$root" --exclude='./dev/*'
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
    # apt's settings here may name a proxy, without which nothing would be reached
    apt-config dump | grep -iE '^Acquire::[a-z]+::proxy' > "$root/etc/apt/apt.conf.d/90fresh" || true
    git clone -q --no-hardlinks . "$root/kiln"
    echo "==== make $target, $(du -sh "$root" | cut -f 1) of system to start with"
    start=$SECONDS
    # The mounts are this command's own and go with it
    if unshare --mount sh -c '
        mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" &&
        exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb sh -c "cd /kiln && make $2"
    ' sh "$root" "$target"; then
        passed=$((passed + 1))
        echo "ok    make $target ($((SECONDS - start)) s)"
    else
        failed=$((failed + 1))
        echo "FAIL  make $target ($((SECONDS - start)) s)"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
