#!/usr/bin/env bash
# Deletes each barrier (__syncthreads, __syncwarp) of the CUDA kernels, one at a time and in a copy
# of the sources, and says which deletion no test notices: such a barrier is redundant, or lacks a
# test (which is then to be written, or the barrier deleted). Takes a minute or so a barrier.
#
#   barriers.sh [FOLDER [FILE...]]     FOLDER for the copy and its build; FILE: of these alone
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$(mktemp -d)}
shift $(($# > 0 ? 1 : 0))
sources=$folder/sources build=$folder/build
barrier='__sync(threads|warp)\([^()]*\);'

# Both the copy and its build are kept for the next call, which may find objects of changed files.
mkdir -p "$sources"
tar -C "$root" --exclude='./build*' --exclude=./.git -cf - . | tar -C "$sources" -xf -
cd "$sources"
touch {kernels,compression}/cuda/*
cmake -S . -B "$build" -G Ninja -DRUBATO_CUDA=OFF >"$folder/log"

# Which tests watch a file, as a pattern of names.
tests_of() {
    case $1 in
    compression/*) echo 'codec.*' ;;
    *flash*) echo attention ;;
    *) echo 'kernels|rows' ;;
    esac
}
# check: builds and runs the tests of $file. The first that fails is printed; false if none does.
# The random order finds most, and quickly; the thread sanitizer also what changes no value.
check() {
    local flavour pattern
    for flavour in random tsan; do
        pattern="^cuda_on_cpu_cuda_($(tests_of "$file"))_$flavour\$"
        # A test in random order is the plain program.
        if ! ctest --test-dir "$build" -N -R "$pattern" |
            sed -nE "s|.*cuda_on_cpu_(\S+)_$flavour|test_\1_${flavour/random/plain}|p" |
            xargs ninja -C "$build" >"$folder/log" 2>&1; then
            echo 'the build'
            return
        fi
        if ! ctest --test-dir "$build" -j2 --stop-on-failure -R "$pattern" >"$folder/log" 2>&1; then
            sed -nE 's|^.*[0-9]+ - (cuda_on_cpu_\S+) .*|\1|p' "$folder/log" | head -1
            return
        fi
    done
    return 1
}

if [ $# -eq 0 ]; then
    mapfile -t files < <(grep -lE "$barrier" {kernels,compression}/cuda/*.cu{,h})
    set -- "${files[@]}"
fi
unnoticed=0 deleted=0
for file; do
    cp "$file" "$folder/original"
    if noticed=$(check); then
        echo "barriers: $file: $noticed fails before anything is deleted, see $folder/log" >&2
        exit 1
    fi
    while IFS=: read -r line _; do
        sed -i -E "${line}s/$barrier/;/" "$file"
        deleted=$((deleted + 1))
        if noticed=$(check); then
            echo "$file:$line: noticed by $noticed"
        else
            echo "$file:$line: NOT NOTICED"
            unnoticed=$((unnoticed + 1))
        fi
        cp "$folder/original" "$file"
    done < <(grep -nE "$barrier" "$folder/original")
done
echo "barriers: $deleted deleted, $unnoticed not noticed"
[ "$unnoticed" -eq 0 ]
