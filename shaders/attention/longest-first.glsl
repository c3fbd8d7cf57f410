// Which tile of which head a workgroup takes where a causal mask makes some tiles longer than others. Workgroups start in the
// order of their numbers. So the longest tiles of all heads come first, and short ones fill the gaps at the end; head by head,
// the last heads' longest tiles would begin when all others have ended. But heads that take turns share the cache: they are no
// more than it holds the reading of.

#define CACHED (16u << 20)  // bytes: a third of an H200's cache

// The tile's number among those of its head, the longest first. `head` and `batch` are found by the workgroup's place, and
// changed. The workgroups of a head read `bytes`, and `heads_alike` neighbouring heads the same ones.
uint longest_first(uint bytes, uint heads_alike, inout uint head, inout uint batch) {
    uint tiles = gl_NumWorkGroups.x, heads = gl_NumWorkGroups.y, all = heads * gl_NumWorkGroups.z;
    uint most = max(CACHED / max(bytes, 1u), 1u) * heads_alike, rounds = (all + most - 1u) / most;
    uint held = (all + rounds - 1u) / rounds;  // heads of a round
    uint place = (batch * heads + head) * tiles + gl_WorkGroupID.x;
    uint first = place / (held * tiles) * held, turn = min(held, all - first);
    place -= first * tiles;
    uint found = first + place % turn;
    head = found % heads;
    batch = found / heads;
    return place / turn;
}
