/* wmma_on_cpu.cuh - the part of nvcuda::wmma that kernels here use, for kernels on the CPU: in the
 * place of <mma.h>, which declares nothing without nvcc. Products of 16 x 16 x 16 matrices.
 *
 * CUDA leaves open which element of a matrix lies in which lane and place of a fragment. Here eight
 * lie in each lane, far apart, unlike on any chip and otherwise for each kind of matrix, so that
 * code which relies on a chip's places gives wrong results. A fragment is full of NaNs at first.
 * Each call is a meeting point of all 32 lanes, and like a shuffle orders no memory. Addresses and
 * distances of rows are checked for the alignment that CUDA asks for.
 */
#ifndef RUBATO_TESTS_WMMA_ON_CPU_CUH
#define RUBATO_TESTS_WMMA_ON_CPU_CUH

namespace cuda_on_cpu {

enum { MMA_SIDE = 16, MMA_PLACES = MMA_SIDE * MMA_SIDE, MMA_HELD = MMA_PLACES / 32 };

/* Which element, row * 16 + column, is in place i of a lane: odd factors make it one to one. */
constexpr int mma_element(int factor, unsigned lane, int i) {
    return ((int)lane * MMA_HELD + i) * factor % MMA_PLACES;
}

/* All lanes meet. Returns the lane's number. */
unsigned mma_meet(enum warp_kind kind, const void *memory, size_t pitch_bytes, struct location at);

/* One lane's part of a product: what it holds of a, b and c -> of d = a b + c. */
struct mma_part {
    float a[MMA_HELD], b[MMA_HELD], c[MMA_HELD], d[MMA_HELD];
    int factor_a, factor_b, factor_c;
};
void mma_product(struct mma_part *part, struct location at);

} // namespace cuda_on_cpu

namespace nvcuda::wmma {

struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
struct matrix_a {
    static constexpr int factor = 61;
};
struct matrix_b {
    static constexpr int factor = 109;
};
struct accumulator {
    static constexpr int factor = 37;
};

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
    static_assert(M == 16 && N == 16 && K == 16, "the one shape that is here");
    enum { num_elements = cuda_on_cpu::MMA_HELD };
    T x[num_elements];
    fragment() {
        memset((void *)x, 0xFF, sizeof x);
    }
};

#define CALLER cuda_on_cpu::location at = {__builtin_FILE(), __builtin_LINE()}

template <class F, class T> void fill_fragment(F &f, const T &value) {
    for (auto &x : f.x)
        x = value;
}

template <class Use, class Layout, class T>
void load_places(fragment<Use, 16, 16, 16, T, Layout> &f, const T *from, unsigned pitch,
                 layout_t layout, cuda_on_cpu::location at) {
    unsigned lane = cuda_on_cpu::mma_meet(cuda_on_cpu::MMA_LOAD, from, pitch * sizeof(T), at);
    for (int i = 0; i < f.num_elements; i++) {
        unsigned element = (unsigned)cuda_on_cpu::mma_element(Use::factor, lane, i);
        unsigned row = element / 16, column = element % 16;
        f.x[i] = layout == mem_row_major ? from[row * pitch + column] : from[column * pitch + row];
    }
}

template <class Use, class Layout, class T>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout> &f, const T *from, unsigned pitch,
                      CALLER) {
    load_places(f, from, pitch, std::is_same_v<Layout, row_major> ? mem_row_major : mem_col_major,
                at);
}
template <class T>
void load_matrix_sync(fragment<accumulator, 16, 16, 16, T> &f, const T *from, unsigned pitch,
                      layout_t layout, CALLER) {
    load_places(f, from, pitch, layout, at);
}

template <class T>
void store_matrix_sync(T *to, const fragment<accumulator, 16, 16, 16, T> &f, unsigned pitch,
                       layout_t layout, CALLER) {
    unsigned lane = cuda_on_cpu::mma_meet(cuda_on_cpu::MMA_STORE, to, pitch * sizeof(T), at);
    for (int i = 0; i < f.num_elements; i++) {
        unsigned element = (unsigned)cuda_on_cpu::mma_element(accumulator::factor, lane, i);
        unsigned row = element / 16, column = element % 16;
        to[layout == mem_row_major ? row * pitch + column : column * pitch + row] = f.x[i];
    }
}

// Not for the thread sanitizer to watch: all in here is the lane's own, and it costs much.
template <class T, class A, class B>
__attribute__((no_sanitize("thread"))) void
mma_sync(fragment<accumulator, 16, 16, 16, float> &d, const fragment<matrix_a, 16, 16, 16, T, A> &a,
         const fragment<matrix_b, 16, 16, 16, T, B> &b,
         const fragment<accumulator, 16, 16, 16, float> &c, CALLER) {
    cuda_on_cpu::mma_part part = {};
    part.factor_a = matrix_a::factor;
    part.factor_b = matrix_b::factor;
    part.factor_c = accumulator::factor;
    for (int i = 0; i < cuda_on_cpu::MMA_HELD; i++) {
        part.a[i] = (float)a.x[i];
        part.b[i] = (float)b.x[i];
        part.c[i] = c.x[i];
    }
    cuda_on_cpu::mma_product(&part, at);
    for (int i = 0; i < cuda_on_cpu::MMA_HELD; i++)
        d.x[i] = part.d[i];
}

#undef CALLER
} // namespace nvcuda::wmma

#endif
