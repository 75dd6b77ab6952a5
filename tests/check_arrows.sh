#!/usr/bin/env bash
# Fails on any #include between folders that the root CMakeLists.txt does not allow.
#
# The rubato_folder(FOLDER DEPENDS OTHER...) calls there are the only list of arrows, and each is
# taken as it stands: what a dependency depends on is not included. tests/ and bench/ may use all.
#
#   check_arrows.sh [ROOT]              checks the tree
#   check_arrows.sh --self-test [ROOT]  checks that includes planted in a copy of it are refused
set -euo pipefail

default_root=$(cd "$(dirname "$0")/.." && pwd)

# Lines "FOLDER OTHER...", one a call, however many lines the call spans; comments do not count.
arrows() {
    sed 's/#.*//' "$1/CMakeLists.txt" | tr '\n' ' ' |
        grep -oE '(^|[^_a-z])rubato_folder *\([^)]*\)' |
        sed -E 's/.*\(//; s/\)//; s/ DEPENDS / /; s/ +/ /g; s/^ //; s/ $//'
}

# Reads the arrows on standard input and sources as arguments; prints each include that is not
# allowed. A line that ends in a backslash goes on in the next one.
refused() {
    awk '
        FILENAME == "-" {
            known[$1] = 1
            for (i = 1; i <= NF; i++) allowed[$1, $i] = 1
            next
        }
        FNR == 1 { line = "" }
        { line = line $0 }
        /\\$/ { sub(/\\$/, "", line); next }
        line ~ /^[ \t]*#[ \t]*include[ \t]*["<]/ {
            file = FILENAME
            sub(/^\.\//, "", file)
            from = file
            sub(/\/.*/, "", from)
            target = line
            sub(/^[^"<]*["<]/, "", target)
            sub(/[">].*/, "", target)
            to = target
            sub(/\/.*/, "", to)
            if (known[from]) {
                if (line ~ /"/ && target !~ /\//)
                    print file ":" FNR ": \"" target "\" names no folder"
                else if ((known[to] || to == "tests" || to == "bench") && !allowed[from, to])
                    print file ":" FNR ": " from " may not include " target
            }
        }
        { line = "" }' - "$@"
}

check() {
    cd "$1"
    local list files bad
    list=$(arrows .)
    if [ -z "$list" ]; then
        echo "check_arrows: no rubato_folder() in $1/CMakeLists.txt" >&2
        return 1
    fi
    mapfile -t files < <(cut -d' ' -f1 <<<"$list" | while read -r folder; do
        if [ -d "$folder" ]; then
            find "$folder" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) | sort
        fi
    done)
    bad=$(refused "${files[@]}" <<<"$list")
    if [ -n "$bad" ]; then
        echo "$bad" >&2
        echo "check_arrows: the arrows are the rubato_folder lines of CMakeLists.txt" >&2
        return 1
    fi
    echo "check_arrows: ${#files[@]} files follow $(wc -l <<<"$list") folders' arrows"
}

copy='' # the self-test's folder

# plant NAME FILE LINE...: the copy with FILE in it must be refused, with FILE named.
plant() {
    local name=$1 file=$2 output
    shift 2
    printf '%s\n' "$@" >"$copy/$file"
    if output=$( (check "$copy") 2>&1) || ! grep -qF "$file:" <<<"$output"; then
        echo "check_arrows: the self-test's $name in $file was not refused" >&2
        return 1
    fi
    rm "$copy/$file"
}

self_test() {
    copy=$(mktemp -d)
    trap 'rm -rf "$copy"' EXIT
    # Arrows of its own, so that the test does not change with the project's.
    cat >"$copy/CMakeLists.txt" <<'CMAKE'
# rubato_folder(low DEPENDS high): a comment is no arrow
rubato_folder(low)
rubato_folder(middle
  DEPENDS
    low)  # a call of several lines
rubato_folder(high DEPENDS low middle)
CMAKE
    mkdir "$copy/low" "$copy/middle" "$copy/high"
    printf '#include "middle/m.h"\n#include "low/l.h"\n#include <stdio.h>\n' >"$copy/high/h.c"
    printf '#include "low/l.h"\n' >"$copy/middle/m.h"
    (check "$copy" >/dev/null)
    plant 'upward include' low/up.h '#include "high/h.h"'
    plant 'upward include of a multi-line call' middle/up.c \
        '#include "low/l.h"' '#include "high/h.h"'
    plant 'include with angle brackets' low/angle.c '#  include <middle/m.h>'
    # shellcheck disable=SC1003  # the backslash is the point
    plant 'continued include' low/continued.c '#include \' '  "middle/m.h"'
    plant 'include of a test' high/test.c '#include "tests/test.h"'
    plant 'include without a folder' low/bare.c '#include "l.h"'

    # And the project's: one include that must never be.
    cp "$1/CMakeLists.txt" "$copy/CMakeLists.txt"
    rm -r "$copy/low" "$copy/middle" "$copy/high"
    mkdir "$copy/worker" "$copy/server"
    printf '#include "base/status.h"\n' >"$copy/worker/w.c"
    (check "$copy" >/dev/null)
    plant 'worker to server' worker/planted.c '#include "server/shard.h"'
    plant 'server to worker' server/planted.c '#include "worker/model.h"'
    echo 'check_arrows: planted includes are refused'
}

if [ "${1:-}" = --self-test ]; then
    self_test "${2:-$default_root}"
else
    check "${1:-$default_root}"
fi
