#!/bin/sh
# installed.sh BUILD COMPILER SANITIZERS: installs the build to a directory of its own, compiles the example
# against it once with pkg-config and once with find_package, and runs both; the two must write the same file.
set -eu
build=$1 compiler=$2 sanitizers=$3
example=$(cd "$(dirname "$0")" && pwd)
place=$build/tests/installed
flags=${sanitizers:+-fsanitize=$sanitizers}
fail() { echo "installed.sh: $*" >&2; exit 1; }

rm -rf "$place"
mkdir -p "$place"
cmake --install "$build" --prefix "$place/prefix" > "$place/install.log"
[ -f "$place/prefix/include/penstock/penstock.h" ] || fail "no penstock.h under $place/prefix"
libdir=$(dirname "$(find "$place/prefix" -name 'libpenstock.*' | head -n 1)")
pc=$(find "$place/prefix" -name penstock.pc)

# A static library names what it stands on; a shared one carries it.
static=--static
[ -f "$libdir/libpenstock.a" ] || static=
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
options=$(pkg-config $static --cflags --libs penstock)
# shellcheck disable=SC2086
"$compiler" -std=c11 -Wall -Wextra -Wpedantic -Werror -Wno-unused-parameter $flags "$example/ngram.c" -o "$place/ngram" $options -lm
echo "with pkg-config:"
LD_LIBRARY_PATH=$libdir "$place/ngram" "$place/a.safetensors"

CFLAGS=$flags cmake -S "$example" -B "$place/project" -DCMAKE_C_COMPILER="$compiler" \
  -DCMAKE_PREFIX_PATH="$place/prefix" > "$place/configure.log"
cmake --build "$place/project" > "$place/build.log"
echo "with find_package:"
"$place/project/ngram" "$place/b.safetensors"
cmp "$place/a.safetensors" "$place/b.safetensors"

if [ -x "$place/prefix/bin/penstock" ]; then
  "$place/prefix/bin/penstock" --version
fi
