#!/usr/bin/env bash
# Compiles each of our headers alone: as C11, and as C++17 too, since nvcc reads them so. What uses
# <stdatomic.h>, directly or not, is C only and left out of the second.
#
#   check_headers.sh [ROOT [GENERATED]]   GENERATED: folder of headers made by the build
# CC and CXX name the compilers.
set -euo pipefail

root=${1:-$(cd "$(dirname "$0")/.." && pwd)}
generated=${2:-$root/build/generated}
cd "$root"

check_header() {
    local header=$1
    local flags=(-x "$2" "-std=$3" -fsyntax-only -I. -isystem "$GENERATED" -Wall -Wextra -Werror
        -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE)
    # A second include: the guard must hold.
    local source="#include \"$header\""$'\n'"#include \"$header\""
    "$4" "${flags[@]}" - <<<"$source" || {
        echo "check_headers: $header does not compile alone as $3" >&2
        return 1
    }
}

check_both() {
    check_header "$1" c c11 "${CC:-cc}" || return 1
    if [ -n "$CXX_FOUND" ] && ! "${CC:-cc}" -M -std=c11 -I. -isystem "$GENERATED" \
        -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE "$1" | grep -q 'stdatomic\.h'; then
        check_header "$1" c++ c++17 "${CXX:-c++}"
    fi
}
export -f check_header check_both
export GENERATED=$generated
CXX_FOUND=$(command -v "${CXX:-c++}" || true)
export CXX_FOUND
[ -n "$CXX_FOUND" ] || echo 'check_headers: no C++ compiler, C11 only'

# A folder that has no file yet is not in a clone.
folders=()
for folder in base proto kernels compression transport server worker tools tests bench; do
    if [ -d "$folder" ]; then folders+=("$folder"); fi
done
find "${folders[@]}" -name '*.h' | sort | xargs -P2 -I{} bash -c 'check_both {}'
echo 'check_headers: each header compiles alone'
