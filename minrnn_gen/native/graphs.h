/* Programs whose arrays are again where they were before, as CUDA graphs: one launch for all operations. Part of trip.c.

   Everything but the launch itself is done with the GIL held, which is what guards the tables here. */
#define GRAPHS_MOST 16      /* of one program */
#define GRAPHS_OF_ALL_MOST 256
#define MET_MOST 32         /* runs that a program remembers, to see one of them again */
#define LAUNCHES_WORTH 8    /* after GRAPHS_MOST captures: for so many launches one more */
#define OPERATIONS_WORTH 2  /* a single operation is launched as fast without a graph */

/* cuda.h */
#define THREAD_LOCAL_CAPTURE 1
#define NON_BLOCKING_STREAM 1
typedef struct {
  int (*is_capturing)(void *, int *);
  int (*create_stream)(void **, unsigned);
  int (*destroy_stream)(void *);
  int (*begin)(void *, int);
  int (*end)(void *, void **);
  int (*instantiate)(void **, void *, unsigned long long);
  int (*destroy_graph)(void *);
  int (*destroy)(void *);
  int (*launch)(void *, void *);
} GraphFunctions;
static GraphFunctions graph_functions; /* none: no graphs */
static int graphs_of_all;
static uint64_t uses_of_all; /* of graphs of any program, by which they have an age */

typedef struct {
  uint64_t hash, last_use;
  int64_t *addresses; /* of the slots, and behind them the stream */
  void *executable;
  int launching; /* threads that launch it now */
} Captured;

typedef struct Kept {
  Program program; /* first: a capsule of it is one of a program, for callers who know nothing of graphs */
  Captured captured[GRAPHS_MOST];
  uint64_t met[MET_MOST], launches;
  unsigned next_met, captures;
  int is_refused; /* by the driver, once and for all */
  struct Kept *next, **held_by; /* in the list of those with a graph; held_by is NULL outside it */
} Kept;
static Kept *with_graphs;

static void enlist(Kept *kept) {
  if (kept->held_by != NULL) return;
  kept->next = with_graphs;
  kept->held_by = &with_graphs;
  if (with_graphs != NULL) with_graphs->held_by = &kept->next;
  with_graphs = kept;
}

static void leave_list(Kept *kept) {
  if (kept->held_by == NULL) return;
  *kept->held_by = kept->next;
  if (kept->next != NULL) kept->next->held_by = kept->held_by;
  kept->held_by = NULL;
}

static uint64_t hash_of(const int64_t *addresses, ptrdiff_t count) {
  uint64_t hash = 1469598103934665603u;
  for (ptrdiff_t index = 0; index < count; index++) {
    hash = (hash ^ (uint64_t)addresses[index]) * 1099511628211u;
    hash ^= hash >> 29;
  }
  return hash | 1; /* 0 is no hash */
}

static void free_captured(Captured *captured) {
  if (captured->executable == NULL) return;
  graph_functions.destroy(captured->executable);
  free(captured->addresses);
  *captured = (Captured){0};
  graphs_of_all--;
}

/* Whether the operations of a program may be a graph, and launching one saves time. */
static int may_be_graph(const Kept *kept) {
  const Program *program = &kept->program;
  if (graph_functions.launch == NULL || kept->is_refused || program->count < OPERATIONS_WORTH) return 0;
  return program->operations[0].kind != KERNEL; /* of which a program has all or none */
}

/* The graph of a run on these arrays and this stream, NULL where there is none. `addresses` has the stream at its end. */
static Captured *find_captured(Kept *kept, const int64_t *addresses, ptrdiff_t count, uint64_t hash) {
  for (Captured *captured = kept->captured; captured < kept->captured + GRAPHS_MOST; captured++)
    if (captured->hash == hash && captured->executable && !memcmp(captured->addresses, addresses, 8 * (size_t)count)) return captured;
  return NULL;
}

/* Whether a run was met before and is worth a graph; note it where not. */
static int is_met_again(Kept *kept, uint64_t hash) {
  for (int index = 0; index < MET_MOST; index++)
    if (kept->met[index] == hash)
      return kept->captures < GRAPHS_MOST + kept->launches / LAUNCHES_WORTH;
  kept->met[kept->next_met++ % MET_MOST] = hash;
  return 0;
}

static int is_being_captured(void *stream) {
  int status = 0;
  return graph_functions.is_capturing(stream, &status) || status;
}

/* Capture a run on a stream of its own; NULL where the driver or cuBLAS refuse. */
static void *capture_run(const Program *program, const int64_t *addresses, void *stream, void *handle, void *workspace, char *room) {
  void *side, *graph = NULL, *executable = NULL;
  ptrdiff_t index = 0;
  if (graph_functions.create_stream(&side, NON_BLOCKING_STREAM)) return NULL;
  if (!graph_functions.begin(side, THREAD_LOCAL_CAPTURE)) {
    int is_refused = run_program(program, addresses, side, handle, workspace, room, &index);
    if (graph_functions.end(side, &graph)) graph = NULL;
    if (graph != NULL && (is_refused || graph_functions.instantiate(&executable, graph, 0))) executable = NULL;
    if (graph != NULL) graph_functions.destroy_graph(graph);
  }
  if (handle != NULL) program->set_stream(handle, stream);
  graph_functions.destroy_stream(side);
  return executable;
}

/* The graph of a program that was used longest ago, `oldest` where that is older; those being launched are left out. */
static Captured *older_of(Kept *kept, Captured *oldest) {
  for (Captured *captured = kept->captured; captured < kept->captured + GRAPHS_MOST; captured++)
    if (captured->executable != NULL && !captured->launching && (oldest == NULL || captured->last_use < oldest->last_use))
      oldest = captured;
  return oldest;
}

/* Where the next graph goes; NULL where all are being launched. The one used longest ago makes room: in a process that has
   seen many shapes, those of today need the graphs. */
static Captured *place_for_graph(Kept *kept) {
  if (graphs_of_all >= GRAPHS_OF_ALL_MOST) {
    Captured *oldest = NULL;
    for (Kept *other = with_graphs; other != NULL; other = other->next) oldest = older_of(other, oldest);
    if (oldest == NULL) return NULL;
    free_captured(oldest);
  }
  for (Captured *captured = kept->captured; captured < kept->captured + GRAPHS_MOST; captured++)
    if (captured->executable == NULL) return captured;
  Captured *oldest = older_of(kept, NULL);
  if (oldest != NULL) free_captured(oldest);
  return oldest;
}
