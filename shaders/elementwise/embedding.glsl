// What the kernels of embeddings share: which row an id asks for.

#ifndef GRILLY_EMBEDDING_GLSL
#define GRILLY_EMBEDDING_GLSL

#include "arrays/words.glsl"

layout(constant_id = 0) const uint TYPE_IDS = 5u;

// Ids below 0 count from the end; what is out of bounds is the row at the end that is nearest, as in arrays/map.comp.
uint row_of(uvec2 raw, uint extent) {
    uvec2 id = natural(TYPE_IDS, raw);
    if (minus64(id)) id = add64(id, uvec2(extent, 0u));
    if (minus64(id)) return 0u;
    return id.y != 0u ? extent - 1u : min(id.x, extent - 1u);
}

#endif
