#!/usr/bin/env bash
# The rules of docs/STYLE.md that a line count or a pattern can check; clang-format and clang-tidy
# check the rest. Prints each breach and fails if there is one.
#
#   check_style.sh [ROOT]
set -euo pipefail

cd "${1:-$(dirname "$0")/..}"
breaches=$(mktemp)
trap 'rm -f "$breaches"' EXIT

# say RULE: each line of standard input is a breach.
say() {
    sed "s|^\./||; s|\$|: $1|" >>"$breaches"
}

mapfile -t sources < <(find . \( -path './.git' -o -path './build*' \) -prune -o -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) -print | sort)
mapfile -t scripts < <(find tests scripts .ci -type f ! -name '*.[ch]' ! -name '*.txt' \
    -exec grep -lIE '^#!.*(sh|python3?)$' {} + 2>/dev/null | sort)
mapfile -t texts < <(find . \( -path './.git' -o -path './build*' \) -prune -o -type f \
    \( -name '*.md' -o -name '*.proto' -o -name 'CMakeLists.txt' \) -print | sort)
if [ ${#sources[@]} -eq 0 ]; then
    echo 'check_style: no sources found' >&2
    exit 1
fi

for file in "${sources[@]}"; do
    lines=$(wc -l <"$file")
    case $file in *.h | *.cuh) most=250 ;; *) most=600 ;; esac
    [ "$lines" -le "$most" ] || echo "$file" | say "$lines lines, at most $most"
done

# A function's body is what lies between a line that ends in { and a } in the first column.
awk '
    FNR == 1 { open = 0 }
    /^[A-Za-z].*[A-Za-z0-9_ *]\(/ && !/;$/ { head = 1 }
    head && /\{$/ { open = FNR; head = 0 }
    /;$/ { head = 0 }
    /^\}$/ { if (open && FNR - open > 70) print FILENAME ":" open ": " FNR - open; open = 0 }
    ' "${sources[@]}" | say 'lines in a function, at most 70'

LC_ALL=C.UTF-8 grep -nHE '^.{101,}$' "${sources[@]}" "${scripts[@]}" | cut -d: -f1,2 |
    say 'more than 100 columns' || true

# Written apart, so that this file does not find itself.
grep -nHwE 'TO''DO|FIX''ME|X''XX' "${sources[@]}" "${scripts[@]}" "${texts[@]}" | cut -d: -f1,2 |
    say 'an unfinished mark' || true

for file in "${sources[@]}"; do
    # Tests may take a seed from the environment.
    case $file in ./base/options*.c | ./tests/*) continue ;; esac
    { grep -nHE '\b(secure_)?getenv *\(' "$file" || true; } | cut -d: -f1,2 |
        say 'getenv outside base/options and tests'
done

printf '%s\n' "${sources[@]}" | sed 's|.*/||' | sort | uniq -d | say 'name used twice in the tree'

if [ -s "$breaches" ]; then
    sort "$breaches" >&2
    echo "check_style: $(wc -l <"$breaches") breaches of docs/STYLE.md" >&2
    exit 1
fi
echo "check_style: ${#sources[@]} sources, ${#scripts[@]} scripts"
