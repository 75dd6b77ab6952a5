#!/usr/bin/env bash
# Compiles one .cu file for sm_90 and fails where nvcc warns, or where a kernel keeps registers in
# memory ("spills"), which costs it its speed and no test would notice.
#
#   nvcc_spills.sh NVCC ROOT FILE.cu
set -euo pipefail

nvcc=$1 root=$2 file=$3
if ! [ -x "$nvcc" ]; then
    echo 'skipped: no nvcc'
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if ! "$nvcc" -std=c++17 -arch=sm_90 -Werror all-warnings -Xptxas -v -I "$root" -cubin \
    -o "$folder/kernels.cubin" "$file" >"$folder/log" 2>&1; then
    cat "$folder/log" >&2
    echo "nvcc_spills: $file does not compile without warnings" >&2
    exit 1
fi
if ! grep -q 'Used [0-9]* registers' "$folder/log"; then
    cat "$folder/log" >&2
    echo "nvcc_spills: ptxas told of no kernel in $file" >&2
    exit 1
fi
# "Compiling entry function 'NAME'", then the stack and the spills, then "Used N registers".
awk -v quote="'" '
    /Compiling entry function/ { split($0, part, quote); name = part[2] }
    /bytes spill/ { spills = $0 }
    /Used [0-9]+ registers/ {
        for (i = 1; i <= NF; i++) if ($i == "Used") registers = $(i + 1)
        lost = spills !~ / 0 bytes spill stores, 0 bytes spill loads/
        printf "%s: %d registers%s\n", name, registers, lost ? ";" spills : ""
        bad += lost
    }
    END { exit bad > 0 }' "$folder/log" || {
    echo "nvcc_spills: kernels of $file spill registers" >&2
    exit 1
}
