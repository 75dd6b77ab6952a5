#!/usr/bin/env bash
# check_readme.sh RUBATO README - proves that the README's table of options is the one that the
# program prints (`rubato options`), and that each file or folder of ours that it links to is there.
set -uo pipefail
rubato=$1
readme=$2
begin='<!-- options: begin -->'
end='<!-- options: end -->'
failed=false

for marker in "$begin" "$end"; do
    if [ "$(grep -cFx -e "$marker" "$readme")" -ne 1 ]; then
        echo "check_readme: $readme lacks the line $marker" >&2
        exit 1
    fi
done
table=$(sed -n "/^$begin\$/,/^$end\$/p" "$readme" | sed '1d;$d')
if ! difference=$(diff <(printf '%s\n' "$table") <("$rubato" options)); then
    echo "check_readme: the table between the markers is not what \`rubato options\` prints:" >&2
    printf '%s\n' "$difference" >&2
    failed=true
fi

# Links of the form [text](path).
folder=$(dirname "$readme")
while read -r path; do
    if [ ! -e "$folder/$path" ]; then
        echo "check_readme: $readme links to $path, which is not there" >&2
        failed=true
    fi
done < <(grep -oE '\]\([^)#:]+\)' "$readme" | sed 's/^](//; s/)$//')

$failed && exit 1
exit 0
