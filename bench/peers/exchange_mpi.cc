/* Exchanges by hand with MPI: what a program that knows its peers would write instead of a dataflow graph.
 *
 *   exchange_mpi OPERATION BYTES MESSAGES
 *
 * Every worker is a source and a target; a message is BYTES long, 8-byte whole numbers, made anew for each one.
 *   partition  each source sends its messages to all workers in turn, itself among them; targets add up what they get
 *   reduce     the sources' messages of one number are added up, element by element, at worker 0
 *   gather     the sources' messages of one number come together at worker 0, one after the other
 *   broadcast  worker 0 sends each message to all
 * Rate: MESSAGES (of each source) one after the other, as many under way as the operation allows. Latency: each one waits until
 * all workers have the one before.
 *
 * Rank 0 prints {"rate_s": seconds of all messages, "latency_s": seconds of one, "digest": a sum over all targets}. */
#define OMPI_SKIP_MPICXX /* MPI's C interface only */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

enum { WINDOW = 64, DATA = 1, END = 2 }; /* sends and receives under way at a time; tags */

static int rank, size;
static long words;

typedef std::vector<int64_t> Message;

/* Message `number` of source `from`: the same in every program that takes part in the comparison. */
static void make(Message &message, long from, long number) {
    for (long i = 0; i < words; i++) message[i] = from + number + i;
}

static uint64_t sum(const int64_t *message, long count) {
    uint64_t total = 0;
    for (long i = 0; i < count; i++) total += (uint64_t)message[i];
    return total;
}

/* Sends and receives in one loop: a source whose window is full takes what has come instead of waiting. */
static uint64_t partition(long messages) {
    std::vector<Message> out(WINDOW, Message(words)), in(WINDOW, Message(words));
    std::vector<MPI_Request> sends(WINDOW, MPI_REQUEST_NULL), receives(WINDOW);
    std::vector<int> done(WINDOW);
    std::vector<MPI_Status> statuses(WINDOW);
    int bytes = (int)(words * 8), ended = 0, count;
    for (int i = 0; i < WINDOW; i++)
        MPI_Irecv(in[i].data(), bytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &receives[i]);
    std::vector<int> vacant(WINDOW);
    for (int i = 0; i < WINDOW; i++) vacant[i] = i;
    uint64_t total = 0;
    long number = 0;
    bool said = false;
    while (ended < size || !said) {
        while (number < messages && !vacant.empty()) {
            int to = (int)((rank + number) % size), i = vacant.back();
            make(out[i], rank, number++);
            if (to == rank) { /* no message needed */
                total += sum(out[i].data(), words);
                continue;
            }
            vacant.pop_back();
            MPI_Isend(out[i].data(), bytes, MPI_BYTE, to, DATA, MPI_COMM_WORLD, &sends[i]);
        }
        if (number == messages && !said) { /* messages of one pair keep their order: the end comes last */
            said = true;
            ended++;
            for (int to = 0; to < size; to++)
                if (to != rank) MPI_Send(NULL, 0, MPI_BYTE, to, END, MPI_COMM_WORLD);
        }
        MPI_Testsome(WINDOW, sends.data(), &count, done.data(), MPI_STATUSES_IGNORE);
        for (int i = 0; i < count; i++) vacant.push_back(done[i]); /* MPI_UNDEFINED, when none is active, is negative */
        MPI_Testsome(WINDOW, receives.data(), &count, done.data(), statuses.data());
        for (int i = 0; i < count; i++) {
            int slot = done[i];
            if (statuses[i].MPI_TAG == END) ended++;
            else total += sum(in[slot].data(), words);
            MPI_Irecv(in[slot].data(), bytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &receives[slot]);
        }
    }
    MPI_Waitall(WINDOW, sends.data(), MPI_STATUSES_IGNORE);
    for (MPI_Request &receive : receives) {
        MPI_Cancel(&receive);
        MPI_Wait(&receive, MPI_STATUS_IGNORE);
    }
    return total;
}

static uint64_t step(const char *operation, long number, Message &mine, Message &all) {
    if (!strcmp(operation, "broadcast")) {
        if (rank == 0) make(mine, 0, number);
        MPI_Bcast(mine.data(), (int)words, MPI_INT64_T, 0, MPI_COMM_WORLD);
        return sum(mine.data(), words);
    }
    make(mine, rank, number);
    if (!strcmp(operation, "reduce")) {
        MPI_Reduce(mine.data(), all.data(), (int)words, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
        return rank == 0 ? sum(all.data(), words) : 0;
    }
    MPI_Gather(mine.data(), (int)words, MPI_INT64_T, all.data(), (int)words, MPI_INT64_T, 0, MPI_COMM_WORLD);
    return rank == 0 ? sum(all.data(), words * size) : 0;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 4 || atol(argv[2]) < 8 || atol(argv[2]) % 8) {
        fprintf(stderr, "usage: exchange_mpi partition|reduce|gather|broadcast BYTES MESSAGES, bytes a multiple of 8\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const char *operation = argv[1];
    words = atol(argv[2]) / 8;
    long messages = atol(argv[3]), single = std::min(messages, 2000L);
    bool partitions = !strcmp(operation, "partition");
    Message mine(words), all(words * size);
    uint64_t total = 0, sums = 0;
    double rate_s = 0, latency_s = 0;
    for (int run = 0; run < 2; run++) { /* the first warms up */
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        total = 0;
        if (partitions) total = partition(messages);
        else for (long i = 0; i < messages; i++) total += step(operation, i, mine, all);
        MPI_Barrier(MPI_COMM_WORLD);
        rate_s = MPI_Wtime() - start;
        /* One at a time: a message to the next worker, answered by an empty one; a collective, and a barrier. */
        MPI_Barrier(MPI_COMM_WORLD);
        start = MPI_Wtime();
        for (long i = 0; i < single; i++) {
            if (!partitions) {
                sums += step(operation, i, mine, all);
                MPI_Barrier(MPI_COMM_WORLD);
            } else if (rank == 0 && size > 1) {
                make(mine, 0, i);
                MPI_Send(mine.data(), (int)words * 8, MPI_BYTE, 1, DATA, MPI_COMM_WORLD);
                MPI_Recv(NULL, 0, MPI_BYTE, 1, END, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else if (rank == 1) {
                MPI_Recv(all.data(), (int)words * 8, MPI_BYTE, 0, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(NULL, 0, MPI_BYTE, 0, END, MPI_COMM_WORLD);
            }
        }
        latency_s = (MPI_Wtime() - start) / (double)single / (partitions ? 2 : 1); /* there and back */
    }
    uint64_t everywhere = 0;
    MPI_Reduce(&total, &everywhere, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"rate_s\": %.9g, \"latency_s\": %.9g, \"digest\": \"%llu\"}\n", rate_s, latency_s,
               (unsigned long long)everywhere + 0 * sums);
    MPI_Finalize();
    return 0;
}
