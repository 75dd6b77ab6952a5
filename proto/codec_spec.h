/* codec_spec.h - what a user asks for with --push, as text and as numbers.
 *
 *   NAME[:ARGUMENT[,ARGUMENT...]][,ef[=loco]][+zstd]      or a preset
 *
 * e.g. int4:sr,had   topk:0.01,ef+zstd   topk:0.01,global   powersgd:4,ef   powersgd:4,shared,ef
 *      onebit,ef   fp8:e5m2
 * `ef` is error feedback: what a payload loses is added to the block's next gradient. `ef=loco`
 * feeds back a running average of it (LoCo). `+zstd` packs the payload without loss; topk is
 * `global` then, since sizes vary anyway and the places of large values, which cluster, pack better
 * so. Any suffix goes with any codec. A preset is a word that stands for one of these texts
 * (codec_preset()).
 * The names are here, and not with what encodes, so that options can be checked where nothing is
 * encoded; compression/scheme.h tells what a new codec needs.
 */
#ifndef RUBATO_PROTO_CODEC_SPEC_H
#define RUBATO_PROTO_CODEC_SPEC_H

#include "proto/codec_id.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum codec_feedback { FEEDBACK_NONE, FEEDBACK_VANILLA, FEEDBACK_LOCO };
enum codec_residual { RESIDUAL_F32, RESIDUAL_BF16, RESIDUAL_INT8 };

enum { CODEC_TEXT_MAX = 96 }; /* of codec_print(), with the final zero */
enum { CODEC_RANK_MAX = 64 };

struct codec_spec {
    enum codec_id codec;
    enum codec_feedback feedback;
    enum codec_residual residual; /* in which it waits; not part of the text (--residual) */
    bool zstd;
    bool sr, had;  /* int4: stochastic rounding; Hadamard's rotation */
    bool e5m2;     /* fp8 */
    float density; /* topk, randk: share of values that are sent, (0, 1] */
    uint32_t rank; /* powersgd, 1 .. CODEC_RANK_MAX */
};

/* False, with one line in why [why_bytes] that names what is wrong and what is allowed; the spec is
 * unchanged then. Any thread. */
bool codec_parse(const char *text, struct codec_spec *spec, char *why, size_t why_bytes);

/* The spec as text that codec_parse() reads back. Any thread. */
void codec_print(const struct codec_spec *spec, char text[CODEC_TEXT_MAX]);

/* What a preset stands for; NULL if the text is none. */
const char *codec_preset(const char *text);

/* "f32" "bf16" "int8"; false for another name, and then *residual is left. */
bool codec_residual_find(const char *name, enum codec_residual *residual);

/* Does it lose more than a value of 8 bits does? */
bool codec_is_coarse(const struct codec_spec *spec);

#endif
