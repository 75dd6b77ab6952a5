#!/usr/bin/env python3
"""Writes the vocabularies and golden token ids that tests/test_tokenizer.c reads.

Needs the packages `tokenizers` and `tiktoken` (made with 0.23.3 and 0.14.0); nothing in the build
or the tests does. Trains a byte-level BPE of about 600 tokens on the text below and writes, here:
  tokenizer.json         Hugging Face's form, split by ByteLevel (gpt2)
  tokenizer_llama3.json  the same vocabulary, split by Llama 3's expression, ignore_merges set
  tokenizer.tiktoken     the same vocabulary as tiktoken's ranks
  tokenizer_ids.txt      texts in hexadecimal, and below each its ids: by tokenizers (json, spaced
                         with add_prefix_space, llama3), by tiktoken (gpt2, cl100k, o200k)
"""
import base64
import json
import pathlib

import tiktoken
from tiktoken_ext import openai_public
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
TEXT = """
The tempo is not strict. One hand may hurry while the other waits; they meet again at the bar line,
and nobody who listens can say where the time went. "It's stolen," the teacher said, "and it must
be given back. You can't keep it, you'll see: the players don't march, they aren't soldiers."
In 1832 the word was new; by 1849 everyone used it. 12 bars, 345 notes, 6789 listeners, 3.14 times.
Workers push their gradients, servers apply them, and the weights come back as the answer. When a
worker is slow, the others need not wait for it; when it is lost, they go on without it. I've seen
this in training, we've all seen it, and they'd say the same. The servers keep the weights, and the
workers keep the data. The data are text, and the text is bytes, and the bytes are tokens.
    for (int i = 0; i < count; i++)
        sum += values[i] * weights[i];
    return sum;
Ein Stück für Klavier, später für Orchester; être ou ne pas être; über die Brücke. Привет, мир!
Слова и слова. 音楽と時間。時間と音楽。 Ünïcödé — “quotes” … and €100.
"""
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CASES = [
    "", "a", " ", "the", " the", "The servers keep the weights.", "workersworkersworkers",
    "It's they'll we've I'd you're I'm don't", "IT'S THEY'LL WE'VE don'T 'Sx 's",
    "1 12 123 1234 12345 3.14159 ٣٤٥ ½ Ⅷ x²", "  two  spaces   three    four ", "trailing   ",
    "\n", "\n\n", "a\nb", "a\n\nb\n", "a \n b\r\n\r\nc\r", "\tif (x)\n\t\treturn;\n", "end.\n",
    "end.\n\n  ", "Привет, мир! Слова", "音楽と時間。", "für später être über",
    "e\u0301 combining u\u0308",
    "😀 👩‍👩‍👧‍👦 🇩🇪 ☃️", "…“quotes”—€100",
    "nbsp\u00a0nbsp \u2003em\u3000ideographic\u0085nel\u2028ls",
    "\u180emongolian\u180e \u200bzero\ufeff", "ǅ ǅungla ĐOKOvić CamelCaseWord HTTPServer",
    "((()))[[]]{}<>/* */ //\n/// end", "a" * 100, "ab" * 60, " " * 70 + "x", "=" * 80,
    "<|endoftext|>", "text <|endoftext|> text", "ſ 'ſ it'ſ", "\u0000\u0001\u007f", "_under_score__",
    "x" * 30 + "\n" * 5 + "y", "mixed123abc456", "a.b,c;d:e!f?g", "   \n\t \r\n  z", "日本語English混在",
    "\ud7ff\ue000\U0010ffff",
]


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.encode_special_tokens = True
    return tokenizer


def byte_letters():
    """GPT-2's letter of each byte, turned round."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in visible}
    others = [byte for byte in range(256) if byte not in visible]
    letters.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return letters


def main():
    tokenizer = train()
    saved = json.loads(tokenizer.to_str())
    (HERE / "tokenizer.json").write_text(json.dumps(saved, ensure_ascii=False, indent=0) + "\n")
    saved["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    saved["model"]["ignore_merges"] = True
    saved["model"]["merges"] = [" ".join(merge) for merge in saved["model"]["merges"]]
    llama3_text = json.dumps(saved) + "\n"
    (HERE / "tokenizer_llama3.json").write_text(llama3_text)
    llama3 = Tokenizer.from_str(llama3_text)
    llama3.encode_special_tokens = True
    spaced = Tokenizer.from_str(tokenizer.to_str())
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    spaced.encode_special_tokens = True

    letters = byte_letters()
    ranks = {bytes(letters[c] for c in token): i
             for token, i in tokenizer.get_vocab().items() if token != "<|endoftext|>"}
    lines = [f"{base64.b64encode(token).decode()} {rank}"
             for token, rank in sorted(ranks.items(), key=lambda item: item[1])]
    (HERE / "tokenizer.tiktoken").write_text("\n".join(lines) + "\n")
    # The expressions without their vocabularies, which would be fetched.
    openai_public.load_tiktoken_bpe = lambda *_, **__: {}
    patterns = {"gpt2": openai_public.r50k_pat_str}
    patterns["cl100k"] = openai_public.cl100k_base()["pat_str"]
    patterns["o200k"] = openai_public.o200k_base()["pat_str"]
    encodings = {name: tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks,
                                         special_tokens={"<|endoftext|>": len(ranks)})
                 for name, pattern in patterns.items()}

    rows = []
    kinds = ["json", "spaced", "llama3", "gpt2", "cl100k", "o200k"]
    for case in CASES:
        data = case.encode()
        ids = {"json": tokenizer.encode(case).ids, "llama3": llama3.encode(case).ids,
               "spaced": spaced.encode(case).ids}
        for name, encoding in encodings.items():
            ids[name] = encoding.encode_ordinary(case)
            assert encoding.decode_bytes(ids[name]) == data
        rows.append(f"text {data.hex()}")
        rows += [f"{kind} {' '.join(map(str, ids[kind]))}".rstrip() for kind in kinds]
    (HERE / "tokenizer_ids.txt").write_text("\n".join(rows) + "\n")


main()
