/* Lloyd's k-means in C (with C++'s vector ternary) and MPI: the hand-written program a Tidemill user would otherwise have to write.
 *
 *   lloyd_mpi_float X.npy CENTRES.npy N D K ITERATIONS OUT.bin      (lloyd_mpi_double: the same in float64)
 *
 * Built once per element type (-DREAL=float or double). Rows are split evenly over the ranks; one MPI_Allreduce of sums
 * and counts per iteration. Points are kept in tiles of WIDE vectors, transposed (dimension by point), so that a vector
 * instruction works on as many points as it has lanes, and GROUP centres share every load of a point. The distance is
 * |c|^2/2 - c.x, which has the same nearest centre as |x - c|^2.
 *
 * Rank 0 prints {"fit_s": seconds of a whole fit, "first_s": seconds of a fit of one iteration}. */
#define OMPI_SKIP_MPICXX /* MPI's C interface only */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#define LANES (64 / (long)sizeof(REAL)) /* one AVX-512 register; the compiler splits it where there is none */
#define WIDE 4                          /* vectors of points per tile, */
#define GROUP 5                         /* times centres at once: 20 accumulators of the 32 registers */
#define TILE (WIDE * LANES)

typedef REAL vec __attribute__((vector_size(64)));
typedef std::conditional_t<sizeof(REAL) == 4, int32_t, int64_t> INT; /* a comparison of REALs yields lanes of these */
typedef INT ivec __attribute__((vector_size(64)));

static void die(const char *what) {
    fprintf(stderr, "lloyd_mpi: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

template <typename T> static T *aligned(size_t count) {
    size_t bytes = count * sizeof(T);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory) die("out of memory");
    return (T *)memset(memory, 0, bytes);
}

/* Reads `count` elements of a version 1 .npy file, starting at element `first`. */
static void read_npy(const char *path, REAL *into, size_t first, size_t count) {
    FILE *file = fopen(path, "rb");
    unsigned char head[10];
    if (!file || fread(head, 1, 10, file) != 10 || memcmp(head, "\x93NUMPY\x01", 7)) die("not a version 1 .npy file");
    size_t offset = 10 + head[8] + 256 * head[9];
    if (fseek(file, (long)(offset + first * sizeof(REAL)), SEEK_SET) || fread(into, sizeof(REAL), count, file) != count)
        die("short .npy file");
    fclose(file);
}

typedef struct {
    long n, d, k, k_padded, tiles;
    REAL *rows;     /* n x d, as read */
    vec *tiled;     /* tiles x d x WIDE */
    REAL *centres;  /* k_padded x d; rows past k are zero */
    REAL *half_norm; /* k_padded; huge past k, so that padding never wins */
    double *sums;   /* k x (d + 1), the count last */
} Lloyd;

static void tile_points(Lloyd *s) {
    REAL *out = (REAL *)s->tiled;
    for (long i = 0; i < s->n; i++)
        for (long j = 0; j < s->d; j++) out[(i / TILE * s->d + j) * TILE + i % TILE] = s->rows[i * s->d + j];
}

/* Finds the nearest centre of every point and adds the point to that centre's sum. */
static void assign_and_sum(Lloyd *s) {
    const long d = s->d;
    memset(s->sums, 0, sizeof(double) * (size_t)(s->k * (d + 1)));
    for (long t = 0; t < s->tiles; t++) {
        const vec *x = s->tiled + t * d * WIDE;
        vec best[WIDE];
        ivec label[WIDE];
        for (int w = 0; w < WIDE; w++) best[w] = vec{} + std::numeric_limits<REAL>::max(), label[w] = ivec{};
        for (long c = 0; c < s->k_padded; c += GROUP) {
            vec acc[GROUP][WIDE];
            const REAL *centre = s->centres + c * d;
            for (int g = 0; g < GROUP; g++)
                for (int w = 0; w < WIDE; w++) acc[g][w] = vec{} + s->half_norm[c + g];
            for (long j = 0; j < d; j++)
                for (int g = 0; g < GROUP; g++)
                    for (int w = 0; w < WIDE; w++) acc[g][w] -= centre[g * d + j] * x[j * WIDE + w];
            for (int g = 0; g < GROUP; g++)
                for (int w = 0; w < WIDE; w++) {
                    ivec closer = acc[g][w] < best[w];
                    best[w] = closer ? acc[g][w] : best[w];
                    label[w] = closer ? ivec{} + (INT)(c + g) : label[w];
                }
        }
        long points = s->n - t * TILE < TILE ? s->n - t * TILE : TILE;
        for (long p = 0; p < points; p++) {
            double *sum = s->sums + label[p / LANES][p % LANES] * (d + 1);
            const REAL *row = s->rows + (t * TILE + p) * d;
            for (long j = 0; j < d; j++) sum[j] += row[j];
            sum[d] += 1;
        }
    }
}

static void move_centres(Lloyd *s) {
    const long d = s->d;
    for (long c = 0; c < s->k; c++) {
        const double *sum = s->sums + c * (d + 1);
        REAL norm = 0;
        for (long j = 0; j < d; j++) {
            if (sum[d] > 0) s->centres[c * d + j] = (REAL)(sum[j] / sum[d]); /* an empty cluster stays where it is */
            norm += s->centres[c * d + j] * s->centres[c * d + j];
        }
        s->half_norm[c] = norm / 2;
    }
}

static double fit(Lloyd *s, const REAL *initial, int iterations) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    tile_points(s);
    memcpy(s->centres, initial, sizeof(REAL) * (size_t)(s->k * s->d));
    for (long c = 0; c < s->k_padded; c++) {
        REAL norm = 0;
        for (long j = 0; j < s->d; j++) norm += s->centres[c * s->d + j] * s->centres[c * s->d + j];
        s->half_norm[c] = c < s->k ? norm / 2 : (REAL)1e30;
    }
    for (int i = 0; i < iterations; i++) {
        assign_and_sum(s);
        MPI_Allreduce(MPI_IN_PLACE, s->sums, (int)(s->k * (s->d + 1)), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        move_centres(s);
    }
    double seconds = MPI_Wtime() - start;
    MPI_Bcast(&seconds, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return seconds;
}

/* The median time of a fit, repeated while that is cheap, as in kmeans_worker.py. */
static double timed(Lloyd *s, const REAL *initial, int iterations) {
    double seconds[5], total = 0;
    int count = 0;
    while (count < 5 && total < 1) total += seconds[count++] = fit(s, initial, iterations);
    std::sort(seconds, seconds + count);
    return (seconds[(count - 1) / 2] + seconds[count / 2]) / 2;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 8) die("usage: lloyd_mpi X.npy CENTRES.npy N D K ITERATIONS OUT.bin");
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const long n = atol(argv[3]), d = atol(argv[4]), k = atol(argv[5]), first = n * rank / size;
    Lloyd s = {};
    s.n = n * (rank + 1) / size - first, s.d = d, s.k = k, s.k_padded = (k + GROUP - 1) / GROUP * GROUP;
    s.tiles = (s.n + TILE - 1) / TILE;
    s.rows = aligned<REAL>((size_t)(s.n * d));
    s.tiled = aligned<vec>((size_t)(s.tiles * d * WIDE));
    s.centres = aligned<REAL>((size_t)(s.k_padded * d));
    s.half_norm = aligned<REAL>((size_t)s.k_padded);
    s.sums = aligned<double>((size_t)(k * (d + 1)));
    REAL *initial = aligned<REAL>((size_t)(k * d));
    read_npy(argv[1], s.rows, (size_t)(first * d), (size_t)(s.n * d));
    read_npy(argv[2], initial, 0, (size_t)(k * d));
    fit(&s, initial, 1); /* warm-up */
    double first_s = timed(&s, initial, 1), fit_s = timed(&s, initial, atoi(argv[6]));
    if (rank == 0) {
        FILE *out = fopen(argv[7], "wb");
        if (!out || fwrite(s.centres, sizeof(REAL), (size_t)(k * d), out) != (size_t)(k * d) || fclose(out))
            die("cannot write the centres");
        printf("{\"fit_s\": %.9f, \"first_s\": %.9f}\n", fit_s, first_s);
    }
    MPI_Finalize();
    return 0;
}
