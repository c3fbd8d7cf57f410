// What attention/extras.glsl has, as far as rows of q and o are concerned.

#extension GL_KHR_shader_subgroup_arithmetic : require

#define ROW_PLACE(row) (row_start() + (row))
#define ANYWHERE on(PAGED)

#define SINK(decay) \
    float decay; \
    add_sink(row, row_top, row_sum, decay);
#define SINK_AND_DROP(decay) \
    SINK(decay) \
    if (on(DROPOUT)) decay *= number(KEEP_SCALE);
#define UNSINK(share, decay) share *= decay;

// For recompute.glsl.
#define VISIBLE_KEYS(row) visible_keys(row, row)
#if TILED
#define FIND_SEEN(row, key) \
    bool seen = key < visible && mask_mod(row, key); \
    if (seen) seen = tile_class(batch, head, row / ROWS, key / KEYS) != TILE_EMPTY;
#else
#define FIND_SEEN(row, key) bool seen = key < visible && mask_mod(row, key);
#endif
#define SEEN(key) seen
#define SCORE_MOD(score) if (HAS_SCORE_MOD) score = score_mod(score, row, key);
#define DROP(p) if (on(DROPOUT) && p != 0.0) p *= dropout_factor(row, key);
