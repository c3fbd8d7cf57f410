// A workgroup of SUBGROUPS full subgroups of SUBGROUP invocations, and how the invocations of one wait for each other. With
// GL_KHR_shader_subgroup_basic; LOCKSTEP is defined where a subgroup's invocations run in lockstep.

#ifndef GRILLY_SUBGROUPS_GLSL
#define GRILLY_SUBGROUPS_GLSL

// Within a branch that only some subgroups of a workgroup take. llvmpipe would wait there for the whole workgroup; its
// subgroups run in lockstep and need memory order only.
#ifdef LOCKSTEP
#define SYNC_SUBGROUP subgroupMemoryBarrierShared()
#else
#define SYNC_SUBGROUP subgroupBarrier()
#endif

#define THREADS (SUBGROUPS * SUBGROUP)
layout(local_size_x = THREADS, local_size_y = 1, local_size_z = 1) in;

#define ELEMENTS 8  // of an accumulator, that an invocation holds
#define PER_THREAD(vectors) (((vectors) + THREADS - 1) / THREADS)

#endif
