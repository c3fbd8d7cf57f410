// How workgroups that share outputs and divide the depth ("splits") make one result: each leaves its sums in `parts`, and
// the last one to finish of a team, the workgroups with the same outputs, adds those of all splits in their own order, so
// results do not depend on who comes last.
// Bindings  5 parts float32, laid out by the including shader; 6 arrived (teams), zero before the dispatch and after it
//     A dispatch that uses the same two buffers must wait for this one.
layout(set = 0, binding = 5, std430) coherent restrict buffer Parts { float parts[]; };
layout(set = 0, binding = 6, std430) coherent restrict buffer Arrived { uint arrived[]; };

shared uint is_last;

#ifndef REACH
#define REACH gl_ScopeQueueFamily
#endif
#include "last-of-team.glsl"
