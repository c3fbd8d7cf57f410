// The kernel: what a workgroup begins with, the loop over tiles of keys, and where its rows go.

#if COMPUTED
#include "tiles-computed.glsl"
#define FIRST_KEY first_key
#define HAS_TILES left != 0u
#elif TILED || SCORE_MODS
#define FIRST_KEY first_key
#define HAS_TILES first_key < end
#else
#define FIRST_KEY BEGIN
#define HAS_TILES end > BEGIN
#endif
#if TILED
#define NEXT_TILE next_tile
#else
#define NEXT_TILE find_tile
#endif

void main() {
    subgroup = gl_SubgroupID;
    lane = gl_SubgroupInvocationID;
    thread = subgroup * SUBGROUP + lane;
    head = gl_WorkGroupID.y;
    batch = gl_WorkGroupID.z;
    FIND_ROWS
#if SCORE_MODS
    SHARE_ADDED
#endif
#if TILED || SCORE_MODS
    begin_extras(batch, head);
#ifdef FUNCTIONS
    hold_function_words();
#endif
    q_base = q_index(batch, head, row_start());
    k_base = k_index(batch, head, key_start());
    v_base = v_index(batch, head, key_start());
    if (on(LENGTHS) && first_row >= QUERIES) return;
    find_keys();
#if APART
    if (is_apart()) return;
#endif
    uint first_key = hidden_keys(first_row) / KEYS * KEYS;
    if (on(TILES) && first_key < end) {
        fetch_tiles(first_key / KEYS);
        read_tiles(first_key / KEYS);
    }
    first_key = NEXT_TILE(first_key);
#else
#if ENDS
    find_ends(batch, head);
    if (on(LENGTHS) && first_row >= QUERIES) return;
#endif
    q_base = q_index(batch, FIRST_HEAD, ROW_START);
    k_base = k_index(batch, FIRST_HEAD, KEY_START);
    v_base = v_index(batch, FIRST_HEAD, KEY_START);
    end = KEYS_SEEN(first_row, min(first_row + ROWS, QUERIES) - 1u);  // keys from here on are seen by no row of this workgroup
#if SPLIT_KV
    uint splits = gl_NumWorkGroups.x / ROW_TILES, keys_each = (end + splits - 1u) / splits;
    keys_each = (keys_each + KEYS - 1u) / KEYS * KEYS;
    begin = min(gl_WorkGroupID.x / ROW_TILES * keys_each, end);
    end = min(begin + keys_each, end);
#endif
#endif
    base2_scale = max(abs(pc.scale) * LOG2_E, 1e-37);  // not zero, as it multiplies minus infinities
#if COMPUTED
    begin_leaning();
    begin_cap();
    find_clear();
    if (thread == 0u) poisoned = steep = 0u;
#else
    if (thread == 0u) poisoned = 0u;
#endif
#if STEPS
    begin_steps();
#endif
#if COMPUTED
    uint first_key = first_tile(), left = clear_tiles + mixed_tiles;
#endif
    if (HAS_TILES) {
        fetch_keys(FIRST_KEY);
#if BUFFERS > 2
        fetch_values(FIRST_KEY);
#endif
    }
    load_queries();
    [[unroll]] for (uint i = 0u; i < RF; ++i) {
        CLEAR_STATISTICS(i)
        [[unroll]] for (uint c = 0u; c < VF; ++c) o_frag[i][c] = SUMS(0.0);
    }
#if !ORDER
    for (uint e = thread; e < SCRATCH_VECTORS; e += THREADS) {
        tile[IOTA_START + e] = floatBitsToUint(vec4(4u * e) + vec4(0.0, 1.0, 2.0, 3.0));
    }
#endif
#if SPLIT
    if (end > 0u) note_keys();
#endif
    barrier();  // q has been read from where k goes
#if SPLIT
    if (bad_query) poisoned = 1u;
#endif

#if TILED
    // Only the last tile may have keys past the end.
    read_places();
    if (first_key < end) fetch_mask(first_key);
    [[dont_unroll]] while (is_clear(first_key)) {
        uint next_key = NEXT_TILE(first_key + KEYS);
        add_tile(first_key, next_key, false, false);
        first_key = next_key;
    }
    [[dont_unroll]] while (first_key < end) {
        uint next_key = NEXT_TILE(first_key + KEYS);
        add_tile(first_key, next_key, true, true);
        first_key = next_key;
    }
    note_output();

#elif SCORE_MODS
    // Runs of clear tiles and of others take turns.
    read_places();
    if (first_key < end) FETCH_AHEAD(first_key)
    BEGIN_LEANING
    bool clear = is_clear(first_key), read = !next_seen;
    [[dont_unroll]] while (first_key < end) {
#if SPLIT_LOOPS
        [[dont_unroll]] while (clear) {
            uint next_key = NEXT_TILE(first_key + KEYS);
            LEAN(first_key, true)
            add_tile(first_key, next_key, false, false);
            first_key = next_key;
            clear = is_clear(first_key);
        }
        read = !next_seen;
        bool mixed = first_key < end;
        LEAN(first_key, false)
        [[dont_unroll]] while (mixed) {
            uint next_key = NEXT_TILE(first_key + KEYS);
            add_tile(first_key, next_key, true, read);
            first_key = next_key;
            read = !next_seen;
            clear = is_clear(first_key);
            mixed = first_key < end && !clear;
        }
#else
        uint next_key = NEXT_TILE(first_key + KEYS);
        LEAN(first_key, clear)
        add_tile(first_key, next_key, !clear, read);
        first_key = next_key;
        read = !next_seen;
        clear = is_clear(first_key);
#endif
    }
    LEAN(first_key, false)

#elif COMPUTED
    // The same in an order of their own, and the first tile is done like mixed ones.
    bool mixed = left != 0u;
    [[dont_unroll]] while (left != 0u) {
        lean(0);
        [[dont_unroll]] while (mixed) {
            uint next_key = tile_after(first_key, left);
            add_tile(first_key, next_key, true);
            first_key = next_key;
            --left;
            too_large = on(SOFT_CAP) && (!CAPPED_LATE || steep != 0u);
            mixed = is_mixed(left);
        }
        bool quick = left != 0u;
        [[dont_unroll]] while (quick) {
            uint next_key = tile_after(first_key, left);
            lean(first_key < left_end ? -1 : 1);
            add_tile(first_key, next_key, false);
            first_key = next_key;
            --left;
            too_large = on(SOFT_CAP) && (!CAPPED_LATE || steep != 0u);
            mixed = is_mixed(left);
            quick = left != 0u && !mixed;
        }
    }
    lean(0);

#else
    // Leading keys in whole tiles that every row of the workgroup sees, then the others.
    clear = 0u;
    if (MASK == 0) {
        clear = CAUSAL == 0 ? end : uint(clamp(int(QUERY_OF(first_row)) + SHIFT + 1, 0, int(end)));
        MASK_FROM_BLIND(min(first_row + ROWS, QUERIES) - 1u, clear, 0u)
        clear -= clear % KEYS;  // splits begin with whole tiles
    }
    uint first_key = BEGIN;
#if BUFFERS == 4
    if (end > BEGIN) {
        store_keys(K_AT);
        store_values(V_AT, masked_values(BEGIN));
    }
#endif
#if SPLIT_LOOPS
    [[dont_unroll]] for (; first_key < clear; first_key += KEYS) add_tile(first_key, first_key + KEYS, false);
    [[dont_unroll]] for (; first_key < end; first_key += KEYS) add_tile(first_key, first_key + KEYS, true);
#else
    [[dont_unroll]] for (; first_key < end; first_key += KEYS) add_tile(first_key, first_key + KEYS, first_key >= clear);
#endif
#endif

    barrier();  // the last tile has been read from where rows are gathered
    if (poisoned == 0u) {
#if WHOLE_ROWS
        if (MERGE == 0) store_whole_rows();
        else
#endif
        store_rows();
    } else {
        compute_rows();
    }
}
