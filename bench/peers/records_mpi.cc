/* Records by hand with MPI: what a program that knows its peers would write instead of a dataflow graph.
 *
 *   records_mpi OPERATION RECORDS
 *
 * A record is 128 bytes, 16 words of 8. Record `number` of source `from` is made anew by each program that takes part in the
 * comparison: word i is from + number + i, but word 0 is its key, one of 1024 that are scattered over the records.
 *   partition  each source sends its records to the workers that own their keys
 *   reduce     all records are added up, word by word, at worker 0
 *   broadcast  worker 0 sends each record to all
 * Targets add up all words that they get, and note which keys they have seen. By hand records go in blocks: parted by their target and
 * exchanged with one Alltoallv, or broadcast; each worker adds up its own before they are reduced.
 *
 * Rank 0 prints {"rate_s": seconds of all RECORDS of each source, "digest": the sum over all targets, modulo 2^64, and how many keys
 * they have seen, of a reduction 0}. */
#define OMPI_SKIP_MPICXX /* MPI's C interface only */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

enum { WORDS = 16, KEYS = 1024, ROWS = 4096 /* of a block: 512 KiB; half as many take as long */ };

static int rank, size;

struct Record {
    uint64_t words[WORDS];
};

static Record make(uint64_t from, uint64_t number) {
    Record record;
    for (uint64_t i = 0; i < WORDS; i++) record.words[i] = from + number + i;
    record.words[0] = (record.words[0] * 2654435761u & 0xffffffffu) >> 22;
    return record;
}

struct Taken {
    uint64_t sum = 0;
    std::vector<char> seen = std::vector<char>(KEYS);

    void add(const Record &record) {
        for (uint64_t word : record.words) sum += word;
        seen[record.words[0]] = 1;
    }
};

static void partition(long records, Taken &taken) {
    std::vector<Record> made, arrived;
    std::vector<std::vector<Record>> parts(size);
    std::vector<int> counts(size), begins(size), lengths(size), places(size);
    for (long first = 0; first < records; first += ROWS) {
        for (long number = first; number < std::min(first + ROWS, records); number++) {
            Record record = make(rank, number);
            parts[record.words[0] % size].push_back(record);
        }
        made.clear();
        for (int to = 0; to < size; to++) {
            begins[to] = (int)(made.size() * sizeof(Record));
            counts[to] = (int)(parts[to].size() * sizeof(Record));
            made.insert(made.end(), parts[to].begin(), parts[to].end());
            parts[to].clear();
        }
        MPI_Alltoall(counts.data(), 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
        int all = 0;
        for (int from = 0; from < size; from++) {
            places[from] = all;
            all += lengths[from];
        }
        arrived.resize(all / sizeof(Record));
        MPI_Alltoallv(made.data(), counts.data(), begins.data(), MPI_BYTE, arrived.data(), lengths.data(), places.data(),
                      MPI_BYTE, MPI_COMM_WORLD);
        for (const Record &record : arrived) taken.add(record);
    }
}

static void broadcast(long records, Taken &taken) {
    std::vector<Record> block;
    for (long first = 0; first < records; first += ROWS) {
        long count = std::min((long)ROWS, records - first);
        block.resize(count);
        for (long i = 0; rank == 0 && i < count; i++) block[i] = make(0, first + i);
        MPI_Bcast(block.data(), (int)(count * sizeof(Record)), MPI_BYTE, 0, MPI_COMM_WORLD);
        for (const Record &record : block) taken.add(record);
    }
}

static void reduce(long records, Taken &taken) {
    Record mine = {}, all = {};
    for (long number = 0; number < records; number++) {
        Record record = make(rank, number);
        for (int i = 0; i < WORDS; i++) mine.words[i] += record.words[i];
    }
    MPI_Reduce(mine.words, all.words, WORDS, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        for (uint64_t word : all.words) taken.sum += word;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    void (*run)(long, Taken &) = argc != 3                      ? NULL
                                 : !strcmp(argv[1], "partition") ? partition
                                 : !strcmp(argv[1], "broadcast") ? broadcast
                                 : !strcmp(argv[1], "reduce")    ? reduce
                                                                 : NULL;
    if (!run) {
        fprintf(stderr, "usage: records_mpi partition|reduce|broadcast RECORDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    long records = atol(argv[2]);
    Taken warm, taken;
    run(records, warm);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    run(records, taken);
    MPI_Barrier(MPI_COMM_WORLD);
    double rate_s = MPI_Wtime() - start;
    uint64_t mine[2] = {taken.sum, (uint64_t)std::count(taken.seen.begin(), taken.seen.end(), 1)}, all[2];
    MPI_Reduce(mine, all, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"rate_s\": %.9g, \"digest\": \"%llu %llu\"}\n", rate_s, (unsigned long long)all[0],
               (unsigned long long)all[1]);
    MPI_Finalize();
    return 0;
}
