#!/bin/bash
# test_prepare.sh RUBATO - proves what `rubato prepare` promises, from texts to a training run on
# what it wrote: with bytes the tokens are the text's bytes; with a vocabulary they are the ids that
# tests/golden/tokenizer_ids.txt records; text, JSONL and .zst give the same; shards are full but
# for the last, the validation part is the end of each input, and the count of threads changes
# nothing; user errors are refused with their exit codes. Servers and workers then train on the
# shards through a pattern, and print a sample and bits per byte with the vocabulary.
set -eu
rubato=$1
golden=$(cd "$(dirname "$0")" && pwd)/golden
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
case_name=none
begin() {
    case_name=$1
    echo "$case_name"
}
fail() {
    echo "test_prepare.sh: $case_name: $*" >&2
    sed 's/^/  out: /' out >&2 || true
    sed 's/^/  err: /' err >&2 || true
    exit 1
}
prepare() { # prepare CODE FLAG...: runs it, and expects its exit code
    local expected=$1 code=0
    shift
    "$rubato" prepare "$@" >out 2>err || code=$?
    [ "$code" -eq "$expected" ] || fail "exit code $code, expected $expected: $*"
}
expect_in() { grep -qF -e "$2" "$1" || fail "'$2' is not in $1"; }
expect_same() { cmp "$1" "$2" || fail "$1 and $2 differ"; }
tokens() { tail -c +1025 "$1" | od -An -v -tu2 -w2 | tr -d ' '; } # of a .bin, one a line
header() { od -An -tu4 -N12 "$1" | tr -s ' '; }

begin 'bytes: the tokens are the bytes'
printf 'A text.\nÜber \\ "quotes"\n\001\377' >raw.txt
prepare 0 --input raw.txt --out raw/ --vocab bytes --val-part 0
od -An -v -tu1 -w1 raw.txt | tr -d ' ' >expected
tokens raw/train_000000.bin >actual
expect_same actual expected
[ "$(header raw/train_000000.bin)" = " 20240520 1 $(stat -c %s raw.txt)" ] || fail 'header'
[ ! -e raw/val_000000.bin ] || fail 'a validation file'
expect_in raw/meta.json '"vocab_size":256'

begin 'a vocabulary: the golden ids, documents of JSONL with their end-of-text token'
python3 - "$golden" <<'PYTHON'
import json, sys
lines = open(sys.argv[1] + "/tokenizer_ids.txt").read().splitlines()
with open("docs.jsonl", "w") as docs, open("json", "w") as gpt2, open("cl100k", "w") as cl100k:
    for line in lines:
        kind, *rest = line.split()
        if kind == "text":
            text = bytes.fromhex(rest[0] if rest else "").decode()
            docs.write(json.dumps({"id": [1, {"a": None}], "text": text}) + "\n")
        elif kind in ("json", "cl100k"):
            print(*rest, 600, sep="\n", file=gpt2 if kind == "json" else cl100k)
PYTHON
prepare 0 --input docs.jsonl --out j_ --vocab "$golden/tokenizer.json" --append-eot --val-part 0
tokens j__train_000000.bin >actual
expect_same actual json
expect_in j__meta.json '"eot":600'
expect_in out 'documents                45'
prepare 0 --input docs.jsonl --out t/ --vocab "$golden/tokenizer.tiktoken" --pattern cl100k \
    --append-eot --val-part 0
tokens t/train_000000.bin >actual
expect_same actual cl100k

begin 'compressed, in several threads, in shards'
for _ in $(seq 40); do cat "$golden/make_tokenizer.py"; done | sed 's/^ *//' >long.txt
python3 - <<'PYTHON'
import json
print(json.dumps({"text": open("long.txt").read()}), file=open("long.jsonl", "w"))
PYTHON
prepare 0 --input long.txt --out one/ --vocab "$golden/tokenizer.json" --threads 1
prepare 0 --input=long.txt --out many/ --vocab "$golden/tokenizer.json" --threads 7
expect_same one/train_000000.bin many/train_000000.bin
expect_same one/val_000000.bin many/val_000000.bin
prepare 0 --input long.jsonl --out doc/ --vocab "$golden/tokenizer.json" --val-part 0
{ tokens one/train_000000.bin && tokens one/val_000000.bin; } >expected
tokens doc/train_000000.bin >actual
expect_same actual expected
python3 - "$rubato" <<'PYTHON' || fail 'no part of the right size is kept for validation'
import os, sys
train, val = (os.path.getsize(f"one/{kind}_000000.bin") - 1024 for kind in ("train", "val"))
sys.exit(not 0.002 < val / (train + val) < 0.02)
PYTHON
prepare 0 --input long.jsonl --out shards/ --vocab "$golden/tokenizer.json" --val-part 0 \
    --shard-tokens 30k
for shard in shards/train_*.bin; do tokens "$shard"; done >actual
expect_same actual expected
[ "$(header shards/train_000000.bin)" = ' 20240520 1 30000' ] || fail 'a shard is not full'
if command -v zstd >/dev/null; then
    zstd -q long.jsonl && zstd -q <long.txt >long.txt.zst
    prepare 0 --input 'long.*.zst' --out zst/ --vocab "$golden/tokenizer.json" --val-part 0
    tokens zst/train_000000.bin >actual
    cat expected expected >twice
    expect_same actual twice
fi

begin 'what is wrong is said, with its exit code'
prepare 2 --out x/ --vocab bytes && expect_in err '--input is missing'
prepare 2 --input raw.txt --vocab bytes && expect_in err '--out is missing'
prepare 2 --input raw.txt --out x/ && expect_in err '--vocab is missing'
prepare 2 --input raw.txt --out x/ --vocab bytes --shard-tokens 0
prepare 2 --input raw.txt --out x/ --vocab bytes --pattern gpt2 && expect_in err 'not split'
prepare 2 --input raw.txt --out x/ --vocab "$golden/tokenizer.tiktoken" && expect_in err --pattern
prepare 66 --input none.txt --out x/ --vocab bytes && expect_in err 'none.txt: No such file'
prepare 66 --input 'none*' --out x/ --vocab bytes && expect_in err "no file matches 'none*'"
prepare 66 --input raw.txt --out x/ --vocab none.json
prepare 73 --input raw.txt --out raw/ --vocab bytes && expect_in err 'train_000000.bin exists'
printf '{"text": "a"}\n{"text": 1}\n' >bad.jsonl
prepare 65 --input bad.jsonl --out x/ --vocab bytes && expect_in err 'bad.jsonl: line 2, column 10'
[ -z "$(ls x)" ] || fail 'files are left'
echo '{"model": {"type": "WordPiece"}}' >other.json
prepare 65 --input raw.txt --out x/ --vocab other.json && expect_in err 'model.type is not BPE'

begin 'a training run on the shards'
"$rubato" launch --workers 2 --data 'shards/train_*.bin' --val-data one/val_000000.bin \
    --vocab 601 --tokenizer "$golden/tokenizer.json" --model gpt2:1x16x2 --seq-len 16 --batch 2 \
    --steps 6 --sample-tokens 20 --prompt 'The servers' --threads 1 >out 2>err ||
    fail "launch: exit code $?"
expect_in out 'The servers'
grep -qE 'bits_per_token=[0-9.]+ bits_per_byte=[0-9.]+ steps=6' out || fail 'no bits per byte'
echo 'test_prepare.sh: all cases passed'
