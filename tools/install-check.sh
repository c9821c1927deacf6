#!/bin/bash
# install-check.sh: installs into an empty folder and builds the examples against that alone, by pkg-config, as a user's project would;
# also the public header by itself, as C and as C++ where a C++ compiler is here. Ends with "N passed, N failed".
export KN_CACHE=${KN_CACHE:-0}
set -uo pipefail
cd "$(dirname "$0")/.."
# Variables given to the calling make still hold below; its job slots don't reach here
MAKEFLAGS=$(sed -E 's/(^| )(-j[0-9]*|--jobserver-auth=[^ ]*)//g' <<<"${MAKEFLAGS:-}")
export MAKEFLAGS

prefix=$PWD/build/installed
passed=0
failed=0
verdict() {
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
    fi
}

# DESTDIR and PREFIX are kept apart once, to see that no path of the staging folder gets into what is installed
rm -rf "$prefix"
make -s -f mk/build.mk -j"$(nproc)" install DESTDIR="$prefix" >/dev/null
verdict "make install DESTDIR=…" $?
! grep -rlq --include='*.pc' --include='*.h' "$prefix" "$prefix"
verdict "the staging folder's name is in no installed text" $?

installed=$prefix$(make -s -f mk/build.mk print-prefix)
missing=0
backend=
! compgen -G 'codegen/llvm/*.c' >/dev/null || backend=lib/kiln/kiln-llvm.so
for file in include/kiln/kiln.h lib/libkiln.so lib/libkiln.a $backend lib/pkgconfig/kiln.pc; do
    [ -e "$installed/$file" ] || { echo "not installed: $file"; missing=1; }
done
verdict "every part is installed" $missing

export PKG_CONFIG_PATH=$installed/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$prefix
status=0
if compgen -G 'examples/*.c' >/dev/null; then
    mkdir -p build/installed/examples
    make -s -C examples OUT="$prefix/examples" RPATH="-Wl,-rpath,$installed/lib" CFLAGS="-O1 -Wall -Wextra -Werror" || status=1
fi
verdict "the examples build against it" $status

echo '#include <kiln/kiln.h>' | gcc -std=gnu11 -Wall -Wextra -Werror -fsyntax-only -x c -I"$installed/include" -
verdict "the public header stands alone in C" $?
if command -v g++ >/dev/null; then
    echo '#include <kiln/kiln.h>' | g++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only -x c++ -I"$installed/include" -
    verdict "and in C++17" $?
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
