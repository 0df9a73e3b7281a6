/* The limit that recallkit's bigram counting is measured against: the same radix in C, threads and streaming stores by hand.

   Counts the bigrams of one segment of 16-bit ids below `vocab`. Buffers stay allocated between calls, as recallkit's do.
   cc -O3 -march=native -shared -fPIC -pthread radix_count.c -o radix_count.so */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { SHIFT = 5, ROWS = 1 << SHIFT, LINE = 16, MAX_PARTITIONS = 65536 >> SHIFT, MAX_THREADS = 64 };
#define REPEATED 0x80000000u

typedef struct {
    const uint16_t *ids;
    int64_t n, stride;
    int num_threads, num_partitions;
    int64_t tallies[MAX_THREADS][MAX_PARTITIONS], begins[MAX_THREADS][MAX_PARTITIONS];
    int64_t num_words[MAX_PARTITIONS], row_begins[MAX_PARTITIONS + 1];
    uint32_t *cells;
    uint64_t *keys, *counts;
    atomic_int next_counted, next_unpacked;
    pthread_barrier_t barrier;
} Job;

typedef struct { Job *job; int thread; } Share;

static uint32_t *kept_cells, *kept_counters[MAX_THREADS];
static uint8_t *kept_marks[MAX_THREADS];
static int64_t kept_num_cells, kept_stride;

static void copy_line(uint32_t *to, const uint32_t *from) {
#ifdef __AVX512F__
    _mm512_stream_si512((void *)to, _mm512_load_si512(from));
#else
    memcpy(to, from, LINE * sizeof *to);
#endif
}

static void scatter(Job *job, int thread, int64_t first, int64_t last) {
    uint32_t *lines = aligned_alloc(64, MAX_PARTITIONS * LINE * sizeof *lines);
    int64_t cursors[MAX_PARTITIONS];
    memcpy(cursors, job->begins[thread], sizeof cursors);
    for (int64_t i = first; i < last; i++) {
        uint32_t previous = job->ids[i - 1], partition = previous >> SHIFT;
        int64_t cursor = cursors[partition]++;
        uint32_t *line = lines + (size_t)partition * LINE;
        line[cursor % LINE] = (previous % ROWS) * (uint32_t)job->stride + job->ids[i];
        if (cursor % LINE == LINE - 1) copy_line(job->cells + cursor - (LINE - 1), line);
    }
    for (int p = 0; p < job->num_partitions; p++) {
        int64_t left = cursors[p] % LINE;
        memcpy(job->cells + cursors[p] - left, lines + (size_t)p * LINE, (size_t)left * sizeof *lines);
    }
    free(lines);
}

/* Counts one partition and packs its distinct cells in place: alone when seen once, else marked and followed by the count. */
static void count_partition(Job *job, int p, uint32_t *counters, uint8_t *marks) {
    for (int t = 0; t < job->num_threads; t++) {
        const uint32_t *cell = job->cells + job->begins[t][p], *end = cell + job->tallies[t][p];
        for (; cell < end; cell++) {
            counters[*cell]++;
            marks[*cell / LINE] = 1;
        }
    }
    uint32_t *begin = job->cells + job->begins[0][p], *out = begin;
    int64_t rows = 0;
    for (int64_t word = 0; word < ROWS * job->stride / LINE; word += 8) {
        uint64_t touched;
        memcpy(&touched, marks + word, 8);
        if (!touched) continue;
        memset(marks + word, 0, 8);
        for (int64_t cell = word * LINE; cell < (word + 8) * LINE; cell++) {
            uint32_t count = counters[cell];
            if (!count) continue;
            counters[cell] = 0;
            rows++;
            *out++ = (uint32_t)cell | (count > 1 ? REPEATED : 0);
            if (count > 1) *out++ = count;
        }
    }
    job->num_words[p] = out - begin;
    job->row_begins[p + 1] = rows;
}

static void unpack_partition(Job *job, int p) {
    const uint32_t *word = job->cells + job->begins[0][p], *end = word + job->num_words[p];
    uint64_t previous = (uint64_t)p << SHIFT;
    int64_t base = 0, row = job->row_begins[p];
    while (word < end) {
        uint32_t cell = *word & ~REPEATED;
        for (; cell >= base + job->stride; base += job->stride) previous++;
        job->keys[row] = previous << 32 | (uint64_t)(cell - base);
        job->counts[row++] = *word & REPEATED ? *++word : 1;
        word++;
    }
}

static void place(Job *job) {
    int64_t room = 0;
    for (int p = 0; p < job->num_partitions; p++)
        for (int t = 0; t < job->num_threads; t++) {
            job->begins[t][p] = room;
            room += (job->tallies[t][p] + LINE - 1) / LINE * LINE;
        }
    if (kept_num_cells < room) {
        size_t huge_page = 1 << 21, bytes = ((size_t)room * sizeof *kept_cells + huge_page - 1) / huge_page * huge_page;
        free(kept_cells);
        kept_cells = aligned_alloc(huge_page, bytes);
#ifdef MADV_HUGEPAGE
        madvise(kept_cells, bytes, MADV_HUGEPAGE); /* as numpy does for its arrays */
#endif
        kept_num_cells = room;
    }
    job->cells = kept_cells;
}

static void place_rows(Job *job) {
    for (int p = 0; p < job->num_partitions; p++) job->row_begins[p + 1] += job->row_begins[p];
    size_t bytes = (size_t)job->row_begins[job->num_partitions] * sizeof(uint64_t);
    job->keys = malloc(bytes);
    job->counts = malloc(bytes);
}

static void *work(void *argument) {
    Share *share = argument;
    Job *job = share->job;
    int t = share->thread, p;
    int64_t first = job->n * t / job->num_threads, last = job->n * (t + 1) / job->num_threads;
    if (first == 0) first = 1;
    for (int64_t i = first; i < last; i++) job->tallies[t][job->ids[i - 1] >> SHIFT]++;
    if (pthread_barrier_wait(&job->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) place(job);
    pthread_barrier_wait(&job->barrier);
    scatter(job, t, first, last);
    pthread_barrier_wait(&job->barrier);
    while ((p = atomic_fetch_add(&job->next_counted, 1)) < job->num_partitions) count_partition(job, p, kept_counters[t], kept_marks[t]);
    if (pthread_barrier_wait(&job->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) place_rows(job);
    pthread_barrier_wait(&job->barrier);
    while ((p = atomic_fetch_add(&job->next_unpacked, 1)) < job->num_partitions) unpack_partition(job, p);
    return NULL;
}

/* Returns the number of distinct bigrams; `keys` (first << 32 | second, increasing) and `counts` go back through radix_free. */
int64_t radix_count(const uint16_t *ids, int64_t n, int64_t vocab, int num_threads, uint64_t **keys, uint64_t **counts) {
    Job *job = calloc(1, sizeof *job);
    pthread_t threads[MAX_THREADS];
    Share shares[MAX_THREADS];
    job->ids = ids;
    job->n = n;
    job->stride = (((vocab + LINE - 1) / LINE) | 1) * LINE;
    job->num_threads = num_threads;
    job->num_partitions = (int)((vocab - 1) >> SHIFT) + 1;
    for (int t = 0; t < num_threads && kept_stride < job->stride; t++) {
        free(kept_counters[t]);
        free(kept_marks[t]);
        kept_counters[t] = calloc((size_t)(ROWS * job->stride), sizeof(uint32_t));
        kept_marks[t] = calloc((size_t)(ROWS * job->stride / LINE), 1);
    }
    if (kept_stride < job->stride) kept_stride = job->stride;
    pthread_barrier_init(&job->barrier, NULL, (unsigned)num_threads);
    for (int t = 0; t < num_threads; t++) {
        shares[t] = (Share){job, t};
        pthread_create(&threads[t], NULL, work, &shares[t]);
    }
    for (int t = 0; t < num_threads; t++) pthread_join(threads[t], NULL);
    pthread_barrier_destroy(&job->barrier);
    int64_t rows = job->row_begins[job->num_partitions];
    *keys = job->keys;
    *counts = job->counts;
    free(job);
    return rows;
}

void radix_free(uint64_t *column) { free(column); }
