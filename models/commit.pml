/* The commit of a rewrite beside writers, another engine's rewrite and a rollback; models/README.md.
 *
 * Rows 0 and 1 are in files D0 and D1, row 2 comes by an append, and an upsert replaces row 1 by row 3, which has the same
 * key.  A position delete hits row 0, wherever it is then.  `Rewrite` merges files into an output; its request may be
 * lost, late or doubled, the answer may be wrong, and the process may die between any two steps.  Writers commit at once:
 * one that has lost its swap begins anew.  `-DNO_NAME` removes the guard NAME.
 */

#define N 4
#define BIT(i) (1 << (i))
#define NONE N
#define FILES 7
#define D0 0
#define D1 1
#define A 2  /* appended */
#define U 3  /* upserted */
#define W 4  /* of another engine's rewrite */
#define O 5  /* of our first pass; the second writes O + 1 */
#define INPUTS (BIT(D0) | BIT(D1) | BIT(W) | BIT(O))
#define HAS(file, row) ((rows[file] >> (row)) & 1)

/* Files: their rows and data sequence numbers. */
byte rows[FILES], number[FILES], exists = BIT(D0) | BIT(D1);
/* Snapshots: live files, files whose row 0 is deleted, the rows that readers expect, parents, our manifests. */
byte live[N], deleted[N], expected[N], parent[N], manifests[N], numbers[N];
bool by_key[N];
byte key_number = 0; /* the equality delete's sequence number */
byte count = 1, head = 0, last_number = 1, gone = 0, staged = 0;

/* The requests of two attempts, whether they were served, may come twice, and which snapshot they made. */
bool is_sent[2], is_done[2], is_twin[2];
byte base[2], sent_live[2], sent_deleted[2], sent_number[2], sent_manifest[2], sent_file, mine[2] = NONE;

bool no_row_lost = true, no_row_doubled = true, readable_after_crash = true;

#define IS_LIVE(v, file, row) (((live[v] >> (file)) & 1) && HAS(file, row) && !((row) == 0 && ((deleted[v] >> (file)) & 1)) \
    && !(((row) & 1) && by_key[v] && number[file] < key_number))

#define COPIES(v) (IS_LIVE(v, 0, row) + IS_LIVE(v, 1, row) + IS_LIVE(v, 2, row) + IS_LIVE(v, 3, row) \
    + IS_LIVE(v, 4, row) + IS_LIVE(v, 5, row) + IS_LIVE(v, 6, row))
#define READABLE(v) (v >= count || (gone & BIT(v)) || (!(live[v] & ~exists) && !(manifests[v] & ~staged)))
inline check_files() {
    readable_after_crash = READABLE(0) && READABLE(1) && READABLE(2) && READABLE(3);
    assert(readable_after_crash)
}

inline check() {
    check_files();
    i = 0;
    do
    :: i < count && !(gone & BIT(i)) ->
       row = 0;
       do
       :: row < 4 ->
          copies = COPIES(i);
          no_row_lost = copies >= ((expected[i] >> row) & 1);
          assert(no_row_lost);
          no_row_doubled = copies <= ((expected[i] >> row) & 1);
          assert(no_row_doubled);
          row++
       :: else -> break
       od;
       i++
    :: i < count && (gone & BIT(i)) -> i++
    :: i >= count -> break
    od;
    i = 0; row = 0; copies = 0
}

/* A snapshot that continues another, for the caller to change. */
inline begin(on, its_number) {
    live[count] = live[on]; deleted[count] = deleted[on]; expected[count] = expected[on]; by_key[count] = by_key[on];
    manifests[count] = manifests[on]; parent[count] = on; numbers[count] = its_number; last_number = its_number
}

inline publish() { head = count; count++; check() }

proctype Writer() {
    byte i, row, copies, todo = 63;
end:
    do
    :: d_step { (todo & 1) && count < N -> todo = todo & ~1;                                           /* append */
           begin(head, last_number + 1); live[count] = live[count] | BIT(A); exists = exists | BIT(A);
           rows[A] = 4; number[A] = last_number; expected[count] = expected[count] | 4; publish() }
    :: d_step { (todo & 2) && count < N && (expected[head] & 1) -> todo = todo & ~2;                   /* position delete */
           begin(head, last_number + 1);
           do :: IS_LIVE(head, i, 0) -> break :: else -> i++ od;
           deleted[count] = deleted[count] | BIT(i); expected[count] = expected[count] & ~1; i = 0; publish() }
    :: d_step { (todo & 4) && count < N && (expected[head] & 2) -> todo = todo & ~4;                   /* upsert by key */
           begin(head, last_number + 1); by_key[count] = true; key_number = last_number;
           live[count] = live[count] | BIT(U); exists = exists | BIT(U); rows[U] = 8; number[U] = last_number;
           expected[count] = (expected[count] & ~2) | 8; publish() }
    :: d_step { (todo & 8) && count < N && (live[head] & BIT(D0)) -> todo = todo & ~8;                 /* overwrite */
           begin(head, last_number + 1); live[count] = live[count] & ~BIT(D0);
           deleted[count] = deleted[count] & ~BIT(D0); expected[count] = expected[count] & ~1; publish() }
    :: d_step { (todo & 16) && count < N && (live[head] & 3) == 3 && !(deleted[head] & 3) && !by_key[head] ->
           todo = todo & ~16;                                                                          /* replace */
           begin(head, last_number + 1); live[count] = (live[count] & ~3) | BIT(W); exists = exists | BIT(W);
           rows[W] = 3; number[W] = 1; publish() }
    :: d_step { (todo & 32) && head && !(gone & BIT(parent[head])) -> todo = todo & ~32; head = parent[head] } /* rollback */
    od
}

/* Snapshots other than the head expire, also those that have just landed. */
proctype Expiry() {
end:
    if
    :: d_step { count > 1 && head != 1 -> gone = BIT(1) }
    :: d_step { count > 2 && head != 1 && head != 2 -> gone = BIT(1) | BIT(2) }
    fi
}

#ifdef NO_CAS
#define IS_ON_HEAD true
#else
#define IS_ON_HEAD (head == base[n])
#endif
#ifdef NO_SEQUENCE
#define CONDITION IS_ON_HEAD
#else
#define CONDITION (IS_ON_HEAD && sent_number[n] > last_number)
#endif
inline serve() {
    if
    :: CONDITION ->
       begin(base[n], sent_number[n]); live[count] = sent_live[n]; deleted[count] = sent_deleted[n];
       manifests[count] = manifests[count] | sent_manifest[n]; mine[n] = count;
#ifdef NO_PLANNING_NUMBER
       number[sent_file] = sent_number[n];
#endif
       publish()
    :: else
    fi;
    is_done[n] = true; is_sent[n] = is_twin[n]; is_twin[n] = false;
    if
    :: !is_sent[n] -> sent_live[n] = 0; sent_deleted[n] = 0; sent_number[n] = 0; sent_manifest[n] = 0
    :: else
    fi;
    n = 0
}

/* The catalog compares the requirement and the sequence number; a proxy may send the request twice. */
proctype Server() {
    byte i, row, copies, n;
end:
    do
    :: d_step { (is_sent[0] || is_sent[1]) && count < N ->
           if
           :: is_sent[0] -> n = 0
           :: else -> n = 1
           fi;
           serve() }
    :: d_step { is_sent[1] && count < N -> n = 1; serve() }
    od
}

bool dies = false, has_died = false;
proctype Killer() { dies = true }

#define SHOWS (mine[attempt] != NONE && (!(gone & BIT(mine[attempt])) || is_child(0) || is_child(1) || is_child(2) || is_child(3)))
#define is_child(v) (v < count && !(gone & BIT(v)) && v > mine[attempt] && parent[v] == mine[attempt])
/* Every snapshot since the load has a parent that is known. */
#define is_explained(v) (v < known || v >= count || (gone & BIT(v)) || parent[v] < known || !(gone & BIT(parent[v])))
#define SHOWS_EVERY (is_explained(1) && is_explained(2) && is_explained(3))

proctype Rewrite() {
    byte i, row, inputs, applied, planned, known, attempt, output = O, manifest;
    bool keyed, is_landed, is_lost, is_unknown;
again:
    atomic { attempt = 0; mine[0] = NONE; mine[1] = NONE; inputs = 0; applied = 0; attempt = 0; known = 0; keyed = false; planned = 0; is_landed = false; is_lost = false; is_unknown = false }
    {
        /* plan */
        d_step {
            inputs = live[head] & INPUTS; applied = deleted[head] & inputs; keyed = by_key[head]; planned = numbers[head];
            i = 0; rows[output] = 0;
            do
            :: i < FILES ->
               row = 0;
               if
               :: inputs & BIT(i) ->
                  do
                  :: row < 4 -> rows[output] = rows[output] | (IS_LIVE(head, i, row) << row); row++
                  :: else -> break
                  od
               :: else
               fi;
               i++
            :: else -> break
            od;
            i = 0; row = 0; number[output] = planned; planned = 0
        }
        exists = exists | BIT(output);
        do
        :: attempt < 2 - (output - O) && !is_landed && !is_unknown && inputs ->
           /* conflict_detection: may the group be committed on the newest head? */
           d_step {
               base[attempt] = head; known = count; sent_number[attempt] = last_number + 1; mine[attempt] = NONE; is_lost = false;
               sent_live[attempt] = (live[head] & ~inputs) | BIT(output);
               sent_deleted[attempt] = deleted[head] & ~inputs;
               if
#ifndef NO_FORWARD
               :: (deleted[head] & inputs & ~applied) && (rows[output] & 1) -> sent_deleted[attempt] = sent_deleted[attempt] | BIT(output)
#endif
               :: else
               fi;
               sent_file = output
           }
           if
#ifndef NO_LIVE_INPUTS
           :: inputs & ~live[base[attempt]] -> inputs = 0
#endif
#ifndef NO_TAKEN_BACK
           :: !(inputs & ~live[base[attempt]]) && ((applied & ~deleted[base[attempt]]) || (keyed && !by_key[base[attempt]])) -> inputs = 0
#endif
           :: else ->
              atomic { manifest = BIT(2 * (output - O) + attempt); sent_manifest[attempt] = manifest; staged = staged | manifest }
              atomic { is_sent[attempt] = true; is_done[attempt] = false; if :: is_twin[attempt] = true :: is_twin[attempt] = false fi }
              /* transaction, resolve_outcome */
              if
              :: atomic { is_done[attempt] && mine[attempt] != NONE -> is_landed = true }          /* yes */
              :: is_done[attempt] ->                                                     /* no, right or wrong */
#ifdef NO_READ_AFTER_NO
                 is_lost = true
#else
                 if
                 :: d_step { SHOWS -> is_landed = true }
#ifdef NO_SHOWS_EVERY
                 :: d_step { !SHOWS && head != base[attempt] -> is_lost = true }
#else
                 :: d_step { !SHOWS && head != base[attempt] && SHOWS_EVERY -> is_lost = true }
                 :: d_step { !SHOWS && !SHOWS_EVERY -> is_unknown = true }
#endif
                 :: skip -> /* the head is as before, or an answer from a replica that lags */
#ifdef NO_TRACE
                    is_lost = true
#else
                    if :: mine[attempt] != NONE -> is_unknown = true :: else -> is_lost = true fi
#endif
                 fi
#endif
              :: skip ->                                                        /* no answer */
                 if
                 :: d_step { SHOWS -> is_landed = true }
#ifdef NO_SHOWS_EVERY
                 :: d_step { !SHOWS && head != base[attempt] -> is_lost = true }
#else
                 :: d_step { !SHOWS && head != base[attempt] && SHOWS_EVERY -> is_lost = true }
#endif
                 :: is_unknown = true
                 fi
              fi;
#ifdef NO_KEEP_UNKNOWN
              if :: is_unknown -> is_lost = true :: else fi;
#endif
              if
              :: is_lost -> d_step { staged = staged & ~manifest; check_files() }
              :: else
              fi;
              attempt++
           fi
        :: else -> break
        od;
        if
        :: !is_landed && (!is_unknown || is_lost) -> d_step { exists = exists & ~BIT(output); check_files() }
        :: else
        fi
    } unless { atomic { dies -> dies = false; has_died = true } }
    atomic { inputs = 0; applied = 0; known = 0; keyed = false; is_landed = false; is_lost = false; is_unknown = false; manifest = 0; i = 0; row = 0 }
    if
    :: atomic { has_died && output == O && !is_sent[0] && !is_sent[1] -> output = O + 1; attempt = 0 }
       goto again
    :: else
    fi
}

init {
    atomic {
        rows[D0] = 1; rows[D1] = 2; number[D0] = 1; number[D1] = 1; live[0] = 3; expected[0] = 3; numbers[0] = 1;
        parent[0] = NONE;
        run Writer(); run Server(); run Rewrite();
        /* Both at once are too many states for minutes. */
        if :: run Expiry() :: run Killer() fi
    }
}
