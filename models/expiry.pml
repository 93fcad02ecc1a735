/* Expiry of snapshots beside writers, people who make refs and pins, a load and a neighbour; models/README.md.
 *
 * A mask has a bit for each snapshot, or for each file.  Snapshot i adds data file i and manifest list N + i; one commit
 * keeps the data files before it, the others replace them.  `Expiry` knows what it has loaded, and may die between any two steps.
 * `-DNO_NAME` removes the guard NAME.  `-DLIVENESS` is the smaller model for `garbage_goes`.
 */

#ifdef LIVENESS
#define N 3
#else
#define N 4
#endif
#define BIT(i) (1 << (i))
#define LIST(i) BIT(N + (i)) /* its manifest list, which no other snapshot has */
#define DATA (BIT(N) - 1)
#define NONE N
#define BEHIND(i) (DATA & ~(BIT(i) - 1)) /* snapshots that are as new as i */
#define PART(m, i) ((((m) >> i) & 1) * files[i])
#if N == 4
#define FILES(m) (PART(m, 0) | PART(m, 1) | PART(m, 2) | PART(m, 3))
#else
#define FILES(m) (PART(m, 0) | PART(m, 1) | PART(m, 2))
#endif

/* The table and its store.  A snapshot is young until its retention has passed by the store's clock. */
byte files[N];
byte table = 1, count = 1, young = 1, exists = BIT(0) | LIST(0);
byte head = 0, tag = NONE, branch = NONE;
/* A REST catalog checks requirements, and drops a ref together with its snapshot; other catalogs swap a pointer. */
bool by_requirements;
bool moved = false; /* since the expiry loaded the table */
/* What the metadata log shows about the last expiry: the snapshots that it removed, and the tag before it. */
byte swap_gone = 0, swap_tag = NONE;

/* The state: a pin, the snapshots in its metadata file, a lost ref's pin, staged files, and files to delete. */
byte pin = NONE, pin_knows = 0, lost_pin = NONE, staged = 0, list = 0;
bool unchecked = false, is_pinning = false, is_checking = false;

/* What was promised: snapshots to a reader and to the owner of a tag, files to a neighbour. */
byte pinned = 0, tagged = 0, neighbour = 0;

#define NEEDED (FILES(table | young | pinned | tagged) | staged | neighbour)
#define GARBAGE (exists & ~NEEDED)
bool no_needed_file_deleted = true, readable_after_crash = true;

inline check() {
    if
    :: head == NONE -> readable_after_crash = false
    :: else -> readable_after_crash = !(files[head] & ~exists)
    fi;
    assert(readable_after_crash);
    no_needed_file_deleted = !(NEEDED & ~exists);
    assert(no_needed_file_deleted)
}

inline add_snapshot(its_files) {
    files[count] = ((its_files) & DATA) | BIT(count) | LIST(count); exists = exists | BIT(count) | LIST(count);
    table = table | BIT(count); young = young | BIT(count);
    if :: pinned -> pinned = pinned | BIT(count) :: else fi;
    moved = true; count++
}

/* The oldest young snapshot passes its retention, which is longer than it takes to add a pin. */
proctype Clock() {
    byte i = 0;
end:
    do
    :: d_step { young && !is_pinning -> do :: young & BIT(i) -> break :: else -> i++ od; young = young & ~BIT(i); i = 0 }
    od
}

proctype Writer() {
    bool has_appended = false;
end:
    do
    :: atomic { count < N -> add_snapshot(0); head = count - 1 }                                   /* overwrite */
    :: atomic { count < N && !has_appended -> add_snapshot(files[head]); head = count - 1; has_appended = true }
    od
}

proctype Person() {
    byte s = 0;
    bool has_tagged = false, has_branched = false, has_rolled = false;
end:
    do
    :: atomic { !has_tagged && (table & BIT(s)) -> tag = s; tagged = BIT(s); moved = true; has_tagged = true }
    :: d_step { tagged && (tag != NONE || lost_pin != NONE) -> tagged = 0; tag = NONE; lost_pin = NONE; moved = true }
    :: atomic { !has_branched && count < N && (table & BIT(s)) ->
           branch = count; add_snapshot(files[s]); has_branched = true }
    :: atomic { !has_rolled && s < head && (table & BIT(s)) -> head = s; moved = true; has_rolled = true }
    :: d_step { s + 1 < count && s < 1 -> s++ }
    od
}

/* administration/pins */
proctype Reader() {
    byte s = 0, knows = 0;
    if :: s = 0 :: atomic { count > 1 -> s = 1 } fi;
    atomic { table & BIT(s) -> knows = table; is_pinning = true }
    d_step { pin = s; pin_knows = knows; knows = 0 }
#ifndef NO_STILL_THERE
    atomic {
        is_pinning = false;
        if
        :: table & BIT(s) -> pinned = table & BEHIND(s)
        :: else -> pin = NONE; pin_knows = 0
        fi;
        check()
    }
#else
    atomic { is_pinning = false; pinned = (knows | table | BIT(s)) & BEHIND(s); check() }
#endif
    d_step { pinned -> pinned = 0; pin = NONE; pin_knows = 0 }
}

/* A load adds a file again while a snapshot still has it.  After the commit its record stays for the grace period, which
 * is longer than the check of a batch. */
proctype Load() {
    byte f = 0;
    atomic { FILES(table) & BIT(f) -> staged = BIT(f) }
    if
    :: atomic { count < N -> add_snapshot(files[head] | BIT(f)); head = count - 1 }
    :: skip /* the load fails */
    fi;
#ifdef NO_ADOPTED_GRACE
    staged = 0
#else
    atomic { !is_checking -> staged = 0 }
#endif
}

/* Another table takes a file in while a snapshot still has it. */
proctype Neighbour() {
    byte f = 0;
    if :: atomic { FILES(table) & BIT(f) -> neighbour = BIT(f) } :: f = 1; atomic { FILES(table) & BIT(f) -> neighbour = BIT(f) } fi
}

bool dies = false;
proctype Killer() { dies = true }

#ifdef NO_STORE_CLOCK
#define YOUNG_TO_ME 0 /* this machine's clock is far ahead */
#else
#define YOUNG_TO_ME young
#endif
#ifdef NO_PLAN_PINS
#define KEPT_BY_PIN 0
#else
#define KEPT_BY_PIN ((pin < N) * BEHIND(pin))
#endif
#define KEPT (REF(my_head) | REF(my_tag) | REF(my_branch) | BIT(my_count - 1) | YOUNG_TO_ME | KEPT_BY_PIN)
#define REF(i) (((i) < N) * BIT(i))

#ifdef NO_HELD
#define HELD_BY_PINS 0
#elif defined(NO_HORIZON)
#define HELD_BY_PINS (FILES(REF(pin) & ~now) | FILES(REF(lost_pin)))
#else
#define HELD_BY_PINS (FILES(pin_knows & KEPT_BY_A_PIN & ~now) | FILES(REF(lost_pin)))
#endif
#define KEPT_BY_A_PIN ((pin < N) * BEHIND(pin))
#ifdef NO_STAGED
#define HELD_BY_LOADS 0
#else
#define HELD_BY_LOADS staged
#endif

inline hold_lost_refs() {
#ifndef NO_HOLD_LOST
    if
    :: swap_tag < N && (swap_gone & REF(swap_tag)) && tagged -> lost_pin = swap_tag
    :: else
    fi;
#endif
    unchecked = false
}

/* deletion/delete: everything that may need a file is read anew before the batch. */
inline delete_unneeded() {
#ifndef NO_NEIGHBOUR_AGAIN
    batch = batch & ~neighbour;
#endif
    atomic { now = table; is_checking = true }
#ifndef NO_RECHECK
    batch = batch & ~FILES(now);
#endif
    d_step { batch = batch & ~(HELD_BY_PINS | HELD_BY_LOADS); now = 0; is_checking = false }
    do
    :: atomic { batch -> exists = exists & ~(batch & ~(batch - 1)); batch = batch & (batch - 1); check() }
    :: else -> break
    od
}

proctype Expiry() {
    byte my_table, my_head, my_tag, my_branch, my_count, gone, batch, now;
again:
    atomic { my_table = 0; my_head = 0; my_tag = 0; my_branch = 0; my_count = 0; gone = 0; batch = 0; now = 0 }
    {
        /* leftovers: finish what a killed pass has recorded */
        if
        :: list == 0
        :: d_step { list -> batch = list & ~FILES(table) }
           if
           :: batch && unchecked -> d_step { hold_lost_refs() }
           :: else
           fi;
           delete_unneeded();
           atomic { list = 0; unchecked = false }
        fi;
        do
        :: d_step { my_table = table; my_head = head; my_tag = tag; my_branch = branch; my_count = count; moved = false }
           d_step { gone = my_table & ~KEPT; my_count = 0 }
           if
           :: gone == 0 -> break
           :: else
           fi;
           d_step {
               batch = FILES(gone) & ~FILES(my_table & ~gone) & ~(HELD_BY_LOADS | neighbour); my_table = 0
           }
#ifndef NO_RECORD
           d_step { list = batch; unchecked = true }
#endif
           if
           :: atomic {
#ifdef NO_ASSERT_REFS
                  (by_requirements || !moved)
#else
                  (by_requirements && head == my_head && (my_tag == NONE || tag == my_tag)
                   && (my_branch == NONE || branch == my_branch)) || !moved
#endif
                  -> swap_gone = gone; swap_tag = tag; table = table & ~gone; moved = true;
                  if :: tag < N && (gone & REF(tag)) -> tag = NONE :: else fi;
                  if :: head < N && (gone & REF(head)) -> head = NONE :: else fi;
                  check()
              }
              break
           :: else -> d_step { list = 0; unchecked = false; gone = 0; batch = 0 }     /* a lost swap */
           fi
        od;
        atomic { my_head = 0; my_tag = 0; my_branch = 0 }
        if
        :: gone -> d_step { hold_lost_refs(); gone = 0 }
           delete_unneeded();
           list = 0
        :: else
        fi
    } unless { atomic { dies -> dies = false; is_checking = false } }
    goto again
}

init {
    atomic {
        files[0] = BIT(0) | LIST(0);
        if :: by_requirements = true :: by_requirements = false fi;
        run Clock(); run Writer(); run Killer(); run Expiry();
#ifndef LIVENESS
        if
        :: run Person()
        :: run Reader()
        :: run Load(); run Neighbour()
        fi
#endif
    }
}

#ifdef LIVENESS
ltl garbage_goes { [] ((GARBAGE != 0) -> <> (GARBAGE == 0)) }
#endif
