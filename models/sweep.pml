/* A search for orphans beside writers, a job, a load, a pin and a table that adopts; models/README.md.
 *
 * A mask has a bit for each file, and each file is written by one actor.  `Pass` is a search for orphans and the cleaning
 * up after dead jobs; it may die between any two steps.  `-DNO_NAME` removes the guard NAME.  `-DLIVENESS` is the smaller
 * model for `garbage_goes`.
 */

#define WRITERS 1  /* by a writer, which commits it within the grace period */
#define JOBS 2     /* by a rewrite, which may take longer than the grace period */
#define LOADS 4    /* by a load, which may take longer than the grace period */
#define LITTER 8   /* left by a writer that died long ago */
#define SHARED 16  /* adopted by another table while a snapshot had it */
#define PINNED 32  /* of a snapshot that expired although a reader had pinned it just then */

byte exists = LITTER | SHARED | PINNED, old = SHARED | PINNED, table = SHARED;
/* The state.  A dead job has not renewed its record in time; it is overdue after the grace period. */
mtype = { none, pending, adopted, failed, working, lost, ended };
mtype job = none, load = none;
bool job_is_dead = false, job_is_overdue = false, load_is_overdue = false;
bool is_pinned = true;
/* What really is: whether an actor counts on its file. */
mtype writer = none, jobs_work = none;
/* The other table: whether it needs the file; whether it can be read, or its catalog denies it; and our claims on it. */
mtype = { readable, unreadable, denied };
mtype other = readable;
bool other_needs = false, is_claimed = false, is_missing = false, run_is_on = false;
bool is_checking = false;

#define IF(condition, file) ((condition) * (file))
#define NEEDED (table | IF(writer == working, WRITERS) | IF(jobs_work == working, JOBS) \
    | IF(load == pending || load == adopted, LOADS) | IF(other_needs, SHARED) | IF(is_pinned, PINNED))
#define WRITTEN (exists | IF(!(ever & WRITERS), WRITERS) | IF(!(ever & JOBS), JOBS) | IF(!(ever & LOADS), LOADS))
byte ever = LITTER | SHARED | PINNED; /* the files that were written */
#define GARBAGE (exists & ~NEEDED)
bool no_needed_file_deleted = true, no_row_lost = true;

inline check() {
    no_row_lost = !(table & ~exists);
    assert(no_row_lost);
    no_needed_file_deleted = !(NEEDED & ~WRITTEN);
    assert(no_needed_file_deleted)
}

inline write(file) { exists = exists | file; ever = ever | file }

proctype Clock() {
end:
    do
    :: d_step { (exists & WRITERS) && !(old & WRITERS) && writer != working -> old = old | WRITERS }
    :: d_step { (exists & JOBS) && !(old & JOBS) -> old = old | JOBS }
    :: d_step { (exists & LOADS) && !(old & LOADS) -> old = old | LOADS }
    :: d_step { (exists & LITTER) && !(old & LITTER) -> old = old | LITTER }
    :: d_step { job == pending && !job_is_dead && jobs_work != working -> job_is_dead = true }
    :: d_step { job_is_dead && !job_is_overdue && jobs_work != working -> job_is_overdue = true }
    :: d_step { load == adopted && !load_is_overdue && !is_checking -> load_is_overdue = true }
    od
}

proctype Writer() {
    atomic { write(WRITERS); writer = working }
    if
    :: d_step { table = table | WRITERS; writer = ended; check() }
    :: writer = lost
    fi
}

/* pass_context/job: records its files before it writes them, and renews the record before it commits. */
proctype Job() {
#ifndef NO_PLANNED
    job = pending;
#endif
    atomic { write(JOBS) }
    if
    :: jobs_work = lost /* killed */
    :: skip ->
#ifdef NO_PLANNED
       jobs_work = working;
       atomic { table = table | JOBS; jobs_work = ended; check() }
#else
       if
       :: atomic { job == pending -> job_is_dead = false; job_is_overdue = false; jobs_work = working }
          if
          :: atomic { table = table | JOBS; jobs_work = ended; check() }
             job = none
          :: jobs_work = lost
          fi
       :: atomic { job != pending -> jobs_work = lost } /* PlanStale */
       fi
#endif
    fi
}

/* administration/pins: stage, write, commit, adopted; a pass forgets the record after the grace period. */
proctype Load() {
    load = pending;
    atomic { write(LOADS) }
    if
    :: d_step { table = table | LOADS; check() }
       load = adopted
    :: load = failed
    fi
}

proctype Reader() {
    is_pinned = false
}

/* It adopts the file while a snapshot has it; then a commit and an expiry of this table let go of it. */
proctype Other() {
end:
    do
    :: atomic { !other_needs && (table & SHARED) -> other_needs = true }
    :: atomic { (table & SHARED) && !run_is_on -> table = table & ~SHARED }
    :: atomic { other == readable -> other = unreadable }
    :: atomic { other == readable && is_claimed -> other = denied } /* for less than eight days */
    :: atomic { other != readable -> other = readable }
    od
}

bool dies = false;
proctype Killer() { dies = true }

#ifdef NO_STAGED
#define HELD_LOAD 0
#else
#define HELD_LOAD IF(load == pending || load == adopted, LOADS)
#endif
#ifdef NO_DEAD_KEPT
#define HELD_JOB IF(job == pending && !job_is_dead, JOBS)
#else
#define HELD_JOB IF(job == pending, JOBS)
#endif
#define HELD_BY_LOADS (HELD_JOB | HELD_LOAD)
#ifdef NO_PINS
#define HELD_BY_PINS 0
#else
#define HELD_BY_PINS IF(is_pinned, PINNED)
#endif
#if defined(NO_GRACE) || defined(NO_STORE_CLOCK)
#define OLD exists
#else
#define OLD (exists & old)
#endif

/* deletion/other_tables, near_tables: the look of this run, and the other table's references. */
inline ask_neighbours() {
    skip;
#ifndef NO_LOOK
    if
    :: atomic { other == readable -> is_claimed = true; is_missing = false; batch = batch & ~IF(other_needs, SHARED) }
    :: atomic { other == unreadable && is_claimed ->
#ifndef NO_REFUSE
           batch = 0
#endif
       }
    :: atomic { other == unreadable && !is_claimed ->
#ifndef NO_WAIT
           batch = 0
#endif
       }
    :: atomic { other == denied && !is_claimed } /* its claims were forgotten */
    :: atomic { other == denied && is_claimed ->
#ifdef NO_TWICE
           is_claimed = false
#else
           is_missing = true; batch = batch & ~SHARED
#endif
       }
    fi
#endif
}

/* deletion/file_needs, delete. */
inline delete_unneeded() {
#ifndef NO_RECHECK
    atomic { batch = batch & (other == unreadable && is_claimed -> ~SHARED : ~IF(other == readable && other_needs && is_claimed, SHARED)) }
    d_step {
        is_checking = true;
#ifndef NO_ORDER
        batch = batch & ~table
#endif
    }
    atomic { batch = batch & ~HELD_BY_LOADS }
    atomic { batch = batch & ~HELD_BY_PINS; is_checking = false }
#endif
    do
    :: atomic { batch -> exists = exists & ~(batch & ~(batch - 1)); batch = batch & (batch - 1); check() }
    :: else -> break
    od
}

proctype Pass() {
    byte before, batch;
again:
    atomic { before = 0; batch = 0 }
    {
        before = table;
        d_step { batch = OLD & ~before; before = 0 }
#ifndef NO_ORDER
        batch = batch & ~table;
#endif
        d_step { batch = batch & ~(HELD_BY_LOADS | HELD_BY_PINS) }
        if
        :: batch ->
           run_is_on = true;
           ask_neighbours();
           delete_unneeded();
           run_is_on = false
        :: else
        fi;
        /* operations/clean_staging */
        if
        :: atomic { load == adopted && load_is_overdue -> load = none; load_is_overdue = false }
#ifndef NO_CLEANING
        :: atomic { job == pending && job_is_overdue ->
#ifndef NO_FENCE
               job = failed
#endif
           }
           batch = JOBS & exists;
           delete_unneeded();
           atomic { if :: job_is_overdue -> job = none :: else fi }
        :: atomic { job == failed ->  batch = JOBS & exists }
           delete_unneeded();
           job = none
#endif
        :: else
        fi
    } unless { atomic { dies -> dies = false; run_is_on = false; is_checking = false } }
    goto again
}

init {
    atomic {
        run Clock(); run Killer(); run Pass();
#ifdef LIVENESS
        is_pinned = false; exists = LITTER; table = 0; old = 0; ever = LITTER; run Job()
#else
        /* All at once are too many states for a minute. */
        if
        :: run Job(); run Writer(); run Reader()
        :: run Job(); run Load()
        :: run Other(); run Reader()
        :: run Other(); run Writer()
        fi
#endif
    }
}

#ifdef LIVENESS
ltl garbage_goes { [] ((GARBAGE != 0) -> <> (GARBAGE == 0)) }
#endif
