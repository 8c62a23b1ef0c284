/* Rounds by hand with MPI: what a program that knows its peers would write instead of a dataflow graph.
 *
 *   rounds_mpi OPERATION BYTES ROUNDS SINGLE
 *
 * Each rank is a task: a source, a target, or both. A message is BYTES long, 8-byte numbers, made anew for each one; the messages of one
 * number are a round.
 *   reduce     all to one: rank 0 gets the sum of the round's messages, element by element
 *   broadcast  one to all: rank 0's message reaches all ranks
 *   allreduce  all to all: every rank gets the sum
 *   loop       the same, and a rank begins a round when it has the sum of the one before
 * Rate: ROUNDS one after the other, as many under way as MPI allows. Latency: SINGLE rounds, each of which begins when all targets
 * have the result of the one before: from the last source that begins, before it makes its message, to the last target that has
 * added up the result. All ranks read the same clock.
 *
 * Rank 0 prints {"rate_s": seconds of all rounds, "p50_s": and "p99_s": seconds of a lone one, "digest": a sum over all targets}. */
#define OMPI_SKIP_MPICXX /* MPI's C interface only */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <vector>

enum { WARM_UPS = 2, DONE = 1 }; /* runs of all rounds before the one that counts; a tag */
enum Operation { REDUCE, BROADCAST, ALLREDUCE, LOOP };

static int rank, size;
static long words;

typedef std::vector<double> Message;

/* Message `number` of source `from`: the same in every program that takes part in the comparison. */
static void make(Message &message, long from, long number) {
    for (long i = 0; i < words; i++) message[i] = (double)(from + number + i);
}

/* Whole numbers below 2^53: exact in any order. */
static double sum(const Message &message) {
    double total = 0;
    for (long i = 0; i < words; i++) total += message[i];
    return total;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* One round; the sum of what arrives here. */
static double step(Operation operation, long number, Message &mine, Message &result) {
    if (operation == BROADCAST) {
        if (rank == 0) make(mine, 0, number);
        MPI_Bcast(mine.data(), (int)words, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        return sum(mine);
    }
    make(mine, rank, number);
    if (operation == ALLREDUCE || operation == LOOP) { /* nobody has it before all have called */
        MPI_Allreduce(mine.data(), result.data(), (int)words, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        return sum(result);
    }
    MPI_Reduce(mine.data(), result.data(), (int)words, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    return rank == 0 ? sum(result) : 0;
}

/* Returns at the sources when all targets have their result; targets that are no sources go on, to be ready for the next one. */
static void hand_over(Operation operation) {
    if (operation == LOOP) return;
    if (operation != BROADCAST) MPI_Barrier(MPI_COMM_WORLD);
    else if (rank != 0) MPI_Send(NULL, 0, MPI_BYTE, 0, DONE, MPI_COMM_WORLD);
    else
        for (int other = 1; other < size; other++)
            MPI_Recv(NULL, 0, MPI_BYTE, other, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const char *names[] = {"reduce", "broadcast", "allreduce", "loop"};
    int which = 0;
    while (argc == 5 && which < 4 && strcmp(argv[1], names[which])) which++;
    if (argc != 5 || which == 4 || atol(argv[2]) < 8 || atol(argv[2]) % 8 || atol(argv[4]) < 1) {
        fprintf(stderr, "usage: rounds_mpi reduce|broadcast|allreduce|loop BYTES ROUNDS SINGLE, bytes a multiple of 8\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    Operation operation = (Operation)which;
    words = atol(argv[2]) / 8;
    long rounds = atol(argv[3]), single = atol(argv[4]);
    Message mine(words), result(words);
    double total = 0, rate_s = 0;
    for (int run = 0; run <= WARM_UPS; run++) {
        MPI_Barrier(MPI_COMM_WORLD);
        int64_t start_ns = now_ns();
        total = 0;
        for (long number = 0; number < rounds; number++) total += step(operation, number, mine, result);
        MPI_Barrier(MPI_COMM_WORLD);
        rate_s = (double)(now_ns() - start_ns) / 1e9;
    }
    /* A rank that is no source, or no target, has times that never are the last. */
    std::vector<int64_t> starts_ns(single), ends_ns(single), last_starts_ns(single), last_ends_ns(single);
    volatile double arrived = 0; /* so that the sum is not left out */
    MPI_Barrier(MPI_COMM_WORLD);
    for (long number = 0; number < single; number++) {
        starts_ns[number] = operation != BROADCAST || rank == 0 ? now_ns() : 0;
        arrived = step(operation, number, mine, result);
        ends_ns[number] = operation != REDUCE || rank == 0 ? now_ns() : 0;
        hand_over(operation);
    }
    (void)arrived;
    MPI_Reduce(starts_ns.data(), last_starts_ns.data(), (int)single, MPI_INT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(ends_ns.data(), last_ends_ns.data(), (int)single, MPI_INT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    double everywhere = 0;
    MPI_Reduce(&total, &everywhere, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        std::vector<int64_t> latencies_ns(single);
        for (long i = 0; i < single; i++) latencies_ns[i] = last_ends_ns[i] - last_starts_ns[i];
        std::sort(latencies_ns.begin(), latencies_ns.end());
        auto percentile_s = [&](long part) { return (double)latencies_ns[(single * part + 99) / 100 - 1] / 1e9; };
        printf("{\"rate_s\": %.9g, \"p50_s\": %.9g, \"p99_s\": %.9g, \"digest\": \"%.0f\"}\n", rate_s, percentile_s(50),
               percentile_s(99), everywhere);
    }
    MPI_Finalize();
    return 0;
}
