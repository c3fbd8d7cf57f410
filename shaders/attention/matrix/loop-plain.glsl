// The loop over tiles: leading ones that every row of the workgroup sees, then the others.

void main() {
    FIND_INVOCATION
    FIND_ROWS
    q_base = q_index(batch, head, 0u);
    k_base = k_index(batch, head, 0u);
    v_base = v_index(batch, head, 0u);
    end = visible_keys(min(first_row + ROWS, pc.queries) - 1u);  // keys from here on are seen by no row of this workgroup
    TAKE_SHARE
    FIND_SCALE

    if (thread == 0u) poisoned = 0u;
    BEGIN_STEPS
    if (end > BEGIN) {
        fetch_keys(BEGIN);
        FETCH_FIRST_VALUES
    }
    load_queries();
    CLEAR_SUMS
    FILL_PLACES
    NOTE_FIRST_KEYS
    barrier();  // q has been read from where k goes
    NOTE_QUERIES

    // Leading keys in whole tiles that every row of the workgroup sees.
    clear = 0u;
    if (MASK == 0) {
        clear = CAUSAL == 0 ? end : uint(clamp(int(first_row) + pc.causal_shift + 1, 0, int(end)));
        clear -= clear % KEYS;  // shares begin with whole tiles
    }
    uint first_key = BEGIN;
    BEGIN_TILES
#if SPLIT_LOOPS
    [[dont_unroll]] for (; first_key < clear; first_key += KEYS) add_tile(first_key, false);
    [[dont_unroll]] for (; first_key < end; first_key += KEYS) add_tile(first_key, true);
#else
    [[dont_unroll]] for (; first_key < end; first_key += KEYS) add_tile(first_key, first_key >= clear);
#endif
    barrier();  // the last tile has been read from where rows are gathered
    if (poisoned == 0u) {
        STORE_ROWS
    } else {
        compute_rows();
    }
}
