/* safetensors_read.h - reads models in the safetensors format, in one file or in several.
 *
 * A path is a file of its own, a folder that holds model.safetensors, or a folder (or the index in
 * it) with model.safetensors.index.json, whose "weight_map" says for each tensor in which file of
 * the same folder it is. Files come from strangers, and all of this is refused:
 *   - a header longer than 16 MiB, or than the file; one that does not begin with '{', is not JSON
 *     as json_read.h takes it, or has anything but spaces behind it
 *   - metadata other than texts; more than 65,536 tensors, 8 dimensions or 512 bytes of name
 *   - a tensor without dtype, shape or data_offsets, with any other member, of an unknown dtype; a
 *     size that overflows, is no whole number of bytes, or is not that of the data
 *   - data with a hole or an overlap; a file longer or shorter than header and data
 *   - an index that disagrees with its files, or names one by anything but letters, digits and
 *     . _ - ; a file that is no regular file; inside a folder, a symbolic link
 * Tensors may have no dimension or no value. Data is read in pieces, never mapped.
 * Source: https://github.com/huggingface/safetensors, "Format", and its src/tensor.rs.
 * Errors are logged in one line that names the file, and the tensor where it is one's. Set-up time
 * only: it allocates. One thread at a time.
 */
#ifndef RUBATO_WORKER_SAFETENSORS_READ_H
#define RUBATO_WORKER_SAFETENSORS_READ_H

#include "base/status.h"
#include "worker/dtype.h"

#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_HEADER_MAX  ((uint64_t)16 << 20)
#define SAFETENSORS_TENSORS_MAX 65536
#define SAFETENSORS_DIMS_MAX    8
#define SAFETENSORS_NAME_MAX    ((size_t)512) /* without its 0 byte */
#define SAFETENSORS_FILES_MAX   512

struct safetensors_tensor {
    const char *name;
    enum dtype dtype;
    uint32_t dims;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t count;      /* values */
    uint64_t begin, end; /* its data, in bytes from the start of its file */
    uint32_t file;       /* index in safetensors.files */
};

struct safetensors_file {
    char name[256]; /* within the folder; empty for a path that is a file */
    char path[512]; /* for messages; cut where longer */
    int fd;
    char *header; /* the tensors' names lie in it */
};

/* An open model; read-only for others. */
struct safetensors {
    struct safetensors_tensor *tensors; /* [count], in order of name (strcmp) */
    uint64_t count;
    struct safetensors_file *files; /* [file_count] */
    uint32_t file_count;
    char folder[256]; /* for messages: with a slash, cut where longer; empty for a file */
};

/* IO: something cannot be opened or read. CORRUPT: as above. MEMORY. All logged; nothing is kept
 * then. Free it with safetensors_close, harmless on a zeroed struct. */
enum status safetensors_open(struct safetensors *model, const char *path) WARN_UNUSED;
void safetensors_close(struct safetensors *model);

/* The tensor of that name, or NULL. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *model,
                                                  const char *name);

/* The tensor's values first .. first + count - 1, as f32 -> values [count]. UNSUPPORTED: not F32,
 * BF16 or F16; IO: cannot be read, or the file has become shorter. Logged. */
enum status safetensors_read(const struct safetensors *model,
                             const struct safetensors_tensor *tensor, uint64_t first,
                             uint64_t count, float *values) WARN_UNUSED;

/* What safetensors_open does with a file's first bytes: `text` [bytes] is the header behind its
 * length, which is changed and must outlive the tensors; `file_bytes` the whole file's size; `name`
 * is for messages. -> tensors in new memory (free() it), in order of their data, file 0. CORRUPT,
 * MEMORY, logged. */
enum status safetensors_parse_header(const char *name, char *text, uint64_t bytes,
                                     uint64_t file_bytes, struct safetensors_tensor **tensors,
                                     uint64_t *count) WARN_UNUSED;

#endif
